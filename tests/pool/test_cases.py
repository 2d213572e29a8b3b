"""Faults that serving engines had in the field, each as small as it gets: a pool of 8 blocks of 4 tokens.

The number in a name is the row of the case list that the fault was collected under.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from edgecloud.errors import BadRequest, ContextLengthExceeded
from edgecloud.pool.admission import Watermarks
from edgecloud.pool.config import PoolConfig
from edgecloud.pool.plan import Drawn
from edgecloud.pool.policy import ShortestJob
from edgecloud.pool.prefix import Namespace
from edgecloud.pool.scheduler import Scheduler
from edgecloud.pool.sequence import Job

from .fake_runner import FakeRunner, answer, strong_hash, weak_hash

CARELESS = Watermarks(cautious=0, guarded=0, urgent=0)


def make_runner(policy: Any = "fcfs", chain: Any = strong_hash, **config: Any) -> FakeRunner:
    sizes: dict[str, Any] = {
        "num_blocks": 8,
        "block_size": 4,
        "num_host_blocks": 8,
        "context": 64,
        "token_budget": 32,
        "max_running": 4,
    }
    return FakeRunner(Scheduler(PoolConfig(**sizes | config), policy, chain=chain))


def make_job(length: int, max_tokens: int = 4, first: int = 1, **fields: Any) -> Job:
    return Job(tuple(range(first, first + length)), max_tokens, **fields)


def assert_idle(runner: FakeRunner) -> None:
    scheduler = runner.scheduler
    scheduler.check()
    assert not scheduler.has_work
    assert scheduler.num_running == scheduler.num_waiting == scheduler.pool.num_used == 0
    assert scheduler.pool.num_host_available == scheduler.config.num_host_blocks


def two_of_which_the_second_is_preempted(mode: str, **config: Any) -> FakeRunner:
    runner = make_runner(preemption=mode, watermarks=CARELESS, caching=False, **config)
    for i in range(2):
        runner.scheduler.submit(make_job(12, 10, first=i * 50), float(i))
    while not runner.step().preempted:
        pass
    return runner


# ----------------------------------------------------------------------- abort, disconnect, leak, double free


# cases: E1
@pytest.mark.parametrize("steps", range(7))
def test_01_an_abort_while_waiting_in_a_chunk_or_decoding_leaks_nothing(steps: int) -> None:
    runner = make_runner(max_chunk=4)
    runner.scheduler.submit(make_job(11, 8), 0.0)
    for _ in range(steps):
        runner.step()
    assert runner.scheduler.abort(0, 0.0)
    assert_idle(runner)


# cases: E1, E12
@pytest.mark.parametrize(("mode", "host"), [("swap", 4), ("recompute", 0)])
def test_01_12_an_abort_while_preempted_leaks_neither_device_nor_host_blocks(mode: str, host: int) -> None:
    runner = two_of_which_the_second_is_preempted(mode)
    assert 8 - runner.scheduler.pool.num_host_available == host
    assert runner.scheduler.abort(1, 0.0)
    assert runner.scheduler.pool.num_host_available == 8
    runner.run()
    assert_idle(runner)


# cases: E2, E71
def test_02_71_the_clients_name_is_only_a_label() -> None:
    runner = make_runner()
    first = runner.scheduler.submit(make_job(4, label="a"), 0.0)
    assert runner.scheduler.abort(first, 0.0)
    second = runner.scheduler.submit(make_job(4, label="a"), 0.0)
    third = runner.scheduler.submit(make_job(4, label="a"), 0.0)
    assert runner.scheduler.abort(first, 0.0) is None, "the late abort of the first finds nothing"
    runner.run()
    assert {runner.ended[i].reason for i in (second, third)} == {"done"}


# cases: E5
def test_05_an_abort_between_plan_and_result_of_the_last_step_ends_it_once() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(4, 1), 0.0)
    plan = runner.scheduler.schedule(0.0)
    end = runner.scheduler.abort(0, 0.0)
    assert end is not None
    assert runner.scheduler.abort(0, 0.0) is None
    result = runner.scheduler.commit(plan, runner.execute(plan), 0.0)
    assert (result.progress, result.ended) == ([], [])
    assert_idle(runner)


# cases: E6, E24
def test_06_24_blocks_of_a_step_in_flight_are_reused_only_after_it_landed() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(12), 0.0)
    plan = runner.scheduler.schedule(0.0)
    runner.scheduler.abort(0, 0.0)
    written = set(plan.items[0].table)
    assert runner.scheduler.pool.num_available == 8 - len(written)
    with pytest.raises(RuntimeError, match="in flight"):
        runner.scheduler.schedule(0.0)
    runner.scheduler.fail(plan, 0.0)
    assert_idle(runner)


# cases: E8
def test_08_rejected_drafts_across_blocks_leave_the_books_right() -> None:
    runner = make_runner()
    job = make_job(3, 12)
    runner.scheduler.submit(job, 0.0)
    runner.step()
    for _ in range(4):
        runner.scheduler.propose({0: (96, 96, 96, 96, 96, 96)})
        runner.step()
    runner.run()
    assert runner.outputs[0, 0] == answer(job)
    assert_idle(runner)


# cases: E10, E14
def test_10_14_twins_computed_at_the_same_time_each_keep_their_blocks() -> None:
    runner = make_runner(max_chunk=4)
    for _ in range(2):
        runner.scheduler.submit(make_job(11, 3), 0.0)
    runner.step()
    runner.step()
    tables = [set(sequence.table.blocks) for sequence in runner.scheduler.planner.running]
    assert not tables[0] & tables[1]
    runner.run()
    assert runner.outputs[0, 0] == runner.outputs[1, 0] == answer(make_job(11, 3))
    assert_idle(runner)


# cases: E11
def test_11_a_thousand_prompts_shorter_than_a_block_leak_nothing() -> None:
    runner = make_runner()
    for i in range(1000):
        runner.scheduler.submit(make_job(1 + i % 3, 1, first=i), 0.0)
        runner.run()
    assert_idle(runner)
    assert runner.scheduler.pool.num_cached == 0


# --------------------------------------------------------------------------------- prefix cache: wrong result


# cases: E13, E16
@pytest.mark.parametrize("chain", [strong_hash, weak_hash])
def test_13_16_a_cached_prefix_changes_no_token_whatever_the_hash(chain: Any) -> None:
    runner = make_runner(chain=chain)
    jobs = [Job((1, 2, 3, 4, i % 3, 6, 7, 8, 9), 4) for i in range(9)]
    for job in jobs:
        runner.scheduler.submit(job, 0.0)
    runner.run()
    for request_id, job in enumerate(jobs):
        assert runner.outputs[request_id, 0] == answer(job)


# cases: E17
@pytest.mark.parametrize("chain", [strong_hash, weak_hash])
def test_17_equal_second_blocks_after_different_first_ones_are_different(chain: Any) -> None:
    runner = make_runner(chain=chain)
    for first in (1, 4, 7):
        runner.scheduler.submit(Job((first, 0, 0, 0, 5, 5, 5, 5, 9), 3), 0.0)
        runner.run()
        assert runner.ended[first // 3].num_cached == 0
        assert runner.outputs[first // 3, 0] == answer(Job((first, 0, 0, 0, 5, 5, 5, 5, 9), 3))


# cases: E18
def test_18_an_adapter_and_a_salt_of_the_same_name_do_not_meet() -> None:
    runner = make_runner()
    for namespace in (Namespace("m", adapter="x"), Namespace("m", salt="x"), Namespace("m")):
        runner.scheduler.submit(make_job(9, namespace=namespace), 0.0)
        runner.run()
    assert [end.num_cached for end in runner.ended.values()] == [0, 0, 0]


# cases: E19
@pytest.mark.parametrize("chunk", range(1, 9))
def test_19_chunks_that_end_inside_a_block_are_not_offered_too_early(chunk: int) -> None:
    runner = make_runner(max_chunk=chunk)
    runner.scheduler.submit(make_job(11, 2), 0.0)
    runner.step()
    runner.scheduler.submit(make_job(11, 2), 0.0)
    runner.run()
    assert runner.outputs[0, 0] == runner.outputs[1, 0] == answer(make_job(11, 2))


# cases: E21, E33, E35
@pytest.mark.parametrize("length", [4, 8, 12])
def test_21_33_35_a_prompt_cached_in_full_still_computes_a_token(length: int) -> None:
    runner = make_runner()
    for _ in range(2):
        runner.scheduler.submit(make_job(length), 0.0)
        plan = runner.step()
        assert plan.items[0].num_tokens > 0
        assert plan.items[0].num_samples == 1
        runner.run()
    assert runner.ended[1].num_cached == length - 4
    assert runner.outputs[0, 0] == runner.outputs[1, 0]


# cases: E23
def test_23_swapped_out_and_in_the_references_are_right() -> None:
    runner = two_of_which_the_second_is_preempted("swap")
    runner.run()
    assert_idle(runner)
    runner = make_runner(preemption="swap", watermarks=CARELESS)
    for i in range(2):
        runner.scheduler.submit(make_job(12, 10, first=i * 50), float(i))
    runner.run()
    assert runner.scheduler.counters.swapped
    assert [runner.outputs[i, 0] for i in range(2)] == [
        answer(make_job(12, 10, first=i * 50)) for i in range(2)
    ]
    assert_idle(runner)


# cases: E23
def test_23_a_fork_whose_child_ends_first_goes_on() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(6, 8, n=2), 0.0)
    plan = runner.scheduler.schedule(0.0)
    runner.execute(plan)
    runner.take(runner.scheduler.commit(plan, {0: (Drawn((1,)), Drawn((2,), stop=True))}, 0.0))
    runner.scheduler.check()
    runner.run()
    assert len(runner.outputs[0, 0]) == 8
    assert_idle(runner)


# cases: E36
@pytest.mark.parametrize(("length", "cached"), [(12, 8), (13, 12), (17, 16)])
def test_36_hits_end_at_a_block_border_below_the_last_token(length: int, cached: int) -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(20, 1), 0.0)
    runner.run()
    runner.scheduler.submit(make_job(length, 1), 0.0)
    runner.run()
    assert runner.ended[1].num_cached == cached


# ---------------------------------------------------------------------------- deadlock, livelock, pre-emption


# cases: E38
def test_38_what_is_larger_than_the_pool_is_refused_and_the_others_are_served() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(4), 0.0)
    with pytest.raises(ContextLengthExceeded, match="40 tokens and the context holds 33"):
        runner.scheduler.submit(make_job(40), 0.0)
    runner.scheduler.submit(make_job(5), 0.0)
    runner.run()
    assert {end.reason for end in runner.ended.values()} == {"done"}


# cases: E39, E40
@pytest.mark.parametrize("policy", ["fcfs", "deadline", "sjf", "priority", "fair"])
@pytest.mark.parametrize("mode", ["auto", "swap", "recompute"])
def test_39_40_two_that_need_five_blocks_each_do_not_chase_each_other(policy: str, mode: str) -> None:
    runner = make_runner(policy, preemption=mode, watermarks=CARELESS)
    for i in range(2):
        runner.scheduler.submit(make_job(8, 12, first=i * 50, priority=i, tenant=str(i)), float(i))
    plans = runner.run()
    assert sum(len(plan.preempted) for plan in plans) <= 2
    assert len(plans) <= 32
    assert_idle(runner)


# cases: E40
def test_40_with_the_watermarks_as_shipped_they_do_not_even_meet() -> None:
    runner = make_runner()
    for i in range(2):
        runner.scheduler.submit(make_job(12, 8, first=i * 50), float(i))
    assert not any(plan.preempted for plan in runner.run())


# cases: E41
def test_41_who_is_refused_for_now_takes_no_place() -> None:
    # The long one is skipped at the guarded level; the short ones behind it still find both places.
    marks = Watermarks(cautious=0.9, guarded=0.8, urgent=0.1, long_share=0.5)
    runner = make_runner(max_running=3, watermarks=marks)
    runner.scheduler.submit(make_job(7, 4), 0.0)
    runner.step()
    runner.scheduler.submit(make_job(16, 8, first=40), 0.0)
    for i in range(2):
        runner.scheduler.submit(make_job(2, 2, first=70 + i * 10), 0.0)
    plan = runner.step()
    assert [item.request_id for item in plan.items] == [0, 2, 3]
    runner.run()
    assert runner.outputs[1, 0] == answer(make_job(16, 8, first=40))


# cases: E35, E42
@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("chunk", [3, 32])
@pytest.mark.parametrize("delay", range(12))
def test_35_42_preempted_at_any_step_the_answer_is_the_same(mode: str, chunk: int, delay: int) -> None:
    marks = Watermarks(cautious=1, guarded=1, urgent=0)
    runner = make_runner("priority", preemption=mode, max_chunk=chunk, watermarks=marks)
    victim, urgent = make_job(14, 10), make_job(21, 2, first=60, priority=1)
    runner.scheduler.submit(victim, 0.0)
    for _ in range(delay):
        runner.step()
    runner.scheduler.submit(urgent, 0.0)
    runner.run()
    assert runner.outputs[0, 0] == answer(victim)
    assert runner.outputs[1, 0] == answer(urgent)
    assert_idle(runner)


# cases: E44
def test_44_a_host_that_is_full_means_computing_again() -> None:
    runner = two_of_which_the_second_is_preempted("swap", num_host_blocks=2)
    runner.run()
    assert (runner.scheduler.counters.swapped, runner.scheduler.counters.recomputed) == (0, 1)
    assert runner.outputs[1, 0] == answer(make_job(12, 10, first=50))
    assert_idle(runner)


# cases: E48
def test_48_short_ones_pass_a_long_one_but_not_for_ever() -> None:
    policy = ShortestJob(lambda sequence: float(sequence.num_tokens - sequence.num_hit), ageing=1.0)
    runner = make_runner(policy, max_running=1)
    runner.scheduler.submit(make_job(20, 2), 0.0)
    for second in range(40):
        runner.scheduler.submit(make_job(2, 1, first=100 + second * 3), float(second))
    order = [item.request_id for plan in runner.run(40.0) for item in plan.items]
    # A job of 20 seconds of work is passed by those of 2 that came in its first 18 seconds.
    assert order.index(0) == 18


# cases: E48
@pytest.mark.parametrize("policy", ["fcfs", "deadline", "fair"])
def test_48_a_long_one_refused_for_its_size_is_passed_a_bounded_number_of_times(
    policy: str,
) -> None:
    marks = Watermarks(cautious=1, guarded=1, urgent=0, long_share=0.5, max_overtaken=5)
    runner = make_runner(policy, watermarks=marks, max_running=2)
    runner.scheduler.submit(make_job(2, 6, first=90), 0.0)
    runner.step()
    long = runner.scheduler.submit(make_job(20, 2, first=200), 0.0)
    for i in range(30):
        runner.scheduler.submit(make_job(2, 1 + i % 5, first=300 + 3 * i), 0.0)
    order = list(dict.fromkeys(item.request_id for plan in runner.run() for item in plan.items))
    assert 1 < order.index(long) <= 7


# --------------------------------------------------------------------------------------------- drafts, inputs


# cases: E65
@pytest.mark.parametrize("num_drafts", [1, 4, 9])
def test_65_drafts_stop_at_the_end_of_the_context(num_drafts: int) -> None:
    runner = make_runner(context=8)
    job = make_job(6, 2)
    runner.scheduler.submit(job, 0.0)
    runner.step()
    runner.scheduler.propose({0: (1,) * num_drafts})
    plans = runner.run()
    assert max(position for plan in plans for position in plan.positions) < 8
    assert runner.outputs[0, 0] == answer(job)


# cases: E66, E68
def test_66_68_a_stop_among_accepted_drafts_ends_the_answer_there() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(4, 9), 0.0)
    runner.step()
    runner.scheduler.propose({0: (11, 12, 20, 21, 22)})
    plan = runner.scheduler.schedule(0.0)
    result = runner.scheduler.commit(plan, {0: (Drawn((11, 12), stop=True),)}, 0.0)
    assert [(progress.tokens, progress.stopped) for progress in result.progress] == [((11, 12), "stop")]
    assert result.ended[0].num_output == 3
    assert_idle(runner)


# cases: E69
def test_69_an_empty_prompt_is_refused_and_a_good_one_still_served() -> None:
    runner = make_runner()
    with pytest.raises(BadRequest, match="empty"):
        runner.scheduler.submit(Job((), 4), 0.0)
    runner.scheduler.submit(make_job(4), 0.0)
    runner.run()
    assert runner.ended[0].reason == "done"


# cases: E70
def test_70_scoring_a_prompt_draws_nothing() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(9, 0, read_prefix=False), 0.0)
    plan = runner.step()
    assert (plan.items[0].num_tokens, plan.items[0].num_samples) == (9, 0)
    assert (runner.ended[0].reason, runner.ended[0].num_output) == ("done", 0)


# cases: E74
def test_74_after_everything_is_aborted_every_gauge_is_zero() -> None:
    runner = make_runner()
    for i in range(6):
        runner.scheduler.submit(make_job(8, 8, first=i * 20, n=1 + i % 2), 0.0)
    runner.step()
    for i in range(6):
        runner.scheduler.abort(i, 0.0)
    assert runner.scheduler.schedule(0.0).is_empty
    assert_idle(runner)


# cases: E7
@pytest.mark.slow
def test_07_two_thousand_requests_on_sixty_four_blocks_leave_nothing_behind() -> None:
    source = random.Random(7)
    runner = make_runner("priority", num_blocks=64, num_host_blocks=16, token_budget=64, max_running=16)
    jobs: dict[int, Job] = {}
    now = 0.0
    while len(jobs) < 2000:
        now += 0.1
        for _ in range(source.randrange(3)):
            head = source.choice([(1,) * 20, (2,) * 9, ()])
            job = Job(
                (*head, *(source.randrange(9) for _ in range(source.randint(1, 30)))),
                source.randint(1, 20),
                n=source.choice([1, 1, 1, 3]),
                priority=source.randrange(2),
                deadline=source.choice([None, None, now + source.random() * 5]),
            )
            if len(job.prompt) + job.max_tokens <= 64 and runner.scheduler.num_waiting < 50:
                jobs[runner.scheduler.submit(job, now)] = job
        for request_id in source.sample(
            sorted(runner.scheduler.requests), min(len(runner.scheduler.requests), 1)
        ):
            if source.random() < 0.1:
                end = runner.scheduler.abort(request_id, now)
                runner.end([end] if end else [])
        runner.step(now)
    runner.run(now)
    assert_idle(runner)
    assert set(runner.ended) == set(jobs)
    for (request_id, choice), tokens in runner.outputs.items():
        said = answer(jobs[request_id], choice)
        assert tokens == (said if runner.ended[request_id].reason == "done" else said[: len(tokens)])
