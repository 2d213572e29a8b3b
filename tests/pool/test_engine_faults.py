"""The engine over a fake runner: whoever leaves, is late or fails, others are served and nothing is left."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing

import pytest

from edgecloud.errors import BadRequest, DeadlineExceeded, EngineFailure, InternalError, Unavailable
from edgecloud.pool.config import PoolConfig
from edgecloud.pool.plan import StepPlan
from edgecloud.pool.runner import Drawing
from edgecloud.pool.scheduler import Scheduler
from edgecloud.pool.sequence import Job
from edgecloud.pool.slo import Slo
from edgecloud.pool.stepper import Stepper
from edgecloud.pool.ticket import Ask, Ticket
from edgecloud.types import TextDelta
from tests.support.fake_pool import make_pool
from tests.support.fake_runner import FakeRunner

from .engine_builders import gather, make_request, pool, settled, text_of, until

# ---------------------------------------------------------------------------------- leaving, lateness, faults


# cases: E1, E3
@pytest.mark.parametrize("steps", [1, 2, 4])
async def test_who_leaves_is_gone_within_a_step_or_two(steps: int) -> None:
    gate = threading.Event()

    def before_step(plan: StepPlan) -> None:
        if runner.num_steps > steps:
            gate.wait(20)

    async with pool(num_blocks=64, context=256, runner={"before_step": before_step}) as (engine, runner):
        async with aclosing(engine.generate(make_request(max_tokens=200))) as events:
            num_seen = 0
            async for event in events:
                num_seen += isinstance(event, TextDelta)
                if num_seen == steps:
                    break
        gate.set()
        await settled(engine)

        # The one that was under way, and none after it.
        assert runner.num_steps <= steps + 1
        assert engine.loop.metrics.finished == {"abort": 1}
        assert engine.loop.metrics.cancel.total == 1
        assert engine.loop.metrics.wasted["cancelled"] >= 4


# cases: E12
async def test_who_leaves_the_queue_was_never_there() -> None:
    gate = threading.Event()
    options = {"before_step": lambda plan: gate.wait(5)}
    async with pool(max_running=1, runner=options) as (engine, runner):
        first = asyncio.create_task(gather(engine, make_request("one|")))
        await until(lambda: runner.num_steps)
        second = asyncio.create_task(gather(engine, make_request("two|")))
        await until(lambda: engine.loop.num_waiting)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        gate.set()
        await first

        assert runner.num_steps == 5
        assert engine.loop.stats.prompt_tokens == len("one|")


# cases: E1, E2
async def test_who_left_between_two_looks_at_the_mail_is_not_taken_in() -> None:
    # The cancel was looked at before the arrival: nobody would cancel it again.
    config = PoolConfig(num_blocks=8, block_size=4, context=64, token_budget=32, max_running=4)
    stepper = Stepper(FakeRunner(8), lambda costs: Scheduler(config, costs=costs), Slo())
    ticket = Ticket(Ask(Job((1, 2, 3), 4), Drawing()), stepper.abort)
    ticket.cancel()
    stepper.take_in(ticket)

    assert not stepper.scheduler.has_work


async def test_a_deadline_ends_an_answer_and_frees_its_place() -> None:
    async with pool(num_blocks=64, context=256, runner={"step_s": 0.005}) as (engine, _):
        with pytest.raises(DeadlineExceeded):
            await gather(engine, make_request(max_tokens=200, deadline_s=0.05))
        await settled(engine)

        assert engine.loop.metrics.finished == {"deadline": 1}


async def test_a_deadline_holds_even_if_a_step_hangs() -> None:
    gate = threading.Event()
    async with pool(runner={"before_step": lambda plan: gate.wait(20)}) as (engine, _):
        with pytest.raises(DeadlineExceeded):
            await gather(engine, make_request(deadline_s=0.05))
        gate.set()

        assert text_of(await gather(engine, make_request()))


async def test_a_fault_in_a_step_costs_its_requests_and_the_next_is_served() -> None:
    faults = [RuntimeError("CUDA error: an illegal memory access")]

    def before_step(plan: StepPlan) -> None:
        if plan.id == 2 and faults:
            raise faults.pop()

    async with pool(num_blocks=16, runner={"before_step": before_step}) as (engine, _):
        with pytest.raises(EngineFailure, match="others go on"):
            await gather(engine, make_request())

        assert text_of(await gather(engine, make_request()))
        assert (await engine.health()).ok
        assert engine.loop.stats.failed_steps == 1
        assert engine.loop.metrics.finished["error"] == 1


async def test_logits_that_are_no_numbers_cost_one_request_of_the_step() -> None:
    async with pool(num_blocks=16) as (engine, runner):
        runner.broken.add(0)
        answers = await asyncio.gather(
            gather(engine, make_request("one|")), gather(engine, make_request("two|")), return_exceptions=True
        )

        failures = [answer for answer in answers if isinstance(answer, EngineFailure)]
        assert len(failures) == 1
        assert engine.loop.stats.failed_steps == 0


async def test_a_result_that_does_not_answer_the_plan_is_a_fault_of_the_step() -> None:
    async with pool(num_blocks=16) as (engine, runner):
        execute = runner.execute
        runner.execute = lambda plan: execute(plan)._replace(draws={})  # type: ignore[method-assign]
        with pytest.raises(EngineFailure):
            await gather(engine, make_request())
        runner.execute = execute  # type: ignore[method-assign]

        assert text_of(await gather(engine, make_request()))


@pytest.mark.parametrize(
    ("fault", "shown"), [(RuntimeError("no memory"), EngineFailure), (BadRequest("A bad mask."), BadRequest)]
)
async def test_a_request_that_cannot_begin_fails_alone(fault: Exception, shown: type[Exception]) -> None:
    async with pool(num_blocks=16) as (engine, runner):
        begin = runner.begin

        def broken(request_id: int, prompt: tuple[int, ...], drawing: Drawing) -> None:
            if prompt[0] == ord("b"):
                raise fault
            begin(request_id, prompt, drawing)

        runner.begin = broken  # type: ignore[method-assign]
        good, bad = await asyncio.gather(
            gather(engine, make_request("good|")),
            gather(engine, make_request("bad|")),
            return_exceptions=True,
        )

        assert isinstance(bad, shown)
        assert isinstance(good, list)


async def test_an_asker_whose_loop_is_gone_is_let_go() -> None:
    async with pool(num_blocks=64, context=256, runner={"step_s": 0.01}) as (engine, runner):

        def ask_and_vanish() -> None:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(anext(engine.generate(make_request(max_tokens=200))))
            loop.close()

        await asyncio.to_thread(ask_and_vanish)
        await settled(engine)

        assert runner.num_steps < 150
        assert engine.loop.metrics.finished == {"abort": 1}


async def test_books_that_are_wrong_end_everyone_and_the_next_is_served() -> None:
    async with pool(num_blocks=16) as (engine, _):
        stepper = engine.loop._stepper

        def broken(now: float) -> StepPlan:
            raise AssertionError("a bug")

        stepper.scheduler.schedule = broken  # type: ignore[method-assign]
        with pytest.raises(InternalError):
            await gather(engine, make_request())

        assert text_of(await gather(engine, make_request()))


# ----------------------------------------------------------------------------------------------------- health


# cases: E73
async def test_a_stuck_step_is_not_healthy_refuses_newcomers_and_recovers() -> None:
    gate = threading.Event()
    async with pool(watchdog_s=0.05, runner={"before_step": lambda plan: gate.wait(20)}) as (engine, _):
        running = asyncio.create_task(gather(engine, make_request()))
        await until(lambda: not (engine.loop.has_heartbeat))
        health = await engine.health()
        with pytest.raises(Unavailable, match="finished no step"):
            await gather(engine, make_request())
        with pytest.raises(Unavailable):
            await engine.probe()
        gate.set()
        await running

        assert not health.ok
        assert "no step" in health.detail
        assert (await engine.health()).ok


# cases: E73
async def test_a_dead_thread_is_not_healthy() -> None:
    engine, _ = make_pool()
    await engine.aclose()

    assert not (await engine.health()).ok
    with pytest.raises(Unavailable, match="stopping"):
        await gather(engine, make_request())


async def test_one_failed_step_after_the_other_is_not_ready() -> None:
    broken = [True]

    def before_step(plan: StepPlan) -> None:
        if broken:
            raise RuntimeError("the device is gone")

    async with pool(runner={"before_step": before_step}) as (engine, _):
        for _ in range(3):
            with pytest.raises(EngineFailure):
                await gather(engine, make_request())
        sick = await engine.health()
        broken.clear()
        probe = await engine.probe()

        assert not sick.ok
        assert "failed" in sick.detail
        assert (await engine.health()).ok, "a probe that decodes is a proof of health"
        assert 0 <= probe.token < 257


async def test_a_probe_goes_before_everybody_and_is_shared() -> None:
    async with pool(policy="priority", num_blocks=16, max_running=2, runner={"step_s": 0.002}) as (
        engine,
        _,
    ):
        busy = [asyncio.create_task(gather(engine, make_request(f"p{n}|", max_tokens=9))) for n in range(12)]
        await until(lambda: not (engine.loop.num_waiting < 8))
        probes = await asyncio.gather(*(engine.probe() for _ in range(5)))
        still_waiting = engine.loop.num_waiting
        await asyncio.gather(*busy)

    assert len(set(probes)) == 1
    assert still_waiting


async def test_the_first_token_may_take_longer_than_any_other() -> None:
    slow = threading.Event()
    async with pool(watchdog_s=0.05, runner={"before_step": lambda plan: slow.wait(20)}) as (engine, _):
        warming = asyncio.create_task(engine.warm_up())
        await until(lambda: not engine.loop.has_heartbeat)
        slow.set()

        assert 0 <= (await warming).token < 257


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), 3.0])
async def test_a_probe_finds_logits_that_are_none(logprob: float, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool() as (engine, _):
        monkeypatch.setattr("tests.support.fake_runner.math.log", lambda value: -logprob)
        with pytest.raises(EngineFailure, match="broken"):
            await engine.probe()


# cases: E74
async def test_after_everybody_left_every_gauge_is_zero() -> None:
    async with pool(num_blocks=64, context=256, runner={"step_s": 0.01}) as (engine, _):
        tasks = [
            asyncio.create_task(gather(engine, make_request(f"p{n}", max_tokens=100, n=1 + n % 2)))
            for n in range(8)
        ]
        await until(lambda: engine.loop.stats.running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await settled(engine)

        stats = engine.loop.stats
        assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
        assert engine.loop.metrics.finished == {"abort": 8}
