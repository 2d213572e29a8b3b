"""Requests and engines for the tests of the remote engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from edgecloud.errors import EdgeCloudError
from edgecloud.pool.client import RemoteEngine
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import ChatRequest, EngineEvent, Message, TextDelta

from .scripted_upstream import DONE, Call, Script, Upstream, delta, finish, upstream, usage

KEY = "sk-SECRET123"


def make_request(**changes: Any) -> ChatRequest:
    return ChatRequest(**{"messages": (Message("user", "Why is the sky blue?"),), **changes})


@asynccontextmanager
async def engine_at(
    url: str, *, offline: bool = False, clock: Callable[[], float] | None = None, **entry: Any
) -> AsyncIterator[RemoteEngine]:
    pool_entry = PoolEntry(**{"name": "gpu-box", "url": url, "model": "big", **entry})
    settings = Settings(offline=offline)
    engine = RemoteEngine(pool_entry, settings, clock=clock) if clock else RemoteEngine(pool_entry, settings)
    try:
        yield engine
    finally:
        await engine.aclose()


@asynccontextmanager
async def talking(script: Script, **entry: Any) -> AsyncIterator[tuple[RemoteEngine, Upstream]]:
    async with upstream(script) as server, engine_at(server.url, **entry) as engine:
        yield engine, server


async def gather(
    engine: RemoteEngine,
    request: ChatRequest | None = None,
    *,
    got: list[EngineEvent] | None = None,
    on_text: Callable[[], None] = lambda: None,
) -> list[EngineEvent]:
    """All events, kept in `got` as they come; `on_text` is called after each piece of text."""
    got = [] if got is None else got
    async for event in engine.generate(request or make_request()):
        got.append(event)
        if isinstance(event, TextDelta):
            on_text()
    return got


def text_of(events: list[EngineEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def failure(script: Script, request: ChatRequest | None = None, **entry: Any) -> EdgeCloudError:
    async with talking(script, **entry) as (engine, _), asyncio.timeout(20):
        with pytest.raises(EdgeCloudError) as caught:
            await gather(engine, request)
    return caught.value


async def good(call: Call) -> None:
    await call.stream(delta("Because "), delta("of air."), finish(), usage(12, 5), DONE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
