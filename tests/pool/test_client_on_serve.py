"""The remote engine against our own server: what one side says, the other understands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing

import pytest
from pydantic import SecretStr

from edgecloud.errors import BadRequest, ContextLengthExceeded, Overloaded, UpstreamError
from edgecloud.types import (
    ChoiceDone,
    Done,
    EngineEvent,
    Message,
    ReasoningDelta,
    Start,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)
from tests.support.fake_engine import FakeEngine
from tests.support.live import Live, eventually, live_server

from .builders import engine_at, gather, make_request, text_of

KEY = "sk-of-the-pool"


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine([b"Because ", b"of ", "air \N{BALLOON}".encode()], cached_tokens=2)


@pytest.fixture
def live(fake: FakeEngine) -> Iterator[Live]:
    with live_server(fake, api_keys=[KEY]) as server:
        yield server


async def test_an_answer_crosses_two_of_our_own_hands_unchanged(fake: FakeEngine, live: Live) -> None:
    async with engine_at(live.url, model="fake", api_key=SecretStr(KEY)) as engine:
        events = await gather(engine, make_request(n=2, max_tokens=50, stop=("END",)))

    assert isinstance(events[0], Start)
    assert (
        text_of([event for event in events if getattr(event, "index", 0) == 0])
        == "Because of air \N{BALLOON}"
    )
    assert (
        text_of([event for event in events if getattr(event, "index", 1) == 1])
        == "Because of air \N{BALLOON}"
    )
    assert {event.index for event in events if isinstance(event, ChoiceDone)} == {0, 1}
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.cached_tokens) == (6, 6, 2)
    asked = fake.requests[0]
    assert (asked.messages, asked.n, asked.max_tokens, asked.stop) == (
        (Message("user", "Why is the sky blue?"),), 2, 50, ("END",),
    )  # fmt: skip


async def test_reasoning_and_tool_calls_cross_too() -> None:
    calls = [ToolCall("call-1", "look", '{"at": "sky"}'), ToolCall("call-2", "go", "{}")]
    with live_server(FakeEngine([], thoughts=["Hm. "], calls=calls, reason="tool_calls")) as live:
        async with engine_at(live.url, model="fake") as engine:
            events = await gather(engine)

    assert [event.text for event in events if isinstance(event, ReasoningDelta)] == ["Hm. "]
    heads = [event for event in events if isinstance(event, ToolCallDelta) and event.name]
    assert [(call.call_index, call.id, call.name) for call in heads] == [
        (0, "call-1", "look"),
        (1, "call-2", "go"),
    ]
    assert ChoiceDone(0, "tool_calls") in events


async def test_without_the_servers_key_nothing_is_answered(live: Live) -> None:
    async with engine_at(live.url, model="fake") as engine:
        with pytest.raises(UpstreamError, match="refused our key") as caught:
            await gather(engine)

        assert caught.value.upstream_status == 401
        assert (await engine.health()).ok, "health needs no key"


async def test_what_the_server_refuses_is_still_the_callers_fault() -> None:
    with (
        live_server(FakeEngine(context=3)) as small,
        live_server(FakeEngine(refuse=BadRequest("No."))) as strict,
    ):
        async with engine_at(small.url, model="fake") as engine:
            with pytest.raises(ContextLengthExceeded) as caught:
                await gather(engine)
        async with engine_at(strict.url, model="fake") as engine:
            with pytest.raises(BadRequest, match="No"):
                await gather(engine)

    assert caught.value.extra == {"n_prompt_tokens": 6, "n_ctx": 3}


async def test_an_overloaded_server_says_when_to_come_back() -> None:
    with live_server(FakeEngine(queue_limit=0)) as live:
        async with engine_at(live.url, model="fake") as engine:
            with pytest.raises(Overloaded) as caught:
                await gather(engine)

    assert caught.value.retry_after == 2


async def test_a_failure_in_the_middle_arrives_as_one_error_after_the_text() -> None:
    with live_server(FakeEngine([b"half ", b"an ", b"answer"], fail_at=2)) as live:
        async with engine_at(live.url, model="fake") as engine:
            got: list[EngineEvent] = []
            with pytest.raises(UpstreamError, match="told to fail"):
                await gather(engine, got=got)

    assert [event.text for event in got if isinstance(event, TextDelta)] == ["half ", "an "]


async def test_closing_the_generator_frees_the_place_over_there() -> None:
    fake = FakeEngine([b"x "] * 1000, decode_s=0.01)
    with live_server(fake) as live:
        async with engine_at(live.url, model="fake") as engine:
            async with aclosing(engine.generate(make_request())) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        break
            await asyncio.to_thread(eventually, lambda: fake.cancelled == ["decode"])
    assert fake.running == 0


async def test_tokens_are_the_servers_own(live: Live) -> None:
    async with engine_at(live.url, model="fake", api_key=SecretStr(KEY)) as engine:
        ids = await engine.tokenize("sky")

        assert await engine.detokenize(ids) == "sky"
        assert await engine.token_bytes(ids[0]) == b"s"
        assert await engine.count_tokens(make_request()) == 6
