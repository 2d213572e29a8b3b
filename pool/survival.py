"""How many of a group of answers are longer than so many tokens, when some of them still run."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class Survival:
    """Kaplan and Meier's estimate (1958) of the share of answers that are longer than a number of tokens.

    `ended` are the lengths of answers that came to their own end. Of `censored` ones it is only known that
    they are longer than so many tokens: they still run, or were cut off. To count the ended alone would be
    wrong just when it matters: after a start or a change, the short ones end first.

    One answer of which nothing is known is counted beside them: the next. With it a quantile of n answers
    holds for the one after them too (conformal prediction). Beyond the longest that ended, answers are taken
    to end at the rate of all of them, ended ones per token written: nothing better is known there.
    """

    def __init__(self, ended: Iterable[int] = (), censored: Iterable[int] = ()) -> None:
        lengths, cuts = sorted(ended), sorted(censored)
        num_tokens = sum(lengths) + sum(cuts)
        self._rate = len(lengths) / num_tokens if num_tokens else 0.0
        self._lengths: list[int] = []
        # Shares that are longer than these lengths; negative, so that they rise and can be searched.
        self._shares: list[float] = []
        share, first = 1.0, 0
        while first < len(lengths):
            length = lengths[first]
            after = bisect_right(lengths, length, first)
            num_at_risk = len(lengths) - first + len(cuts) - bisect_left(cuts, length) + 1
            share *= 1 - (after - first) / num_at_risk
            self._lengths.append(length)
            self._shares.append(-share)
            first = after
        # Tokens expected beyond each of these lengths, of all answers: the area under the rest of the curve.
        self._beyond = [share / self._rate] if self._rate else []
        for at in range(len(self._lengths) - 1, 0, -1):
            step = -self._shares[at - 1] * (self._lengths[at] - self._lengths[at - 1])
            self._beyond.append(self._beyond[-1] + step)
        self._beyond.reverse()

    def mean_left(self, num_output: int) -> float | None:
        """Tokens that an answer longer than `num_output` still gets on average; None where nothing ended."""
        if not self._rate:
            return None
        at = bisect_right(self._lengths, num_output)
        if at == len(self._lengths):
            return 1 / self._rate
        num_alive = -self._shares[at - 1] if at else 1.0
        return self._lengths[at] - num_output + self._beyond[at] / num_alive

    def quantile(self, level: float, num_output: int = 0) -> int | None:
        """The least length that of the answers longer than `num_output` a share of `level` does not exceed.

        None where nothing has ended, or all of them are asked for.
        """
        if level >= 1 or not self._rate:
            return None
        at = bisect_right(self._lengths, num_output)
        num_alive = -self._shares[at - 1] if at else 1.0
        num_left = num_alive * (1 - level)
        # Shares are products: 1e-9 of one is rounding.
        found = max(at, bisect_left(self._shares, -num_left - 1e-9))
        if found < len(self._lengths):
            return self._lengths[found]
        longest = max(self._lengths[-1], num_output)
        return longest + math.ceil(math.log(-self._shares[-1] / num_left) / self._rate)
