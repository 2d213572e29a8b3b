"""Who waits for a model that comes into memory is told how far it is: at a person's doors, not at others."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from edgecloud.app.loading import words
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import ChatRequest, Finish, Loading, Message, Notice, Start
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import fake_gateway

GB = 1_000_000_000
POOL = Settings(model="qwen", pool=(PoolEntry(name="gpu-box", url="http://gpu-box:8000/v1", model="big"),))


def ask(**fields: object) -> ChatRequest:
    return ChatRequest(messages=(Message("user", "hi"),), **fields)  # type: ignore[arg-type]


def held_engine(name: str = "qwen") -> FakeEngine:
    """An engine whose model is being loaded until `loaded` is set."""
    engine = FakeEngine(name=name)
    engine.loaded = asyncio.Event()
    engine.loading = Loading(name, 0, 2_790_000_000)
    return engine


@pytest.mark.parametrize(
    ("loading", "said"),
    [
        (Loading("qwen", 1_200_000_000, 2_790_000_000), "loading qwen · 43 % · 1.20 of 2.79 GB"),
        (Loading("smollm2", 42_000_000, 98_000_000), "loading smollm2 · 42 % · 42 of 98 MB"),
        (Loading("empty", 0, 0), "loading empty · 0 % · 0 of 0 MB"),
        (Loading("smollm2", 98_000_000, 98_000_000), "loading smollm2 · 98 MB read, getting ready"),
    ],
)
def test_a_load_in_words(loading: Loading, said: str) -> None:
    assert words(loading) == said


@pytest.mark.parametrize("settings", [Settings(), POOL], ids=["alone", "routed"])
async def test_each_step_of_a_load_is_told_before_the_answer_starts(settings: Settings) -> None:
    engine, other = held_engine(), FakeEngine(name="gpu-box", local=False)
    gateway = fake_gateway(engine, other, settings=settings)
    async with aclosing(gateway.chat(ask(door="chat", mode="local"))) as events:
        told = [await anext(events)]
        engine.loading = Loading("qwen", GB, 2 * GB)
        told.append(await anext(events))
        engine.loading = None
        assert engine.loaded is not None
        engine.loaded.set()
        rest = [event async for event in events]

    assert [event.text for event in told if isinstance(event, Notice)] == [
        "loading qwen · 0 % · 0.00 of 2.79 GB",
        "loading qwen · 50 % · 1.00 of 2.00 GB",
    ]
    assert isinstance(rest[0], Start)
    assert isinstance(rest[-1], Finish)
    assert not any(isinstance(event, Notice) for event in rest)


async def test_a_program_is_told_nothing_before_the_start() -> None:
    engine = held_engine()
    first = asyncio.ensure_future(anext(fake_gateway(engine).chat(ask(door="http"))))
    assert engine.loaded is not None
    await asyncio.sleep(0.6)  # longer than the look at a load
    engine.loaded.set()

    assert isinstance(await first, Start)


async def test_who_leaves_while_a_model_is_loaded_leaves_nothing_running() -> None:
    engine = held_engine()
    before = asyncio.all_tasks()
    async with aclosing(fake_gateway(engine).chat(ask(door="ask"))) as events:
        assert isinstance(await anext(events), Notice)

    assert asyncio.all_tasks() == before
    assert engine.generated == 0


async def test_what_ends_a_load_is_raised() -> None:
    engine = held_engine()
    engine.refuse = MemoryError("no room")
    async with aclosing(fake_gateway(engine).chat(ask(door="chat"))) as events:
        assert isinstance(await anext(events), Notice)
        assert engine.loaded is not None
        engine.loaded.set()
        with pytest.raises(Exception, match="went wrong"):
            await anext(events)
