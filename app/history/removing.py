"""Removing chats for good: from the tables, the search index, the free pages and the write-ahead log."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from edgecloud.storage import transaction, truncate_wal

from .tables import drop_content, get_state, set_state


@dataclass(frozen=True, slots=True)
class Removal:
    """`purged` is False while another process keeps old pages readable; the next `recover` tries again."""

    num_chats: int
    num_messages: int
    purged: bool


def remove(connection: sqlite3.Connection, chat_ids: Sequence[str]) -> Removal:
    """Delete chats and what only they hold, then purge."""
    num_chats = num_messages = 0
    with transaction(connection):
        for chat_id in chat_ids:
            of_chat = (chat_id,)
            contents = connection.execute(
                "SELECT DISTINCT content_id FROM messages WHERE chat_id = ? AND content_id IS NOT NULL",
                of_chat,
            ).fetchall()
            connection.execute(
                "DELETE FROM slices WHERE message_id IN (SELECT id FROM messages WHERE chat_id = ?)",
                of_chat,
            )
            num_messages += connection.execute("DELETE FROM messages WHERE chat_id = ?", of_chat).rowcount
            num_chats += connection.execute("DELETE FROM chats WHERE id = ?", of_chat).rowcount
            for (content_id,) in contents:
                drop_content(connection, content_id)
        set_state(connection, "removed", 1)
        set_state(connection, "purge_pending", 1)
    return Removal(num_chats, num_messages, purged=purge(connection))


def was_removed(connection: sqlite3.Connection, chat_id: str) -> bool:
    """Whether a chat that was kept here once was removed since, which no chat was from a file that is new:
    one whose file somebody deleted, or took away, is written again.
    """
    is_there = connection.execute("SELECT 1 FROM chats WHERE id = ?", (chat_id,)).fetchone()
    return is_there is None and bool(get_state(connection, "removed"))


def expired(connection: sqlite3.Connection, before: float) -> list[str]:
    """The chats last used before this moment, but for those that are being answered."""
    rows = connection.execute(
        """SELECT id FROM chats WHERE updated < ? AND NOT EXISTS
           (SELECT 1 FROM messages WHERE chat_id = chats.id AND status = 'running')""",
        (before,),
    )
    return [id for (id,) in rows]


def purge(connection: sqlite3.Connection) -> bool:
    """Wipe deleted text from the files; False while another process keeps old pages readable."""
    if get_state(connection, "indexed"):
        # The index marks words as deleted, and keeps them, until its segments are merged.
        with transaction(connection):
            connection.execute("INSERT INTO contents_index (contents_index) VALUES ('optimize')")
    if not truncate_wal(connection):
        return False
    with transaction(connection):
        set_state(connection, "purge_pending", 0)
    return True


def purge_if_pending(connection: sqlite3.Connection) -> None:
    """Finish a purge that another process's reading blocked."""
    if get_state(connection, "purge_pending"):
        purge(connection)
