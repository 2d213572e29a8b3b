"""Ridge regression on similarity to landmarks: a smooth function of where a question is.

    f(q) = mean + sum over landmarks l of weights_l exp(-|q - l|^2 / (2 WIDTH))

(Subset of regressors: a Gaussian process through `NUM_LANDMARKS` of its rows. Quinonero-Candela and
Rasmussen, 2005.)
"""

from __future__ import annotations

import numpy as np

from .features import Floats
from .logistic import Doubles
from .rows import Array

NUM_LANDMARKS = 1024
WIDTH, PENALTY = 0.4, 5.0
FEATURE_SHARE = 0.1
# Landmarks that are all but the same row would leave nothing to solve by.
_JITTER = 1e-3


class Kernel:
    """The rows `chosen` are the `landmarks` (l, width); `weights` (l, outputs), `means` (outputs,)."""

    def __init__(self, landmarks: Floats, chosen: Array, weights: Floats, means: Doubles) -> None:
        self.landmarks, self.chosen, self.weights, self.means = landmarks, chosen, weights, means
        self._halves = _half(landmarks)

    def predict(self, inputs: Floats) -> Doubles:
        """(q, outputs) for inputs (q, width)."""
        near = similar(inputs, self.landmarks, self._halves)
        found: Doubles = self.means + (near @ self.weights).astype(np.float64)
        return found


def similar(inputs: Floats, landmarks: Floats, halves: Floats) -> Floats:
    """(q, l), 1 for the same place; `halves` are half the landmarks' squared lengths."""
    apart: Floats = inputs @ landmarks.T
    apart -= _half(inputs)[:, None]
    apart -= halves
    apart /= WIDTH
    return np.exp(apart, out=apart)


def fit_kernel(inputs: Floats, targets: Doubles, seed: int = 0) -> Kernel:
    """`inputs` (rows, width), `targets` (rows, outputs)."""
    chosen = np.sort(np.random.default_rng(seed).permutation(len(inputs))[:NUM_LANDMARKS])
    landmarks = inputs[chosen]
    near = similar(inputs, landmarks, _half(landmarks)).astype(np.float64)
    means = targets.mean(0)
    ridge = PENALTY * near[chosen]
    ridge[np.diag_indices_from(ridge)] += _JITTER
    weights = np.linalg.solve(near.T @ near + ridge, near.T @ (targets - means))
    return Kernel(landmarks, chosen, weights.astype(np.float32), means)


def _half(inputs: Floats) -> Floats:
    half: Floats = np.einsum("ij,ij->i", inputs, inputs) / 2
    return half
