"""Logistic regression by Newton's method, for chances as well as for yes and no."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

STEPS, HALVINGS = 20, 20
# Far enough out that the chance is 0 or 1 in double precision.
FARTHEST = 36.0


def within(values: NDArray[Any], least: float, most: float) -> NDArray[Any]:
    """As `np.clip`, which takes four times as long for a few numbers."""
    inside: NDArray[Any] = np.minimum(np.maximum(values, least), most)
    return inside


def sigmoid(log_odds: Doubles) -> Doubles:
    clipped: Doubles = within(log_odds, -FARTHEST, FARTHEST)
    return 1.0 / (1.0 + np.exp(-clipped))


def logit(chances: Doubles) -> Doubles:
    """Log-odds; a chance of 0 or 1 is taken as almost that."""
    inside = within(chances, 1e-6, 1 - 1e-6)
    odds: Doubles = np.log(inside / (1 - inside))
    return odds


def fit(
    inputs: NDArray[np.floating],
    targets: Doubles,
    penalty: Doubles | float,
    *,
    weights: Doubles | None = None,
    offset: Doubles | None = None,
) -> Doubles:
    """Weights of the inputs, and last the bias, at the least penalised log loss.

    `inputs` (rows, width), `targets` (rows,) in 0..1, `penalty` on squares of weights, one or (width,); the
    bias is free. `weights` is how much each row counts. With an `offset` (rows,) of log-odds only what it
    misses is learnt, and the bias is penalised like a weight.
    """
    rows, width = inputs.shape
    with_one = np.hstack([inputs, np.ones((rows, 1))]).astype(np.float64)
    ridge = np.append(np.broadcast_to(penalty, width), 1e-6 if offset is None else 1.0)
    counts = np.ones(rows) if weights is None else weights
    found = np.zeros(width + 1)
    start = np.zeros(rows) if offset is None else offset
    if offset is None:
        found[-1] = float(logit(np.array(np.average(targets, weights=counts).clip(0.01, 0.99))))
    loss = _loss(with_one @ found + start, targets, counts) + float(ridge @ found**2) / 2
    for _ in range(STEPS):
        chances = sigmoid(with_one @ found + start)
        curvature = counts * np.maximum(chances * (1 - chances), 1e-4)
        hessian = (with_one * curvature[:, None]).T @ with_one + np.diag(ridge)
        gradient = with_one.T @ (counts * (targets - chances)) - ridge * found
        step = np.linalg.solve(hessian, gradient)
        # A full step from a start that is far too sure leaps over the minimum.
        for _ in range(HALVINGS):
            trial = found + step
            after = _loss(with_one @ trial + start, targets, counts) + float(ridge @ trial**2) / 2
            if after <= loss:
                break
            step = step / 2
        else:
            break
        found, loss = trial, after
        if np.abs(step).max() < 1e-5:
            break
    return found


def _loss(log_odds: Doubles, targets: Doubles, counts: Doubles) -> float:
    return float(counts @ (np.logaddexp(0, log_odds) - targets * log_odds))
