"""The tables of the ledger. Money is in whole nano, times are Unix seconds."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from edgecloud.storage import Migration

from .crashed import name_engines
from .deleted import remember_deleted_chats
from .key_tokens import sum_key_tokens
from .precedents import create_precedents


def create_ledger(connection: sqlite3.Connection) -> None:
    for statement in (
        """CREATE TABLE spent (
            account TEXT NOT NULL, period TEXT NOT NULL, nano INTEGER NOT NULL,
            PRIMARY KEY (account, period)) WITHOUT ROWID""",
        """CREATE TABLE reservations (
            account TEXT NOT NULL, period TEXT NOT NULL, request_id TEXT NOT NULL, nano INTEGER NOT NULL,
            owner_pid INTEGER NOT NULL, owner_started REAL NOT NULL, beat REAL NOT NULL,
            PRIMARY KEY (account, period, request_id)) WITHOUT ROWID""",
        "CREATE INDEX reservations_by_request ON reservations (request_id)",
        """CREATE TABLE requests (
            id TEXT PRIMARY KEY, created REAL NOT NULL, day TEXT NOT NULL, door TEXT NOT NULL, tenant TEXT,
            chat_id TEXT, engine TEXT NOT NULL, model TEXT NOT NULL, mode TEXT NOT NULL,
            outcome TEXT NOT NULL, cache TEXT NOT NULL, prompt_tokens INTEGER NOT NULL,
            cached_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, ttft_s REAL NOT NULL,
            total_s REAL NOT NULL, tokens_per_s REAL NOT NULL, nano INTEGER NOT NULL,
            receipt TEXT NOT NULL) WITHOUT ROWID""",
        "CREATE INDEX requests_by_day ON requests (day, engine)",
        "CREATE INDEX requests_by_created ON requests (created)",
        "CREATE INDEX requests_by_chat ON requests (chat_id) WHERE chat_id IS NOT NULL",
        """CREATE TABLE attempts (
            number INTEGER PRIMARY KEY, request_id TEXT NOT NULL, engine TEXT NOT NULL,
            replica TEXT NOT NULL, started REAL NOT NULL, seconds REAL, outcome TEXT NOT NULL,
            prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
            completion_tokens INTEGER NOT NULL, nano INTEGER NOT NULL, at_least INTEGER NOT NULL,
            accounts TEXT NOT NULL)""",
        "CREATE INDEX attempts_by_request ON attempts (request_id)",
        "CREATE INDEX attempts_by_engine ON attempts (engine, started)",
        """CREATE TABLE decisions (
            request_id TEXT PRIMARY KEY, created REAL NOT NULL, tenant TEXT, chat_id TEXT,
            json TEXT NOT NULL) WITHOUT ROWID""",
        "CREATE INDEX decisions_by_created ON decisions (created)",
        "CREATE INDEX decisions_by_chat ON decisions (chat_id) WHERE chat_id IS NOT NULL",
        """CREATE TABLE private_sessions (
            session TEXT PRIMARY KEY, updated REAL NOT NULL, json TEXT NOT NULL) WITHOUT ROWID""",
        """CREATE TABLE engines (
            name TEXT PRIMARY KEY, updated REAL NOT NULL, json TEXT NOT NULL) WITHOUT ROWID""",
    ):
        connection.execute(statement)


MIGRATIONS: Sequence[Migration] = (
    create_ledger,
    remember_deleted_chats,
    create_precedents,
    name_engines,
    sum_key_tokens,
)
