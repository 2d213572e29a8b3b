"""Questions as bags of words: ragged rows of bucket numbers, and a ridge regression on them.

    share(row) = mean + sum over its buckets of weights[bucket] * rarity[bucket] / |row|

`rarity` is ln((1 + n) / (1 + rows with it)) + 1, and |row| makes every row's vector one of length 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..wording import NUM_BUCKETS
from .logistic import Doubles

Buckets = NDArray[np.uint16]
PENALTY = 5.0
# A bucket that one row alone has says nothing of others.
FEWEST_ROWS = 2
STEPS, CLOSE = 40, 1e-4


@dataclass(frozen=True, slots=True)
class Bags:
    """`buckets` of all rows one after the other, and where each row's `starts` (n + 1,)."""

    buckets: Buckets
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def take(self, index: NDArray[np.int64]) -> Bags:
        """Some of the rows, by number."""
        sizes = self.sizes[index]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        places = np.repeat(self.starts[:-1][index] - starts[:-1], sizes) + np.arange(starts[-1])
        return Bags(self.buckets[places], starts)


def bags_of(rows: Sequence[Sequence[int]]) -> Bags:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Bags(np.array([each for row in rows for each in row], np.uint16), starts)


def joined_bags(parts: Sequence[Bags]) -> Bags:
    sizes = np.concatenate([part.sizes for part in parts])
    return Bags(
        np.concatenate([part.buckets for part in parts]),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )


class WordModel:
    """`weights` (NUM_BUCKETS, outputs) are 0 for buckets that were not learnt; `rarity` (NUM_BUCKETS,) is 0
    for them too, so that they don't count in a row's length.
    """

    def __init__(self, rarity: Doubles, weights: Doubles, means: Doubles) -> None:
        self.rarity, self.weights, self.means = rarity, weights, means

    def predict(self, bags: Bags) -> Doubles:
        """(n, outputs)"""
        if len(bags) == 1:
            rarity = self.rarity[bags.buckets]
            size = max(float(np.sqrt(rarity @ rarity)), 1e-9)
            one: Doubles = self.means + rarity @ self.weights[bags.buckets] / size
            return one[None]
        return self.means + _sums(bags, _values(bags, self.rarity), self.weights)


def fit_words(bags: Bags, targets: Doubles) -> WordModel:
    """Least squares on `targets` (n, outputs), by conjugate gradients."""
    rows = np.bincount(bags.buckets, minlength=NUM_BUCKETS)
    rarity = np.where(rows >= FEWEST_ROWS, np.log((1 + len(bags)) / (1 + rows)) + 1, 0.0)
    values = _values(bags, rarity)
    means = targets.mean(0)
    wanted = targets - means
    # In the rows' space: (G + penalty) a = wanted, with G the products of rows; then weights = X' a.
    found = np.zeros_like(wanted)
    left = wanted - PENALTY * found
    way = left.copy()
    size = (left**2).sum(0)
    first = np.maximum(size, 1e-12)
    for _ in range(STEPS):
        turned = _sums(bags, values, _spread(bags, values, way)) + PENALTY * way
        step = size / np.maximum((way * turned).sum(0), 1e-12)
        found += step * way
        left -= step * turned
        after = (left**2).sum(0)
        if (after <= CLOSE**2 * first).all():
            break
        way = left + after / np.maximum(size, 1e-12) * way
        size = after
    return WordModel(rarity, _spread(bags, values, found), means)


def _values(bags: Bags, rarity: Doubles) -> Doubles:
    """Entries of the rows' vectors."""
    raw = rarity[bags.buckets]
    row = np.repeat(np.arange(len(bags)), bags.sizes)
    lengths = np.sqrt(np.bincount(row, raw**2, minlength=len(bags)))
    return raw / np.maximum(lengths, 1e-9)[row]


def _sums(bags: Bags, values: Doubles, weights: Doubles) -> Doubles:
    """X w"""
    row = np.repeat(np.arange(len(bags)), bags.sizes)
    return np.stack(
        [
            np.bincount(row, values * weights[bags.buckets, column], minlength=len(bags))
            for column in range(weights.shape[1])
        ],
        1,
    )


def _spread(bags: Bags, values: Doubles, rows: Doubles) -> Doubles:
    """X' a"""
    row = np.repeat(np.arange(len(bags)), bags.sizes)
    return np.stack(
        [
            np.bincount(bags.buckets, values * rows[row, column], minlength=NUM_BUCKETS)
            for column in range(rows.shape[1])
        ],
        1,
    )
