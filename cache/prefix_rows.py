"""Rows of saved states: who is found by which hash, who owns what, and who goes first.

Times are seconds since the epoch and come in as arguments. Whatever writes does so inside the caller's
transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from edgecloud.owner import Owner, this_process
from edgecloud.storage import marks

from .prefix_key import StateKind, Tokens

_MANY = 500
_CANDIDATES = 4
_DAY_S = 86_400.0
_REMEMBER_S = 30 * _DAY_S
"""How long a deleted chat is remembered: no process keeps its prefix in memory for so long."""

MIN_PREFIX = 4


class PrefixEntry(NamedTuple):
    """One saved state as a person sees it. Times are seconds since the epoch."""

    id: str
    model: str
    num_tokens: int
    bytes: int
    created: float
    used: float
    expires: float
    hits: int
    encrypted: bool
    chats: tuple[str, ...]


class PrefixStats(NamedTuple):
    """`spared_tokens` were not computed again thanks to the states that are there now, at most."""

    states: int
    bytes: int
    limit_bytes: int
    hits: int
    spared_tokens: int


def tokens_of(data: bytes) -> Tokens:
    """Tokens as they were stored."""
    return np.frombuffer(data, "<i4")


def deepest(
    connection: sqlite3.Connection, links: Sequence[bytes], most_tokens: int, oldest: float
) -> list[int]:
    """States that share the most whole blocks with these links, the last used first.

    Of at most `most_tokens` tokens, and used since `oldest`.
    """
    for start in range((len(links) - 1) // _MANY * _MANY if links else -1, -1, -_MANY):
        some = links[start : start + _MANY]
        found = connection.execute(
            f"""SELECT state, depth FROM blocks JOIN states ON number = state
                WHERE hash IN ({marks(some)}) AND num_tokens <= ? AND used >= ?
                ORDER BY depth DESC, used DESC LIMIT ?""",
            (*some, most_tokens, oldest, _CANDIDATES),
        ).fetchall()
        if found:
            return [number for number, depth in found if depth == found[0][1]]
    return []


def linked(connection: sqlite3.Connection, links: Sequence[bytes]) -> list[tuple[int, int]]:
    """States that share their first block with these links, and how many tokens each has."""
    return connection.execute(
        "SELECT state, num_tokens FROM blocks JOIN states ON number = state WHERE hash = ?", (links[0],)
    ).fetchall()


def of_chat_only(connection: sqlite3.Connection, chat_id: str, kind: StateKind) -> list[int]:
    """States of one kind that this chat owns and no other."""
    return _numbers(
        connection.execute(
            """SELECT number FROM states JOIN state_owners AS own ON own.state = number
               WHERE own.chat_id = ? AND kind = ? AND NOT EXISTS
               (SELECT 1 FROM state_owners WHERE state = number AND chat_id != own.chat_id)""",
            (chat_id, kind.digest()),
        )
    )


def insert(
    connection: sqlite3.Connection,
    state_id: str,
    kind: StateKind,
    lock: bytes,
    sealed_tokens: tuple[bytes | memoryview, bytes],
    num_tokens: int,
    num_bytes: int,
    now: float,
) -> int:
    """A state that nobody finds yet; its number."""
    writer = this_process()
    (number,) = connection.execute(
        """INSERT INTO states (id, kind, model, lock, tokens, tokens_check, num_tokens, bytes, created, used,
                               writer, writer_started)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number""",
        (
            state_id, kind.digest(), kind.model, lock, *sealed_tokens, num_tokens, num_bytes, now, now,
            writer.pid, writer.started,
        ),
    ).fetchone()  # fmt: skip
    return int(number)


def add_chunk(
    connection: sqlite3.Connection, number: int, position: int, data: bytes | memoryview, check: bytes
) -> bool:
    """Add a piece to a state; False if somebody deleted the state."""
    added = connection.execute(
        "INSERT INTO chunks SELECT number, ?, ?, ? FROM states WHERE number = ?",
        (position, data, check, number),
    )
    return bool(added.rowcount)


def publish(connection: sqlite3.Connection, number: int, links: Sequence[bytes], chat_id: str) -> bool:
    """Let a complete state be found; False if somebody deleted it."""
    if not connection.execute("UPDATE states SET complete = 1 WHERE number = ?", (number,)).rowcount:
        return False
    connection.executemany(
        "INSERT INTO blocks VALUES (?, ?, ?)", [(link, number, depth) for depth, link in enumerate(links)]
    )
    add_owner(connection, number, chat_id)
    return True


def add_owner(connection: sqlite3.Connection, number: int, chat_id: str) -> None:
    connection.execute("INSERT OR IGNORE INTO state_owners VALUES (?, ?)", (number, chat_id))


def is_deleted(connection: sqlite3.Connection, chat_id: str) -> bool:
    found = connection.execute("SELECT 1 FROM deleted_chats WHERE chat_id = ?", (chat_id,))
    return found.fetchone() is not None


def delete_chats(connection: sqlite3.Connection, chat_ids: Collection[str], now: float) -> int:
    """Delete the states that only these chats own, and remember the chats; how many states went."""
    removed = 0
    for chat_id in chat_ids:
        owned = _numbers(connection.execute("SELECT state FROM state_owners WHERE chat_id = ?", (chat_id,)))
        connection.execute("DELETE FROM state_owners WHERE chat_id = ?", (chat_id,))
        orphans = [
            number
            for number in owned
            if not connection.execute("SELECT 1 FROM state_owners WHERE state = ?", (number,)).fetchone()
        ]
        removed += remove(connection, orphans)
        connection.execute("INSERT OR REPLACE INTO deleted_chats VALUES (?, ?)", (chat_id, now))
    connection.execute("DELETE FROM deleted_chats WHERE deleted < ?", (now - _REMEMBER_S,))
    return removed


def remove(connection: sqlite3.Connection, numbers: Sequence[int]) -> int:
    """Delete states and all that hangs on them; how many there were."""
    return sum(
        connection.execute("DELETE FROM states WHERE number = ?", (number,)).rowcount for number in numbers
    )


def trim(connection: sqlite3.Connection, limit_bytes: int, oldest: float) -> int:
    """Delete what was not used since `oldest`, then the least recently used until the rest fits."""
    removed = connection.execute("DELETE FROM states WHERE used < ? AND complete = 1", (oldest,)).rowcount
    (total,) = connection.execute("SELECT coalesce(sum(bytes), 0) FROM states").fetchone()
    for number, size in connection.execute(
        "SELECT number, bytes FROM states WHERE complete = 1 ORDER BY used, number"
    ).fetchall():
        if total <= limit_bytes:
            break
        removed += remove(connection, [number])
        total -= size
    return removed


def abandoned(connection: sqlite3.Connection) -> list[int]:
    """States whose writer died in the middle."""
    unfinished = connection.execute("SELECT number, writer, writer_started FROM states WHERE complete = 0")
    return [number for number, pid, started in unfinished if Owner(pid, started).state() != "alive"]


def salt(connection: sqlite3.Connection) -> bytes:
    """The file's own salt, made when it is first asked for."""
    connection.execute("INSERT INTO salts SELECT ? WHERE NOT EXISTS (SELECT 1 FROM salts)", (os.urandom(16),))
    (found,) = connection.execute("SELECT salt FROM salts").fetchone()
    return bytes(found)


def entries(connection: sqlite3.Connection, lifetime_s: float, limit: int) -> list[PrefixEntry]:
    """Saved states, the last used first."""
    return _entries(connection, lifetime_s, "ORDER BY used DESC, number DESC LIMIT ?", (limit,))


def resolve(connection: sqlite3.Connection, lifetime_s: float, name: str) -> list[PrefixEntry]:
    """The states whose id is the name or begins with it, with or without `pre-`.

    None for a beginning of under `MIN_PREFIX` digits, which could be any.
    """
    stem = "pre-" + name.removeprefix("pre-")
    if len(stem) < len("pre-") + MIN_PREFIX:
        return []
    return _entries(connection, lifetime_s, "AND id >= ? AND id < ? ORDER BY id LIMIT 3", (stem, stem + "g"))


def stats(connection: sqlite3.Connection, limit_bytes: int) -> PrefixStats:
    found = connection.execute(
        """SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(hits), 0),
                  coalesce(sum(hits * num_tokens), 0) FROM states WHERE complete = 1"""
    ).fetchone()
    return PrefixStats(found[0], found[1], limit_bytes, found[2], found[3])


def _entries(
    connection: sqlite3.Connection, lifetime_s: float, rest: str, arguments: tuple[str | int, ...]
) -> list[PrefixEntry]:
    found = connection.execute(
        f"""SELECT id, model, num_tokens, bytes, created, used, used + ?, hits, lock != x'',
                   (SELECT group_concat(chat_id, ' ') FROM state_owners WHERE state = number)
            FROM states WHERE complete = 1 {rest}""",
        (lifetime_s, *arguments),
    )
    return [PrefixEntry._make((*row[:8], bool(row[8]), tuple((row[9] or "").split()))) for row in found]


def _numbers(cursor: sqlite3.Cursor) -> list[int]:
    return [number for (number,) in cursor]
