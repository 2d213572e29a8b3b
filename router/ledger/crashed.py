"""Requests whose process ended before their answer did: a line says that what was set aside is spent."""

from __future__ import annotations

import sqlite3

from edgecloud.types import CacheInfo, Receipt

from ..money import amount
from .accounts import write_request
from .deleted import is_deleted
from .entries import Orphan, RequestEntry

CRASHED = "crashed"
REASON = "its process ended before its answer did, so all that was set aside for it counts as spent"


def name_engines(connection: sqlite3.Connection) -> None:
    """A migration: who was to be paid from a reservation."""
    connection.execute("ALTER TABLE reservations ADD COLUMN engine TEXT NOT NULL DEFAULT ''")


def write(connection: sqlite3.Connection, orphan: Orphan, currency: str) -> None:
    """Write how the request ended."""
    receipt = Receipt(
        id=orphan.request_id,
        engine=orphan.engine,
        model=orphan.engine,
        variant="",
        mode="auto",
        reason=REASON,
        attempts=(),
        cache=CacheInfo(),
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        queue_s=0.0,
        ttft_s=0.0,
        total_s=0.0,
        tokens_per_s=0.0,
        cost=amount(orphan.nano),
        currency=currency,
    )
    chat_id = None if is_deleted(connection, orphan.chat_id) else orphan.chat_id
    entry = RequestEntry(receipt, orphan.beat, "", orphan.tenant, chat_id, CRASHED, orphan.nano)
    write_request(connection, entry)
