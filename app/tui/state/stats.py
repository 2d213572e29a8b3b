"""What the receipts of some days add up to: money, tokens, speed and hits, in all and by engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from edgecloud.types import Receipt

HOUR_S = 3600.0
DAY_S = 86400.0


@dataclass(slots=True)
class Sums:
    """Of some answers, and of how many tries that failed. `waits` are seconds to the first word, `speeds`
    tokens a second, one an answer.
    """

    answers: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    hits: int = 0
    asked_cache: int = 0
    waits: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)

    def add(self, receipt: Receipt) -> None:
        if has_failed(receipt):
            self.failed += 1
        else:
            self.answers += 1
        self.prompt_tokens += receipt.prompt_tokens
        self.cached_tokens += receipt.cached_tokens
        self.completion_tokens += receipt.completion_tokens
        self.cost += receipt.cost
        self.asked_cache += receipt.cache.verdict != "off"
        if receipt.cache.verdict in ("exact", "semantic"):
            self.hits += 1
        elif receipt.completion_tokens:
            self.waits.append(receipt.ttft_s)
            if receipt.tokens_per_s:
                self.speeds.append(receipt.tokens_per_s)

    @property
    def reused(self) -> float:
        """The share of prompt tokens that was not computed again."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Stats:
    """`today` is since midnight; `hourly` tokens and `daily` money are series that end now."""

    today: Sums
    all: Sums
    engines: dict[str, Sums]
    hourly_tokens: tuple[int, ...]
    daily_cost: tuple[float, ...]
    waits: tuple[float, ...]


def summarise(
    receipts: Iterable[tuple[float, Receipt]], *, now: float, midnight: float, hours: int = 24, days: int = 7
) -> Stats:
    """Add up receipts with their times, oldest first; times are seconds since the epoch."""
    today, everything = Sums(), Sums()
    engines: dict[str, Sums] = {}
    tokens, cost = [0] * hours, [0.0] * days
    for at, receipt in receipts:
        everything.add(receipt)
        engines.setdefault(receipt.engine, Sums()).add(receipt)
        if at >= midnight:
            today.add(receipt)
        hours_ago = int((now - at) / HOUR_S)
        if 0 <= hours_ago < hours:
            tokens[-1 - hours_ago] += receipt.prompt_tokens + receipt.completion_tokens
        days_ago = 0 if at >= midnight else 1 + int((midnight - at) / DAY_S)
        if days_ago < days:
            cost[-1 - days_ago] += receipt.cost
    return Stats(today, everything, engines, tuple(tokens), tuple(cost), tuple(everything.waits[-100:]))


def has_failed(receipt: Receipt) -> bool:
    """Whether there was no answer. One that was stopped is one, as far as it came."""
    if receipt.cache.verdict in ("exact", "semantic"):
        return False
    if not receipt.attempts:
        return not receipt.completion_tokens
    return receipt.attempts[-1].outcome not in ("ok", "interrupted")


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value that this share of the values does not exceed; None of nothing."""
    if not values:
        return None
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
