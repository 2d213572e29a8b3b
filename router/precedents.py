"""Where like questions went: a toss-up is decided as the last one was, so that other words change nothing.

A question's chances move a little with its wording. Where two engines are all but worth the same, that would
send every other paraphrase elsewhere; to one who asks twice it looks like a coin.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .decision import Candidate
from .facts import Facts
from .learning.features import Floats
from .ledger import KeptPrecedents, Precedent
from .ledger.precedents import KEPT
from .utility import Weights

TOSS_UP = 0.05
"""How much less likely to be right an engine may be, or what that is worth, for its precedent to count. The
narrowest interval that an estimate has reaches twice as far at even chances.
"""
ALIKE = 0.8
"""The cosine from which a question is like another; paraphrases of one are at 0.8 to 1 in the starter
embedder.
"""
EQUAL = 1e-6
# Above the numbers of all that the ledger keeps: what this process noted comes after those.
_OWN = 1 << 62


# Whose question in which mode, by which embedder, and its vector's width: others do not compare.
_Kind = tuple[str | None, str, str, int]


class _Known(NamedTuple):
    precedent: Precedent
    kind: _Kind
    place: int
    """In the table of its kind."""


class _Table:
    """The vectors of one kind, a row each, so that a question is compared with all in one product."""

    def __init__(self, width: int) -> None:
        self._vectors: Floats = np.zeros((8, width), np.float32)
        self._engines: list[str | None] = []
        self._ages = np.zeros(8, np.int64)  # -1 where nothing is
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._engines) - len(self._free)

    def add(self, vector: Floats, engine: str, age: int) -> int:
        """Its place. The higher the age, the later it was decided."""
        place = self._free.pop() if self._free else len(self._engines)
        if place == len(self._vectors):
            self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])
            self._ages = np.concatenate([self._ages, np.zeros_like(self._ages)])
        if place == len(self._engines):
            self._engines.append(engine)
        self._vectors[place], self._engines[place], self._ages[place] = vector, engine, age
        return place

    def remove(self, place: int) -> None:
        self._engines[place], self._ages[place] = None, -1
        self._free.append(place)

    def nearest(self, vector: Floats) -> tuple[float, str | None]:
        """The largest cosine, and who was first there; of equals the latest, which knew what those before it
        did.
        """
        size = len(self._engines)
        cosines, ages = self._vectors[:size] @ vector, self._ages[:size]
        cosines[ages < 0] = -1.0
        # The same vector has not the same cosine to the last bit in every row of a product.
        equal = np.flatnonzero(cosines >= cosines.max() - EQUAL)
        best = int(equal[np.argmax(ages[equal])])
        return float(cosines[best]), self._engines[best]


class Precedents:
    """The last questions that were decided between engines, by their vectors, and who was asked first: those
    that the ledger keeps, as of the last `catch_up`, and this process's own that it doesn't, or not yet.
    """

    def __init__(self) -> None:
        self._kept: dict[int, _Known] = {}
        self._own: OrderedDict[str, _Known] = OrderedDict()
        self._tables: dict[_Kind, _Table] = {}
        self._num_noted = 0

    @property
    def last(self) -> int:
        """The number of the newest that the ledger keeps and that is known, 0 for none."""
        return next(reversed(self._kept), 0)

    @property
    def pending(self) -> list[Precedent]:
        """This process's own that are to be kept."""
        return [known.precedent for known in self._own.values() if known.precedent.chat_id is not None]

    def note(self, precedent: Precedent) -> None:
        self._num_noted += 1
        self._forget(self._own.pop(precedent.request_id, None))
        self._own[precedent.request_id] = self._add(precedent, _OWN + self._num_noted)
        while len(self._own) > KEPT:
            self._forget(self._own.popitem(last=False)[1])

    def catch_up(self, kept: KeptPrecedents) -> bool:
        """Take in what the ledger has after `last`. False where it has lost some that are known here: all are
        forgotten then, to be read again.
        """
        for number, precedent in kept.newer:
            self._kept[number] = self._add(precedent, number)
        for request_id in kept.over:
            self._forget(self._own.pop(request_id, None))
        # They come in rising order.
        while self._kept and (oldest := next(iter(self._kept))) < kept.first:
            self._forget(self._kept.pop(oldest))
        if len(self._kept) == kept.size:
            return True
        while self._kept:
            self._forget(self._kept.popitem()[1])
        return False

    def of(self, facts: Facts) -> str | None:
        """Who was first for the question that is most like this one; None where none is alike."""
        if facts.vector is None:
            return None
        table = self._tables.get((facts.tenant, facts.mode, facts.fingerprint, len(facts.vector)))
        if table is None:
            return None
        cosine, engine = table.nearest(np.array(facts.vector, np.float32))
        return engine if cosine >= ALIKE else None

    def _add(self, precedent: Precedent, age: int) -> _Known:
        vector = np.frombuffer(precedent.vector, np.float16).astype(np.float32)
        kind = precedent.tenant, precedent.mode, precedent.fingerprint, len(vector)
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = _Table(len(vector))
        return _Known(precedent, kind, table.add(vector, precedent.engine, age))

    def _forget(self, known: _Known | None) -> None:
        if known is None:
            return
        table = self._tables[known.kind]
        table.remove(known.place)
        if not len(table):
            del self._tables[known.kind]


def precedent_of(facts: Facts, engine: str, chat_id: str | None) -> Precedent | None:
    """That the engine was first for this question. None of one without a vector, and none of a private one:
    what is private serves nothing else.
    """
    if facts.vector is None or facts.local_only:
        return None
    vector = np.array(facts.vector, np.float16).tobytes()
    return Precedent(facts.request_id, chat_id, engine, facts.mode, facts.tenant, facts.fingerprint, vector)


def margin(weights: Weights) -> float:
    """In money, how far ahead of its precedent another engine must be to be first."""
    return TOSS_UP * weights.answer_value


def is_toss_up(ranked: Sequence[Candidate], weights: Weights) -> bool:
    """Whether a precedent could decide between engines in the order of their utility."""
    return len(ranked) > 1 and ranked[0].utility - ranked[1].utility <= margin(weights)


def following(ranked: Sequence[Candidate], precedent: str | None, weights: Weights) -> list[Candidate]:
    """Candidates with the precedent first, unless the best is ahead of it by more than `margin`."""
    best = ranked[0]
    first = next((one for one in ranked if one.engine == precedent), best)
    if best.utility - first.utility > margin(weights):
        return list(ranked)
    return [first, *(one for one in ranked if one is not first)]
