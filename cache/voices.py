"""What the neighbours of a candidate say: the more of the kept answers around a prompt agree, the likelier it
is that they answer it.

A pair of prompts says how alike they are, and no more. Their neighbourhood says how much being alike is worth
just here: where the eight nearest prompts have one answer, the ninth will have it too; where an equally near
one has another, nobody can tell which is meant. This is the vote of the nearest neighbours (Cover and Hart,
1967), weighed by nearness. Answers that can't be compared (see `agreement.py`) have no voice, nor has one of
another model, whose answers differ for other reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from .agreement import Gist, agree_by

STEEPNESS = 20.0
"""A neighbour that is nearer by a twentieth of cosine than the candidate has e times its voice."""


class Voice(NamedTuple):
    """A kept answer near the prompt asked: the cosine of its prompt, who gave it, and its gist, if known."""

    cosine: float
    answerer: str
    gist: Gist | None


def balances(voices: Sequence[Voice]) -> list[float]:
    """How far the others speak for each answer: log((1 + for) / (1 + against)), 0 where all are silent."""
    agreeing, contrary = [0.0] * len(voices), [0.0] * len(voices)
    for (one, mine), (other, yours) in combinations(enumerate(voices), 2):
        if mine.gist is None or yours.gist is None or mine.answerer != yours.answerer:
            continue
        same = agree_by(mine.gist, yours.gist)
        if same is None:
            continue
        sums = agreeing if same else contrary
        nearer = math.exp(STEEPNESS * (yours.cosine - mine.cosine))
        sums[one] += nearer
        sums[other] += 1 / nearer
    return [math.log1p(pro) - math.log1p(con) for pro, con in zip(agreeing, contrary, strict=True)]
