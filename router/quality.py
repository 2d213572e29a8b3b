"""What the router asks of an estimate of quality; the choice is made on the gain between two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from .decision import Estimate, Neighbour
from .facts import Facts
from .world import EngineView


class Quality(Protocol):
    """Chances of a right answer, one calibrated head an engine. Pure: same facts, same chances."""

    @property
    def version(self) -> str:
        """Changes when the estimates would."""

    def predict(self, facts: Facts, engines: Sequence[EngineView]) -> Mapping[str, Estimate]:
        """An estimate for every engine, by name."""

    def neighbours(self, facts: Facts) -> tuple[Neighbour, ...]:
        """The nearest labelled questions that the estimates lean on, the nearest first; none without a
        vector.
        """
