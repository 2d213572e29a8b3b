"""Chances that mean what they say: beta calibration (Kull, Silva Filho and Flach, 2017).

    logit P = a ln p - b ln(1 - p) + c,   a, b >= 0

It never turns two questions around, as isotonic steps do where they tie, and needs few rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .logistic import Doubles, fit, sigmoid, within

_EDGE = 1e-4
PULL = 1.0


class Calibration(NamedTuple):
    """The three numbers of the formula; (1, 1, 0) changes nothing."""

    a: float = 1.0
    b: float = 1.0
    c: float = 0.0

    def __call__(self, chances: Doubles) -> Doubles:
        up, down = _logs(chances)
        return sigmoid(self.a * up + self.b * down + self.c)


def calibrated(chances: Doubles, calibrations: Doubles) -> Doubles:
    """Chances (n, models), each model's by its own calibration (models, 3)."""
    (up, down), (a, b, c) = _logs(chances), calibrations.T
    return sigmoid(a * up + b * down + c)


def calibrate(chances: Doubles, outcomes: Doubles, weights: Doubles | None = None) -> Calibration:
    """Fitted to chances that were given to rows before their outcomes (0..1) were known."""
    up, down = _logs(chances)
    # A pull towards 'as it is' keeps a few rows, or rows without an error, from promising certainty.
    found = fit(np.stack([up, down], 1), outcomes, PULL, weights=weights, offset=up + down)
    a, b, c = 1 + found[0], 1 + found[1], found[2]
    if a < 0 or b < 0:
        kept = down if a < 0 else up
        slope, c = fit(kept[:, None], outcomes, PULL, weights=weights, offset=kept)
        slope = max(1 + slope, 0.0)
        a, b = (0.0, slope) if a < 0 else (slope, 0.0)
    return Calibration(float(a), float(b), float(c))


def _logs(chances: Doubles) -> tuple[Doubles, Doubles]:
    inside = within(chances, _EDGE, 1 - _EDGE)
    return np.log(inside), -np.log(1 - inside)
