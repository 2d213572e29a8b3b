"""The user's own verdicts: near a question they outweigh the outcomes of others, elsewhere they are silent.

    P = (RESERVE * P_before + sum w_i y_i) / (RESERVE + sum w_i),   w_i = weight_i * closeness_i ^ 2

A Beta posterior whose prior counts as much as `RESERVE` verdicts on the very question.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .features import Floats
from .logistic import Doubles
from .rows import Array

RESERVE = 3.0
FARTHEST = 0.45
"""Cosine below which a verdict says nothing of a question; paraphrases are at 0.8, a subject at 0.5."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Verdicts as arrays of one length: which request, engine, model (and its size in billions, NaN where
    nobody knows) they are on, the question, the score 0..1 and how much it counts. `groups` are the chats,
    `tenants` whose verdict it is ("" where there are no keys): nobody steers anybody else's requests.
    """

    ids: NDArray[np.str_]
    groups: NDArray[np.str_]
    tenants: NDArray[np.str_]
    engines: NDArray[np.str_]
    models: NDArray[np.str_]
    kinds: NDArray[np.str_]
    parameters: Doubles
    vectors: Floats
    features: Floats
    scores: Doubles
    weights: Doubles

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Array) -> Evidence:
        """Some of the verdicts, by number or mask."""
        return Evidence(*(getattr(self, name)[index] for name in self.__slots__))

    def of(self, engine: str, model: str) -> Array:
        """Mask of the verdicts on an engine while it served this model."""
        mask: Array = (self.engines == engine) & (self.models == model)
        return mask

    def near(self, engine: str, model: str, vector: Floats, tenant: str = "") -> tuple[float, float]:
        """How much a tenant's verdicts on an engine count for a question, and how much of it is 'right'."""
        mine = self.of(engine, model) & (self.tenants == tenant)
        closeness = np.clip((self.vectors[mine] @ vector - FARTHEST) / (1 - FARTHEST), 0, 1)
        weights = self.weights[mine] * closeness.astype(np.float64) ** 2
        return float(weights.sum()), float(weights @ self.scores[mine])


def weighed(before: float, count: float, right: float) -> float:
    """The chance after verdicts that count so much, of which `right` says that the engine is."""
    return (RESERVE * before + right) / (RESERVE + count)


_NONE = np.array([], dtype=np.str_)
NOTHING = Evidence(
    ids=_NONE,
    groups=_NONE,
    tenants=_NONE,
    engines=_NONE,
    models=_NONE,
    kinds=_NONE,
    parameters=np.empty(0),
    vectors=np.empty((0, 0), np.float32),
    features=np.empty((0, 0), np.float32),
    scores=np.empty(0),
    weights=np.empty(0),
)
