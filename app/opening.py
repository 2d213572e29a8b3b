"""An attempt read up to its first piece of answer, the point from which it can't be taken back; and the race
of two of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from edgecloud.types import ChoiceDone, Done, EngineEvent, ReasoningDelta, TextDelta, ToolCallDelta

from .attempt import Attempt, is_blank

COMMITS = (TextDelta, ReasoningDelta, ToolCallDelta, ChoiceDone, Done)
"""Events that are part of an answer; what comes before them promises nothing, nor does white space."""


class Opening:
    """`head` is what was read so far; `rest` gives what follows, and closing it ends the attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.head: list[EngineEvent] = []
        self.rest: AsyncGenerator[EngineEvent, None] = attempt.events()

    async def open(self) -> None:
        """Read up to the first piece of the answer. Raises what the engine raises."""
        async for event in self.rest:
            self.head.append(event)
            if isinstance(event, COMMITS) and not is_blank(event):
                return

    async def start(self) -> None:
        """Read up to the first event, so that what is wrong with the request is raised."""
        async for event in self.rest:
            self.head.append(event)
            return

    async def aclose(self, verdict: str) -> None:
        """End the attempt, saying why."""
        self.attempt.verdict = verdict
        try:
            await self.rest.aclose()
        finally:
            self.attempt.drop()


async def race(
    first: Opening,
    patience_s: float | None,
    *,
    hedge_s: float | None = None,
    rival: Callable[[], Awaitable[Opening | None]] | None = None,
) -> Opening | None:
    """The one that begins to answer first; the other is ended. None if `patience_s` seconds were not enough.

    `rival` makes the second one, and is called when the first has not begun after `hedge_s` seconds. Raises
    the last error when all have failed.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    running = {asyncio.ensure_future(first.open()): first}
    verdict = "interrupted"
    try:
        if rival is not None and hedge_s is not None:
            done, _ = await asyncio.wait(running, timeout=hedge_s)
            if not done and (second := await rival()) is not None:
                running[asyncio.ensure_future(second.open())] = second
        while True:
            left_s = None if patience_s is None else max(0.0, began + patience_s - loop.time())
            done, _ = await asyncio.wait(running, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                verdict = "late"
                return None
            for task in done:
                opening = running.pop(task)
                error = task.exception()
                if error is None:
                    verdict = "outrun"
                    return opening
                if not running:
                    raise error
    finally:
        for task, opening in running.items():
            opening.attempt.verdict = verdict
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for opening in running.values():
            await opening.aclose(verdict)
