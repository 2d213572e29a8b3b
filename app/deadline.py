"""The deadline of a whole request, kept even where an engine hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from edgecloud.errors import DeadlineExceeded
from edgecloud.types import EngineEvent

from .run import Run


async def within_deadline(
    events: AsyncGenerator[EngineEvent, None], run: Run
) -> AsyncGenerator[EngineEvent, None]:
    """The events, and `DeadlineExceeded` if the next one is not there in time.

    Engines keep deadlines themselves at step boundaries; this holds when one hangs.
    """
    async with aclosing(events):
        if run.left_s is None:
            async for event in events:
                yield event
            return
        ends = time.monotonic() + run.left_s
        while True:
            try:
                event = await asyncio.wait_for(anext(events), max(0.0, ends - time.monotonic()))
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise DeadlineExceeded(
                    f"No complete answer within {run.request.deadline_s:g} s: "
                    "allow more time or ask for fewer tokens."
                ) from None
            yield event
