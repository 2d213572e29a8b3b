"""One calibrated head a model: neighbours and a linear model where there are rows, length where not.

    P = calibrated(trust * (neighbours + linear) / 2 + (1 - trust) * by_length)
    trust = sigmoid((nearness - usual) / SHARPNESS)

`nearness` is the mean similarity of the ten nearest rows that have a score for the model, `usual` what six
questions in ten of the rows' own domain have. In the dark only length is left: it is what
no estimate may fall below, so nothing else is believed there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .calibration import Calibration, calibrate, calibrated
from .features import LENGTH, Floats
from .logistic import Doubles, fit, logit, sigmoid
from .rows import Array, Rows, pack, unit, unpack

# Chosen on RouteLLM's MMLU and GSM8K and LLMRouter's tasks; `bench/routing.py` prints what they give.
VECTOR_SCALE, FEATURE_PENALTY = 0.6, 30.0
FEATURE_SHARE = 0.2
NEIGHBOURS, SHARPENING, PRIOR_ROWS = 60, 8.0, 5.0
NEAREST, SHARPNESS, USUAL = 10, 0.05, 0.4
# Log-odds lost for e times the length, as in `priors`.
LENGTH_SLOPE = 0.3
FOLDS = 5
MIDDLING = float(np.log1p(200))
CHUNK = 512


class Chances(NamedTuple):
    """For each question and model: the chance of a right answer, and how far its rows are trusted (0..1)."""

    p_ok: Doubles
    trust: Doubles


class Head(NamedTuple):
    """What was fitted for one model. `linear` (dimensions + features + 1,) ends in the bias; `skill` is the
    log-odds of a right answer at middling length.
    """

    linear: Doubles
    calibration: Calibration
    skill: float
    usual: float


class _Asked(NamedTuple):
    """The rows with scores for some models: their numbers, the models' columns, and the scores (rows, models)
    with each model's mean. Models that were asked the same questions share their neighbours.
    """

    rows: Array
    columns: list[int]
    scores: Doubles
    means: Doubles


class Heads:
    """Heads for all models of the rows."""

    def __init__(self, rows: Rows, heads: list[Head], center: Floats, spread: Floats) -> None:
        self.rows = rows
        self.heads = heads
        self._center, self._spread = center, spread
        # Stored by dimension: one question is compared with all rows faster so.
        self._keys = np.ascontiguousarray(self._key(rows.vectors, self.scaled(rows.features)).T)
        self._last: tuple[bytes, Floats] = b"", np.empty((0, 0), np.float32)
        self._asked = _asked(rows)
        # A model a column, so that all of them are one product.
        self._linear = np.stack([head.linear for head in heads], 1)
        self._calibrations = np.array([head.calibration for head in heads])
        self._skills = np.array([head.skill for head in heads])
        self._usual = np.array([head.usual for head in heads])

    @property
    def models(self) -> tuple[str, ...]:
        return self.rows.models

    def predict(self, vectors: Floats, features: Floats) -> Chances:
        """For questions with these vectors (q, dimensions) and features (q, len(NAMES))."""
        parts = [
            self._predict(vectors[at : at + CHUNK], features[at : at + CHUNK])
            for at in range(0, len(vectors), CHUNK)
        ]
        p_ok, trust = zip(*parts, strict=True)
        return Chances(np.concatenate(p_ok), np.concatenate(trust))

    def by_length(self, features: Floats) -> Doubles:
        """What is left without neighbours, not calibrated: (q, models)."""
        return _by_length(self._skills, features[:, LENGTH, None])

    def nearest(self, vector: Floats, features: Floats, number: int) -> list[tuple[int, float]]:
        """The rows that weigh most for a question (vector and features of one), with their cosine."""
        similar = self._similar(self._key(vector[None], self.scaled(features[None])))[0]
        best = _largest(similar[None], min(number, len(similar)))[1][0]
        best = best[np.argsort(-similar[best])]
        return [(int(row), float(self.rows.vectors[row] @ vector)) for row in best]

    # ------------------------------------------------------------------------------------------------- inside

    def _predict(self, vectors: Floats, features: Floats) -> Chances:
        scaled = self.scaled(features)
        raw, nearness = self._raw(self._key(vectors, scaled), np.hstack([vectors * VECTOR_SCALE, scaled]))
        trust = _trust(nearness, self._usual)
        blend = trust * raw + (1 - trust) * self.by_length(features)
        return Chances(calibrated(blend, self._calibrations), trust)

    def _raw(self, keys: Floats, inputs: Floats) -> tuple[Doubles, Doubles]:
        """Not calibrated: chances and nearness, (q, models) each."""
        shape = len(keys), len(self.models)
        chances, nearness = np.empty(shape), np.empty(shape)
        similar = self._similar(keys)
        linear = sigmoid(inputs @ self._linear[:-1] + self._linear[-1])
        for known, columns, scores, means in self._asked:
            among = similar if len(known) == len(self.rows) else similar[:, known]
            near, index = _largest(among, min(NEIGHBOURS, len(known)))
            weights = np.exp(SHARPENING * near)
            weights *= near.shape[1] / weights.sum(1, keepdims=True)
            nearness[:, columns] = np.sort(near, 1)[:, -NEAREST:].mean(1)[:, None]
            voted = (weights[:, :, None] * scores[index]).sum(1) + PRIOR_ROWS * means
            chances[:, columns] = (voted / (near.shape[1] + PRIOR_ROWS) + linear[:, columns]) / 2
        return chances, nearness

    def _similar(self, keys: Floats) -> Floats:
        """(q, rows). Reading all rows is most of a decision's time, so that of the last question is kept."""
        asked = keys.tobytes() if len(keys) == 1 else b""
        if asked and self._last[0] == asked:
            return self._last[1]
        similar: Floats = np.matmul(keys, self._keys)
        if asked:
            self._last = asked, similar
        return similar

    def scaled(self, features: Floats) -> Floats:
        """Features as the heads weigh them: in spreads from the mean of the rows, outliers cut."""
        cut: Floats = np.clip((features - self._center) / self._spread, -3, 3).astype(np.float32)
        return cut

    @staticmethod
    def _key(vectors: Floats, scaled: Floats) -> Floats:
        key: Floats = np.hstack([vectors, FEATURE_SHARE * scaled]).astype(np.float32)
        return unit(key)


def fit_heads(rows: Rows, seed: int = 0) -> Heads:
    """Fitted to rows; each head's calibration to chances given to rows that its fit had not seen."""
    center = rows.features.mean(0)
    spread = rows.features.std(0) + 1e-3
    columns = range(len(rows.models))
    rough = [_fit_one(rows, column, center, spread) for column in columns]
    folds = np.random.default_rng(seed).permutation(len(rows)) % FOLDS
    raw, nearness = np.full((2, *rows.scores.shape), np.nan)
    for fold in range(FOLDS):
        kept, aside = rows.take(folds != fold), np.flatnonzero(folds == fold)
        part = Heads(kept, [_fit_one(kept, column, center, spread) for column in columns], center, spread)
        for at in range(0, len(aside), CHUNK):
            some = aside[at : at + CHUNK]
            scaled = part.scaled(rows.features[some])
            raw[some], nearness[some] = part._raw(
                part._key(rows.vectors[some], scaled), np.hstack([rows.vectors[some] * VECTOR_SCALE, scaled])
            )
    finished = []
    for column, head in enumerate(rough):
        known = ~np.isnan(rows.scores[:, column])
        usual = float(np.quantile(nearness[known, column], USUAL))
        trust = _trust(nearness[known, column], usual)
        by_length = _by_length(head.skill, rows.features[known, LENGTH])
        blend = trust * raw[known, column] + (1 - trust) * by_length
        found = calibrate(blend, rows.scores[known, column])
        finished.append(head._replace(calibration=found, usual=usual))
    return Heads(rows, finished, center, spread)


def _fit_one(rows: Rows, column: int, center: Floats, spread: Floats) -> Head:
    known = ~np.isnan(rows.scores[:, column])
    scores, vectors = rows.scores[known, column], rows.vectors[known]
    scaled = np.clip((rows.features[known] - center) / spread, -3, 3)
    penalty = np.append(np.ones(vectors.shape[1]), np.full(scaled.shape[1], FEATURE_PENALTY))
    linear = fit(np.hstack([vectors * VECTOR_SCALE, scaled]), scores, penalty)
    lengths = rows.features[known, LENGTH].mean() - MIDDLING
    skill = float(logit(scores.mean().clip(0.02, 0.98))) + LENGTH_SLOPE * float(lengths)
    return Head(linear, Calibration(), skill, 0.0)


def _trust(nearness: Doubles, usual: Doubles | float) -> Doubles:
    return sigmoid((nearness - usual) / SHARPNESS)


def _by_length(skill: Doubles | float, lengths: Floats) -> Doubles:
    return sigmoid(skill - LENGTH_SLOPE * (lengths.astype(np.float64) - MIDDLING))


def _asked(rows: Rows) -> list[_Asked]:
    found: list[tuple[Array, list[int]]] = []
    for column in range(len(rows.models)):
        known = np.flatnonzero(~np.isnan(rows.scores[:, column]))
        for others, columns in found:
            if np.array_equal(known, others):
                columns.append(column)
                break
        else:
            found.append((known, [column]))
    scores = [np.ascontiguousarray(rows.scores[np.ix_(known, columns)]) for known, columns in found]
    return [_Asked(*one, each, each.mean(0)) for one, each in zip(found, scores, strict=True)]


def _largest(similar: Floats, number: int) -> tuple[Floats, Array]:
    """The largest values of each row, in no order, and where they are."""
    if number == similar.shape[1]:
        return similar, np.broadcast_to(np.arange(number), similar.shape)
    index = np.argpartition(similar, -number, axis=1)[:, -number:]
    return np.take_along_axis(similar, index, 1), index


# ------------------------------------------------------------------------------------------------ as arrays


def to_arrays(heads: Heads) -> dict[str, Array]:
    return {
        **pack(heads.rows),
        "linear": np.stack([head.linear for head in heads.heads]).astype(np.float32),
        "calibration": np.array([head.calibration for head in heads.heads]),
        "skill": np.array([head.skill for head in heads.heads]),
        "usual": np.array([head.usual for head in heads.heads]),
        "center": heads._center.astype(np.float32),
        "spread": heads._spread.astype(np.float32),
    }


def from_arrays(arrays: Any) -> Heads:
    """Raises `ValueError` or `KeyError` for arrays that don't fit together."""
    rows = unpack(arrays)
    width = rows.vectors.shape[1] + rows.features.shape[1] + 1
    linear = arrays["linear"].astype(np.float64)
    if linear.shape != (len(rows.models), width) or not np.isfinite(linear).all():
        raise ValueError(f"the weights of {len(rows.models)} models have another shape, or are no numbers")
    heads = [
        Head(weights, Calibration(*map(float, numbers)), float(skill), float(usual))
        for weights, numbers, skill, usual in zip(
            linear, arrays["calibration"], arrays["skill"], arrays["usual"], strict=True
        )
    ]
    return Heads(rows, heads, arrays["center"], arrays["spread"])
