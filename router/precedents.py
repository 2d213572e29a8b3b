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


class _Known(NamedTuple):
    precedent: Precedent
    vector: Floats


class Precedents:
    """The last questions that were decided between engines, by their vectors, and who was asked first: those
    that the ledger keeps, as of the last `catch_up`, and this process's own that it doesn't, or not yet.
    """

    def __init__(self) -> None:
        self._kept: dict[int, _Known] = {}
        self._own: OrderedDict[str, _Known] = OrderedDict()

    @property
    def last(self) -> int:
        """The number of the newest that the ledger keeps and that is known, 0 for none."""
        return next(reversed(self._kept), 0)

    @property
    def pending(self) -> list[Precedent]:
        """This process's own that are to be kept."""
        return [known.precedent for known in self._own.values() if known.precedent.chat_id is not None]

    def note(self, precedent: Precedent) -> None:
        self._own[precedent.request_id] = _Known(precedent, _vector(precedent))
        while len(self._own) > KEPT:
            self._own.popitem(last=False)

    def catch_up(self, kept: KeptPrecedents) -> bool:
        """Take in what the ledger has after `last`. False where it has lost some that are known here: all are
        forgotten then, to be read again.
        """
        for number, precedent in kept.newer:
            self._kept[number] = _Known(precedent, _vector(precedent))
        for request_id in kept.over:
            self._own.pop(request_id, None)
        self._kept = {number: self._kept[number] for number in sorted(self._kept) if number >= kept.first}
        if len(self._kept) != kept.count:
            self._kept.clear()
            return False
        return True

    def of(self, facts: Facts) -> str | None:
        """Who was first for the question that is most like this one; None where none is alike."""
        if facts.vector is None:
            return None
        here = np.array(facts.vector, np.float32)
        known = [each for each in (*self._kept.values(), *self._own.values()) if _compares(each, facts)]
        if not known:
            return None
        cosines = np.stack([each.vector for each in known]) @ here
        # The latest of equals: it knew what those before it did.
        best = len(known) - 1 - int(np.argmax(cosines[::-1]))
        return known[best].precedent.engine if cosines[best] >= ALIKE else None


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


def _compares(known: _Known, facts: Facts) -> bool:
    """Whether it is a question of the same user or key, in the same mode, of a vector that compares."""
    one = known.precedent
    return (
        (one.tenant, one.mode, one.fingerprint) == (facts.tenant, facts.mode, facts.fingerprint)
        and facts.vector is not None
        and len(known.vector) == len(facts.vector)
    )


def _vector(precedent: Precedent) -> Floats:
    return np.frombuffer(precedent.vector, np.float16).astype(np.float32)
