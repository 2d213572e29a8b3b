"""Who is asked next: candidates in their order, each with its addresses, until nobody is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random

from edgecloud.errors import EdgeCloudError, Unavailable

from .faults import fault_of
from .upstreams import Turn, Upstream


class Candidates:
    """The engines that may still be asked for one request, best first.

    `tokens` are what the request is expected to take of each, by name; `overlap` what of its prompt each
    address holds, by engine and address; `most` bounds how many turns are given in all.
    """

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        tokens: Mapping[str, int],
        *,
        session: str | None,
        overlap: Mapping[str, Mapping[str, int]] | None = None,
        most: int,
        random: Random,
    ) -> None:
        self.upstreams = list(upstreams)
        self.tokens = tokens
        self._session = session
        self._overlap = overlap or {}
        self._left = most
        self._random = random
        self._given_up: dict[str, EdgeCloudError] = {}  # engines that are not asked again, and why
        self._asked: dict[str, list[str]] = {}  # addresses that had their turn, by engine
        self._returns: dict[str, float] = {}  # engines that said when to come back, in the loop's time
        self._last: EdgeCloudError | None = None

    def only(self, suits: Callable[[Upstream], bool]) -> None:
        """Narrow them down to those that can do what is left to do."""
        self.upstreams = [upstream for upstream in self.upstreams if suits(upstream)]

    def postpone(self, upstream: Upstream) -> None:
        """Ask the engine again, but only when nobody else is left."""
        self.upstreams.remove(upstream)
        self.upstreams.append(upstream)
        self._asked.pop(upstream.name, None)

    def next(self) -> tuple[Upstream, Turn] | None:
        """A turn at the best engine that is left; None if nobody is."""
        for upstream in self.upstreams:
            if self._left <= 0:
                return None
            if upstream.name in self._given_up:
                continue
            asked = self._asked.setdefault(upstream.name, [])
            tokens = self.tokens[upstream.name]
            turn = upstream.admit(
                tokens,
                self._random,
                session=self._session,
                overlap=self._overlap.get(upstream.name),
                but=asked,
            )
            if turn is not None:
                asked.append(turn.deployment.name)
                self._left -= 1
                return upstream, turn
        return None

    def has_another(self) -> bool:
        """Whether `next` would find somebody."""
        return self._left > 0 and any(
            upstream.name not in self._given_up and upstream.is_ready(but=self._asked.get(upstream.name, ()))
            for upstream in self.upstreams
        )

    def give_up(self, upstream: Upstream, error: EdgeCloudError) -> None:
        """Ask the engine no more, or only its other addresses where the fault was the address's."""
        self._last = error
        fault = fault_of(error)
        if fault.kind == "deployment":
            if fault.pause_s is not None:
                now = asyncio.get_running_loop().time()
                self._returns.setdefault(upstream.name, now + fault.pause_s)
            if upstream.is_ready(but=self._asked.get(upstream.name, ())):
                return
        self._given_up[upstream.name] = error

    def unaffordable(self, upstream: Upstream, error: EdgeCloudError) -> None:
        """The engine was not asked after all, because nobody pays for it."""
        self._last = error
        self._left += 1
        self._given_up[upstream.name] = error

    async def wait_for_return(self, patience_s: float) -> None:
        """Wait for the first engine that said when to come back. Raises what went wrong when none did, when
        it comes back too late, or when enough was tried.
        """
        name = min(self._returns, key=lambda name: self._returns[name], default=None)
        if name is None or self._left <= 0:
            raise self.failure()
        wait_s = self._returns.pop(name) - asyncio.get_running_loop().time()
        if wait_s >= patience_s:
            raise self.failure()
        await asyncio.sleep(max(0.0, wait_s))
        self._given_up.pop(name, None)
        self._asked.pop(name, None)

    def failure(self) -> EdgeCloudError:
        """What to tell when nobody is left: the last fault, in a sentence that names all of them."""
        errors = [*self._given_up.values()]
        if self._last is not None and self._last not in errors:
            errors.append(self._last)
        if not errors:
            return Unavailable("Nobody can answer now: every engine rests after failures. Try again later.")
        last = errors[-1]
        last.message = " ".join(dict.fromkeys(error.message for error in errors))
        last.args = (last.message,)
        return last
