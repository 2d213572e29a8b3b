"""The engine over a fake runner: what it says, what ends an answer, what is refused."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from edgecloud.errors import BadRequest, ContextLengthExceeded, Overloaded
from edgecloud.pool.runner import Drawing
from edgecloud.types import ChatRequest, ChoiceDone, Message, Sampling, Start, TextDelta
from tests.support.fake_pool import END, make_pool, scripted
from tests.support.fake_runner import expected

from .engine_builders import done_of, gather, make_request, pool, text_of, until

# ----------------------------------------------------------------------------------------------- what it says


async def test_an_answer_is_what_the_model_says_and_its_usage_adds_up() -> None:
    async with pool() as (engine, _):
        events = await gather(engine, make_request("hello", max_tokens=6))

    assert events[0] == Start("pool", "fake", 5)
    assert text_of(events).encode() == bytes(expected(b"hello", 6))
    assert ChoiceDone(0, "length") in events
    assert (done_of(events).usage.prompt_tokens, done_of(events).usage.completion_tokens) == (5, 6)


async def test_a_chat_is_rendered_by_the_models_template() -> None:
    async with pool(num_blocks=16, runner={"next_token": scripted(b"hi!")}) as (engine, _):
        events = await gather(engine, ChatRequest(messages=(Message("user", "yo"),), model="fake"))

    assert text_of(events) == "hi!"
    assert ChoiceDone(0, "stop") in events
    assert done_of(events).usage.completion_tokens == 3, "the token that ends an answer is no text"


async def test_choices_are_told_apart_and_counted_together() -> None:
    async with pool(num_blocks=32) as (engine, _):
        events = await gather(engine, make_request("hello", n=3))

    for choice in range(3):
        assert text_of(events, choice).encode() == bytes(expected(b"hello", 5, choice))
    assert done_of(events).usage.completion_tokens == 15


async def test_what_the_request_leaves_open_is_drawn_by_the_defaults() -> None:
    seen = []
    options = {"runner": {"before_step": lambda plan: seen.extend(runner.requests.values())}}
    engine, runner = make_pool(defaults=Drawing(temperature=0.7, top_k=9), **options)
    await gather(engine, make_request(sampling=Sampling(temperature=0.0, seed=3), stop_token_ids=(7,)))
    await engine.aclose()

    drawing = seen[0][1]
    assert (drawing.temperature, drawing.top_k, drawing.seed) == (0.0, 9, 3)
    assert drawing.stop_ids == {7, END}


async def test_a_seen_prompt_is_not_computed_again_and_its_usage_says_so() -> None:
    async with pool(num_blocks=16) as (engine, _):
        first = await gather(engine, make_request("a long prompt"))
        second = await gather(engine, make_request("a long prompt"))

        assert text_of(first) == text_of(second)
        assert [done_of(events).usage.cached_tokens for events in (first, second)] == [0, 12]


async def test_tenants_share_no_prefixes() -> None:
    async with pool(num_blocks=32) as (engine, _):
        for tenant in ("a", "b", None):
            events = await gather(engine, make_request("a long prompt", tenant=tenant))

            assert done_of(events).usage.cached_tokens == 0
        assert await engine.held_tokens(make_request("a long prompt", tenant="a")) == (13, 12)
        assert await engine.held_tokens(make_request("a long prompt", tenant="c")) == (13, 0)


async def test_the_waterfall_adds_up_to_the_whole() -> None:
    async with pool(runner={"step_s": 0.002}) as (engine, _):
        timings = done_of(await gather(engine, make_request())).timings

    assert timings.ttft_s == pytest.approx(timings.queue_s + timings.prefill_s)
    assert timings.prefill_s > 0
    assert timings.decode_s > 0


# ---------------------------------------------------------------------------------------- what ends an answer


# cases: E50, E52
@pytest.mark.parametrize("stop", ["END", "o E", "!", "hello E"])
async def test_a_stop_string_over_any_tokens_ends_the_answer_where_it_begins(stop: str) -> None:
    said = "hello END of it!"
    async with pool(num_blocks=16, runner={"next_token": scripted(said.encode())}) as (engine, _):
        events = await gather(engine, make_request(max_tokens=30, stop=(stop,)))

        assert text_of(events) == said[: said.index(stop)]
        assert ChoiceDone(0, "stop", stop) in events
        # Nothing behind the stop was ever computed.
        assert engine.loop.stats.output_tokens == said.index(stop) + len(stop)
        assert done_of(events).usage.completion_tokens == said.index(stop) + len(stop)


# cases: E50
async def test_a_choice_that_stops_leaves_the_others_going() -> None:
    def next_token(context: list[tuple[int, int]], choice: int) -> int:
        return b"a.b"[(len(context) - 4) % 3] if choice == 0 else ord("c")

    async with pool(num_blocks=16, runner={"next_token": next_token}) as (engine, _):
        events = await gather(engine, make_request(n=2, max_tokens=8, stop=(".",)))

    assert (text_of(events, 0), text_of(events, 1)) == ("a", "c" * 8)
    assert {ChoiceDone(0, "stop", "."), ChoiceDone(1, "length")} <= set(events)


# cases: E51, E52
async def test_only_what_may_become_a_stop_is_held_back_and_it_is_not_lost() -> None:
    async with pool(num_blocks=16, runner={"next_token": scripted(b"Paris EN", end=True)}) as (engine, _):
        events = await gather(engine, make_request(max_tokens=30, stop=("END", "a long stop string")))

    assert text_of(events) == "Paris EN"
    pieces = [event.text for event in events if isinstance(event, TextDelta)]
    assert pieces == ["P", "ar", "i", "s", " ", "EN"]


# cases: E56
@pytest.mark.parametrize("least", [1, 3, 5])
async def test_before_min_tokens_a_stop_string_ends_nothing(least: int) -> None:
    async with pool(num_blocks=16, runner={"next_token": scripted(b".a.b.c.d")}) as (engine, _):
        events = await gather(engine, make_request(max_tokens=8, min_tokens=least, stop=(".",)))

    # The stops come at 1, 3, 5 and 7; the first behind `least` ends it.
    assert text_of(events) == ".a.b.c.d"[: least + 1]
    assert done_of(events).usage.completion_tokens == least + 2


# cases: E56
async def test_min_tokens_and_several_ends_reach_the_one_who_draws() -> None:
    seen = []
    engine, runner = make_pool(
        runner={
            "before_step": lambda plan: seen.extend(runner.requests.values()),
            "next_token": lambda c, n: END,
        }
    )
    events = await gather(engine, make_request(min_tokens=2, stop_token_ids=(1, 2)))
    await engine.aclose()

    assert seen[0][1].min_tokens == 2
    assert seen[0][1].stop_ids == {1, 2, END}
    assert text_of(events) == ""


# cases: E53, E55
async def test_half_a_character_is_replaced_and_never_breaks_anything() -> None:
    snowman = "\N{SNOWMAN}".encode()
    async with pool(num_blocks=16, runner={"next_token": scripted(snowman + b"!", end=True)}) as (engine, _):
        cut = await gather(engine, make_request(max_tokens=1))
        whole = await gather(engine, make_request(max_tokens=9))
        inside = await gather(engine, make_request(prompt=tuple(b"abc" + snowman[:2] + b"|"), max_tokens=9))

    assert "\N{SNOWMAN}" not in text_of(cut)
    assert text_of(whole) == text_of(inside) == "\N{SNOWMAN}!"


# cases: E70
async def test_a_prompt_can_be_scored_without_drawing_anything() -> None:
    async with pool(num_blocks=16) as (engine, _):
        scored = await gather(engine, make_request("score me", max_tokens=0, echo=True, logprobs=0))
        plain = await gather(engine, make_request("score me", max_tokens=0, echo=True))

    for events in (scored, plain):
        assert text_of(events) == "score me"
        assert done_of(events).usage.completion_tokens == 0
    logprobs = next(event for event in scored if isinstance(event, TextDelta)).logprobs
    assert [entry.token for entry in logprobs] == list("score me")
    assert logprobs[0].logprob != logprobs[0].logprob


# cases: E57
@pytest.mark.parametrize("chunk", range(1, 9))
async def test_prompt_logprobs_are_the_same_however_the_prompt_is_cut(chunk: int) -> None:
    async with pool(num_blocks=16, max_chunk=chunk) as (engine, _):
        await gather(engine, make_request("score me"))
        events = await gather(engine, make_request("score me", max_tokens=2, echo=True, logprobs=0))

    entries = [entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs]
    assert "".join(entry.token for entry in entries[:8]) == "score me"
    assert len(entries) == 10


# ---------------------------------------------------------------------------------- what is refused, and when


# cases: E38, E69
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"prompt": ""}, BadRequest),
        ({"prompt": ()}, BadRequest),
        ({"prompt": "x" * 40}, ContextLengthExceeded),
        ({"prompt": (300,)}, BadRequest),
        ({"n": 5}, BadRequest),
        ({"stop_token_ids": (999,)}, BadRequest),
        ({"sampling": Sampling(logit_bias={999: 1.0})}, BadRequest),
    ],
)
async def test_what_can_never_be_served_is_refused_before_anything_begins(
    fields: dict[str, Any], error: type[Exception]
) -> None:
    async with pool() as (engine, runner):
        with pytest.raises(error):
            await gather(engine, make_request(**fields))

        assert runner.num_steps == 0
        assert text_of(await gather(engine, make_request())), "and the next is served"


async def test_a_prompt_that_is_too_long_is_refused_with_the_settings_of_a_pool() -> None:
    async with pool() as (engine, _):
        with pytest.raises(ContextLengthExceeded, match=r"pool_server\.context, pool_server\.kv_mb"):
            await gather(engine, make_request(prompt="x" * 40))


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    gate = threading.Event()
    options = {"before_step": lambda plan: gate.wait(5)}
    async with pool(max_running=1, max_waiting=2, runner=options) as (engine, runner):
        tasks = [asyncio.create_task(gather(engine, make_request("p0|")))]
        await until(lambda: runner.num_steps)
        tasks += [asyncio.create_task(gather(engine, make_request(f"p{n}|"))) for n in (1, 2)]
        await until(lambda: engine.loop.num_waiting == 2)
        with pytest.raises(Overloaded, match="queue is full") as caught:
            await gather(engine, make_request())
        gate.set()
        assert len(await asyncio.gather(*tasks)) == 3
        assert engine.loop.metrics.rejected == {"queue_full": 1}

    assert caught.value.retry_after is not None
    assert caught.value.retry_after >= 1


# cases: E71
async def test_two_requests_may_have_one_name() -> None:
    async with pool(num_blocks=16) as (engine, _):
        answers = await asyncio.gather(*(gather(engine, make_request(f"p{n}", id="same")) for n in range(2)))

    assert [text_of(events).encode() for events in answers] == [
        bytes(expected(b"p0", 5)),
        bytes(expected(b"p1", 5)),
    ]
