"""Any interleaving of submit, abort, step, fault and deadline leaves the pool whole, every request ended
exactly once, and every token the one that the request would have got alone.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgecloud.errors import BadRequest, DeadlineExceeded, Overloaded
from edgecloud.pool.config import PoolConfig
from edgecloud.pool.costs import StepCosts
from edgecloud.pool.plan import StepPlan
from edgecloud.pool.prefix import Namespace
from edgecloud.pool.scheduler import Scheduler
from edgecloud.pool.sequence import Job

from .fake_runner import FakeRunner, answer, strong_hash, weak_hash

POLICIES = ("fcfs", "deadline", "sjf", "priority", "fair")
MODES = ("auto", "swap", "recompute")


def stops(token: int) -> bool:
    return token % 13 == 0


# Few texts and many repeats, so that prefixes meet.
prompts = st.builds(
    lambda head, tail: tuple([head] * 9)[: 9 - len(tail)] + tuple(tail),
    st.integers(1, 2),
    st.lists(st.integers(1, 3), max_size=8),
) | st.lists(st.integers(1, 3), min_size=1, max_size=20).map(tuple)

jobs = st.builds(
    Job,
    prompt=prompts,
    max_tokens=st.integers(0, 12),
    n=st.sampled_from([1, 1, 1, 2, 3]),
    priority=st.integers(-1, 2),
    tenant=st.sampled_from(["ann", "bob", "cy"]),
    namespace=st.sampled_from([Namespace("m"), Namespace("m", adapter="x"), Namespace("m", salt="x")]),
    read_prefix=st.sampled_from([True, True, True, False]),
)

configs = st.builds(
    PoolConfig,
    num_blocks=st.integers(8, 14),
    block_size=st.sampled_from([1, 3, 4]),
    num_host_blocks=st.sampled_from([0, 2, 30]),
    context=st.just(33),
    token_budget=st.sampled_from([6, 9, 64]),
    max_chunk=st.sampled_from([1, 3, 4, 64]),
    max_running=st.sampled_from([3, 6]),
    max_waiting=st.just(12),
    caching=st.booleans(),
    preemption=st.sampled_from(MODES),
)
# Computing dear and swapping cheap, and the other way round, so that each remedy has its day.
costs = st.sampled_from([StepCosts(), StepCosts(token_s=1e-2), StepCosts(block_swap_s=1.0, token_s=1.0)])


class AnyHistory(RuleBasedStateMachine):
    @initialize(
        config=configs,
        policy=st.sampled_from(POLICIES),
        costs=costs,
        chain=st.sampled_from([strong_hash, weak_hash]),
    )
    def start(self, config: PoolConfig, policy: Any, costs: StepCosts, chain: Any) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(config, policy, costs=costs, chain=chain)
        self.runner = FakeRunner(self.scheduler, stops)
        self.jobs: dict[int, Job] = {}
        self.flight: StepPlan | None = None

    @rule(job=jobs, patience=st.none() | st.floats(0.5, 8))
    def submit(self, job: Job, patience: float | None) -> None:
        job = replace(job, deadline=None if patience is None else self.now + patience)
        with contextlib.suppress(BadRequest, Overloaded, DeadlineExceeded):
            self.jobs[self.scheduler.submit(job, self.now)] = job

    @rule(pick=st.integers(0, 30))
    def abort(self, pick: int) -> None:
        end = self.scheduler.abort(pick, self.now)
        assert (end is None) == (pick not in self.jobs or pick in self.runner.ended)
        self.runner.end([end] if end else [])

    @rule(seconds=st.floats(0.1, 3))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.flight is None)
    @rule(data=st.data())
    def propose(self, data: st.DataObject) -> None:
        drafts = {}
        for sequence in self.scheduler.planner.running:
            if sequence.width == 1:
                said = answer(sequence.request.job, sequence.choice, stops)[sequence.num_output :]
                right = said[: data.draw(st.integers(0, 4))]
                drafts[sequence.id] = (*right, *data.draw(st.lists(st.integers(0, 96), max_size=3)))
        self.scheduler.propose(drafts)

    @precondition(lambda self: self.flight is None)
    @rule()
    def schedule(self) -> None:
        plan = self.scheduler.schedule(self.now)
        self.runner.end(plan.ended)
        assert len(plan.tokens) <= self.scheduler.config.token_budget
        if plan.preempted:
            assert not plan.swap_ins
        self.flight = None if plan.is_empty else plan

    @precondition(lambda self: self.flight is not None)
    @rule()
    def commit(self) -> None:
        plan, self.flight = self.flight, None
        self.runner.take(self.scheduler.commit(plan, self.runner.execute(plan), self.now))

    @precondition(lambda self: self.flight is not None)
    @rule(executed=st.booleans())
    def fail(self, executed: bool) -> None:
        plan, self.flight = self.flight, None
        if executed:
            self.runner.execute(plan)
        self.runner.end(self.scheduler.fail(plan, self.now))

    @rule(steps=st.integers(1, 6))
    def steps(self, steps: int) -> None:
        if self.flight is not None:
            self.commit()
        for _ in range(steps):
            self.runner.step(self.now)

    @invariant()
    def the_pool_is_whole(self) -> None:
        self.scheduler.check()

    @invariant()
    def every_token_is_the_one_of_the_request_alone(self) -> None:
        for (request_id, choice), tokens in self.runner.outputs.items():
            expected = answer(self.jobs[request_id], choice, stops)
            assert tokens == expected[: len(tokens)]
            end = self.runner.ended.get(request_id)
            assert end is None or end.reason != "done" or tokens == expected

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        if self.flight is not None:
            self.commit()
        self.runner.run(self.now)
        self.every_token_is_the_one_of_the_request_alone()
        assert set(self.runner.ended) == set(self.jobs)
        assert self.scheduler.pool.num_used == self.scheduler.num_running == self.scheduler.num_waiting == 0
        assert self.scheduler.pool.num_host_available == self.scheduler.config.num_host_blocks
        for request_id, end in self.runner.ended.items():
            tokens = [len(t) for (owner, _), t in self.runner.outputs.items() if owner == request_id]
            assert end.num_output == sum(tokens)


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
class TestManyHistories(AnyHistory.TestCase):
    settings = settings(
        max_examples=400, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.parametrize(
    ("policy", "mode", "caching", "chunk"),
    list(itertools.product(POLICIES, MODES, (True, False), (1, 4, 64))),
)
def test_tokens_do_not_depend_on_the_schedule(policy: Any, mode: Any, caching: bool, chunk: int) -> None:
    batch = [
        Job(tuple([5] * 8 + [i % 3] * (i % 5)), 6 + i % 7, n=1 + i % 2, priority=i % 3, tenant="ab"[i % 2])
        for i in range(12)
    ]
    config = PoolConfig(
        num_blocks=9, block_size=4, num_host_blocks=8, context=64, token_budget=64, max_chunk=chunk,
        max_running=6, preemption=mode, caching=caching,
    )  # fmt: skip
    scheduler = Scheduler(config, policy)
    runner = FakeRunner(scheduler, stops)
    ids = [scheduler.submit(job, float(i)) for i, job in enumerate(batch)]
    runner.run(now=12.0)
    for request_id, job in zip(ids, batch, strict=True):
        for choice in range(job.n):
            assert runner.outputs[request_id, choice] == answer(job, choice, stops)


@settings(max_examples=40, deadline=None)
@given(batch=st.lists(jobs, min_size=1, max_size=8), config=configs, policy=st.sampled_from(POLICIES))
def test_a_batch_that_fits_is_answered_in_full(batch: list[Job], config: PoolConfig, policy: Any) -> None:
    scheduler = Scheduler(config, policy)
    runner = FakeRunner(scheduler)
    accepted = {}
    for job in batch:
        try:
            accepted[scheduler.submit(job, 0.0)] = job
        except BadRequest:
            continue
    runner.run()
    assert all(runner.ended[request_id].reason == "done" for request_id in accepted)
    for request_id, job in accepted.items():
        for choice in range(job.n):
            assert runner.outputs[request_id, choice] == answer(job, choice)
