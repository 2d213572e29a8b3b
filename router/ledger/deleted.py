"""Chats that were deleted, remembered for a day: what is still under way in one must not be kept afterwards.

Lines are written a moment after an answer, or much later where the file was locked, and an answer may come to
its end after its chat is gone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

REMEMBER_S = 86_400.0


def remember_deleted_chats(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE deleted_chats (chat_id TEXT PRIMARY KEY, deleted REAL NOT NULL) WITHOUT ROWID"
    )


def note_deleted(connection: sqlite3.Connection, chat_ids: Sequence[str], now: float) -> None:
    """The chats are deleted, at `now` in Unix seconds."""
    connection.executemany(
        "INSERT OR REPLACE INTO deleted_chats VALUES (?, ?)", [(chat_id, now) for chat_id in chat_ids]
    )
    connection.execute("DELETE FROM deleted_chats WHERE deleted < ?", (now - REMEMBER_S,))


def is_deleted(connection: sqlite3.Connection, chat_id: str | None) -> bool:
    found = connection.execute("SELECT 1 FROM deleted_chats WHERE chat_id = ?", (chat_id,))
    return found.fetchone() is not None
