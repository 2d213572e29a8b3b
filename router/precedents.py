"""Where like questions went: a toss-up is decided as the last one was, so that other words change nothing.

A question's chances move a little with its wording. Where two engines are all but worth the same, that would
send every other paraphrase elsewhere; to one who asks twice it looks like a coin.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .decision import Candidate
from .facts import Facts
from .learning.features import Floats
from .utility import Weights

TOSS_UP = 0.05
"""How much less likely to be right an engine may be, or what that is worth, for its precedent to count. The
narrowest interval that an estimate has reaches twice as far at even chances.
"""
ALIKE = 0.8
"""The cosine from which a question is like another; paraphrases of one are at 0.8 to 1 in the starter
embedder.
"""
KEPT = 512

# No precedents are questions of other people, of vectors that can't be compared, and of other modes.
_Kind = tuple[str | None, str, str]


class Precedents:
    """The last questions that were decided between engines, by their vectors, and who was asked first. In
    memory alone.
    """

    def __init__(self) -> None:
        self._vectors: Floats | None = None
        self._engines: list[str] = []
        self._kinds: list[_Kind] = []
        self._next = 0

    def note(self, facts: Facts, engine: str) -> None:
        """The engine was first for this question; nothing is noted of one without a vector."""
        if facts.vector is None:
            return
        vector = np.array(facts.vector, np.float32)
        if self._vectors is None or self._vectors.shape[1] != len(vector):
            self._vectors = np.zeros((KEPT, len(vector)), np.float32)
            self._engines, self._kinds, self._next = [], [], 0
        at, self._next = self._next, (self._next + 1) % KEPT
        self._vectors[at] = vector
        self._engines[at : at + 1] = [engine]
        self._kinds[at : at + 1] = [_kind(facts)]

    def of(self, facts: Facts) -> str | None:
        """Who was first for the question that is most like this one; None where none is alike."""
        if facts.vector is None or self._vectors is None or self._vectors.shape[1] != len(facts.vector):
            return None
        cosines = self._vectors[: len(self._engines)] @ np.array(facts.vector, np.float32)
        kind = _kind(facts)
        cosines[[other != kind for other in self._kinds]] = -1.0
        # The latest of equals: it knew what those before it did.
        age = (self._next - 1 - np.arange(len(cosines))) % KEPT
        best = int(np.lexsort((age, -cosines))[0])
        return self._engines[best] if cosines[best] >= ALIKE else None


def margin(weights: Weights) -> float:
    """In money, how far ahead of its precedent another engine must be to be first."""
    return TOSS_UP * weights.answer_value


def following(ranked: Sequence[Candidate], precedent: str | None, weights: Weights) -> list[Candidate]:
    """Candidates with the precedent first, unless the best is ahead of it by more than `margin`."""
    best = ranked[0]
    first = next((one for one in ranked if one.engine == precedent), best)
    if best.utility - first.utility > margin(weights):
        return list(ranked)
    return [first, *(one for one in ranked if one is not first)]


def _kind(facts: Facts) -> _Kind:
    return facts.tenant, facts.fingerprint, facts.mode
