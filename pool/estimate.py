"""How long an answer will be: a quantile of the latest answers, held to the coverage it promises."""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from .survival import Survival

# The curve is drawn again when a sixteenth of the answers behind it is new.
FRESHNESS = 16
# How far the level may fall below the target. Answers of one length are all covered, at any level, and the
# first of another length should not find it at the bottom.
SLACK = 0.1


class Growing(Protocol):
    """An answer that is being written."""

    @property
    def id(self) -> int: ...
    @property
    def num_output(self) -> int: ...


class LengthEstimate:
    """Output tokens that an answer will not exceed, with probability `target`.

    The quantile is one of the last `window` answers that began, whether they have ended or not. Its level
    rises when an answer outgrows what was predicted and falls when one ends within it (adaptive conformal
    inference, Gibbs and Candès 2021): so the share of covered answers tends to `target` whatever lengths do.
    It may rise above 1, where the prediction is the request's own limit, which always covers: that makes up
    for misses that were still under way. Judgements come late, the later the more answers run, and steps that
    do not shrink with the delay overshoot: they are divided by its root (Quanrud and Khashabi 2015).
    """

    def __init__(self, target: float = 0.9, *, window: int = 512, step: float = 0.05) -> None:
        self.target = target
        self.level = target
        self._step = step
        self._window = window
        # The last that began, in order: what runs, or the length it had and whether that was its own end.
        self._answers: dict[int, Growing | tuple[int, bool]] = {}
        # Answers that may still outgrow what was predicted of them.
        self.undecided: set[int] = set()
        self._covered: deque[bool] = deque(maxlen=window)
        self._survival = Survival()
        self._num_known = self._num_new = 0

    @property
    def coverage(self) -> float:
        """Share of recent answers that were no longer than predicted; NaN before the first."""
        return sum(self._covered) / len(self._covered) if self._covered else math.nan

    def begin(self, answer: Growing, max_tokens: int) -> int:
        """What is predicted of an answer that is admitted now; it is followed from here on."""
        predicted = self.predict(0, max_tokens)
        self._answers[answer.id] = answer
        self.undecided.add(answer.id)
        if len(self._answers) > self._window:
            forgotten = self._answers.pop(next(iter(self._answers)))
            self._num_known -= isinstance(forgotten, tuple)
        return predicted

    def predict(self, num_output: int, max_tokens: int) -> int:
        """Total output tokens expected of an answer that has `num_output` of them already."""
        if self._num_new * FRESHNESS > self._num_known:
            self._learn()
        expected = self._survival.quantile(self.level, num_output)
        return max_tokens if expected is None else min(max_tokens, expected)

    def mean(self, num_output: int, max_tokens: int) -> int:
        """Total output tokens that such an answer gets on average; many together get that of each."""
        if self._num_new * FRESHNESS > self._num_known:
            self._learn()
        left = self._survival.mean_left(num_output)
        return max_tokens if left is None else min(max_tokens, num_output + math.ceil(left))

    def outgrow(self, answer: Growing) -> None:
        """It is longer than was predicted of it."""
        self._judge(answer, covered=False)

    def end(self, answer: Growing, *, cut: bool) -> None:
        """It came to its end, or was `cut` at its limit."""
        self._judge(answer, covered=True)
        self._keep(answer, cut)

    def drop(self, answer: Growing) -> None:
        """It will not go on, and nobody knows how long it would have been."""
        self.undecided.discard(answer.id)
        self._keep(answer, cut=True)

    def _judge(self, answer: Growing, *, covered: bool) -> None:
        if answer.id not in self.undecided:
            return
        step = self._step / math.sqrt(len(self.undecided))
        self.undecided.discard(answer.id)
        self._covered.append(covered)
        self.level = max(self.level + step * (self.target - covered), self.target - SLACK)

    def _keep(self, answer: Growing, cut: bool) -> None:
        # Its tokens are not to be kept alive.
        if answer.id in self._answers:
            self._answers[answer.id] = (answer.num_output, cut)
            self._num_known += 1
            self._num_new += 1

    def _learn(self) -> None:
        self._num_new = 0
        ended, censored = [], []
        for answer in self._answers.values():
            if not isinstance(answer, tuple):
                censored.append(answer.num_output)
            elif answer[1]:
                censored.append(answer[0])
            else:
                ended.append(answer[0])
        self._survival = Survival(ended, censored)
