"""The state of the world at the moment of a decision: engines, money, limits and the time, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgecloud.types import Capabilities

from .facts import Spread
from .money import Price

EngineKind = Literal["local", "pool", "hosted"]
BreakerState = Literal["closed", "open", "half-open"]
BudgetScope = Literal["day", "month", "chat", "key"]

# An engine's budget price rises by 1 (money counts double) for each tenth that spending is ahead of time.
PACING = 10.0

# What is believed of an engine before the first request has been measured: a small model on a laptop.
_QUEUE_S, _PREFILL, _DECODE = Spread(0.0, 0.5), Spread(500.0, 250.0), Spread(30.0, 15.0)
_NOTHING = Spread(0.0, 0.0)
_FREE = Price()


@dataclass(frozen=True, slots=True)
class BreakerView:
    """`reopens_at` (Unix seconds) is when an open breaker lets a probe through, or, while half open, when the
    lease of the probe that is out ends. `probe` says that this request may be the probe.
    """

    state: BreakerState = "closed"
    reopens_at: float | None = None
    probe: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Speed:
    """What an engine is expected to take: seconds in its queue, tokens a second of prefill and decode.

    The quantiles of a rate are of slowness: `p90` is what nine requests in ten are at least served with, so
    it is the smaller number. `overhead_s` is the way there and back.
    """

    queue_s: Spread = _QUEUE_S
    prefill: Spread = _PREFILL
    decode: Spread = _DECODE
    overhead_s: Spread = _NOTHING
    num_samples: int = 0


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine as it stands now.

    `local` is whether its answers are computed on this machine (in process, or declared so in the config).
    `price` is in `currency`. `parameters` is the model's size in billions, None where nobody knows.
    `warm_tokens` are tokens of this request's prompt whose state it still holds.
    """

    name: str
    kind: EngineKind
    local: bool
    model: str
    capabilities: Capabilities
    price: Price = _FREE
    currency: str = "USD"
    region: str = ""
    parameters: float | None = None
    breaker: BreakerView = BreakerView()
    speed: Speed = Speed()
    warm_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on money, in the world's currency. `reserved` is promised to requests under way; `starts_at`
    and `ends_at` (Unix seconds) bound its period, both None for one without (a chat's).
    """

    scope: BudgetScope
    limit: float
    spent: float = 0.0
    reserved: float = 0.0
    starts_at: float | None = None
    ends_at: float | None = None
    name: str = ""

    @property
    def left(self) -> float:
        return self.limit - self.spent - self.reserved

    def price(self, now: float) -> float:
        """How much dearer money is than its face, from how far spending is ahead of the clock.

        The dual price of a budget under linear pacing (bandits with knapsacks): gradient steps of size
        `PACING` on spend minus budget rate telescope to the difference of two fractions. Being stateless it
        can be replayed, and days that spent little pay for days that spend much.
        """
        if self.starts_at is None or self.ends_at is None or self.limit <= 0:
            return 0.0
        elapsed = (now - self.starts_at) / max(self.ends_at - self.starts_at, 1.0)
        ahead = (self.spent + self.reserved) / self.limit - min(max(elapsed, 0.0), 1.0)
        return max(0.0, PACING * ahead)


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What one API key may use: engines by name (None: all) and tokens left of its quota (None: no quota)."""

    name: str
    engines: tuple[str, ...] | None = None
    tokens_left: int | None = None


@dataclass(frozen=True, slots=True)
class World:
    """Everything but the request. `now` is in Unix seconds. `rates` are what one unit of another currency is
    worth in `currency`.
    """

    now: float
    engines: tuple[EngineView, ...]
    budgets: tuple[Budget, ...] = ()
    key: KeyLimits | None = None
    currency: str = "USD"
    rates: Mapping[str, float] = field(default_factory=dict)

    def engine(self, name: str) -> EngineView:
        """Raises `KeyError` for an engine that there is not."""
        for view in self.engines:
            if view.name == name:
                return view
        raise KeyError(f"There is no engine {name!r} in a world of {[view.name for view in self.engines]}.")

    def convert(self, amount: float, currency: str) -> float | None:
        """The amount in the world's own currency; None if nobody said what that currency is worth."""
        if currency == self.currency or amount == 0:
            return amount
        rate = self.rates.get(currency)
        return None if rate is None else amount * rate

    @property
    def budget_price(self) -> float:
        """The price of the tightest budget; see `Budget.price`."""
        return max((budget.price(self.now) for budget in self.budgets), default=0.0)
