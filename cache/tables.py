"""The tables of kept answers in `cache.db`, and what the semantic tier has seen."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from edgecloud.storage import Migration


def create_answers(connection: sqlite3.Connection) -> None:
    for statement in (
        # Numbers are never used again: the index in memory knows by the highest one how far it has come.
        """CREATE TABLE answers (
            number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, scope TEXT NOT NULL,
            exact BLOB, partition BLOB, wording BLOB, answerer TEXT NOT NULL,
            prompt TEXT NOT NULL, answer BLOB NOT NULL,
            completion_tokens INTEGER NOT NULL, created REAL NOT NULL, expires REAL NOT NULL,
            seconds REAL NOT NULL, cost REAL NOT NULL, bytes INTEGER NOT NULL,
            hits INTEGER NOT NULL DEFAULT 0, used REAL NOT NULL,
            confirmed INTEGER NOT NULL DEFAULT 0, denied INTEGER NOT NULL DEFAULT 0,
            blocked INTEGER NOT NULL DEFAULT 0)""",
        "CREATE INDEX answers_by_exact ON answers (exact) WHERE exact IS NOT NULL",
        "CREATE INDEX answers_by_wording ON answers (wording) WHERE wording IS NOT NULL",
        "CREATE INDEX answers_by_partition ON answers (partition) WHERE partition IS NOT NULL",
        "CREATE INDEX answers_by_expiry ON answers (expires)",
        """CREATE TABLE vectors (
            number INTEGER PRIMARY KEY REFERENCES answers ON DELETE CASCADE,
            partition BLOB NOT NULL, code BLOB NOT NULL, vector BLOB NOT NULL)""",
        "CREATE INDEX codes_by_partition ON vectors (partition, number, code)",
        """CREATE TABLE owners (
            number INTEGER NOT NULL REFERENCES answers ON DELETE CASCADE, chat_id TEXT NOT NULL,
            PRIMARY KEY (number, chat_id)) WITHOUT ROWID""",
        "CREATE INDEX owners_by_chat ON owners (chat_id)",
        """CREATE TABLE lookups (
            number INTEGER PRIMARY KEY AUTOINCREMENT, domain BLOB NOT NULL, entry_id TEXT, logit REAL,
            added INTEGER NOT NULL, replaced INTEGER NOT NULL, served INTEGER NOT NULL,
            audited INTEGER NOT NULL, same INTEGER, blamed INTEGER NOT NULL DEFAULT 0)""",
        "CREATE INDEX lookups_by_domain ON lookups (domain, number)",
        "CREATE INDEX lookups_by_entry ON lookups (entry_id)",
        """CREATE TABLE policies (
            domain BLOB PRIMARY KEY, scope TEXT NOT NULL, bound REAL NOT NULL, lookup INTEGER NOT NULL,
            policy TEXT NOT NULL) WITHOUT ROWID""",
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID",
    ):
        connection.execute(statement)


def know_requests(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE answers ADD COLUMN request_id TEXT")
    connection.execute("CREATE INDEX answers_by_request ON answers (request_id) WHERE request_id IS NOT NULL")


def know_deleted_chats(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE forgotten_chats (chat_id TEXT PRIMARY KEY, deleted REAL NOT NULL) WITHOUT ROWID"
    )


def know_pieces(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE answers ADD COLUMN in_pieces INTEGER NOT NULL DEFAULT 1")


def know_gists(connection: sqlite3.Connection) -> None:
    # What was kept before has none, and no voice in what its neighbours are worth.
    connection.execute("ALTER TABLE answers ADD COLUMN gist TEXT")


MIGRATIONS: Sequence[Migration] = (
    create_answers,
    know_requests,
    know_deleted_chats,
    know_pieces,
    know_gists,
)
