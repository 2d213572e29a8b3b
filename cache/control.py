"""How sure is sure enough: one threshold for all semantic hits, chosen so that the user's bound holds.

The bound is pooled: of 100 requests at most so many may get a wrong answer, whichever they are, and hits are
given in the order of confidence. (A bound for each single request, as vCache has it (arXiv 2502.03771), needs
several observations of every entry before its first hit, and spends its errors where confidence is lowest.)

Three things are learned from the last `WINDOW` lookups, each by itself too weak:

- the shipped probability is recalibrated here: logit q = a logit p + b + doubts, with a prior at a = 1,
  b = 0 and doubts that amount to a veto. Every miss that had a candidate teaches it for nothing, since its
  answer is computed anyway and compared;
- a few hits drawn by lot are withheld and computed instead: audits. How many of them were wrong, against how
  many q expected, is a ratio r with a gamma prior at 1. It catches what the first cannot see: that the
  traffic's hardest pairs are worse than the easier ones let guess;
- the threshold is the lowest t at which r's upper limit times the wrong answers expected above t stays within
  the bound.

Where r's lower limit alone breaks the bound at every threshold, the tier is off and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .vetoes import Suspicion

Floats = NDArray[np.float64]

WINDOW = 3000
"""Lookups that count; older traffic is another traffic."""

AUDIT_RATE = 0.03
"""The share of hits that is withheld and computed."""

MIN_PROBABILITY = 0.9
"""Never served below, whatever the bound allows: where hits are rare, a bound on requests is none on hits."""

PRIOR = (1.0, 0.0, -4.0, -4.0)
_PRIOR_SD = (0.25, 1.0, 1.5, 1.5)
_UNKNOWN = np.array([0.0, 4.0, 0.0, 0.0])
"""Weights of the shipped logit, of 1, and of the two suspicions: a veto, until this traffic disproves it."""

_RATIO_PRIOR = 4.0
_NEWTON_STEPS = 20
_Z90, _Z99 = 1.2816, 2.3263
_MIN_WRONG = 3
_MIN_LOOKUPS = 200
"""Fewer lookups than this are counted as this many: with ten, one wrong answer would be ten in 100."""


class Observations(NamedTuple):
    """Lookups, oldest first, one row each.

    `logit` is of the shipped probability of the best candidate, -inf where there was none; `added` and
    `replaced` (0 or 1) are its suspicions. `served` and `audited` are 0 or 1; `same` is 1 or 0 where the two
    answers were compared, NaN where not. `blamed` hits were called wrong by the user.
    """

    logit: Floats
    added: Floats
    replaced: Floats
    served: Floats
    audited: Floats
    same: Floats
    blamed: Floats

    @classmethod
    def of(cls, rows: Sequence[Sequence[float | None]]) -> Observations:
        """From rows with the fields in order; None is NaN, and rows beyond `WINDOW` are left out."""
        table = np.array([[math.nan if cell is None else cell for cell in row] for row in rows], float)
        return cls(*table.reshape(-1, len(cls._fields))[-WINDOW:].T)


class Policy(NamedTuple):
    """What a lookup needs to know: serve where `probability(...) >= threshold`.

    `wrong_per_100` is the expected number of wrong answers in 100 requests, with the limits of its 80 %
    interval. `off_because` is empty, or the sentence that says why nothing is served.
    """

    weights: tuple[float, float, float, float] = PRIOR
    threshold: float = 1.0
    wrong_per_100: tuple[float, float, float] = (0.0, 0.0, 0.0)
    off_because: str = ""

    def probability(self, logit: float, suspicion: Suspicion) -> float:
        """The recalibrated probability that the candidate's answer is the same."""
        slope, shift, added, replaced = self.weights
        doubt = {"": 0.0, "added": added, "replaced": replaced}[suspicion]
        return float(_sigmoid(np.array(slope * logit + shift + doubt)))

    def serves(self, logit: float, suspicion: Suspicion) -> bool:
        return not self.off_because and self.probability(logit, suspicion) >= self.threshold


def decide(seen: Observations, max_wrong_per_100: float, *, known: bool = True) -> Policy:
    """The policy for what comes next, from what was seen. Takes milliseconds.

    `known` is whether the shipped model was fitted to this embedder; where not, nothing is served before the
    traffic itself has shown what its similarities are worth.
    """
    weights = _recalibrate(seen, known=known)
    q = np.where(np.isfinite(seen.logit), _sigmoid(_inputs(seen) @ weights), 0.0)
    low, high = _audit_ratio(seen, q)
    bound = max_wrong_per_100 / 100
    order = np.argsort(-q)
    expected = np.cumsum(1 - q[order]) / max(len(q), _MIN_LOOKUPS)
    num_served = int((high * expected <= bound).sum())
    if len(q) < _MIN_LOOKUPS:
        threshold = max(MIN_PROBABILITY, _cold_threshold(bound, high))
    elif num_served == len(q):
        threshold = MIN_PROBABILITY
    else:
        # Halfway to the first that is not served, so that equal ones are treated alike.
        above = q[order][num_served - 1] if num_served else 1.0
        threshold = max(MIN_PROBABILITY, float(above + q[order][num_served]) / 2)
    still_served = q >= threshold
    served = 100 * float(np.sum((1 - q)[still_served])) / max(len(q), 1)
    wrong = (served * low, served, served * high)
    return Policy(
        tuple(weights.tolist()), threshold, wrong, _off_because(seen, still_served, max_wrong_per_100)
    )


def _cold_threshold(bound: float, high: float) -> float:
    """Before there is traffic to count: as if half of all requests were served at the threshold itself."""
    return 1 - 2 * bound / high


def _inputs(seen: Observations) -> Floats:
    """One row a lookup, in the order of `PRIOR`."""
    return np.stack([seen.logit, np.ones_like(seen.logit), seen.added, seen.replaced], axis=1)


def _recalibrate(seen: Observations, *, known: bool) -> Floats:
    """The maximum a posteriori weights, by Newton's method."""
    taught = np.isfinite(seen.same) & np.isfinite(seen.logit)
    inputs, y = _inputs(seen)[taught], seen.same[taught]
    prior = np.array(PRIOR) - (0.0 if known else _UNKNOWN)
    precision = np.diag(np.array(_PRIOR_SD) ** -2.0)
    weights = prior.copy()
    for _ in range(_NEWTON_STEPS):
        q = _sigmoid(inputs @ weights)
        gradient = inputs.T @ (y - q) - precision @ (weights - prior)
        curvature = (inputs * (q * (1 - q))[:, None]).T @ inputs + precision
        step = np.linalg.solve(curvature, gradient)
        # Where q is nearly 0 or 1 the curvature says little and a whole step runs away.
        weights = weights + step / max(1.0, float(np.abs(step).max()))
    # However odd the labels, more similar is never less sure.
    weights[0] = max(weights[0], 0.1)
    return weights


def _audit_ratio(seen: Observations, q: Floats) -> tuple[float, float]:
    """The limits of how many more wrong answers the audits found than were expected, 10 % on either side."""
    audits = (seen.audited == 1) & np.isfinite(seen.same)
    # Who complains is not drawn by lot, and nobody complains of a right answer: it only ever counts against.
    wrong = float(np.sum(1 - seen.same[audits])) + float(np.sum(seen.blamed)) * AUDIT_RATE
    expected = float(np.sum((1 - q)[audits]))
    k = _RATIO_PRIOR + wrong
    return _gamma_quantile(k, -_Z90) / (_RATIO_PRIOR + expected), _gamma_quantile(k, _Z90) / (
        _RATIO_PRIOR + expected
    )


def _off_because(seen: Observations, still_served: NDArray[np.bool_], max_wrong_per_100: float) -> str:
    # Only audits above today's threshold: what went wrong below it has been answered by raising it.
    audits = (seen.audited == 1) & np.isfinite(seen.same) & still_served
    wrong, num_audits = float(np.sum(1 - seen.same[audits])), int(audits.sum())
    if wrong < _MIN_WRONG:
        return ""
    # An audit stands for all hits of its share.
    scale = 100 / AUDIT_RATE / len(seen.logit)
    if _gamma_quantile(wrong, -_Z99) * scale <= max_wrong_per_100:
        return ""
    return (
        f"{wrong:.0f} of {num_audits} audited answers were wrong, about {wrong * scale:.1f} in 100 requests "
        f"where {max_wrong_per_100:g} are allowed: similar prompts are not answered from the cache for now."
    )


def _gamma_quantile(shape: float, z: float) -> float:
    """Of a gamma distribution with scale 1, by Wilson and Hilferty (1931)."""
    return shape * max(0.0, 1 - 1 / (9 * shape) + z / (3 * math.sqrt(shape))) ** 3


def _sigmoid(x: Floats) -> Floats:
    result: Floats = 1 / (1 + np.exp(-np.clip(x, -40, 40)))
    return result
