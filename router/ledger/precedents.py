"""Where like questions went, for toss-ups of every process: the vectors of the last ones, and no text."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import NamedTuple

from .deleted import is_deleted
from .entries import Precedent

KEPT = 512
"""Questions that are kept, the newest; a row is under a kilobyte."""


class KeptPrecedents(NamedTuple):
    """`newer` are the rows after the number that was asked for, the oldest first; of all there are `size`,
    from the number `first` on: whoever knows others in between knows what was deleted. `over` are the
    requests, of those asked about, whose precedent is among these or nowhere.
    """

    newer: Sequence[tuple[int, Precedent]]
    first: int
    size: int
    over: frozenset[str]


def create_precedents(connection: sqlite3.Connection) -> None:
    # A number that was deleted is never another's: that is how it is noticed to be gone.
    connection.execute(
        """CREATE TABLE precedents (
            number INTEGER PRIMARY KEY AUTOINCREMENT, request_id TEXT NOT NULL UNIQUE, chat_id TEXT NOT NULL,
            engine TEXT NOT NULL, mode TEXT NOT NULL, tenant TEXT, fingerprint TEXT NOT NULL,
            vector BLOB NOT NULL)"""
    )
    connection.execute("CREATE INDEX precedents_by_chat ON precedents (chat_id)")


def write(connection: sqlite3.Connection, precedent: Precedent) -> None:
    """Keep one that has a chat to be deleted with; the oldest goes."""
    number = connection.execute(
        """INSERT OR REPLACE INTO precedents (request_id, chat_id, engine, mode, tenant, fingerprint, vector)
           VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (
            precedent.request_id,
            precedent.chat_id,
            precedent.engine,
            precedent.mode,
            precedent.tenant,
            precedent.fingerprint,
            precedent.vector,
        ),
    ).lastrowid
    connection.execute("DELETE FROM precedents WHERE number <= ? - ?", (number, KEPT))


def forget(connection: sqlite3.Connection, chat_id: str) -> None:
    """Forget what was decided in a chat."""
    connection.execute("DELETE FROM precedents WHERE chat_id = ?", (chat_id,))


def read(connection: sqlite3.Connection, after: int, pending: Collection[Precedent]) -> KeptPrecedents:
    """What there is after a number (0 for all), and which of the `pending` are no longer: their request is
    settled, or its chat deleted.
    """
    first, size = connection.execute("SELECT coalesce(min(number), 0), count(*) FROM precedents").fetchone()
    rows = connection.execute(
        """SELECT number, request_id, chat_id, engine, mode, tenant, fingerprint, vector FROM precedents
           WHERE number > ? ORDER BY number""",
        (after,),
    ).fetchall()
    over = frozenset(each.request_id for each in pending if _is_over(connection, each))
    return KeptPrecedents([(number, Precedent(*row)) for number, *row in rows], first, size, over)


def _is_over(connection: sqlite3.Connection, precedent: Precedent) -> bool:
    settled = connection.execute("SELECT 1 FROM requests WHERE id = ?", (precedent.request_id,))
    return settled.fetchone() is not None or is_deleted(connection, precedent.chat_id)
