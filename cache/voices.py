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
from typing import NamedTuple

from .agreement import Gist, agree_by

STEEPNESS = 10.0
"""A neighbour that is nearer by a tenth of cosine than the candidate has e times its voice."""


class Voice(NamedTuple):
    """A kept answer near the prompt asked: the cosine of its prompt, who gave it, and its gist, if known."""

    cosine: float
    answerer: str
    gist: Gist | None


def balance(voices: Sequence[Voice], place: int) -> float:
    """How far the others speak for the answer at `place`: log((1 + for) / (1 + against)), 0 where all are
    silent.
    """
    mine = voices[place]
    if mine.gist is None:
        return 0.0
    agreeing = contrary = 0.0
    for other, voice in enumerate(voices):
        if other == place or voice.gist is None or voice.answerer != mine.answerer:
            continue
        same = agree_by(mine.gist, voice.gist)
        weight = math.exp(STEEPNESS * (voice.cosine - mine.cosine))
        agreeing += weight * (same is True)
        contrary += weight * (same is False)
    return math.log1p(agreeing) - math.log1p(contrary)
