"""Kept answers in SQLite: by exact key, by number for the semantic tier, and out again.

Times are seconds since the epoch and come in as arguments. Methods raise what SQLite does; `answers.py`
turns it into one `StorageError`.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from edgecloud.storage import marks
from edgecloud.types import Done, EngineEvent, new_id

from .agreement import gist_of
from .index import encode
from .records import Answer, Embedded, Entry, Key, Vector, text_of
from .replay import pack, text_in, unpack

_DAY_S = 86_400.0
_MANY = 500
_NO_LIMIT = 2**62
_SECONDS_PER_COST = 3600.0
"""A unit of money is worth an hour of waiting when it is decided what to keep."""

MIN_PREFIX = 4

REMOVED = "removed"
"""The counter of entries that were deleted, by anybody."""

ENTRY_OVERHEAD = 600
"""Bytes of an entry besides its texts and its vector: columns, index rows, keys."""


class Row(NamedTuple):
    """One kept answer as lookups need it."""

    number: int
    id: str
    prompt: str
    answer: bytes
    created: float
    seconds: float
    cost: float
    confirmed: int
    denied: int
    answerer: str
    gist: str | None


_ROW = "number, id, prompt, answer, created, seconds, cost, confirmed, denied, answerer, gist"


class Candidate(NamedTuple):
    """A kept answer and the cosine of its prompt with the one asked."""

    row: Row
    cosine: float


def find_exact(
    connection: sqlite3.Connection, key: Key, answerers: Collection[str], now: float
) -> Row | None:
    """The newest answer to this very request that may be served."""
    row = connection.execute(
        f"""SELECT {_ROW} FROM answers WHERE exact = ? AND {_servable(answerers)}
            ORDER BY number DESC LIMIT 1""",
        (key.exact, *answerers, *_bounds(key, now)),
    ).fetchone()
    return Row(*row) if row else None


def find_text(connection: sqlite3.Connection, key: Key, answerers: Collection[str], now: float) -> Row | None:
    """The newest answer to the same words in the same partition."""
    row = connection.execute(
        f"""SELECT {_ROW} FROM answers WHERE wording = ? AND {_servable(answerers)}
            ORDER BY number DESC LIMIT 1""",
        (key.wording, *answerers, *_bounds(key, now)),
    ).fetchone()
    return Row(*row) if row else None


def find_same(connection: sqlite3.Connection, key: Key, answerers: Collection[str]) -> list[int]:
    """The numbers of all that the answerers said to this very request or the same words, servable or not."""
    rows = connection.execute(
        f"""SELECT number FROM answers WHERE answerer IN ({marks(answerers)}) AND
            (exact = ? OR wording = ?)""",
        (*answerers, key.exact, key.wording),
    )
    return [number for (number,) in rows]


def has_more(connection: sqlite3.Connection, key: Key, number: int) -> bool:
    """Whether more than so many prompts are kept that this one could be compared with."""
    found = connection.execute(
        "SELECT 1 FROM answers WHERE partition = ? LIMIT 1 OFFSET ?", (key.partition, number)
    )
    return found.fetchone() is not None


def prompts(connection: sqlite3.Connection, key: Key) -> list[str]:
    """The kept prompts that this one could be compared with."""
    found = connection.execute("SELECT prompt FROM answers WHERE partition = ?", (key.partition,))
    return [prompt for (prompt,) in found]


def find_near(
    connection: sqlite3.Connection,
    numbers: Sequence[int],
    vector: Vector,
    key: Key,
    answerers: Collection[str],
    now: float,
    limit: int,
) -> list[Candidate]:
    """Of these entries the `limit` nearest that may be served, the nearest first."""
    rows = connection.execute(
        f"SELECT number, vector FROM vectors WHERE number IN ({marks(numbers)})", tuple(numbers)
    ).fetchall()
    if not rows:
        return []
    cosines = np.frombuffer(b"".join(blob for _, blob in rows), np.float32).reshape(len(rows), -1) @ vector
    nearest = sorted(
        ((float(cosine), number) for (number, _), cosine in zip(rows, cosines, strict=True)), reverse=True
    )
    candidates: list[Candidate] = []
    # Nearly always the first few may be served: the others' answers are not read from the disk for nothing.
    for start in range(0, len(nearest), 2 * limit):
        cosine_of = {number: cosine for cosine, number in nearest[start : start + 2 * limit]}
        found = connection.execute(
            f"SELECT {_ROW} FROM answers WHERE number IN ({marks(cosine_of)}) AND {_servable(answerers)}",
            (*cosine_of, *answerers, *_bounds(key, now)),
        )
        candidates += [Candidate(Row(*row), cosine_of[row[0]]) for row in found]
        if len(candidates) >= limit:
            break
    return sorted(candidates, key=lambda candidate: -candidate.cosine)[:limit]


def keep(
    connection: sqlite3.Connection,
    key: Key,
    space: bytes | None,
    embedded: Embedded | None,
    answer: Answer,
    now: float,
) -> str:
    """Keep an answer in place of the same answerer's older ones to the same request; its new id.

    `space` is the key's partition among vectors of its embedder.

    Here and below, whatever writes does so inside the caller's transaction.
    """
    packed = pack(answer.events)
    gist = gist_of(text_of(answer.events)).pack()
    size = len(packed) + len((key.text + gist).encode("utf-8", "replace")) + ENTRY_OVERHEAD
    size += embedded.vector.nbytes + embedded.vector.size // 8 if embedded is not None else 0
    entry_id = new_id("ans")
    usage = next(event.usage for event in answer.events if isinstance(event, Done))
    remove(connection, find_same(connection, key, (answer.answerer,)))
    (number,) = connection.execute(
        """INSERT INTO answers (id, scope, exact, partition, wording, answerer, prompt, answer,
                                completion_tokens,
                                created, expires, seconds, cost, bytes, used, request_id, in_pieces, gist)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number""",
        (
            entry_id, key.scope, key.exact, key.partition, key.wording, answer.answerer, key.text, packed,
            usage.completion_tokens, now, now + key.lifetime_s, answer.seconds, answer.cost, size, now,
            answer.request_id, key.streamed, gist,
        ),
    ).fetchone()  # fmt: skip
    if space is not None and embedded is not None:
        vector = embedded.vector
        connection.execute(
            "INSERT INTO vectors VALUES (?, ?, ?, ?)",
            (number, space, encode(vector), vector.astype(np.float32).tobytes()),
        )
    if answer.chat_id is not None:
        connection.execute("INSERT INTO owners VALUES (?, ?)", (number, answer.chat_id))
    return entry_id


def remove(connection: sqlite3.Connection, numbers: Sequence[int]) -> int:
    """Delete entries and all that hangs on them; how many there were."""
    removed = 0
    for start in range(0, len(numbers), _MANY):
        some = tuple(numbers[start : start + _MANY])
        removed += connection.execute(f"DELETE FROM answers WHERE number IN ({marks(some)})", some).rowcount
    if removed:
        # Other processes see by it that what they have in memory holds ghosts.
        add(connection, REMOVED, removed)
    return removed


def delete_chat(connection: sqlite3.Connection, chat_id: str, now: float) -> int:
    """Delete what only this chat owns, and remember that it was deleted: an answer to it may still be on its
    way. Returns how many answers went.
    """
    owned = connection.execute("SELECT number FROM owners WHERE chat_id = ?", (chat_id,)).fetchall()
    connection.execute("DELETE FROM owners WHERE chat_id = ?", (chat_id,))
    orphans = [
        number
        for (number,) in owned
        if not connection.execute("SELECT 1 FROM owners WHERE number = ?", (number,)).fetchone()
    ]
    connection.execute("INSERT OR REPLACE INTO forgotten_chats VALUES (?, ?)", (chat_id, now))
    connection.execute("DELETE FROM forgotten_chats WHERE deleted < ?", (now - _DAY_S,))
    return remove(connection, orphans)


def is_deleted(connection: sqlite3.Connection, chat_id: str) -> bool:
    found = connection.execute("SELECT 1 FROM forgotten_chats WHERE chat_id = ?", (chat_id,))
    return found.fetchone() is not None


def trim(connection: sqlite3.Connection, limit_bytes: int, now: float) -> int:
    """Delete what has expired, then what is worth least, until the rest fits; how many went.

    An entry is worth the seconds and money that it has saved or would once more, per byte, half as much after
    each week without a hit.
    """
    expired = connection.execute("SELECT number FROM answers WHERE expires <= ?", (now,)).fetchall()
    removed = remove(connection, [number for (number,) in expired])
    (total,) = connection.execute("SELECT coalesce(sum(bytes), 0) FROM answers").fetchone()
    if total <= limit_bytes:
        return removed
    rows = connection.execute("SELECT number, bytes, hits, used, seconds, cost FROM answers").fetchall()
    worth = [
        (_worth(size, hits, (now - used) / _DAY_S, seconds, cost), number, size)
        for number, size, hits, used, seconds, cost in rows
    ]
    evicted = []
    # A tenth more than needed, so that the next answers don't each pay for this.
    for _, number, size in sorted(worth):
        if total <= 0.9 * limit_bytes:
            break
        evicted.append(number)
        total -= size
    return removed + remove(connection, evicted)


def _worth(size: int, hits: int, idle_days: float, seconds: float, cost: float) -> float:
    return (seconds + _SECONDS_PER_COST * cost) * (1 + hits) / size / math.exp2(idle_days / 7)


def entries(connection: sqlite3.Connection, limit: int, offset: int = 0) -> list[Entry]:
    """Kept answers, the newest first."""
    return _entries(connection, "ORDER BY number DESC LIMIT ? OFFSET ?", (limit, offset))


def resolve(connection: sqlite3.Connection, name: str) -> list[Entry]:
    """The entries whose id is the name or begins with it, with or without `ans-`.

    None for a beginning of under `MIN_PREFIX` digits, which could be any.
    """
    stem = "ans-" + name.removeprefix("ans-")
    if len(stem) < len("ans-") + MIN_PREFIX:
        return []
    return _entries(connection, "WHERE id >= ? AND id < ? ORDER BY id LIMIT 3", (stem, stem + "g"))


def _entries(connection: sqlite3.Connection, rest: str, arguments: tuple[str | int, ...]) -> list[Entry]:
    rows = connection.execute(
        f"""SELECT id, scope, iif(exact IS NULL, 'semantic', 'exact'), prompt, answer, answerer, created,
                   expires, hits, bytes, blocked,
                   (SELECT min(chat_id) FROM owners WHERE owners.number = answers.number)
            FROM answers {rest}""",
        arguments,
    )
    return [
        Entry(
            id, scope, tier, prompt, text_in(answer), answerer, created, expires, hits, size,
            bool(blocked), chat_id,
        )
        for id, scope, tier, prompt, answer, answerer, created, expires, hits, size, blocked, chat_id in rows
    ]  # fmt: skip


def events_of(row: Row) -> tuple[EngineEvent, ...]:
    """The answer as it streamed."""
    return unpack(row.answer)


def said_in(row: Row) -> str:
    """The answer's text."""
    return text_in(row.answer)


def add(connection: sqlite3.Connection, counter: str, amount: float) -> None:
    """Count something."""
    connection.execute(
        """INSERT INTO counters VALUES (?, ?)
           ON CONFLICT (name) DO UPDATE SET value = value + excluded.value""",
        (counter, amount),
    )


def count(connection: sqlite3.Connection, counter: str) -> float:
    """What has been counted under the name."""
    row = connection.execute("SELECT value FROM counters WHERE name = ?", (counter,)).fetchone()
    return float(row[0]) if row else 0.0


def _servable(answerers: Collection[str]) -> str:
    return (
        f"answerer IN ({marks(answerers)}) AND blocked = 0 "
        "AND expires > ? AND created >= ? AND completion_tokens <= ? AND in_pieces >= ?"
    )


def _bounds(key: Key, now: float) -> tuple[float, float, int, bool]:
    """What `_servable` compares with: now, when the oldest answer may be from, how long one may be, and
    whether it must be one that came in pieces.
    """
    oldest = now - key.max_age_s if key.max_age_s is not None else 0.0
    longest = key.max_tokens if key.max_tokens is not None else _NO_LIMIT
    return now, oldest, longest, key.streamed
