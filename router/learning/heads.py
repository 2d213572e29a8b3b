"""One calibrated head a model: what rows tell where there are rows, length where not.

    mixed = trust * calibrated(mean + stretch * (parts - mean)) + (1 - trust) * by_length
    trust = near * rows / (rows + LENGTH_ROWS)
    near = sigmoid((nearness - usual) / SHARPNESS) * sigmoid((usual_oddity - oddity) / ODDITY_SHARPNESS)
    P = near * risen(mixed) + (1 - near) * mixed

`nearness` is the mean similarity of the ten nearest rows that have a score for the model; `oddity` is how
many features are farther out than almost any row's. In the dark only length is left: it is what no estimate
may fall below, so nothing else is believed there. `stretch` is one number for all models that were asked the
same questions: the mean of the parts is too cautious, and the order of their differences is right. What is
mixed of two calibrated chances is not calibrated, so among the rows the mixture is once more, by a curve.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from .bags import Bags
from .calibration import Calibration, calibrate, calibrated
from .features import LENGTH, Floats
from .kernel import FEATURE_SHARE
from .logistic import Doubles, logit, sigmoid, within
from .parts import NEIGHBOURS, Parts, fit_parts
from .rising import GRID, fit_rising, risen
from .rows import Array, Rows, unit

# How much the features weigh beside the vector, in a key that is compared by its cosine.
KEY_FEATURE_SHARE = 0.15
# `usual` is what all but 2 % of the rows have of nearness, `usual_oddity` what all but 5 % don't exceed.
SHARPNESS, USUAL = 0.03, 0.02
ODDITY_SHARPNESS, USUAL_ODDITY = 0.2, 0.95
FAR_OUT = 3.0
"""Spreads from the mean of the rows at which a feature is cut, and odd."""
SUREST = 0.98
LENGTH_ROWS = 300.0
"""Length is what is known before any row, and as much as that many rows tell."""
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
    """What was fitted for one model; `mean` is its rows' mean score, `skill` the log-odds of a right answer
    at middling length.
    """

    mean: float
    skill: float
    stretch: float = 1.0
    usual: float = 0.0
    calibration: Calibration = Calibration()


class _Every(NamedTuple):
    """All heads at once: each number (models,), and the calibrations (models, 3). `grounds` is how far a
    model's number of rows is trusted at all.
    """

    mean: Doubles
    skill: Doubles
    stretch: Doubles
    usual: Doubles
    calibration: Doubles
    grounds: Doubles


class Heads:
    """Heads for all models of the rows. Models that were asked the same questions share their `parts`."""

    def __init__(
        self,
        rows: Rows,
        heads: list[Head],
        parts: list[Parts],
        center: Floats,
        spread: Floats,
        usual_oddity: float = 0.0,
        curves: Doubles | None = None,
    ) -> None:
        self.rows = rows
        self.heads = heads
        self.parts = parts
        self.center, self.spread, self.usual_oddity = center, spread, usual_oddity
        self.curves = np.tile(GRID, (len(rows.models), 1)) if curves is None else curves

    @cached_property
    def _every(self) -> _Every:
        mean, skill, stretch, usual = np.array([head[:4] for head in self.heads]).T
        calibrations = np.array([head.calibration for head in self.heads])
        known = (~np.isnan(self.rows.scores)).sum(0)
        return _Every(mean, skill, stretch, usual, calibrations, known / (known + LENGTH_ROWS))

    @property
    def models(self) -> tuple[str, ...]:
        return self.rows.models

    def predict(self, vectors: Floats, features: Floats, bags: Bags | None = None) -> Chances:
        """For questions with these vectors (q, dimensions), features (q, len(NAMES)) and words, where they
        are known.
        """
        mixed, near = self.mixed(*self.raw(vectors, features, bags), features)
        return Chances(near * risen(mixed, self.curves) + (1 - near) * mixed, near * self._every.grounds)

    def mixed(self, raw: Doubles, nearness: Doubles, features: Floats) -> tuple[Doubles, Doubles]:
        """From what `raw` says: chances before the curves, and how near the rows are as 0..1; (q, models)
        each.
        """
        every = self._every
        odd = (self.usual_oddity - self.oddity(features)) / ODDITY_SHARPNESS
        near = sigmoid((nearness - every.usual) / SHARPNESS) * sigmoid(odd)[:, None]
        judged = calibrated(_stretched(raw, every.mean, every.stretch), every.calibration)
        trust = near * every.grounds
        return trust * judged + (1 - trust) * self.by_length(features), near

    def raw(self, vectors: Floats, features: Floats, bags: Bags | None) -> tuple[Doubles, Doubles]:
        """What the parts say, and how near the rows are: (q, models) each."""
        shape = len(vectors), len(self.models)
        chances, nearness = np.empty(shape), np.empty(shape)
        for at in range(0, len(vectors), CHUNK):
            some = slice(at, at + CHUNK)
            keys, inputs = self.placed(vectors[some], features[some])
            few = bags
            if bags is not None and len(vectors) > CHUNK:
                few = bags.take(np.arange(len(vectors))[some])
            for part in self.parts:
                found, near = part.predict(keys, inputs, few)
                chances[some, part.columns] = found
                nearness[some, part.columns] = near[:, None]
        return chances, nearness

    def by_length(self, features: Floats) -> Doubles:
        """What is left without rows: (q, models)."""
        longer = features[:, LENGTH].astype(np.float64) - MIDDLING
        return sigmoid(self._every.skill - LENGTH_SLOPE * longer[:, None])

    def nearest(self, vector: Floats, features: Floats, number: int) -> list[tuple[int, float]]:
        """The rows that are nearest to a question (vector and features of one), with their cosine."""
        keys, _ = self.placed(vector[None], features[None])
        found: list[tuple[float, int]] = []
        for part in self.parts:
            # As many as its estimate asks for, so that they are there already.
            similar, index = part.nearest.search(keys, max(number, NEIGHBOURS))
            found += zip(similar[0].tolist(), part.known[index[0]].tolist(), strict=True)
        best = sorted(set(found), reverse=True)[:number]
        return [(row, float(self.rows.vectors[row] @ vector)) for _, row in best]

    def scaled(self, features: Floats) -> Floats:
        """Features as the heads weigh them: in spreads from the mean of the rows, outliers cut, and 0 for
        what was not measured (NaN).
        """
        known: Floats = within((features - self.center) / self.spread, -FAR_OUT, FAR_OUT).astype(np.float32)
        known[np.isnan(known)] = 0.0
        return known

    def oddity(self, features: Floats) -> Doubles:
        """How many features are out of the range of almost all rows: (q,)."""
        out: Doubles = (np.abs(features - self.center) >= FAR_OUT * self.spread).sum(1).astype(np.float64)
        return out

    def placed(self, vectors: Floats, features: Floats) -> tuple[Floats, Floats]:
        """Questions as keys for neighbours, and as inputs for the kernel."""
        scaled = self.scaled(features)
        keys = unit(np.hstack([vectors, KEY_FEATURE_SHARE * scaled]).astype(np.float32))
        return keys, np.hstack([vectors, FEATURE_SHARE * scaled]).astype(np.float32)


def fit_heads(rows: Rows, seed: int = 0) -> Heads:
    """Fitted to rows; each head's calibration to chances given to rows that its fit had not seen."""
    center = rows.features.mean(0)
    spread = rows.features.std(0) + 1e-3
    folds = np.random.default_rng(seed).permutation(len(rows)) % FOLDS
    raw, nearness = np.full((2, *rows.scores.shape), np.nan)
    for fold in range(FOLDS):
        kept, aside = rows.take(np.flatnonzero(folds != fold)), np.flatnonzero(folds == fold)
        rough = _rough(kept, center, spread)
        bags = rows.bags.take(aside) if rows.bags is not None else None
        raw[aside], nearness[aside] = rough.raw(rows.vectors[aside], rows.features[aside], bags)
    heads = _rough(rows, center, spread)
    heads.usual_oddity = max(float(np.quantile(heads.oddity(rows.features), USUAL_ODDITY)), 1.0) + 0.5
    for part in heads.parts:
        index = np.ix_(part.known, part.columns)
        said, scores = raw[index] - part.means, part.scores - part.means
        stretch = float((said * scores).sum() / max((said**2).sum(), 1e-9))
        usual = float(np.quantile(nearness[index], USUAL))
        for place, column in enumerate(part.columns):
            head = heads.heads[column]._replace(stretch=max(stretch, 0.0), usual=usual)
            found = calibrate(
                _stretched(raw[part.known, column], head.mean, head.stretch), part.scores[:, place]
            )
            heads.heads[column] = head._replace(calibration=found)
    mixed, _ = heads.mixed(raw, nearness, rows.features)
    for column, scores in enumerate(rows.scores.T):
        known = ~np.isnan(scores)
        heads.curves[column] = _mending(mixed[known, column], scores[known])
    return heads


def _mending(chances: Doubles, outcomes: Doubles) -> Doubles:
    """The curve from chances to what came of them: the smooth one of a formula, then what that misses."""
    smooth = calibrate(chances, outcomes)
    return risen(smooth(GRID)[:, None], fit_rising(smooth(chances), outcomes)[None])[:, 0]


def _rough(rows: Rows, center: Floats, spread: Floats) -> Heads:
    """Fitted, and not calibrated."""
    heads = Heads(rows, [], [], center, spread)
    for known, columns in asked(rows):
        keys, inputs = heads.placed(rows.vectors[known], rows.features[known])
        heads.parts.append(fit_parts(rows, columns, known, keys, inputs))
    for column in range(len(rows.models)):
        known = ~np.isnan(rows.scores[:, column])
        mean = float(rows.scores[known, column].mean())
        longer = float(rows.features[known, LENGTH].mean()) - MIDDLING
        skill = float(logit(np.array(mean).clip(1 - SUREST, SUREST))) + LENGTH_SLOPE * longer
        heads.heads.append(Head(mean, skill))
    return heads


def asked(rows: Rows) -> list[tuple[Array, Array]]:
    """Sets of rows, each with the columns of the models that have scores for them and for no others."""
    found: list[tuple[Array, list[int]]] = []
    for column in range(len(rows.models)):
        known = np.flatnonzero(~np.isnan(rows.scores[:, column]))
        for others, columns in found:
            if np.array_equal(known, others):
                columns.append(column)
                break
        else:
            found.append((known, [column]))
    return [(known, np.array(columns)) for known, columns in found]


def _stretched(said: Doubles, mean: Doubles | float, stretch: Doubles | float) -> Doubles:
    return within(mean + stretch * (said - mean), 1 - SUREST, SUREST)
