"""The remote engine against a pool of our own: what an edge asks arrives, and back comes what it cost."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from pydantic import SecretStr

from edgecloud.errors import ContextLengthExceeded, DeadlineExceeded, NotSupported, Overloaded, UpstreamError
from edgecloud.pool.plan import StepPlan
from edgecloud.types import ChoiceDone, Done, TextDelta
from tests.support.fake_engine import FakeEngine
from tests.support.fake_pool import live_pool, make_pool, scripted
from tests.support.fake_runner import expected
from tests.support.live import eventually, live_server

from .builders import engine_at, gather, make_request, text_of

KEY = "sk-of-the-pool"


async def test_an_answer_crosses_with_its_usage_and_its_times() -> None:
    pool, _ = make_pool(num_blocks=16, runner={"step_s": 0.002})
    with live_pool(pool) as live:
        async with engine_at(live.url, model="fake") as engine:
            ask = make_request(messages=(), prompt="a long prompt", max_tokens=6)
            first = await gather(engine, ask)
            second = await gather(engine, ask)

    assert text_of(first).encode() == bytes(expected(b"a long prompt", 6))
    assert ChoiceDone(0, "length") in first
    ends = [events[-1] for events in (first, second)]
    assert all(isinstance(end, Done) for end in ends)
    assert [(end.usage.prompt_tokens, end.usage.cached_tokens) for end in ends] == [(13, 0), (13, 12)]
    timings = ends[0].timings
    assert timings.prefill_s > 0
    assert timings.ttft_s >= timings.queue_s + timings.prefill_s


async def test_priority_and_deadline_reach_the_scheduler() -> None:
    jobs = []
    pool, runner = make_pool(num_blocks=16)
    submit = pool.loop.submit

    with live_pool(pool) as live, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool.loop, "submit", lambda ask: jobs.append(ask.job) or submit(ask))
        async with engine_at(live.url, model="fake", timeout_s=50.0) as engine:
            await gather(engine, make_request(max_tokens=2, priority=-3, deadline_s=30.0))
            await gather(engine, make_request(max_tokens=2))

    assert [job.priority for job in jobs] == [3, 0]
    # Without a deadline of its own a request still ends when its patience here does.
    assert all(job.deadline is not None for job in jobs)
    assert 15 < jobs[1].deadline - jobs[0].deadline < 25
    assert not runner.requests


async def test_a_deadline_passed_over_there_is_a_deadline_here() -> None:
    pool, _ = make_pool(num_blocks=64, context=256, runner={"step_s": 0.01})
    with live_pool(pool) as live:
        async with engine_at(live.url, model="fake") as engine:
            with pytest.raises(DeadlineExceeded):
                await gather(engine, make_request(max_tokens=200, deadline_s=0.1))
        await asyncio.to_thread(eventually, lambda: not pool.loop.stats.used_blocks)

    assert sum(pool.loop.metrics.finished.values()) == 1


async def test_a_limit_of_ours_that_the_pool_notices_first_is_still_the_upstreams_fault() -> None:
    pool, _ = make_pool(num_blocks=64, context=256, runner={"step_s": 0.01})
    with live_pool(pool) as live:
        async with engine_at(live.url, model="fake", timeout_s=0.1) as engine:
            with pytest.raises(UpstreamError, match="longer than its timeout_s"):
                await gather(engine, make_request(max_tokens=200))


async def test_closing_frees_the_blocks_over_there() -> None:
    pool, runner = make_pool(num_blocks=64, context=256, runner={"step_s": 0.01})
    with live_pool(pool) as live:
        async with engine_at(live.url, model="fake") as engine:
            async with aclosing(engine.generate(make_request(max_tokens=200))) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        break
            await asyncio.to_thread(eventually, lambda: pool.loop.metrics.finished == {"abort": 1})

    assert pool.loop.stats.used_blocks == 0
    assert runner.num_steps < 150


async def test_one_name_follows_a_request_through_both_logs(caplog: pytest.LogCaptureFixture) -> None:
    pool, _ = make_pool(num_blocks=16)
    with caplog.at_level("INFO", "edgecloud.access"), live_pool(pool) as live:
        async with engine_at(live.url, model="fake") as engine:
            await gather(engine, make_request(max_tokens=2, id="req-of-the-edge"))

    records = [record for record in caplog.records if record.name == "edgecloud.access"]
    assert [record.fields["request_id"] for record in records] == ["req-of-the-edge"]  # type: ignore[attr-defined]


async def test_only_the_entrys_own_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-the-users-own")
    pool, _ = make_pool(num_blocks=16)
    with live_pool(pool, api_keys=[KEY]) as live:
        async with engine_at(live.url, model="fake", api_key=SecretStr(KEY)) as engine:
            events = await gather(engine, make_request(max_tokens=2))
            tenants = await pool.loop.ask(lambda scheduler: scheduler.counters.prompt_tokens)

    assert text_of(events)
    assert tenants


async def test_what_the_pool_refuses_keeps_its_meaning() -> None:
    import threading

    gate = threading.Event()

    def before_step(plan: StepPlan) -> None:
        gate.wait(20)

    pool, runner = make_pool(max_running=1, max_waiting=1, runner={"before_step": before_step})
    with live_pool(pool) as live:
        async with engine_at(live.url, model="fake") as engine:
            with pytest.raises(ContextLengthExceeded) as caught:
                await gather(engine, make_request(messages=(), prompt="x" * 99))
            short = make_request(messages=(), prompt="abc|", max_tokens=2)
            running = asyncio.create_task(gather(engine, short))
            await asyncio.to_thread(eventually, lambda: runner.num_steps)
            waiting = asyncio.create_task(gather(engine, short))
            await asyncio.to_thread(eventually, lambda: pool.loop.num_waiting)
            with pytest.raises(Overloaded) as shed:
                await gather(engine, short)
            gate.set()
            await asyncio.gather(running, waiting)

    assert caught.value.extra == {"n_prompt_tokens": 99, "n_ctx": 33}
    assert shed.value.retry_after == 1


async def test_what_a_pool_holds_of_a_prompt_can_be_asked() -> None:
    pool, _ = make_pool(num_blocks=16, runner={"next_token": scripted(b"hi")})
    ask = make_request(max_tokens=2)
    with live_pool(pool) as live:
        async with engine_at(live.url, model="fake") as engine:
            before = await engine.held_tokens(ask)
            await gather(engine, ask)
            after = await engine.held_tokens(ask)
    with live_server(FakeEngine()) as other:
        async with engine_at(other.url, model="fake") as engine:
            with pytest.raises(NotSupported, match="which prefixes it holds"):
                await engine.held_tokens(ask)

    assert before == (len("u:Why is the sky blue?\na:"), 0)
    assert after[1] == 24
