"""What a request waits for before anything is heard: a model on its way into memory, told as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from edgecloud.engine import LoadsModels
from edgecloud.types import EngineEvent, Loading, Notice
from edgecloud.units import part, size

from .run import Run

LOOK_S = 0.25
"""How often it is looked how far a load is. Shorter waits say nothing."""


async def telling_loads(
    events: AsyncGenerator[EngineEvent, None], run: Run
) -> AsyncGenerator[EngineEvent, None]:
    """The events, and before the first of them a `Notice` each time that a model which the request waits for
    has come further.

    Beside the events and not among them: a router that still chooses holds those back.
    """
    async with aclosing(events):
        first, told = asyncio.ensure_future(anext(events, None)), None
        try:
            while not (await asyncio.wait([first], timeout=LOOK_S))[0]:
                loading = _awaited(run)
                if loading is not None and loading != told:
                    told = loading
                    yield Notice("loading", words(loading))
        finally:
            if not first.done():
                first.cancel()
                await asyncio.wait([first])
        event = first.result()
        if event is not None:
            yield event
        async for event in events:
            yield event


def words(loading: Loading) -> str:
    """`loading qwen · 43 % · 1.20 of 2.79 GB`; once all is there its context is still to be made."""
    if 0 < loading.total <= loading.done:
        return f"loading {loading.model} · {size(loading.total)} read, getting ready"
    share = f"{loading.done * 100 // max(1, loading.total)} %"
    return f"loading {loading.model} · {share} · {part(loading.done, loading.total)}"


def _awaited(run: Run) -> Loading | None:
    """The load that the request waits for: of those who were asked, the last that has one."""
    loads = (engine.loading for engine in reversed(run.asked) if isinstance(engine, LoadsModels))
    return next((loading for loading in loads if loading is not None), None)
