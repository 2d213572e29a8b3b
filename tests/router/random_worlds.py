"""Requests and worlds that nobody thought of: a number in, the same case out.

From a seed and not from nested strategies: a world has a hundred values, and drawing each by hypothesis takes
longer than all that is tested.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from edgecloud.router.facts import Facts, Needs, Privacy, PrivacyReason, Spread, Structure
from edgecloud.router.money import Price
from edgecloud.router.world import BreakerView, Budget, EngineView, KeyLimits, Speed, World
from edgecloud.settings import Settings
from edgecloud.types import Capabilities

from .worlds import NOW, make_settings

NAMES = ("a", "b", "c", "d", "e")
EMAIL = Privacy(True, (PrivacyReason("pii:email", "it holds an email address"),))


class Case(NamedTuple):
    facts: Facts
    world: World
    settings: Settings


def drawn(seed: int) -> Case:
    """Hostile on purpose: limits of nothing, clocks out of their period, currencies without a rate."""
    random = Random(seed)
    return Case(_facts(random), _world(random), _settings(random))


def _often(random: Random, chance: float) -> bool:
    return random.random() < chance


def _some(random: Random) -> tuple[str, ...]:
    return tuple(random.sample(NAMES, random.randint(1, len(NAMES))))


def _spread(random: Random, least: float, most: float) -> Spread:
    return Spread(*sorted((random.uniform(least, most), random.uniform(least, most))))


def _rate(random: Random) -> Spread:
    spread = _spread(random, 0.5, 5000)
    return Spread(spread.p90, spread.p50)


def _facts(random: Random) -> Facts:
    return Facts(
        request_id="req-1",
        estimated_tokens=random.choice([50, 1500, 8000]),
        num_prompt_tokens={name: random.choice([60, 1600, 9000]) for name in _some(random)[:3]},
        output_tokens=_spread(random, 1, 2000),
        max_tokens=random.choice([None, 1, 100, 4000]),
        num_choices=random.choice([1, 1, 3]),
        structure=Structure(num_words=random.randint(0, 2000), reasoning=random.randint(0, 5)),
        needs=Needs(tools=_often(random, 0.2), json=_often(random, 0.1), images=_often(random, 0.1)),
        privacy=EMAIL if _often(random, 0.1) else Privacy(),
        covers=_some(random) if _often(random, 0.1) else None,
        mode=random.choice(["auto"] * 8 + ["quality", "balanced", "cheap", "local", "pool"]),
        private=_often(random, 0.05),
        offline=_often(random, 0.05),
        deadline_s=random.uniform(0.1, 500) if _often(random, 0.3) else None,
        vector=(0.6, 0.8) if _often(random, 0.3) else None,
    )


def _engine(random: Random, name: str) -> EngineView:
    local = _often(random, 0.4)
    return EngineView(
        name=name,
        kind="local" if local else random.choice(["pool", "hosted"]),
        local=local,
        model=random.choice(["small-8b", "middling-30b", "large-100b", "who-knows"]),
        capabilities=Capabilities(
            context=random.choice([10, 2048, 8192, 131_072, 131_072, 131_072]),
            tools=_often(random, 0.9),
            json=_often(random, 0.9),
            images=_often(random, 0.5),
            logprobs=_often(random, 0.8),
        ),
        price=random.choice(
            [Price(), Price(random.uniform(0, 3), random.uniform(0, 0.3), random.uniform(0, 9))]
        ),
        currency=random.choice(["USD", "USD", "USD", "EUR", "CNY"]),
        region=random.choice(["", "eu", "us"]),
        breaker=BreakerView(
            random.choice(["closed"] * 6 + ["open", "half-open"]),
            random.choice([None, NOW + random.uniform(0, 100)]),
            _often(random, 0.2),
        ),
        speed=Speed(_spread(random, 0, 5), _rate(random), _rate(random), _spread(random, 0, 2)),
        warm_tokens=random.choice([0, 0, random.randint(0, 8000)]),
    )


def _budget(random: Random) -> Budget:
    period = random.choice([(None, None), (NOW - 1000, NOW + 1000), (NOW + 10, NOW + 20)])
    limit = random.choice([0.0, 0.01, 1.0, 50.0])
    return Budget("day", limit, limit * random.uniform(0, 1.2), random.uniform(0, 0.01), *period)


def _world(random: Random) -> World:
    key = KeyLimits(
        "key",
        _some(random) if _often(random, 0.5) else None,
        random.choice([None, 0, 5000, 10**9]),
    )
    return World(
        now=NOW,
        engines=tuple(_engine(random, name) for name in _some(random)),
        budgets=tuple(_budget(random) for _ in range(random.choice([0, 0, 1, 2]))),
        key=key if _often(random, 0.2) else None,
        rates=random.choice([{}, {"EUR": 1.1}, {"EUR": 1.1, "CNY": 0.14}]),
    )


def _settings(random: Random) -> Settings:
    return make_settings(
        router={
            "mode": random.choice(["quality", "balanced", "balanced", "balanced", "cheap", "local"]),
            "cascade": _often(random, 0.7),
            "answer_value": random.choice([0.0, 0.02, 1.0]),
        },
        privacy={"regions": random.choice([(), (), (), (), ("eu",)])},
    )
