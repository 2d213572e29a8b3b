"""The same request several times at once is computed once: who comes later waits for the kept answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable
from types import TracebackType

PATIENCE_S = 30.0
"""How long the first one is waited for: its reader may be slow, and then it is slow too."""


class Flights:
    """Requests under way, by what makes them the same."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, asyncio.Event] = {}

    async def join(self, name: Hashable | None) -> Flight:
        """Wait for the same request if it is under way, then go; None is like no other.

        Waited for is once: where the first one's answer could not be kept, the others don't queue behind each
        other.
        """
        if name is None:
            return Flight(self, None, asyncio.Event())
        before = self._under_way.get(name)
        if before is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(before.wait(), PATIENCE_S)
        landed = asyncio.Event()
        first = self._under_way.setdefault(name, landed) is landed
        return Flight(self, name if first else None, landed)

    def over(self, name: Hashable) -> None:
        del self._under_way[name]


class Flight:
    """One request under way, until its context is left or, where something holds it, until that is done."""

    def __init__(self, flights: Flights, name: Hashable | None, landed: asyncio.Event) -> None:
        self._flights = flights
        self._name = name
        self._landed = landed
        self._held = False

    def land(self) -> None:
        """Let those who wait look for the answer."""
        if self._name is not None and not self._landed.is_set():
            self._landed.set()
            self._flights.over(self._name)

    def hold(self, task: asyncio.Task[None]) -> None:
        """Land when the task is done, no sooner."""
        self._held = True
        task.add_done_callback(lambda _: self.land())

    def __enter__(self) -> Flight:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._held:
            self.land()
