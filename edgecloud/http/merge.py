"""Several event streams as one, each event with the number of its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from edgecloud.types import EngineEvent, Event

Events = AsyncGenerator[Event, None] | AsyncGenerator[EngineEvent, None]

# Events read ahead of a client that is slower than the engines.
READ_AHEAD = 64


async def merged(streams: Sequence[Events]) -> AsyncGenerator[tuple[int, Event | EngineEvent], None]:
    """The events of all streams as they come; the first error of any ends them all. Closes every stream at
    its end.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as events:
            async for event in events:
                yield 0, event
        return

    queue: asyncio.Queue[tuple[int, Event | EngineEvent | Exception | None]] = asyncio.Queue(READ_AHEAD)

    async def pump(number: int, stream: Events) -> None:
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    await queue.put((number, event))
            await queue.put((number, None))
        except Exception as error:
            await queue.put((number, error))

    pumps = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        running = len(pumps)
        while running:
            number, item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield number, item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
