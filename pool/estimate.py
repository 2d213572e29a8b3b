"""How long an answer will be: a quantile of the answers seen lately, held to the coverage it promises."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque


class LengthEstimate:
    """Output tokens that an answer will not exceed, with probability `target`.

    The quantile is taken over the last `window` finished answers that were longer than what this one already
    has. Its level moves up after each answer that was longer than predicted and down after each that was not
    (adaptive conformal inference, Gibbs and Candès 2021), so that the share of covered answers tends to
    `target` whatever the lengths do; at level 1 the prediction is the request's own limit, which always
    covers. Until `num_prior` answers are known it is that limit too.
    """

    def __init__(
        self, target: float = 0.9, *, window: int = 512, step: float = 0.02, num_prior: int = 16
    ) -> None:
        self.target = target
        self.level = target
        self._step = step
        self._num_prior = num_prior
        self._recent: deque[int] = deque(maxlen=window)
        self._sorted: list[int] = []
        self._covered: deque[bool] = deque(maxlen=window)

    @property
    def coverage(self) -> float:
        """Share of recent answers that were no longer than predicted; NaN before the first."""
        return sum(self._covered) / len(self._covered) if self._covered else math.nan

    def predict(self, num_output: int, max_tokens: int) -> int:
        """Total output tokens expected of an answer that has `num_output` of them already."""
        if len(self._sorted) < self._num_prior or self.level >= 1:
            return max_tokens
        first = bisect_right(self._sorted, num_output)
        num_longer = len(self._sorted) - first
        if not num_longer:
            return min(max_tokens, 2 * num_output)
        chosen = first + max(math.ceil(self.level * num_longer), 1) - 1
        return min(max_tokens, self._sorted[chosen])

    def observe(self, predicted: int, actual: int) -> None:
        """One answer came to its own end with `actual` tokens; `predicted` were expected at its admission."""
        covered = actual <= predicted
        self._covered.append(covered)
        self.level += self._step * (self.target - 1 if covered else self.target)
        self.level = min(max(self.level, 0.0), 1.0)
        if len(self._recent) == self._recent.maxlen:
            self._sorted.pop(bisect_left(self._sorted, self._recent[0]))
        self._recent.append(actual)
        insort(self._sorted, actual)
