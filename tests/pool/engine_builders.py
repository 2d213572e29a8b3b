"""Requests to a small pool over the fake runner, and the proof that none of them left anything behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from edgecloud.pool.engine import PoolEngine
from edgecloud.types import ChatRequest, Done, EngineEvent, TextDelta
from tests.support.fake_pool import make_pool, remembered
from tests.support.fake_runner import FakeRunner


def make_request(prompt: str = "abc|", **fields: Any) -> ChatRequest:
    return ChatRequest(**{"prompt": prompt, "max_tokens": 5, "model": "fake", **fields})


@asynccontextmanager
async def pool(**options: Any) -> AsyncIterator[tuple[PoolEngine, FakeRunner]]:
    """A running engine; at the end it must be idle and whole."""
    engine, runner = make_pool(**options)
    try:
        yield engine, runner
        await settled(engine)
        await engine.loop.ask(lambda scheduler: scheduler.check())
        assert not runner.requests
        assert remembered(engine) == []
    finally:
        await engine.aclose()
    assert runner.closed


async def settled(engine: PoolEngine) -> None:
    """Wait until every gauge is zero, as it must become once everybody has ended or left."""

    def gauges() -> tuple[int, ...]:
        stats = engine.loop.stats
        return engine.loop.num_waiting, stats.running, stats.waiting, stats.used_blocks, stats.host_blocks

    await until(lambda: not any(gauges()))
    assert not await engine.loop.ask(lambda scheduler: scheduler.has_work)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread will bring about."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def gather(engine: PoolEngine, request: ChatRequest) -> list[EngineEvent]:
    return [event async for event in engine.generate(request)]


def text_of(events: list[EngineEvent], index: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.index == index)


def done_of(events: list[EngineEvent]) -> Done:
    done = events[-1]
    assert isinstance(done, Done)
    return done
