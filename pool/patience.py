"""How long an answer is waited for, in all and in silence, by a clock that runs on during suspend."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from edgecloud.errors import DeadlineExceeded, UpstreamError

T = TypeVar("T")
Clock = Callable[[], float]

# The event loop's timers stop in suspend on Linux; looking at our clock this often is what notices that time
# has passed.
LOOK_S = 1.0
# After a sleep, what lies in the socket buffers is read before anything is given up.
GRACE_S = 0.05


def elapsed_clock() -> float:
    """Seconds since boot, suspend included, whatever is done to the date."""
    # macOS counts suspend in CLOCK_MONOTONIC, Linux in CLOCK_BOOTTIME only.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Patience:
    """The limits of one request to the upstream `name`.

    `deadline_s` is the caller's own limit, None for none; `most_s` is what this upstream may take in all.
    Both in seconds from now.
    """

    def __init__(self, name: str, clock: Clock, *, deadline_s: float | None, most_s: float) -> None:
        self._name = name
        self._clock = clock
        self._began = clock()
        self._deadline_s = deadline_s
        self._most_s = most_s

    @property
    def left_s(self) -> float:
        """Seconds until the nearer of the two limits."""
        most_s = self._most_s if self._deadline_s is None else min(self._most_s, self._deadline_s)
        return self._began + most_s - self._clock()

    async def wait(self, work: Coroutine[Any, Any, T], silence_s: float, silence: str) -> T:
        """The result of `work`, which is cancelled when time is up.

        Raises `DeadlineExceeded` at the caller's limit, else `UpstreamError`: after `silence_s` seconds of
        this wait, described by `silence` ("did not answer"), or at the upstream's own limit.
        """
        if self.left_s <= 0:
            # An upstream that keeps sending would never be waited for long enough to notice.
            work.close()
            raise self._given_up(silence_s, silence)
        loop, silent_since = asyncio.get_running_loop(), self._clock()
        timer: asyncio.TimerHandle | None = None

        def look(*, was_over: bool = False) -> None:
            nonlocal timer
            if was_over:
                limit.reschedule(loop.time())
                return
            left_s = min(self.left_s, silent_since + silence_s - self._clock())
            again = partial(look, was_over=left_s <= 0)
            timer = loop.call_later(min(max(left_s, GRACE_S), LOOK_S), again)

        try:
            async with asyncio.timeout(None) as limit:
                look()
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._given_up(silence_s, silence) from error
        finally:
            if timer is not None:
                timer.cancel()

    def _given_up(self, silence_s: float, silence: str) -> DeadlineExceeded | UpstreamError:
        if self.left_s > 0:
            return UpstreamError(f"{self._name} {silence} for {silence_s:g} s.")
        if self._deadline_s is not None and self._deadline_s <= self._most_s:
            return DeadlineExceeded(
                f"No complete answer from {self._name} within {self._deadline_s:g} s: "
                "allow more time or ask for fewer tokens."
            )
        return UpstreamError(f"{self._name} took longer than its timeout_s of {self._most_s:g} s.")
