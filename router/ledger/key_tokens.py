"""Tokens that engines took for the requests of each API key, summed by local day: a key's quota is looked up,
however much was asked.
"""

from __future__ import annotations

import sqlite3

from .entries import RequestEntry
from .reading import HITS


def sum_key_tokens(connection: sqlite3.Connection) -> None:
    """A migration: sums of what was asked until now, as far as a quota may still want it."""
    connection.execute(
        """CREATE TABLE key_tokens (
            tenant TEXT NOT NULL, day TEXT NOT NULL, tokens INTEGER NOT NULL,
            PRIMARY KEY (tenant, day)) WITHOUT ROWID"""
    )
    connection.execute(
        """INSERT INTO key_tokens SELECT tenant, day, sum(prompt_tokens + completion_tokens) FROM requests
           WHERE day >= date('now', '-2 days') AND tenant IS NOT NULL AND cache NOT IN (?, ?)
           GROUP BY tenant, day""",
        HITS,
    )


def add(connection: sqlite3.Connection, entry: RequestEntry, day: str) -> None:
    """Count a request; a kept answer took none."""
    receipt = entry.receipt
    if entry.tenant is not None and receipt.cache.verdict not in HITS:
        connection.execute(
            """INSERT INTO key_tokens VALUES (?, ?, ?)
               ON CONFLICT DO UPDATE SET tokens = tokens + excluded.tokens""",
            (entry.tenant, day, receipt.prompt_tokens + receipt.completion_tokens),
        )


def on(connection: sqlite3.Connection, tenant: str, day: str) -> int:
    """Tokens asked and answered with a key on a local day (`2026-11-30`)."""
    row = connection.execute(
        "SELECT tokens FROM key_tokens WHERE tenant = ? AND day = ?", (tenant, day)
    ).fetchone()
    return row[0] if row else 0
