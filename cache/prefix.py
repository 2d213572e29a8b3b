"""Saved states of sequences in SQLite: what was computed comes back from disk bit for bit, or not at all.

    save     a row nobody finds yet -> chunks, a transaction each -> found by its hashes, older ones replaced
    find     the deepest known hash of a prompt -> token by token
    read     every chunk checked against what it must be; a damaged state is deleted

Synchronous, for one thread at a time, any number of processes. Every method may raise `StorageError`, and
then the prompt is computed as if nothing were saved.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from edgecloud.errors import StorageError
from edgecloud.storage import (
    DatabaseDamaged,
    open_or_rebuild,
    open_to_read,
    storage_errors,
    transaction,
    truncate_wal,
)
from edgecloud.types import new_id

from . import prefix_rows as rows
from .prefix_key import StateKind, Tokens, as_tokens, chain, is_worth_reading, is_worth_saving, shared_length
from .prefix_rows import PrefixEntry, PrefixStats
from .prefix_tables import MIGRATIONS
from .seal import Damaged, MakeSeal, Seal, plain

CHUNK_BYTES = 16 << 20
"""SQLite takes no BLOB beyond 10^9 bytes, and a transaction of one chunk locks nobody out for long."""

SPARE_BYTES = 1_000_000_000
"""The last gigabyte of a disk is not ours to take."""

BUSY_S = 2.0
"""How long another process's chunk is waited for."""


class Match(NamedTuple):
    """A state of `num_tokens` tokens and `num_bytes` bytes whose first `num_shared` are the prompt's."""

    number: int
    num_shared: int
    num_tokens: int
    num_bytes: int


class Removal(NamedTuple):
    """`purged` is False while another process keeps old pages readable."""

    num_states: int
    purged: bool


class PrefixStore:
    """States of together at most `limit_bytes` in one file, each until it was not used for `lifetime_s`
    seconds. One that is opened `for_reading` may be in a file that can't be written, and tidies nothing.
    """

    def __init__(
        self,
        path: Path,
        *,
        limit_bytes: int,
        lifetime_s: float = 30 * 86_400.0,
        make_seal: MakeSeal = plain,
        clock: Callable[[], float] = time.time,
        for_reading: bool = False,
    ) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._make_seal = make_seal
        self._for_reading = for_reading
        self._open()

    def close(self) -> None:
        self._connection.close()

    # ------------------------------------------------------------------------------------------- a prompt

    def find(
        self,
        kind: StateKind,
        tokens: Sequence[int],
        *,
        known: int = 0,
        most_tokens: int = 1 << 31,
        token_s: float = 1.0,
    ) -> Match | None:
        """The state that shares most tokens with a prompt, if reading it beats computing the rest.

        `known` tokens of the prompt need no state; `most_tokens` is the longest state that has room;
        `token_s` the seconds to compute a token.
        """
        asked = as_tokens(tokens)
        links = chain(kind.digest(self._seal.secret), asked)
        oldest = self._clock() - self._lifetime_s
        best: Match | None = None
        with self._using() as connection:
            for number in rows.deepest(connection, links, most_tokens, oldest):
                saved = self._tokens(connection, number, kind)
                if saved is None:
                    continue
                (num_bytes,) = connection.execute(
                    "SELECT bytes FROM states WHERE number = ?", (number,)
                ).fetchone()
                match = Match(number, shared_length(saved, asked), len(saved), num_bytes)
                if best is None or (match.num_shared, -num_bytes) > (best.num_shared, -best.num_bytes):
                    best = match
        if best is None or not is_worth_reading(best.num_shared - known, best.num_bytes, token_s):
            return None
        return best

    def read(self, kind: StateKind, number: int) -> tuple[list[int], bytearray] | None:
        """The tokens of a state and its bytes, all checked; None if it is gone, or was damaged and now is."""
        with self._using() as connection:
            tokens = self._tokens(connection, number, kind)
            row = connection.execute("SELECT id, bytes FROM states WHERE number = ?", (number,)).fetchone()
            if tokens is None or row is None:
                return None
            identity = _identity(row[0], kind, tokens)
            state = bytearray(row[1])
            at = 0
            try:
                for position, data, check in connection.execute(
                    "SELECT position, data, data_check FROM chunks WHERE state = ? ORDER BY position",
                    (number,),
                ):
                    piece = self._seal.open(data, check, _place(identity, position))
                    state[at : at + len(piece)] = piece
                    at += len(piece)
                if at != row[1] or len(state) != at:
                    raise Damaged
            except Damaged:
                _drop(connection, number)
                return None
        return tokens.tolist(), state

    def note_use(self, number: int, chat_id: str | None = None) -> None:
        """A state served; the chat has all of its tokens, and from now on owns it too."""
        with self._writing() as connection:
            hit = connection.execute(
                "UPDATE states SET hits = hits + 1, used = ? WHERE number = ?", (self._clock(), number)
            )
            if hit.rowcount and chat_id is not None and not rows.is_deleted(connection, chat_id):
                rows.add_owner(connection, number, chat_id)

    def reject(self, number: int) -> None:
        """Delete a state that is not what it should be."""
        with self._writing() as connection:
            rows.remove(connection, [number])

    def save(
        self,
        kind: StateKind,
        tokens: Sequence[int],
        state: bytes | bytearray,
        chat_id: str,
        *,
        token_s: float = 1.0,
        num_uses: int = 0,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> str | None:
        """Save the state of exactly `tokens` for a chat, if it is worth it; its id.

        It takes the place of the chat's older state of this kind, and of all that it contains. None where it
        is not worth it, does not fit, the chat was deleted, or `keep_going` said no between two chunks.
        """
        saved, now = as_tokens(tokens), self._clock()
        links = chain(kind.digest(self._seal.secret), saved)
        known = self.find(kind, tokens)
        num_new = len(saved) - (known.num_shared if known is not None else 0)
        spare = shutil.disk_usage(self._path.parent).free - SPARE_BYTES
        if not links or len(state) > min(self._limit_bytes, spare):
            return None
        if not is_worth_saving(num_new, len(state), token_s, num_uses):
            return None
        state_id = new_id("pre")
        identity = _identity(state_id, kind, saved)
        sealed, check = self._seal.close(saved.tobytes(), _named(state_id, kind))
        with self._writing() as connection:
            if rows.is_deleted(connection, chat_id):
                return None
            rows.trim(connection, self._limit_bytes - len(state), now - self._lifetime_s)
            number = rows.insert(
                connection, state_id, kind, self._seal.lock, (sealed, check), len(saved), len(state), now
            )
        view = memoryview(state)
        try:
            for position, start in enumerate(range(0, len(state), CHUNK_BYTES)):
                piece, check = self._seal.close(view[start : start + CHUNK_BYTES], _place(identity, position))
                with self._writing() as connection:
                    is_there = rows.add_chunk(connection, number, position, piece, check)
                if not is_there or not keep_going():
                    self.reject(number)
                    return None
            with self._writing() as connection:
                if rows.is_deleted(connection, chat_id):
                    rows.remove(connection, [number])
                    return None
                older = rows.of_chat_only(connection, chat_id, kind)
                rows.remove(connection, older + self._contained(connection, links, saved, kind))
                is_there = rows.publish(connection, number, links, chat_id)
        except BaseException:
            with contextlib.suppress(StorageError):
                self.reject(number)
            raise
        return state_id if is_there else None

    # ---------------------------------------------------------------------------------------- by a person

    def delete_chats(self, chat_ids: Collection[str]) -> Removal:
        """Delete the states of chats that no other chat owns, and save none for them any more."""
        with self._writing() as connection:
            removed = rows.delete_chats(connection, chat_ids, self._clock())
        return Removal(removed, self._purge())

    def forget(self, state_id: str) -> Removal:
        """Delete one state, from the free pages and the log too."""
        with self._writing() as connection:
            removed = connection.execute("DELETE FROM states WHERE id = ?", (state_id,)).rowcount
        return Removal(removed, self._purge())

    def clear(self) -> Removal:
        """Delete every state and give the disk its space back."""
        with self._writing() as connection:
            removed = connection.execute("DELETE FROM states").rowcount
        # While somebody reads, the file keeps its size; it is used again.
        with contextlib.suppress(StorageError), storage_errors(self._path):
            self._connection.execute("VACUUM")
        return Removal(removed, self._purge())

    def entries(self, limit: int = 50) -> list[PrefixEntry]:
        """Saved states, the last used first."""
        with self._using() as connection:
            return rows.entries(connection, self._lifetime_s, limit)

    def resolve(self, name: str) -> list[PrefixEntry]:
        """States whose id is the name or begins with it."""
        with self._using() as connection:
            return rows.resolve(connection, self._lifetime_s, name)

    def stats(self) -> PrefixStats:
        with self._using() as connection:
            return rows.stats(connection, self._limit_bytes)

    # -------------------------------------------------------------------------------------------- inside

    def _open(self) -> None:
        self._made_seal: Seal | None = None
        if self._for_reading:
            self._connection = open_to_read(
                self._path, MIGRATIONS, busy_s=BUSY_S, open_to_write=open_or_rebuild
            )
        else:
            self._connection = open_or_rebuild(self._path, MIGRATIONS, busy_s=BUSY_S)
        with storage_errors(self._path):
            self._inode = self._path.stat().st_ino
            if self._for_reading:
                return
            with transaction(self._connection) as connection:
                rows.remove(connection, rows.abandoned(connection))
            # Of what was deleted while somebody read, old pages may still be in the log.
            truncate_wal(self._connection, patience_s=0.0)

    @property
    def _seal(self) -> Seal:
        """Made when it is first needed: listing and deleting need no key."""
        if self._made_seal is None:
            with storage_errors(self._path), transaction(self._connection) as connection:
                self._made_seal = self._make_seal(rows.salt(connection))
                if self._made_seal.lock:
                    # Who wants what is saved encrypted wants nothing else lying about.
                    connection.execute("DELETE FROM states WHERE lock != ?", (self._made_seal.lock,))
        return self._made_seal

    def _tokens(self, connection: sqlite3.Connection, number: int, kind: StateKind) -> Tokens | None:
        """A state's tokens, checked; None if it is gone or damaged."""
        row = connection.execute(
            "SELECT id, tokens, tokens_check FROM states WHERE number = ?", (number,)
        ).fetchone()
        if row is None:
            return None
        try:
            return rows.tokens_of(self._seal.open(row[1], row[2], _named(row[0], kind)))
        except Damaged:
            _drop(connection, number)
            return None

    def _contained(
        self, connection: sqlite3.Connection, links: Sequence[bytes], tokens: Tokens, kind: StateKind
    ) -> list[int]:
        """States of which these tokens have all."""
        found = []
        for number, num_tokens in rows.linked(connection, links):
            saved = self._tokens(connection, number, kind) if num_tokens <= len(tokens) else None
            if saved is not None and shared_length(saved, tokens) == len(saved):
                found.append(number)
        return found

    def _purge(self) -> bool:
        with self._using() as connection:
            return truncate_wal(connection)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._using() as connection, transaction(connection):
            yield connection

    @contextlib.contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one public method: nested, a damaged file would be thrown away twice."""
        try:
            with storage_errors(self._path):
                yield self._connection
        except DatabaseDamaged:
            self._start_over()
            raise

    def _start_over(self) -> None:
        """Throw the damaged file away: all of it can be computed again. Another process's new one is kept."""
        self._connection.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                for suffix in ("", "-wal", "-shm"):
                    self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._open()


def _drop(connection: sqlite3.Connection, number: int) -> None:
    """Delete a damaged state, within the transaction that goes on or in one of its own."""
    if connection.in_transaction:
        rows.remove(connection, [number])
    else:
        with transaction(connection):
            rows.remove(connection, [number])


def _named(state_id: str, kind: StateKind) -> bytes:
    return state_id.encode() + kind.digest()


def _identity(state_id: str, kind: StateKind, tokens: Tokens) -> bytes:
    """Binds every chunk to its state, and the state to its tokens."""
    return _named(state_id, kind) + blake2b(tokens.tobytes(), digest_size=16).digest()


def _place(identity: bytes, position: int) -> bytes:
    return identity + position.to_bytes(4, "little")
