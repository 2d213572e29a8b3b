"""The tables of saved states in `prefixes.db`.

They have a file of their own: one of them is a thousand times an answer's size, and `cache.db` must not be
locked while it is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from edgecloud.storage import Migration


def create_states(connection: sqlite3.Connection) -> None:
    for statement in (
        # `lock` names the key that a row is encrypted with, empty where it is not. A row whose writer died
        # before it was `complete` is rubbish.
        """CREATE TABLE states (
            number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind BLOB NOT NULL,
            model TEXT NOT NULL, lock BLOB NOT NULL, tokens BLOB NOT NULL, tokens_check BLOB NOT NULL,
            num_tokens INTEGER NOT NULL, bytes INTEGER NOT NULL, created REAL NOT NULL, used REAL NOT NULL,
            hits INTEGER NOT NULL DEFAULT 0, complete INTEGER NOT NULL DEFAULT 0,
            writer INTEGER NOT NULL, writer_started REAL NOT NULL)""",
        "CREATE INDEX states_by_use ON states (used)",
        """CREATE TABLE chunks (
            state INTEGER NOT NULL REFERENCES states ON DELETE CASCADE, position INTEGER NOT NULL,
            data BLOB NOT NULL, data_check BLOB NOT NULL, PRIMARY KEY (state, position))""",
        """CREATE TABLE blocks (
            hash BLOB NOT NULL, state INTEGER NOT NULL REFERENCES states ON DELETE CASCADE,
            depth INTEGER NOT NULL, PRIMARY KEY (hash, state)) WITHOUT ROWID""",
        "CREATE INDEX blocks_by_state ON blocks (state)",
        """CREATE TABLE state_owners (
            state INTEGER NOT NULL REFERENCES states ON DELETE CASCADE, chat_id TEXT NOT NULL,
            PRIMARY KEY (state, chat_id)) WITHOUT ROWID""",
        "CREATE INDEX state_owners_by_chat ON state_owners (chat_id)",
        # A process that still has a deleted chat's prefix in memory must not save it afterwards.
        "CREATE TABLE deleted_chats (chat_id TEXT PRIMARY KEY, deleted REAL NOT NULL) WITHOUT ROWID",
        "CREATE TABLE salts (salt BLOB NOT NULL)",
    ):
        connection.execute(statement)


MIGRATIONS: Sequence[Migration] = (create_states,)
