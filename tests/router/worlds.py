"""Requests, engines and worlds for the tests of deciding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgecloud.router.decision import Estimate, Neighbour
from edgecloud.router.facts import Facts
from edgecloud.router.money import Price
from edgecloud.router.world import EngineView, World
from edgecloud.settings import PrivacySettings, RouterSettings, Settings
from edgecloud.types import Capabilities

NOW = 1_800_000_000.0
PAID = Price(prompt=2.0, cached=0.2, completion=8.0)


def make_facts(**changes: Any) -> Facts:
    return Facts(**{"request_id": "req-1", "estimated_tokens": 100, **changes})


def make_settings(*, router: Any = None, privacy: Any = None, **changes: Any) -> Settings:
    return Settings(
        router=RouterSettings(**{"answer_value": 0.02, "second_value": 0.0005, **(router or {})}),
        privacy=PrivacySettings(**(privacy or {})),
        **changes,
    )


SETTINGS = make_settings()


def make_local(name: str = "laptop", *, context: int = 8192, can: Any = None, **changes: Any) -> EngineView:
    capabilities = Capabilities(**{"context": context, "tools": True, **(can or {})})
    return EngineView(
        **{
            "name": name,
            "kind": "local",
            "local": True,
            "model": "small-1b",
            "capabilities": capabilities,
            **changes,
        }
    )


def make_hosted(
    name: str = "cloud", *, context: int = 128_000, can: Any = None, **changes: Any
) -> EngineView:
    capabilities = Capabilities(**{"context": context, "tools": True, **(can or {})})
    return EngineView(
        **{
            "name": name,
            "kind": "hosted",
            "local": False,
            "model": "large-100b",
            "capabilities": capabilities,
            "price": PAID,
            **changes,
        }
    )


def make_world(*engines: EngineView, **changes: Any) -> World:
    return World(**{"now": NOW, "engines": engines or (make_local(), make_hosted()), **changes})


class FixedQuality:
    """Chances as the test says them: a mean, or (low, mean, high)."""

    version = "fixed"

    def __init__(
        self, chances: Mapping[str, float | tuple[float, float, float]], neighbours: Sequence[Neighbour] = ()
    ) -> None:
        self._chances = chances
        self._neighbours = tuple(neighbours)
        self.asked: list[str] = []

    def predict(self, facts: Facts, engines: Sequence[EngineView]) -> Mapping[str, Estimate]:
        self.asked += [view.name for view in engines]
        return {view.name: self._estimate(view.name) for view in engines}

    def neighbours(self, facts: Facts) -> tuple[Neighbour, ...]:
        return self._neighbours

    def _estimate(self, name: str) -> Estimate:
        chance = self._chances[name]
        low, mean, high = chance if isinstance(chance, tuple) else (chance, chance, chance)
        return Estimate(mean, low, high, "the test")
