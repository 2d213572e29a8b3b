"""The answer cache: exact first, then semantic, over one `cache.db`.

Synchronous, for one thread at a time; time and luck come in as arguments. Every method may raise
`StorageError`, and then the request goes on as if there were no cache.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import random

from edgecloud.storage import open_or_rebuild, open_to_read, storage_errors, transaction, truncate_wal
from edgecloud.types import CacheInfo

from . import experience, store
from .agreement import Gist, agree
from .control import AUDIT_RATE, Policy
from .experience import Domain
from .index import encode
from .reading import read
from .records import (
    Answer,
    Embedded,
    Entry,
    Foreseen,
    Found,
    Hit,
    Key,
    Near,
    Recalled,
    Removal,
    ScopeStats,
    Stats,
    Tier,
    text_of,
)
from .replay import worth_keeping
from .same import Judgement, SameAnswer, may_serve, shipped
from .spaces import Spaces, count_other, space_of
from .store import Candidate, Row
from .tables import MIGRATIONS
from .voices import Voice, balances

FEW = 500
"""So many kept prompts are read word by word before a vector is made: some milliseconds."""

NUM_CANDIDATES = 8
"""Of the nearest so many are read word by word."""

BUSY_S = 1.0
"""How long another process's transaction is waited for: an answer is waiting too."""

_TRIM_EVERY = 64
_COUNTERS = ("lookups", "exact", "semantic", "seconds", "cost", "blamed")


class AnswerCache:
    """Kept answers in one database file.

    `max_wrong_per_100` is the bound on wrong answers in 100 requests; `limit_bytes` that on all entries. One
    that is opened `for_reading` may be in a file that can't be written, and tidies nothing.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_wrong_per_100: float = 1.0,
        limit_bytes: int = 256 * 2**20,
        model: SameAnswer | None = None,
        clock: Callable[[], float] = time.time,
        draw: Callable[[], float] = random,
        for_reading: bool = False,
    ) -> None:
        self._path = path
        self._bound = max_wrong_per_100
        self._limit_bytes = limit_bytes
        self._model = model or shipped()
        self._clock = clock
        self._draw = draw
        if for_reading:
            self._connection = open_to_read(path, MIGRATIONS, busy_s=BUSY_S, open_to_write=open_or_rebuild)
        else:
            self._connection = open_or_rebuild(path, MIGRATIONS, busy_s=BUSY_S)
            with storage_errors(path):
                # Of what was deleted while somebody read, old pages may still be in the log.
                truncate_wal(self._connection, patience_s=0.0)
        self._spaces = Spaces(self._connection)
        self._num_stored = 0

    def close(self) -> None:
        self._connection.close()

    # ------------------------------------------------------------------------------------------- requests

    def recall(
        self, key: Key, answerers: Collection[str], *, fresh: bool = False, is_embedded: bool = False
    ) -> Recalled:
        """The answer to this very request, or to one that says the same to the letter. Needs no vector; where
        it `is_embedded` all the same, nothing is read to find out whether a vector is worth making.

        `answerers` are those that may answer it. A `fresh` request is not served.
        """
        if not key.is_cached or not answerers:
            return Recalled()
        now = self._clock()
        with self._writing() as connection:
            store.add(connection, "lookups", 1)
            if key.exact is not None and not fresh:
                row = store.find_exact(connection, key, answerers, now)
                if row is not None:
                    return Recalled(self._hit(connection, row, "exact", 1.0, 1.0, now))
            if key.partition is None:
                return Recalled()
            if not fresh:
                row = store.find_text(connection, key, answerers, now)
                if row is not None:
                    return Recalled(self._hit(connection, row, "semantic", 1.0, 1.0, now))
            return Recalled(is_near=key.is_compared and (is_embedded or self._is_near(connection, key)))

    def similar(
        self,
        key: Key,
        embedded: Embedded,
        answerers: Collection[str],
        *,
        fresh: bool = False,
        may_audit: bool = True,
    ) -> Found:
        """An answer to a prompt that says the same, or the nearest one that may not serve.

        A `fresh` request is never served; the answer that it gets teaches whether it should have been.
        Without `may_audit` no hit is withheld to be computed: nobody would compute it.
        """
        if not key.is_compared or not answerers:
            return Found()
        with self._writing() as connection:
            return self._similar(
                connection, key, embedded, answerers, self._clock(), fresh=fresh, may_audit=may_audit
            )

    def foresee(self, key: Key, answerers: Collection[str], embedded: Embedded | None = None) -> Foreseen:
        """What `recall`, or with a vector `similar`, would serve. Writes nothing: somebody only looks.

        A hit may be drawn by lot and computed after all when the request comes.
        """
        if not key.is_cached or not answerers:
            return Foreseen()
        now = self._clock()
        with self._reading() as connection:
            row = store.find_exact(connection, key, answerers, now) if key.exact is not None else None
            if row is not None:
                return Foreseen(_info(row, "exact", 1.0, 1.0, now))
            if key.partition is None:
                return Foreseen()
            row = store.find_text(connection, key, answerers, now)
            if row is not None:
                return Foreseen(_info(row, "semantic", 1.0, 1.0, now))
            if embedded is None or not key.is_compared:
                return Foreseen(is_near=key.is_compared and self._is_near(connection, key))
            domain = self._domain(key, embedded)
            policy = experience.policy_of(connection, domain, self._bound, keep=False)
            best = self._best(connection, key, embedded, answerers, now, policy)
        if best is None or not policy.serves(best[1].logit, best[1].suspicion):
            return Foreseen()
        candidate, _, probability = best
        return Foreseen(_info(candidate.row, "semantic", candidate.cosine, probability, now))

    def refuse(self, key: Key, answerers: Collection[str]) -> int:
        """Delete what these `answerers` said to the same words, however long it was; how many answers.

        For a `fresh` request that somebody begins to answer: what it refuses is not given again, even where
        the new answer can't be kept.
        """
        with self._writing() as connection:
            return store.remove(connection, store.find_same(connection, key, answerers))

    def store(
        self,
        key: Key,
        embedded: Embedded | None,
        answer: Answer,
        *,
        near: Near | None = None,
        cosine: float | None = None,
    ) -> tuple[str | None, str]:
        """Keep a computed answer and learn from it; its id, or None with the reason.

        `near` is what the lookup gave; `cosine` that of the two answers' vectors, if somebody embedded them.
        """
        now = self._clock()
        reason = worth_keeping(answer.events)
        if reason:
            return None, reason
        if near is not None:
            self._learn(near, text_of(answer.events), cosine)
        if not key.is_cached:
            return None, key.reason
        space = None
        if embedded is not None and key.is_compared and key.partition is not None:
            space = space_of(key.partition, embedded.fingerprint)
        with self._writing() as connection:
            if answer.chat_id is not None and store.is_deleted(connection, answer.chat_id):
                return None, "its chat was deleted"
            entry_id = store.keep(connection, key, space, embedded, answer, now)
            if self._num_stored % _TRIM_EVERY == 0:
                store.trim(connection, self._limit_bytes, now)
        self._num_stored += 1
        return entry_id, ""

    # ---------------------------------------------------------------------------------------- by a person

    def forget(self, entry_id: str) -> Removal:
        """Delete one entry, from the free pages and the log too."""
        return self._remove("id = ?", entry_id)

    def blame(self, entry_id: str) -> bool:
        """A person says that this answer was wrong: it is served no more, and the bound learns of it."""
        with self._writing() as connection:
            experience.blame(connection, entry_id)
            blocked = connection.execute("UPDATE answers SET blocked = 1 WHERE id = ?", (entry_id,)).rowcount
            store.add(connection, "blamed", blocked)
        return bool(blocked)

    def retract(self, request_id: str) -> int:
        """A person says that the answer to this request was wrong: delete what was kept of it; how many."""
        with self._writing() as connection:
            numbers = connection.execute("SELECT number FROM answers WHERE request_id = ?", (request_id,))
            return store.remove(connection, [number for (number,) in numbers.fetchall()])

    def delete_chats(self, chat_ids: Collection[str]) -> Removal:
        """Delete what was derived from these chats and belongs to no other, and keep nothing of them any
        more.
        """
        with self._writing() as connection:
            removed = sum(store.delete_chat(connection, chat_id, self._clock()) for chat_id in chat_ids)
        return Removal(removed, self._purge())

    def clear(self) -> Removal:
        """Delete every answer and all that was learned."""
        with self._writing() as connection:
            connection.execute("DELETE FROM lookups")
            connection.execute("DELETE FROM policies")
            connection.execute("DELETE FROM counters WHERE name != ?", (store.REMOVED,))
        return self._remove("1")

    def entries(self, limit: int = 50, offset: int = 0) -> list[Entry]:
        """Kept answers, the newest first."""
        with self._reading() as connection:
            return store.entries(connection, limit, offset)

    def num_unsearched(self, fingerprint: str) -> int:
        """Answers that similar questions can't find with the embedder that has this fingerprint."""
        with self._reading() as connection:
            return count_other(connection, fingerprint)

    def resolve(self, name: str) -> list[Entry]:
        """Entries that an id or the beginning of one names."""
        with self._reading() as connection:
            return store.resolve(connection, name)

    def stats(self, scope: str = "user") -> Stats:
        """The cache in numbers; the estimate and the threshold are those of one scope."""
        with self._reading() as connection:
            entries, size = connection.execute(
                "SELECT count(*), coalesce(sum(bytes), 0) FROM answers"
            ).fetchone()
            audits, wrong = connection.execute(
                """SELECT count(*), coalesce(sum(1 - same), 0) FROM lookups
                   WHERE audited = 1 AND same IS NOT NULL"""
            ).fetchone()
            policies = experience.latest(connection)
            policy = policies.get(scope) or experience.cold(self._bound)
            counted = {name: store.count(connection, name) for name in _COUNTERS}
        return Stats(
            entries,
            size,
            int(counted["lookups"]),
            int(counted["exact"]),
            int(counted["semantic"]),
            counted["seconds"],
            counted["cost"],
            audits,
            wrong,
            int(counted["blamed"]),
            policy.wrong_per_100,
            policy.threshold,
            policy.off_because,
            tuple(
                ScopeStats(name, each.wrong_per_100, each.threshold, each.off_because)
                for name, each in policies.items()
            ),
        )

    # -------------------------------------------------------------------------------------------- inside

    def _similar(
        self,
        connection: sqlite3.Connection,
        key: Key,
        embedded: Embedded,
        answerers: Collection[str],
        now: float,
        *,
        fresh: bool,
        may_audit: bool,
    ) -> Found:
        domain = self._domain(key, embedded)
        policy = experience.policy_of(connection, domain, self._bound)
        best = self._best(connection, key, embedded, answerers, now, policy)
        if best is None:
            experience.note(connection, domain, None, -math.inf, "")
            return Found()
        candidate, judged, probability = best
        row = candidate.row
        would_serve = policy.serves(judged.logit, judged.suspicion)
        # Of hits drawn by lot the answer is computed after all: the only look at what is served.
        audited = would_serve and not fresh and may_audit and self._draw() < AUDIT_RATE
        served = would_serve and not fresh and not audited
        lookup = experience.note(
            connection, domain, row.id, judged.logit, judged.suspicion, served=served, audited=audited
        )
        if served:
            return Found(hit=self._hit(connection, row, "semantic", candidate.cosine, probability, now))
        answer = store.said_in(row)
        return Found(near=Near(lookup, row.id, candidate.cosine, probability, would_serve, answer))

    def _is_near(self, connection: sqlite3.Connection, key: Key) -> bool:
        """Whether a vector is worth its time: in a process that has no embedder yet that is half a second."""
        if store.has_more(connection, key, FEW):
            return True
        asked = read(key.text)
        return any(may_serve(asked, read(prompt)) for prompt in store.prompts(connection, key))

    def _domain(self, key: Key, embedded: Embedded) -> Domain:
        return Domain(key.scope, embedded.fingerprint, self._model.knows(embedded.fingerprint))

    def _best(
        self,
        connection: sqlite3.Connection,
        key: Key,
        embedded: Embedded,
        answerers: Collection[str],
        now: float,
        policy: Policy,
    ) -> tuple[Candidate, Judgement, float] | None:
        """Of the nearest, the one most likely to have the same answer that nothing forbids."""
        assert key.partition is not None
        code = encode(embedded.vector)
        space = space_of(key.partition, embedded.fingerprint)
        numbers = self._spaces.table(space, len(code)).nearest(code)
        candidates = store.find_near(
            connection, numbers, embedded.vector, key, answerers, now, NUM_CANDIDATES
        )
        asked = read(key.text)
        heard = balances([_voice(candidate) for candidate in candidates])
        best = None
        for candidate, balance in zip(candidates, heard, strict=True):
            row = candidate.row
            judged = self._model.judge(
                asked,
                read(row.prompt),
                candidate.cosine,
                balance=balance,
                confirmed=row.confirmed,
                denied=row.denied,
            )
            if judged.veto:
                continue
            probability = policy.probability(judged.logit, judged.suspicion)
            if best is None or probability > best[2]:
                best = candidate, judged, probability
        return best

    def _learn(self, near: Near, text: str, cosine: float | None) -> None:
        same = agree(near.answer, text, cosine)
        if same is None:
            return
        with self._writing() as connection:
            experience.teach(connection, near.lookup, near.entry_id, same=same)

    def _hit(
        self,
        connection: sqlite3.Connection,
        row: Row,
        tier: Tier,
        similarity: float,
        probability: float,
        now: float,
    ) -> Hit:
        # A hit is no new answer: what it was created at and when it expires stay as they are.
        connection.execute("UPDATE answers SET hits = hits + 1, used = ? WHERE number = ?", (now, row.number))
        for name, amount in ((tier, 1.0), ("seconds", row.seconds), ("cost", row.cost)):
            store.add(connection, name, amount)
        return Hit(
            row.id, tier, similarity, probability, _age(row, now), store.events_of(row),
            row.seconds, row.cost,
        )  # fmt: skip

    def _remove(self, where: str, *arguments: str) -> Removal:
        with self._writing() as connection:
            numbers = connection.execute(f"SELECT number FROM answers WHERE {where}", arguments).fetchall()
            removed = store.remove(connection, [number for (number,) in numbers])
        return Removal(removed, self._purge())

    def _purge(self) -> bool:
        with self._reading() as connection:
            return truncate_wal(connection)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with storage_errors(self._path):
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as connection, transaction(connection):
            yield connection


def _voice(candidate: Candidate) -> Voice:
    row = candidate.row
    return Voice(candidate.cosine, row.answerer, Gist.unpack(row.gist) if row.gist is not None else None)


def _age(row: Row, now: float) -> float:
    return max(0.0, now - row.created)


def _info(row: Row, tier: Tier, similarity: float, probability: float, now: float) -> CacheInfo:
    return CacheInfo(tier, similarity, _age(row, now), row.id, probability)
