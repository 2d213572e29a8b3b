"""P(same answer): how likely one prompt's answer serves another, from a vector and a few facts of words.

A logistic model of three features, fitted by `bench/same_answer.py` to pairs of the public sets that NOTICE
names, and of what the candidate's neighbours say; its weights are in `data/same_answer.npz`. It speaks of
pairs that no veto forbids, and only of the embedder that it was fitted to: for others it is a starting point
that knows nothing (`knows`).
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .reading import Reading
from .vetoes import Difference, Suspicion, compare, is_same, suspicion, veto, veto_at_once

SAME_TEXT = 9.0
"""The logit of two texts that differ in nothing that is read."""

_CONFIRMED, _DENIED = 0.5, 1.0
"""What an entry's own record is worth: each doubling of confirmations, each denial, as a logit."""

_LEAST_SHARED = 0.25
"""With less in common the cosine would have to be one that such prompts never have."""


class Judgement(NamedTuple):
    """One candidate weighed. With a veto the rest says nothing."""

    veto: str
    suspicion: Suspicion
    logit: float


class SameAnswer:
    """The shipped model. Weights are per feature in the order of `features`, then the constant; `voice` is
    what the `balance` of a candidate's neighbours is worth.
    """

    def __init__(self, weights: NDArray[np.float64], fingerprint: str, voice: float = 0.0) -> None:
        self.weights = tuple(float(weight) for weight in weights)
        self.fingerprint = fingerprint
        self.voice = voice

    def knows(self, fingerprint: str) -> bool:
        """Whether the model was fitted to this embedder's cosines."""
        return fingerprint == self.fingerprint

    def judge(
        self,
        a: Reading,
        b: Reading,
        cosine: float,
        *,
        balance: float = 0.0,
        confirmed: int = 0,
        denied: int = 0,
    ) -> Judgement:
        """Whether the answer to `b` may serve `a`, and how likely it is the same.

        `balance` is what the neighbours' answers say of it (see `voices.py`). `confirmed` and `denied` count
        how often the entry's answer was compared with a fresh one, and found the same or not.
        """
        record = _CONFIRMED * math.log1p(confirmed) - _DENIED * denied
        if is_same(a, b):
            return Judgement("", "", SAME_TEXT + record)
        forbidden = veto_at_once(a, b)
        if not forbidden:
            difference = compare(a, b)
            forbidden = veto(a, b, difference)
        if forbidden:
            return Judgement(forbidden, "", -math.inf)
        doubt = suspicion(a, b, difference)
        # What a word more or another word changes, neighbours can't tell: they may all have the old one.
        heard = min(balance, 0.0) if doubt else balance
        logit = self.logit(features(a, b, difference, cosine)) + self.voice * heard + record
        return Judgement("", doubt, logit)

    def logit(self, values: tuple[float, ...]) -> float:
        """The log odds that two prompts have the same answer."""
        *slopes, constant = self.weights
        return constant + sum(slope * value for slope, value in zip(slopes, values, strict=True))


def may_serve(a: Reading, b: Reading) -> bool:
    """Whether the words alone leave it possible that one answer serves both, whatever their cosine."""
    if is_same(a, b):
        return True
    if veto_at_once(a, b):
        return False
    difference = compare(a, b)
    return _share(difference) >= _LEAST_SHARED and not veto(a, b, difference)


def features(a: Reading, b: Reading, difference: Difference, cosine: float) -> tuple[float, ...]:
    """Cosine, share of the content words in common, and whether the question word is another."""
    asks_otherwise = bool(a.question and b.question and a.question != b.question)
    return (
        cosine,
        _share(difference),
        float(asks_otherwise),
    )


def _share(difference: Difference) -> float:
    """The share of the longer prompt's content words that the other has too."""
    left, right, num_shared, _ = difference
    return num_shared / max(1, num_shared + max(len(left), len(right)))


@lru_cache(maxsize=1)
def shipped() -> SameAnswer:
    """The model that comes with the package."""
    with resources.files(__package__).joinpath("data", "same_answer.npz").open("rb") as file:
        data = np.load(file, allow_pickle=False)
        return SameAnswer(data["weights"], str(data["fingerprint"]), float(data["voice"]))
