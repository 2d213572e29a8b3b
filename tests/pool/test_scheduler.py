"""The scheduler step by step: budget, chunks, order, pre-emption, forks, drafts, faults and ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgecloud.errors import (
    BadRequest,
    ConfigError,
    ContextLengthExceeded,
    DeadlineExceeded,
    EdgeCloudError,
    Overloaded,
)
from edgecloud.pool.admission import Watermarks
from edgecloud.pool.blocks import BlockPool, BlockTable, PoolBroken
from edgecloud.pool.config import PoolConfig
from edgecloud.pool.costs import StepCosts
from edgecloud.pool.plan import Drawn, StepBuilder, StepPlan
from edgecloud.pool.policy import FairShare
from edgecloud.pool.prefix import Namespace
from edgecloud.pool.scheduler import Scheduler
from edgecloud.pool.sequence import Job, Request, Sequence

from .fake_runner import FakeRunner, answer

# Everything that fits is admitted, and nothing is refused for its size: pre-emption has to sort it out.
CARELESS = Watermarks(cautious=0, guarded=0, urgent=0)


def make_runner(policy: Any = "fcfs", costs: StepCosts | None = None, **config: Any) -> FakeRunner:
    sizes: dict[str, Any] = {
        "num_blocks": 32,
        "block_size": 4,
        "context": 128,
        "token_budget": 64,
        "max_running": 8,
    }
    return FakeRunner(Scheduler(PoolConfig(**sizes | config), policy, costs=costs))


def make_job(length: int, max_tokens: int = 4, first: int = 1, **fields: Any) -> Job:
    return Job(tuple(range(first, first + length)), max_tokens, **fields)


def shape(plan: StepPlan) -> list[tuple[int, int, int]]:
    """(request, start, tokens) of each item."""
    return [(item.request_id, item.start, item.num_tokens) for item in plan.items]


def running(runner: FakeRunner) -> list[Sequence]:
    return runner.scheduler.planner.running


# ------------------------------------------------------------------------------------------- budget and order


def test_a_long_prompt_is_computed_in_chunks_and_draws_after_the_last() -> None:
    runner = make_runner(max_chunk=4)
    runner.scheduler.submit(make_job(10, 2), 0.0)
    plans = runner.run()
    assert [shape(plan) for plan in plans] == [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 2)], [(0, 10, 1)]]
    assert [plan.items[0].num_samples for plan in plans] == [0, 0, 1, 1]


def test_the_budget_goes_to_decodes_then_running_chunks_then_admissions() -> None:
    runner = make_runner(token_budget=8, max_chunk=5)
    runner.scheduler.submit(make_job(2, 8), 0.0)
    runner.step()
    runner.scheduler.submit(make_job(8, 8, first=50), 1.0)
    runner.step()
    runner.scheduler.submit(make_job(9, 8, first=90), 2.0)
    assert shape(runner.step()) == [(0, 3, 1), (1, 5, 3), (2, 0, 4)]


def test_a_step_never_spends_more_than_its_budget() -> None:
    runner = make_runner(token_budget=8)
    for i in range(6):
        runner.scheduler.submit(make_job(7, 5, first=i * 10), 0.0)
    assert max(len(plan.tokens) for plan in runner.run()) == 8


def test_the_flat_batch_says_where_every_token_goes() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(6, 2), 0.0)
    runner.scheduler.submit(make_job(3, 2, first=50), 0.0)
    plan = runner.step()
    assert plan.tokens == [1, 2, 3, 4, 5, 6, 50, 51, 52]
    assert plan.positions == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert plan.offsets == [0, 6, 9]
    first, second = (item.table for item in plan.items)
    assert plan.slots == [first[0] * 4 + i for i in range(4)] + [first[1] * 4, first[1] * 4 + 1] + [
        second[0] * 4 + i for i in range(3)
    ]


def test_no_more_choices_run_than_allowed_and_a_wide_request_counts_for_all_of_them() -> None:
    runner = make_runner(max_running=4)
    runner.scheduler.submit(make_job(4, 3, n=3), 0.0)
    runner.scheduler.submit(make_job(4, 3, n=2, first=20), 0.0)
    runner.scheduler.submit(make_job(4, 3, first=40), 0.0)
    plans = runner.run()
    assert [item.request_id for item in plans[0].items] == [0], (
        "the second must wait, and the third behind it"
    )
    assert max(len(plan.items) for plan in plans) <= 4


def test_choices_to_come_have_their_places_kept() -> None:
    runner = make_runner(max_running=4, max_chunk=4)
    runner.scheduler.submit(make_job(12, 3, n=3), 0.0)
    runner.step()
    runner.scheduler.submit(make_job(4, 3, n=2, first=40), 0.0)
    assert runner.scheduler.num_running == 3
    assert shape(runner.step()) == [(0, 4, 4)]


def test_blocks_that_an_admitted_prompt_has_yet_to_take_are_not_given_away() -> None:
    runner = make_runner(num_blocks=8, max_chunk=4, watermarks=CARELESS)
    runner.scheduler.submit(make_job(24, 1), 0.0)
    runner.step()
    runner.scheduler.submit(make_job(12, 1, first=50), 0.0)
    plans = runner.run()
    assert [shape(plan)[0][0] for plan in plans] == [0] * 5 + [1] * 3


def test_who_waits_for_the_peak_to_sink_starts_when_someone_ends() -> None:
    runner = make_runner(num_blocks=8, watermarks=Watermarks(cautious=1, guarded=0, urgent=0), caching=False)
    runner.scheduler.submit(make_job(4, 8), 0.0)
    runner.scheduler.submit(make_job(8, 3, first=30), 0.0)
    late = runner.scheduler.submit(make_job(8, 3, first=60), 0.0)
    present = [{item.request_id for item in plan.items} for plan in runner.run()]
    assert {0, 1, late} not in present
    assert {0, late} in present


def test_two_that_fit_each_but_not_together_are_not_both_admitted() -> None:
    runner = make_runner(num_blocks=10, watermarks=Watermarks(cautious=1, guarded=0, urgent=0), caching=False)
    runner.scheduler.submit(make_job(4, 20), 0.0)
    runner.step()
    for i in range(2):
        runner.scheduler.submit(make_job(4, 8, first=30 + i * 30), 0.0)
    assert [item.request_id for item in runner.step().items] == [0, 1]


def test_a_waiting_job_becomes_short_when_its_prefix_is_computed() -> None:
    runner = make_runner("sjf", max_running=1, max_chunk=4)
    runner.scheduler.submit(make_job(17, 40), 0.0)
    runner.step()
    runner.scheduler.submit(make_job(18, 2), 0.0)
    runner.scheduler.submit(make_job(9, 2, first=60), 0.0)
    order = [item.request_id for plan in runner.run() for item in plan.items]
    assert list(dict.fromkeys(order)) == [0, 1, 2]


def test_a_prompt_shared_with_a_finished_request_is_not_computed_again() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(10), 0.0)
    runner.run()
    runner.scheduler.submit(make_job(10), 0.0)
    assert shape(runner.step()) == [(1, 8, 2)]
    runner.run()
    assert runner.ended[1].num_cached == 8
    assert runner.outputs[0, 0] == runner.outputs[1, 0]


def test_an_answer_is_cached_for_the_next_turn() -> None:
    runner = make_runner()
    job = make_job(6, 6)
    runner.scheduler.submit(job, 0.0)
    runner.run()
    runner.scheduler.submit(Job((*job.prompt, *answer(job), 7, 7), 2), 0.0)
    # Twelve tokens, of which the last was drawn and never computed.
    assert shape(runner.step()) == [(1, 8, 6)]


def test_blocks_are_offered_as_soon_as_their_step_has_landed() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(8, 4), 0.0)
    runner.step()
    runner.scheduler.submit(make_job(10, 4), 0.0)
    assert shape(runner.step())[1] == (1, 8, 2)


def test_an_answer_that_ends_in_accepted_drafts_is_cached_whole() -> None:
    runner = make_runner()
    job = make_job(6, 7)
    said = answer(job)
    runner.scheduler.submit(job, 0.0)
    runner.step()
    runner.scheduler.propose({0: tuple(said[1:])})
    runner.step()
    assert runner.ended[0].reason == "done"
    runner.scheduler.submit(Job((*job.prompt, *said, 7), 1), 0.0)
    assert shape(runner.step()) == [(1, 12, 2)]


def test_who_wants_the_whole_prompt_computed_reads_no_cache_but_fills_it() -> None:
    runner = make_runner()
    for request_id in range(2):
        runner.scheduler.submit(make_job(10, read_prefix=False), 0.0)
        assert shape(runner.step())[0] == (request_id, 0, 10)
        runner.run()
    runner.scheduler.submit(make_job(10), 0.0)
    assert shape(runner.step()) == [(2, 8, 2)]


# ------------------------------------------------------------------------------------------------ pre-emption


def fill(mode: str, **config: Any) -> FakeRunner:
    """Two requests that need six of eight blocks each, both running."""
    runner = make_runner(num_blocks=8, preemption=mode, watermarks=CARELESS, caching=False, **config)
    for i in range(2):
        runner.scheduler.submit(make_job(12, 10, first=i * 50), float(i))
    return runner


@pytest.mark.parametrize(
    ("mode", "hosts"), [("swap", 8), ("swap", 2), ("recompute", 0), ("auto", 8), ("auto", 0)]
)
def test_the_later_one_gives_way_and_both_say_what_they_would_have_said_alone(mode: str, hosts: int) -> None:
    runner = fill(mode, num_host_blocks=hosts)
    plans = runner.run()
    assert {i for plan in plans for i in plan.preempted} == {1}
    for i in range(2):
        assert runner.outputs[i, 0] == answer(make_job(12, 10, first=i * 50))
    counters = runner.scheduler.counters
    assert (counters.swapped > 0, counters.recomputed > 0) == (hosts == 8, hosts < 8)


def test_nothing_is_admitted_in_a_step_that_preempted() -> None:
    runner = fill("swap", num_host_blocks=8)
    runner.scheduler.submit(make_job(1, 4, first=90), 2.0)
    admitted = {0, 1}
    plans = runner.run()
    assert any(plan.preempted for plan in plans)
    for plan in plans:
        present = {item.request_id for item in plan.items}
        if plan.preempted:
            assert present <= admitted
            assert not plan.swap_ins
        admitted |= present


def test_swapped_blocks_travel_out_and_back() -> None:
    runner = fill("swap", num_host_blocks=8)
    plans = runner.run()
    out = [copy.target for plan in plans for copy in plan.swap_outs]
    back = [copy.source for plan in plans for copy in plan.swap_ins]
    assert out
    assert out == back
    # Prompts of 12 and the nine tokens drawn before the last, each computed once.
    assert sum(len(plan.tokens) for plan in plans) == 2 * (12 + 9)
    assert runner.scheduler.counters.wasted_tokens == 0


def test_a_victim_already_in_the_step_leaves_it_and_is_computed_again() -> None:
    # The decode of low rank is planned first; then the chunk of high rank finds no block left.
    runner = make_runner(
        "priority", num_blocks=8, max_chunk=2, watermarks=CARELESS, preemption="recompute", caching=False
    )
    low, high = make_job(12, 12), make_job(13, 2, first=50, priority=1)
    runner.scheduler.submit(low, 0.0)
    while len(running(runner)) == 0 or running(runner)[0].num_output == 0:
        runner.step()
    runner.scheduler.submit(high, 0.0)
    plans = runner.run()
    (preempting,) = (plan for plan in plans if plan.preempted)
    assert shape(preempting) == [(1, 12, 1)]
    assert len(preempting.tokens) == len(preempting.slots) == 1
    assert runner.outputs[0, 0] == answer(low)
    assert runner.outputs[1, 0] == answer(high)


def test_what_was_planned_for_a_victim_is_undone() -> None:
    pool = BlockPool(8, 4)
    request = Request(0, make_job(6, n=2), 0.0)
    victim = Sequence(0, request, 0, list(request.job.prompt), BlockTable(Namespace()))
    pool.grow(victim.table, 0, 6)
    pool.fork(victim.table)
    source = victim.table.blocks[1]
    step = StepBuilder(0, budget=10)
    step.add(victim, 1, pool.grow(victim.table, 6, 7))
    assert step.budget == 9
    content = step.take_back(victim)
    assert step.budget == 10
    assert [content(block) for block in victim.table.blocks] == [victim.table.blocks[0], source]
    plan = step.build(pool, [])
    assert (plan.items, plan.copies) == ((), ())


def test_a_victim_whose_copy_was_planned_is_swapped_from_the_copys_source() -> None:
    # In the fifth step the first of two choices is to copy the block that both share. Then two chunks of
    # higher rank find nothing left: one takes the second choice's blocks, the other the first one's, whose
    # copy has not been made.
    runner = make_runner(
        "priority", num_blocks=15, num_host_blocks=8, max_chunk=4, watermarks=CARELESS, preemption="swap",
        caching=False,
    )  # fmt: skip
    wide = make_job(14, 20, n=2)
    grower = make_job(3, 8, first=30, priority=2)
    chunks = [make_job(18, 1, first=50 + i * 20, priority=1) for i in range(2)]
    for job in (grower, *chunks, wide):
        runner.scheduler.submit(job, 0.0)
    for _ in range(4):
        runner.step()
    shared = [sequence.table.blocks for sequence in running(runner) if sequence.request.id == 3]
    assert shared[0] == shared[1]
    source = shared[0][3]
    plan = runner.step()
    assert len(plan.preempted) == 2
    assert [copy.source for copy in plan.swap_outs].count(source) == 2
    assert plan.copies == ()
    runner.run()
    for choice in range(2):
        assert runner.outputs[3, choice] == answer(wide, choice)
    assert [runner.outputs[1 + i, 0] for i in range(2)] == [answer(job) for job in chunks]


def test_a_chunk_whose_blocks_were_taken_in_this_step_is_not_computed_in_it() -> None:
    runner = make_runner("priority", num_blocks=3, max_chunk=2, watermarks=CARELESS, caching=False)
    runner.scheduler.submit(make_job(2, 6, priority=1), 0.0)
    runner.scheduler.submit(make_job(8, 4, first=50), 0.0)
    for _ in range(3):
        runner.step()
    plan = runner.step()
    assert len(plan.preempted) == 1
    assert shape(plan) == [(0, 4, 1)]
    runner.run()
    assert runner.outputs[1, 0] == answer(make_job(8, 4, first=50))


def test_room_is_made_for_an_urgent_arrival_and_it_starts_in_the_next_step() -> None:
    runner = make_runner("priority", num_blocks=8, num_host_blocks=8, preemption="swap")
    runner.scheduler.submit(make_job(26, 6), 0.0)
    for _ in range(3):
        runner.step()
    urgent = runner.scheduler.submit(make_job(8, 2, first=60, priority=1), 1.0)
    making_room = runner.step(1.0)
    assert making_room.preempted == (0,)
    assert making_room.items == ()
    assert shape(runner.step(1.0)) == [(urgent, 0, 8)]
    runner.run(1.0)
    assert runner.outputs[0, 0] == answer(make_job(26, 6))


def test_nobody_is_preempted_for_an_arrival_that_would_still_not_fit() -> None:
    runner = make_runner("priority", num_blocks=8, num_host_blocks=8, preemption="swap")
    runner.scheduler.submit(make_job(23, 4, priority=2), 0.0)
    runner.scheduler.submit(make_job(2, 2, first=40), 0.0)
    runner.step()
    runner.scheduler.submit(make_job(9, 2, first=60, priority=1), 0.0)
    assert runner.scheduler.pool.num_available == 1
    assert runner.step().preempted == ()


def test_a_deadline_that_is_near_is_urgent_and_one_that_is_far_is_not() -> None:
    for deadline, preempted in ((2.2, (0,)), (60.0, ())):
        runner = make_runner("deadline", num_blocks=8, num_host_blocks=8, preemption="swap")
        runner.scheduler.submit(make_job(26, 6), 0.0)
        for _ in range(3):
            runner.step()
        runner.scheduler.submit(make_job(8, 20, first=60, deadline=deadline), 1.0)
        assert runner.step(1.2).preempted == preempted


def test_a_tenant_is_charged_what_was_computed_and_drawn() -> None:
    policy = FairShare()
    runner = make_runner(policy)
    for tenant in ("ann", "bob"):
        runner.scheduler.submit(make_job(10, 3, tenant=tenant), 0.0)
        runner.run()
    # Bob comes to an idle pool at Ann's level, and eight of his ten tokens were cached.
    assert policy.counters == {"ann": 16.0, "bob": 16.0 + 2 + 6}


def test_a_full_house_is_not_preempted_for_a_place() -> None:
    # Documented: pre-emption makes room in memory, never a place among max_running.
    runner = make_runner("priority", max_running=1)
    runner.scheduler.submit(make_job(4, 6), 0.0)
    runner.step()
    runner.scheduler.submit(make_job(4, 2, first=60, priority=9), 0.0)
    plans = runner.run()
    assert not any(plan.preempted for plan in plans)
    assert [item.request_id for plan in plans for item in plan.items] == [0] * 5 + [1] * 2


def test_a_victim_almost_done_is_kept_and_the_other_waits() -> None:
    costs = StepCosts(step_s=1e-3, token_s=1.0, block_swap_s=1.0)
    runner = make_runner(num_blocks=8, num_host_blocks=8, watermarks=CARELESS, caching=False, costs=costs)
    runner.scheduler.submit(make_job(14, 10), 0.0)
    runner.scheduler.submit(make_job(15, 2, first=50), 1.0)
    runner.run(1.0)
    assert runner.scheduler.counters.kept == runner.scheduler.counters.swapped == 0
    runner.scheduler.submit(make_job(14, 10), 2.0)
    runner.scheduler.submit(make_job(13, 4, first=50), 3.0)
    plans = runner.run(3.0)
    assert runner.scheduler.counters.kept > 0
    assert not any(plan.preempted for plan in plans)
    assert runner.outputs[2, 0] == answer(make_job(14, 10))


# ------------------------------------------------------------------------------------------- forks and drafts


def test_choices_share_the_prompt_and_copy_its_last_block_when_they_write() -> None:
    runner = make_runner()
    job = make_job(10, 3, n=3)
    runner.scheduler.submit(job, 0.0)
    first, second = runner.step(), runner.step()
    assert first.items[0].num_samples == 3
    tables = [item.table for item in second.items]
    assert len({table[:2] for table in tables}) == 1
    assert len({table[2] for table in tables}) == 3
    assert [copy.source for copy in second.copies] == [first.items[0].table[2]] * 2
    runner.run()
    assert [runner.outputs[0, choice] for choice in range(3)] == [answer(job, choice) for choice in range(3)]
    assert list(runner.ended) == [0]
    assert runner.ended[0].num_output == 9


def test_choices_rank_where_their_request_came_and_before_who_came_later() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(4, 5, n=3), 5.0)
    runner.scheduler.submit(make_job(4, 5, first=40), 6.0)
    runner.step()
    assert [(s.request.id, s.choice) for s in running(runner)] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert {s.rank[0] for s in running(runner)} == {5.0, 6.0}
    assert all(s.admitted for s in running(runner))


def test_a_fork_is_expected_to_be_as_long_and_to_free_only_what_it_takes_itself() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(8, 6, n=2), 0.0)
    runner.step()
    root, child = running(runner)
    assert child.predicted == root.predicted > 0
    (growth,) = runner.scheduler.planner.forecast.growths(child)
    assert (growth.num_held, growth.num_freed) == (2, 0)


def test_a_request_ends_with_the_last_of_its_choices() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(4, 5, n=2), 0.0)
    plan = runner.scheduler.schedule(0.0)
    result = runner.scheduler.commit(plan, {0: (Drawn((7,), stop=True), Drawn((8,)))}, 0.0)
    assert [(p.choice, p.stopped) for p in result.progress] == [(0, "stop"), (1, None)]
    assert result.ended == []
    runner.scheduler.check()
    assert runner.scheduler.num_running == 1
    plan = runner.scheduler.schedule(0.0)
    result = runner.scheduler.commit(plan, {1: (Drawn((9,), stop=True),)}, 0.0)
    assert [end.reason for end in result.ended] == ["done"]


def test_accepted_drafts_come_in_one_step_and_rejected_ones_change_nothing() -> None:
    job = make_job(6, 9)
    said = answer(job)
    runner = make_runner()
    runner.scheduler.submit(job, 0.0)
    runner.step()
    runner.scheduler.propose({0: (said[1], said[2], 99)})
    plan = runner.step()
    assert (plan.items[0].num_tokens, plan.items[0].num_drafts) == (4, 3)
    assert runner.outputs[0, 0] == said[:4]
    runner.scheduler.propose({0: (98, 98)})
    runner.step()
    assert runner.outputs[0, 0] == said[:5]
    runner.run()
    assert runner.outputs[0, 0] == said
    assert (runner.scheduler.counters.drafted_tokens, runner.scheduler.counters.accepted_tokens) == (5, 2)


def test_drafts_never_reach_past_the_last_token_allowed() -> None:
    job = make_job(6, 3)
    said = answer(job)
    runner = make_runner(context=9)
    runner.scheduler.submit(job, 0.0)
    runner.step()
    runner.scheduler.propose({0: (said[1], said[2], 5, 5)})
    plan = runner.step()
    assert plan.items[0].num_drafts == 1
    assert runner.outputs[0, 0] == said
    assert max(plan.positions) < 9


def test_drafts_are_dropped_before_anyone_is_preempted_for_them() -> None:
    runner = make_runner(num_blocks=2)
    job = make_job(5, 4)
    runner.scheduler.submit(job, 0.0)
    runner.step()
    runner.scheduler.propose({0: tuple(answer(job)[1:])})
    runner.run()
    assert runner.outputs[0, 0] == answer(job)


def test_the_drafts_of_one_leave_every_other_its_token() -> None:
    runner = make_runner(token_budget=8)
    for i in range(3):
        runner.scheduler.submit(make_job(2, 20, first=i * 10), 0.0)
    runner.step()
    runner.scheduler.propose({i: (1,) * 19 for i in range(3)})
    assert [item.num_tokens for item in runner.step().items] == [6, 1, 1]


def test_drafts_take_what_the_prompts_beside_them_leave_of_the_budget() -> None:
    runner = make_runner(token_budget=12, max_chunk=6)
    runner.scheduler.submit(make_job(2, 30), 0.0)
    runner.step()
    runner.scheduler.submit(make_job(20, 4, first=40), 0.0)
    runner.step()
    runner.scheduler.propose({0: (1,) * 9})
    assert shape(runner.step()) == [(0, 3, 6), (1, 6, 6)]


def test_below_the_first_watermark_nothing_is_guessed() -> None:
    runner = make_runner(num_blocks=10, watermarks=Watermarks())
    runner.scheduler.submit(make_job(20, 16), 0.0)
    runner.step()
    # 5 of 10 blocks are left, and the drafts would take 1 of them: the mark is at 4.
    runner.scheduler.propose({0: (1, 2)})
    assert runner.step().items[0].num_drafts == 2
    # 4 are left, and they would take 1.
    runner.scheduler.propose({0: (1,) * 4})
    assert runner.step().items[0].num_drafts == 0


def test_who_is_admitted_is_weighed_with_the_drafts_of_the_others() -> None:
    def admitted(drafts: tuple[int, ...]) -> bool:
        # Together they reach 8 of 8 blocks of 4 at their ends; drafts would take a ninth.
        runner = make_runner(num_blocks=8, watermarks=Watermarks(cautious=1, guarded=0, urgent=0))
        runner.scheduler.submit(make_job(8, 8), 0.0)
        runner.step()
        runner.scheduler.submit(make_job(7, 6, first=50), 0.0)
        runner.scheduler.propose({0: drafts})
        return len(runner.step().items) == 2

    assert admitted(())
    assert not admitted((1,) * 4)


def test_a_prompt_that_is_only_scored_takes_no_drafts_though_it_lacks_one_token() -> None:
    runner = make_runner(max_chunk=4)
    runner.scheduler.submit(make_job(5, 0), 0.0)
    runner.step()
    runner.scheduler.propose({0: (1, 2)})
    plan = runner.step()
    assert [(item.num_tokens, item.num_drafts) for item in plan.items] == [(1, 0)]
    assert runner.ended[0].reason == "done"


def test_a_prompt_in_chunks_takes_no_drafts() -> None:
    runner = make_runner(max_chunk=4)
    runner.scheduler.submit(make_job(10), 0.0)
    runner.step()
    runner.scheduler.propose({0: (1, 1)})
    assert runner.step().items[0].num_drafts == 0


def test_choices_that_have_not_parted_take_no_drafts() -> None:
    runner = make_runner(max_chunk=4)
    runner.scheduler.submit(make_job(5, n=2), 0.0)
    runner.step()
    runner.scheduler.propose({0: (1, 1)})
    assert runner.step().items[0].num_drafts == 0


# -------------------------------------------------------------------------------------------- ends and faults


def test_nothing_to_draw_computes_the_prompt_and_ends() -> None:
    runner = make_runner(max_chunk=4)
    runner.scheduler.submit(make_job(6, 0), 0.0)
    plans = runner.run()
    assert len(plans) == 2
    assert (runner.ended[0].reason, runner.ended[0].num_output) == ("done", 0)
    assert runner.outputs[0, 0] == []


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    runner = make_runner(max_running=1)
    runner.scheduler.submit(make_job(4, 50, deadline=5.0), 0.0)
    runner.scheduler.submit(make_job(4, 50, first=50, deadline=6.0), 0.0)
    runner.step(1.0)
    assert [end.request_id for end in runner.step(5.0).ended] == [0]
    assert [end.request_id for end in runner.step(6.0).ended] == [1]
    assert {end.reason for end in runner.ended.values()} == {"deadline"}
    assert runner.scheduler.pool.num_used == 0


def test_the_end_says_what_was_used_and_when() -> None:
    runner = make_runner(max_chunk=3)
    runner.scheduler.submit(make_job(5, 2), 1.0)
    for now in (2.0, 3.0, 4.0):
        runner.step(now)
    end = runner.ended[0]
    assert (end.num_prompt, end.num_cached, end.num_output) == (5, 0, 2)
    assert (end.arrival, end.admitted_at, end.first_token_at, end.ended_at) == (1.0, 2.0, 3.0, 4.0)


def test_a_fault_ends_the_requests_of_its_step_and_nobody_else() -> None:
    runner = make_runner(max_running=2)
    for i in range(3):
        runner.scheduler.submit(make_job(4, 3, first=i * 20), 0.0)
    runner.step()
    plan = runner.scheduler.schedule(0.0)
    runner.end(runner.scheduler.fail(plan, 0.0))
    runner.scheduler.check()
    assert {i: end.reason for i, end in runner.ended.items()} == {0: "error", 1: "error"}
    runner.run()
    assert runner.ended[2].reason == "done"
    assert runner.outputs[2, 0] == answer(make_job(4, 3, first=40))


def test_a_fault_takes_all_choices_of_a_request() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(6, 8, n=3), 0.0)
    runner.step()
    plan = runner.scheduler.schedule(0.0)
    ended = runner.scheduler.fail(plan, 0.0)
    runner.scheduler.check()
    assert [end.request_id for end in ended] == [0]
    assert runner.scheduler.pool.num_used == 0


def test_what_a_failed_step_should_have_swapped_out_is_computed_again() -> None:
    runner = fill("swap", num_host_blocks=8)
    while not (plan := runner.scheduler.schedule(0.0)).preempted:
        runner.take(runner.scheduler.commit(plan, runner.execute(plan), 0.0))
    assert plan.swap_outs
    runner.end(runner.scheduler.fail(plan, 0.0))
    runner.scheduler.check()
    assert runner.scheduler.pool.num_host_available == 8
    runner.run()
    assert runner.outputs[1, 0] == answer(make_job(12, 10, first=50))


def test_a_block_written_by_the_step_in_flight_is_not_free_before_it_lands() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(10), 0.0)
    plan = runner.scheduler.schedule(0.0)
    assert runner.scheduler.abort(0, 0.0)
    assert runner.scheduler.pool.num_used == 3
    runner.scheduler.check()
    runner.take(runner.scheduler.commit(plan, runner.execute(plan), 0.0))
    assert runner.scheduler.pool.num_used == 0
    assert runner.outputs == {}


def test_one_step_at_a_time() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(4), 0.0)
    plan = runner.scheduler.schedule(0.0)
    with pytest.raises(RuntimeError, match="in flight"):
        runner.scheduler.schedule(0.0)
    runner.scheduler.commit(plan, runner.execute(plan), 0.0)
    with pytest.raises(RuntimeError, match="not in flight"):
        runner.scheduler.commit(plan, {}, 0.0)


@pytest.mark.parametrize(
    "drawn", [{}, {0: ()}, {0: (Drawn(()),)}, {0: (Drawn((1, 2)),)}, {0: (Drawn((1,)), Drawn((1,)))}]
)
def test_a_result_that_does_not_answer_the_plan_changes_nothing(drawn: Any) -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(4), 0.0)
    plan = runner.scheduler.schedule(0.0)
    with pytest.raises(ValueError, match="draw"):
        runner.scheduler.commit(plan, drawn, 0.0)
    runner.take(runner.scheduler.commit(plan, runner.execute(plan), 0.0))
    runner.run()
    assert runner.outputs[0, 0] == answer(make_job(4))


def test_an_idle_scheduler_plans_nothing() -> None:
    runner = make_runner()
    assert runner.scheduler.schedule(0.0).is_empty
    assert not runner.scheduler.has_work


def test_work_that_nobody_does_is_an_error_and_not_a_hang() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(4), 0.0)
    runner.step()
    running(runner).clear()
    with pytest.raises(PoolBroken, match="nothing to do for 0 running and 0 waiting"):
        runner.scheduler.schedule(0.0)


def test_a_lost_sequence_is_found() -> None:
    runner = make_runner()
    runner.scheduler.submit(make_job(4), 0.0)
    runner.scheduler.planner.policy.pop()
    with pytest.raises(PoolBroken, match=r"alive \[0\] but running and waiting \[\]"):
        runner.scheduler.check()


# --------------------------------------------------------------------------------------------------- the edge


@pytest.mark.parametrize(
    ("job", "error", "param"),
    [
        (Job((), 4), BadRequest, "prompt"),
        (make_job(4, -1), BadRequest, "max_tokens"),
        (make_job(4, n=0), BadRequest, "n"),
        (make_job(4, n=9), BadRequest, "n"),
        (make_job(33, 1), ContextLengthExceeded, "messages"),
        (make_job(33, 0), ContextLengthExceeded, "messages"),
        (make_job(4, 30), BadRequest, "max_tokens"),
        (make_job(4, deadline=0.0), DeadlineExceeded, None),
    ],
)
def test_what_can_never_run_is_refused_at_the_door(
    job: Job, error: type[EdgeCloudError], param: str | None
) -> None:
    runner = make_runner(num_blocks=8)
    with pytest.raises(error) as caught:
        runner.scheduler.submit(job, 0.0)
    assert caught.value.param == param
    assert not runner.scheduler.has_work


@pytest.mark.parametrize("job", [make_job(32, 1), make_job(32, 0), make_job(4, 29), make_job(1, 32)])
def test_what_just_fits_is_served(job: Job) -> None:
    runner = make_runner(num_blocks=8)
    runner.scheduler.submit(job, 0.0)
    runner.run()
    assert runner.outputs[0, 0] == answer(job)


def test_a_full_queue_says_when_to_come_back() -> None:
    runner = make_runner(max_running=1, max_waiting=1, costs=StepCosts(step_s=2.0))
    runner.scheduler.submit(make_job(4, 5), 0.0)
    runner.step()
    runner.scheduler.submit(make_job(4), 0.0)
    with pytest.raises(Overloaded) as caught:
        runner.scheduler.submit(make_job(4), 0.0)
    assert caught.value.retry_after == 9


def test_nobody_is_told_to_come_back_at_once() -> None:
    runner = make_runner(max_waiting=1)
    runner.scheduler.submit(make_job(4), 0.0)
    with pytest.raises(Overloaded) as caught:
        runner.scheduler.submit(make_job(4), 0.0)
    assert caught.value.retry_after == 1


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_blocks": 0},
        {"num_blocks": 1, "block_size": 0},
        {"num_blocks": 1, "token_budget": 4, "max_running": 8},
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        PoolConfig(**sizes)


def test_the_numbers_add_up_in_the_end() -> None:
    runner = make_runner()
    for i in range(5):
        runner.scheduler.submit(replace(make_job(9, 3), tenant=str(i % 2)), 0.0)
        runner.run()
    counters = runner.scheduler.counters
    assert (counters.prompt_tokens, counters.output_tokens) == (45, 15)
    assert counters.cached_tokens == 4 * 8
    assert counters.steps == 15
    assert runner.scheduler.planner.estimate.coverage == 1.0
