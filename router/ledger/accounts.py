"""Writing what was done, and putting it right when a price was wrong.

Each function is part of a transaction that its caller began.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from edgecloud.types import Usage

from . import key_tokens
from .entries import AttemptEntry, RequestEntry
from .reserving import spend

if TYPE_CHECKING:
    from ..budgets import Limit
    from ..money import Price


KEPT_DECISIONS = 20_000
"""Of so many of the last requests it can be told why; a decision takes a few kilobytes."""

KEPT_S = 400 * 86400.0
"""Lines are kept for a year and a month, seconds."""


def write_request(connection: sqlite3.Connection, entry: RequestEntry) -> None:
    """Write how a request ended."""
    receipt, day = entry.receipt, f"{datetime.fromtimestamp(entry.created):%Y-%m-%d}"
    key_tokens.add(connection, entry, day)
    connection.execute(
        "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            receipt.id,
            entry.created,
            day,
            entry.door,
            entry.tenant,
            entry.chat_id,
            receipt.engine,
            receipt.model,
            receipt.mode,
            entry.outcome,
            receipt.cache.verdict,
            receipt.prompt_tokens,
            receipt.cached_tokens,
            receipt.completion_tokens,
            receipt.ttft_s,
            receipt.total_s,
            receipt.tokens_per_s,
            entry.nano,
            json.dumps(dataclasses.asdict(receipt)),
        ),
    )


def write_attempts(
    connection: sqlite3.Connection, request_id: str, attempts: Sequence[AttemptEntry], limits: Sequence[Limit]
) -> None:
    """Write the attempts of a request, with the accounts that paid for them."""
    accounts = json.dumps([(limit.account, limit.period) for limit in limits])
    connection.executemany(
        "INSERT INTO attempts VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                request_id,
                each.engine,
                each.replica,
                each.started,
                each.seconds,
                each.outcome,
                each.usage.prompt_tokens,
                each.usage.cached_tokens,
                each.usage.completion_tokens,
                each.nano,
                each.at_least,
                accounts,
            )
            for each in attempts
        ],
    )


def tidy(connection: sqlite3.Connection, now: float) -> None:
    """Remove what nobody looks at any more: old decisions, the bulkiest, then lines of years ago. What was
    spent stays counted.
    """
    connection.execute(
        """DELETE FROM decisions WHERE created < (
               SELECT created FROM decisions ORDER BY created DESC LIMIT 1 OFFSET ?)""",
        (KEPT_DECISIONS,),
    )
    connection.execute("DELETE FROM requests WHERE created < ?", (now - KEPT_S,))
    connection.execute("DELETE FROM key_tokens WHERE day < date(?, 'unixepoch')", (now - KEPT_S,))
    connection.execute("DELETE FROM attempts WHERE started < ?", (now - KEPT_S,))


def reprice(connection: sqlite3.Connection, engine: str, price: Price, since: float) -> int:
    """Count the engine's attempts since then (Unix seconds) at this price; returns the difference in nano.

    Costs follow from the tokens that were written down, so a price that was wrong blocks nobody for long.
    """
    rows = connection.execute(
        """SELECT number, request_id, prompt_tokens, cached_tokens, completion_tokens, nano, accounts
           FROM attempts WHERE engine = ? AND started >= ?""",
        (engine, since),
    ).fetchall()
    difference = 0
    for number, request_id, prompt, cached, completion, before, accounts in rows:
        change = price.cost(Usage(prompt, completion, cached)) - before
        if not change:
            continue
        difference += change
        connection.execute("UPDATE attempts SET nano = nano + ? WHERE number = ?", (change, number))
        connection.execute("UPDATE requests SET nano = nano + ? WHERE id = ?", (change, request_id))
        for account, period in json.loads(accounts):
            spend(connection, account, period, change)
    return difference
