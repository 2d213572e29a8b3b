"""What the requests of some days add up to: money, tokens, speed and hits, in all and by engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from edgecloud.types import Receipt

from ....router.latency import quantile as quantile_of
from .receipt import is_hit

HOUR_S = 3600.0
DAY_S = 86400.0


@dataclass(slots=True)
class Sums:
    """Of some requests, as `edgecloud stats` counts them: who asked broke off those `interrupted`, and tokens
    are those that were computed. `waits` are seconds to the first word, `speeds` tokens a second, one a whole
    answer that was no kept one.
    """

    requests: int = 0
    failed: int = 0
    interrupted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    hits: int = 0
    asked_cache: int = 0
    waits: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)

    def add(self, outcome: str, receipt: Receipt) -> None:
        self.requests += 1
        self.interrupted += outcome == "interrupted"
        self.failed += outcome not in ("ok", "interrupted")
        self.cost += receipt.cost
        self.asked_cache += receipt.cache.verdict != "off"
        if is_hit(receipt):
            self.hits += 1
            return
        self.prompt_tokens += receipt.prompt_tokens
        self.cached_tokens += receipt.cached_tokens
        self.completion_tokens += receipt.completion_tokens
        if outcome == "ok" and receipt.completion_tokens:
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
    requests: Iterable[tuple[float, str, Receipt]],
    *,
    now: float,
    midnight: float,
    hours: int = 24,
    days: int = 7,
) -> Stats:
    """Add up requests, oldest first: when (seconds since the epoch), the outcome, the receipt."""
    today, everything = Sums(), Sums()
    engines: dict[str, Sums] = {}
    tokens, cost = [0] * hours, [0.0] * days
    for at, outcome, receipt in requests:
        everything.add(outcome, receipt)
        engines.setdefault(receipt.engine, Sums()).add(outcome, receipt)
        if at >= midnight:
            today.add(outcome, receipt)
        hours_ago = int((now - at) / HOUR_S)
        if 0 <= hours_ago < hours and not is_hit(receipt):
            tokens[-1 - hours_ago] += receipt.prompt_tokens + receipt.completion_tokens
        days_ago = 0 if at >= midnight else 1 + int((midnight - at) / DAY_S)
        if days_ago < days:
            cost[-1 - days_ago] += receipt.cost
    return Stats(today, everything, engines, tuple(tokens), tuple(cost), tuple(everything.waits[-100:]))


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which this share of the values lie, between two of them by proportion; None of
    nothing.
    """
    return quantile_of(values, share) if values else None
