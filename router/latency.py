"""How long an engine takes, learnt from its answers: waiting, computing the prompt, drawing tokens.

Each figure keeps its last observations and answers with their quantiles: after a change of load or of
hardware the old ones are gone in as many answers, and nothing is assumed of the shape of the distribution.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from edgecloud.types import Timings, Usage

from .facts import Spread
from .world import Speed

KEPT = 64
"""Observations kept of each figure."""

LONG_PROMPT = 512
"""Tokens to compute from which the time to the first token says something about the prefill rate."""

FEW_TOKENS = 4
"""Answers of fewer tokens say nothing about the rate at which tokens are drawn."""

PRIOR_WEIGHT = 4
"""How many observations a prior counts for."""


class Prior(NamedTuple):
    """What is assumed of an engine that nobody has asked yet: seconds, and tokens a second."""

    wait_s: float
    prefill_rate: float
    decode_rate: float


LOCAL_PRIOR = Prior(wait_s=0.05, prefill_rate=300.0, decode_rate=30.0)
REMOTE_PRIOR = Prior(wait_s=0.6, prefill_rate=3000.0, decode_rate=50.0)


class Estimates:
    """What is known of one engine's speed. `prior` holds until there are answers, and fades as they come."""

    def __init__(self, prior: Prior) -> None:
        self._wait = _Figure(prior.wait_s)
        self._first = _Figure(0.0)
        self._prefill = _Figure(prior.prefill_rate, slow_is_low=True)
        self._decode = _Figure(prior.decode_rate, slow_is_low=True)
        self._length = _Figure(0.0)

    @property
    def num_seen(self) -> int:
        """Answers learnt from, of those still kept."""
        return len(self._first)

    @property
    def wait_s(self) -> Spread:
        """Seconds before the prompt is begun, the network's included."""
        return self._wait.spread

    @property
    def prefill_rate(self) -> Spread:
        """Prompt tokens a second; `p90` is the slow tail."""
        return self._prefill.spread

    @property
    def decode_rate(self) -> Spread:
        """Answered tokens a second; `p90` is the slow tail."""
        return self._decode.spread

    @property
    def answer_tokens(self) -> Spread | None:
        """How long its answers are; None while too few are known."""
        return self._length.spread if len(self._length) >= 2 * PRIOR_WEIGHT else None

    @property
    def speed(self) -> Speed:
        """All of it, as the router looks at it."""
        return Speed(self.wait_s, self.prefill_rate, self.decode_rate, num_samples=self.num_seen)

    def ttft_s(self, prompt_tokens: int, cached_tokens: int = 0) -> Spread:
        """Seconds to the first token of a prompt of which `cached_tokens` need no work."""
        work = max(0, prompt_tokens - cached_tokens)
        wait, rate = self.wait_s, self.prefill_rate
        return Spread(wait.p50 + work / rate.p50, wait.p90 + work / rate.p90)

    def is_slow(self, ttft_s: float, prompt_tokens: int) -> bool:
        """Whether a first token came so late that something is wrong, beyond bad luck."""
        if self.num_seen < PRIOR_WEIGHT:
            return False
        return ttft_s > max(5.0, 4.0 * self.ttft_s(prompt_tokens).p90)

    def learn(self, usage: Usage, timings: Timings) -> None:
        """Take in one complete answer."""
        work = max(0, usage.prompt_tokens - usage.cached_tokens)
        ttft_s = timings.ttft_s
        if ttft_s > 0:
            self._first.add(ttft_s)
            if timings.prefill_s > 0:
                # An engine of ours says what it waited for and what it computed.
                self._wait.add(max(0.0, ttft_s - timings.prefill_s))
                if work >= FEW_TOKENS:
                    self._prefill.add(work / timings.prefill_s)
            elif work >= LONG_PROMPT:
                computing_s = ttft_s - self.wait_s.p50
                if computing_s > 0:
                    self._prefill.add(work / computing_s)
            else:
                self._wait.add(max(0.0, ttft_s - work / self.prefill_rate.p50))
        if usage.completion_tokens >= FEW_TOKENS and timings.decode_s > 0:
            self._decode.add(usage.completion_tokens / timings.decode_s)
        if usage.completion_tokens:
            self._length.add(float(usage.completion_tokens))

    def to_json(self) -> dict[str, list[float]]:
        return {name: figure.values for name, figure in self._figures().items()}

    def load_json(self, data: Any) -> None:
        """Go on from what was kept; what makes no sense in it is left out."""
        if not isinstance(data, Mapping):
            return
        for name, figure in self._figures().items():
            kept = data.get(name)
            if isinstance(kept, list):
                figure.add(*(float(value) for value in kept if _is_number(value)))

    def _figures(self) -> dict[str, _Figure]:
        return {
            "wait": self._wait,
            "first": self._first,
            "prefill": self._prefill,
            "decode": self._decode,
            "length": self._length,
        }


class _Figure:
    """The last observations of one figure, and their spread, worked out once after each."""

    def __init__(self, prior: float, *, slow_is_low: bool = False) -> None:
        self._prior = prior
        self._slow = 0.1 if slow_is_low else 0.9
        self._observed: deque[float] = deque(maxlen=KEPT)
        self._spread: Spread | None = None

    def __len__(self) -> int:
        return len(self._observed)

    @property
    def values(self) -> list[float]:
        return list(self._observed)

    @property
    def spread(self) -> Spread:
        if self._spread is None:
            known = [*self._observed, *[self._prior] * max(0, PRIOR_WEIGHT - len(self._observed))]
            self._spread = Spread(quantile(known, 0.5), quantile(known, self._slow))
        return self._spread

    def add(self, *observed: float) -> None:
        self._observed.extend(observed)
        self._spread = None


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, between two of them by proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
