"""Questions with known outcomes, as arrays: vectors, structure, and a score for each model that was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bags import Bags, joined_bags
from .features import NAMES, Floats
from .logistic import Doubles

Array = NDArray[Any]

# A score of 0..1 in a byte; the last value is for 'was not asked'.
_SCORE_STEPS, _UNKNOWN = 200, 255


@dataclass(frozen=True, slots=True)
class Rows:
    """`ids` and `groups` (n,) name questions and where they are from; `vectors` (n, dimensions) are unit
    vectors; `features` (n, len(NAMES)); `scores` (n, len(models)) are 0..1, NaN where a model was not
    asked. `bags` are the questions' words, where they are known.
    """

    ids: NDArray[np.str_]
    groups: NDArray[np.str_]
    vectors: Floats
    features: Floats
    scores: Doubles
    models: tuple[str, ...]
    bags: Bags | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Array) -> Rows:
        """Some of the rows, by number or mask."""
        index = np.flatnonzero(index) if index.dtype == bool else index
        return replace(
            self,
            ids=self.ids[index],
            groups=self.groups[index],
            vectors=self.vectors[index],
            features=self.features[index],
            scores=self.scores[index],
            bags=self.bags.take(index) if self.bags is not None else None,
        )

    def of(self, *models: str) -> Rows:
        """The rows that all of these models have scores for, with those alone."""
        scores = self.scores[:, [self.models.index(model) for model in models]]
        return replace(self, scores=scores, models=models).take(np.flatnonzero(~np.isnan(scores).any(1)))


def joined(parts: Sequence[Rows]) -> Rows:
    """All rows of all parts, with every model that any part has."""
    models = tuple(dict.fromkeys(model for part in parts for model in part.models))
    scores = np.full((sum(map(len, parts)), len(models)), np.nan)
    at = 0
    for part in parts:
        for column, model in enumerate(part.models):
            scores[at : at + len(part), models.index(model)] = part.scores[:, column]
        at += len(part)
    return Rows(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.groups for part in parts]),
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.features for part in parts]),
        scores,
        models,
        joined_bags(bags) if len(bags := [part.bags for part in parts if part.bags]) == len(parts) else None,
    )


def pack(rows: Rows) -> dict[str, Array]:
    """Small arrays for an archive: a byte for each component of a vector, and for each score. Words are left
    out: of a question only numbers are kept that can't be read.
    """
    largest = np.abs(rows.vectors).max(1, keepdims=True)
    scores = np.where(np.isnan(rows.scores), _UNKNOWN, np.round(np.nan_to_num(rows.scores) * _SCORE_STEPS))
    return {
        "ids": rows.ids,
        "groups": rows.groups,
        "vectors": np.round(rows.vectors / np.maximum(largest, 1e-9) * 127).astype(np.int8),
        "features": rows.features.astype(np.float16),
        "scores": scores.astype(np.uint8),
        "models": np.array(rows.models),
    }


def unpack(arrays: Any) -> Rows:
    """The rows of an archive that `pack` filled. Raises `ValueError` where shapes don't fit, and `KeyError`
    for an array that is not there.
    """
    vectors = unit(arrays["vectors"].astype(np.float32))
    packed = arrays["scores"]
    rows = Rows(
        arrays["ids"],
        arrays["groups"],
        vectors,
        arrays["features"].astype(np.float32),
        np.where(packed == _UNKNOWN, np.nan, packed / _SCORE_STEPS),
        tuple(str(model) for model in arrays["models"]),
    )
    number = len(rows.ids)
    shapes = {
        "groups": rows.groups.shape == (number,),
        "vectors": vectors.ndim == 2 and len(vectors) == number,
        "features": rows.features.shape == (number, len(NAMES)),
        "scores": rows.scores.shape == (number, len(rows.models)),
    }
    wrong = [name for name, fits in shapes.items() if not fits]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} of {number} rows have another shape")
    return rows


def unit(vectors: Floats) -> Floats:
    """The same directions at length 1."""
    scaled: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
    return scaled
