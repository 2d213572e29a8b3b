"""Curves that rise, for chances that miss in a way that no formula has the shape of: isotonic regression.

Sorted rows are taken in blocks, neighbouring blocks that fall are joined (pool adjacent violators, Ayer et
al., 1955), and the curve runs straight from the middle of one to that of the next: steps would tie questions
that differ. Where rows are few, it stays near the chances as they were.
"""

from __future__ import annotations

import numpy as np

from .logistic import Doubles, within

POINTS = 17
"""Values that a curve is kept by, at equal distances from a chance of 0 to one of 1."""
GRID: Doubles = np.linspace(0.0, 1.0, POINTS)

BLOCK_ROWS = 100
PRIOR_ROWS = 1000.0
"""The chances as they were count as much as that many rows."""


def fit_rising(chances: Doubles, outcomes: Doubles) -> Doubles:
    """The curve (POINTS,), fitted to chances that were given to rows before their outcomes (0..1) were
    known.
    """
    order = np.argsort(chances, kind="stable")
    number = max(len(chances) // BLOCK_ROWS, 1)
    blocks: list[tuple[float, float, int]] = []
    for some in np.array_split(order, number):
        said, came, rows = float(chances[some].mean()), float(outcomes[some].mean()), len(some)
        while blocks and blocks[-1][1] >= came:
            other_said, other_came, others = blocks.pop()
            said = (said * rows + other_said * others) / (rows + others)
            came = (came * rows + other_came * others) / (rows + others)
            rows += others
        blocks.append((said, came, rows))
    known, seen, _ = np.array(blocks).T
    curve = np.interp(GRID, np.concatenate([[0.0], known, [1.0]]), np.concatenate([[0.0], seen, [1.0]]))
    share = len(chances) / (len(chances) + PRIOR_ROWS)
    mixed: Doubles = share * curve + (1 - share) * GRID
    return mixed


def risen(chances: Doubles, curves: Doubles) -> Doubles:
    """Chances (n, models), each model's by its own curve (models, POINTS)."""
    place = within(chances, 0.0, 1.0) * (POINTS - 1)
    below = np.minimum(place.astype(int), POINTS - 2)
    model = np.arange(len(curves))
    low, high = curves[model, below], curves[model, below + 1]
    between: Doubles = low + (place - below) * (high - low)
    return between
