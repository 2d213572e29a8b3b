"""The tables of the history, and the statements that more than one of its parts makes.

chats ──< messages (a tree: parent) >── contents (each text once, by hash)
             └──< slices: the answer as it streams, folded into `contents` at its end
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from edgecloud.storage import Migration
from edgecloud.types import Message

from ..chats import Content, Seam, storable


def create_history(connection: sqlite3.Connection) -> None:
    for statement in (
        """CREATE TABLE chats (
            id TEXT PRIMARY KEY, title TEXT NOT NULL, door TEXT NOT NULL, tenant TEXT, model TEXT NOT NULL,
            created REAL NOT NULL, updated REAL NOT NULL, head TEXT) WITHOUT ROWID""",
        "CREATE INDEX chats_by_update ON chats (updated)",
        # Ids are never used again: the full-text index knows by the highest one how far it has come.
        """CREATE TABLE contents (
            id INTEGER PRIMARY KEY AUTOINCREMENT, hash BLOB NOT NULL UNIQUE,
            role TEXT NOT NULL, text TEXT NOT NULL, extra TEXT)""",
        """CREATE TABLE messages (
            number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
            chat_id TEXT NOT NULL REFERENCES chats ON DELETE CASCADE,
            parent_id TEXT, path BLOB, content_id INTEGER REFERENCES contents, reasoning TEXT,
            status TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
            model TEXT NOT NULL DEFAULT '', finish_reason TEXT, error TEXT, receipt_id TEXT,
            owner_pid INTEGER, owner_started REAL)""",
        "CREATE INDEX messages_by_chat ON messages (chat_id)",
        "CREATE INDEX messages_by_path ON messages (path)",
        "CREATE INDEX messages_by_content ON messages (content_id)",
        "CREATE INDEX messages_running ON messages (status) WHERE status = 'running'",
        """CREATE TABLE slices (
            number INTEGER PRIMARY KEY, message_id TEXT NOT NULL,
            text TEXT NOT NULL, reasoning TEXT NOT NULL)""",
        "CREATE INDEX slices_by_message ON slices (message_id)",
        """CREATE TABLE receipts (
            id TEXT PRIMARY KEY, chat_id TEXT NOT NULL REFERENCES chats ON DELETE CASCADE,
            created REAL NOT NULL, json TEXT NOT NULL) WITHOUT ROWID""",
        "CREATE INDEX receipts_by_chat ON receipts (chat_id)",
        "CREATE TABLE history_state (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    ):
        connection.execute(statement)


def create_chat_notes(connection: sqlite3.Connection) -> None:
    connection.execute(
        """CREATE TABLE chat_notes (
            chat_id TEXT PRIMARY KEY REFERENCES chats ON DELETE CASCADE,
            json TEXT NOT NULL, read REAL) WITHOUT ROWID"""
    )


def add_seams(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE messages ADD COLUMN seams TEXT")  # JSON: [[position, text], …]


MIGRATIONS: Sequence[Migration] = (create_history, create_chat_notes, add_seams)


def store_content(connection: sqlite3.Connection, message: Message) -> tuple[int, bytes]:
    content = Content.of(message)
    row = connection.execute("SELECT id FROM contents WHERE hash = ?", (content.digest,)).fetchone()
    if row is None:
        row = connection.execute(
            "INSERT INTO contents (hash, role, text, extra) VALUES (?, ?, ?, ?) RETURNING id",
            (content.digest, *content),
        ).fetchone()
    return row[0], content.digest


def drop_content(connection: sqlite3.Connection, content_id: int) -> None:
    """Delete a content that no message holds any more."""
    if connection.execute("SELECT 1 FROM messages WHERE content_id = ? LIMIT 1", (content_id,)).fetchone():
        return
    if content_id <= get_state(connection, "indexed"):
        connection.execute(
            """INSERT INTO contents_index (contents_index, rowid, text)
               SELECT 'delete', id, text FROM contents WHERE id = ?""",
            (content_id,),
        )
    connection.execute("DELETE FROM contents WHERE id = ?", (content_id,))


def store_slice(connection: sqlite3.Connection, message_id: str, text: str, reasoning: str = "") -> None:
    connection.execute(
        "INSERT INTO slices (message_id, text, reasoning) VALUES (?, ?, ?)",
        (message_id, storable(text), storable(reasoning)),
    )


def read_slices(connection: sqlite3.Connection, message_id: str) -> tuple[str, str]:
    slices = connection.execute(
        "SELECT text, reasoning FROM slices WHERE message_id = ? ORDER BY number", (message_id,)
    ).fetchall()
    return "".join(text for text, _ in slices), "".join(reasoning for _, reasoning in slices)


def pack_seams(seams: Sequence[Seam]) -> str | None:
    return json.dumps([[seam.position, storable(seam.text)] for seam in seams]) if seams else None


def unpack_seams(packed: str | None) -> tuple[Seam, ...]:
    return tuple(Seam(position, text) for position, text in json.loads(packed)) if packed else ()


def get_state(connection: sqlite3.Connection, key: str) -> int:
    row = connection.execute("SELECT value FROM history_state WHERE key = ?", (key,)).fetchone()
    return int(row[0]) if row else 0


def set_state(connection: sqlite3.Connection, key: str, value: int) -> None:
    connection.execute("INSERT OR REPLACE INTO history_state VALUES (?, ?)", (key, value))
