"""Ten thousand requests through the real scheduler, and what a user of each policy would see."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from edgecloud.pool.config import PoolConfig
from edgecloud.pool.costs import StepCosts
from edgecloud.pool.estimate import LengthEstimate
from edgecloud.pool.policy import FairShare
from edgecloud.pool.scheduler import Scheduler
from edgecloud.pool.sequence import Job
from edgecloud.pool.simulate import Arrival, Report, jain, simulate, spread
from edgecloud.pool.slo import Slo

COSTS = StepCosts(step_s=0.005, token_s=2e-5, context_token_s=0.0, block_swap_s=1e-5)


def make_trace(
    count: int, rate: float, mean_prompt: int = 60, mean_output: int = 8, seed: int = 0
) -> list[Arrival]:
    """Poisson arrivals of three tenants, half of them behind a shared prompt of 32 tokens."""
    source, now, trace = random.Random(seed), 0.0, []
    for number in range(count):
        now += source.expovariate(rate)
        own = tuple(
            source.randrange(100, 30_000) for _ in range(int(source.expovariate(1 / mean_prompt)) + 1)
        )
        prompt = (*range(32), *own) if number % 2 else own
        num_output = min(int(source.expovariate(1 / mean_output)) + 1, 64)
        trace.append(Arrival(now, Job(prompt[:500], 64, tenant="abc"[number % 3]), num_output))
    return trace


def run(trace: list[Arrival], policy: Any = "fcfs", slo: Slo | None = None, **sizes: Any) -> Report:
    defaults: dict[str, Any] = {
        "num_blocks": 400,
        "num_host_blocks": 100,
        "token_budget": 512,
        "max_running": 32,
        "max_waiting": 100_000,
    }
    scheduler = Scheduler(PoolConfig(**defaults | sizes), policy, costs=COSTS)
    report = simulate(scheduler, trace, COSTS, slo)
    scheduler.check()
    assert scheduler.pool.num_used == 0
    assert len(report.ended) + report.num_rejected == len(trace)
    return report


def test_ten_thousand_requests_are_all_answered_and_reported() -> None:
    trace = make_trace(10_000, rate=150)
    report = run(trace)
    assert report.reasons == {"done": 10_000}
    assert sum(end.num_output for end in report.ended) == sum(arrival.num_output for arrival in trace)
    for figures in (report.ttft, report.tpot, report.gap):
        assert 0 < figures.p50 <= figures.p90 <= figures.p99 < math.inf
    # Half of the requests start with two full blocks that are computed once.
    assert sum(end.num_cached >= 32 for end in report.ended) > 4_500
    assert 0 < report.goodput <= 10_000 / report.seconds
    assert report.fairness == pytest.approx(1.0, abs=0.02)


class Counted(LengthEstimate):
    """Notes of every answer whether it was no longer than predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[bool] = []

    def end(self, answer: Any, *, cut: bool) -> None:
        self.noted.append(answer.num_output <= answer.predicted)
        super().end(answer, cut=cut)


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "fair"])
def test_nine_of_ten_answers_are_no_longer_than_was_expected_at_their_admission(policy: Any) -> None:
    estimate = Counted()
    config = PoolConfig(400, token_budget=512, max_running=32, max_waiting=100_000)
    scheduler = Scheduler(config, policy, costs=COSTS, estimate=estimate)
    simulate(scheduler, make_trace(4000, rate=400), COSTS)
    assert len(estimate.noted) == 4000
    assert 0.885 < sum(estimate.noted) / 4000 < 0.93
    scheduler.check()


def test_a_report_counts_seconds_as_the_cost_model_does() -> None:
    report = run([Arrival(10.0, Job((1, 2, 3), 8), 3)])
    first, rest = 0.005 + 3 * 2e-5, 0.005 + 2e-5
    assert report.ttft.p50 == pytest.approx(first)
    assert report.tpot.p50 == pytest.approx(rest)
    assert report.gap.p99 == pytest.approx(rest)
    assert (report.steps, report.seconds) == (3, pytest.approx(first + 2 * rest))


def test_goodput_counts_only_what_met_the_promise() -> None:
    trace = [Arrival(0.0, Job((1, 2, 3), 8), 3), Arrival(0.0, Job((4,) * 400, 8), 3)]
    assert run(trace, slo=Slo(1.0, 1.0)).goodput == pytest.approx(2 / run(trace).seconds)
    assert run(trace, slo=Slo(0.0, 1.0)).goodput == 0


def test_chunks_keep_running_answers_flowing_while_a_long_prompt_arrives() -> None:
    trace = [Arrival(0.0, Job((i,) * 20, 64), 64) for i in range(4)]
    trace.append(Arrival(0.1, Job(tuple(range(1000, 5000)), 4), 4))
    sizes = {"num_blocks": 1000, "token_budget": 8192}
    whole = run(trace, max_chunk=8192, **sizes)
    chunked = run(trace, max_chunk=256, **sizes)
    assert max(chunked.gaps) < 0.3 * max(whole.gaps)


def test_shortest_job_first_lowers_the_usual_wait_under_load() -> None:
    rare_long = make_trace(600, rate=400, mean_prompt=40)
    rare_long = [
        Arrival(time, Job(tuple(range(index * 500, index * 500 + 499)), 64), 60)
        if index % 10 == 0
        else arrival
        for index, arrival in enumerate(rare_long)
        for time in [arrival.time]
    ]
    assert run(rare_long, "sjf").ttft.p50 < 0.8 * run(rare_long, "fcfs").ttft.p50


def test_priority_is_felt_by_those_who_have_it() -> None:
    trace = [
        Arrival(time, Job(job.prompt, job.max_tokens, priority=int(index % 10 == 0)), num_output)
        for index, (time, job, num_output) in enumerate(make_trace(800, rate=2000))
    ]
    urgent = {index for index in range(800) if index % 10 == 0}

    def usual_wait(policy: str) -> float:
        ended = run(trace, policy).ended
        waits = [e.first_token_at - e.arrival for e in ended if e.request_id in urgent and e.first_token_at]
        return spread(waits).p50

    assert usual_wait("priority") < 0.2 * usual_wait("fcfs")


def test_a_tenant_that_floods_the_queue_only_gets_its_share_under_fair_share() -> None:
    flood = [Arrival(0.0, Job((7, i) * 30, 32, tenant="flood"), 30) for i in range(300)]
    polite = [Arrival(0.1 + i * 0.01, Job((9, i) * 30, 32, tenant="polite"), 30) for i in range(60)]
    trace = sorted(flood + polite, key=lambda arrival: arrival.time)
    fair, unfair = run(trace, "fair"), run(trace, "fcfs")
    assert fair.fairness > 0.9
    assert unfair.fairness < 0.6


def test_a_tenant_of_three_times_the_weight_gets_three_times_the_tokens_but_for_one_batch() -> None:
    trace = [
        Arrival(0.0, Job((number, i) * 30, 32, tenant=tenant), 30)
        for i in range(500)
        for number, tenant in enumerate(["heavy", "light"])
    ]
    service = run(trace, FairShare({"heavy": 3.0})).service
    one_batch = 32 * (60 + 2 * 30)
    assert abs(service["heavy"] / 3 - service["light"]) <= one_batch
    assert service["heavy"] > 2.5 * service["light"]


def test_deadlines_that_pass_in_the_queue_are_not_served() -> None:
    trace = [
        Arrival(time, Job(job.prompt, job.max_tokens, deadline=time + 0.5), num_output)
        for time, job, num_output in make_trace(500, rate=400)
    ]
    report = run(trace, "deadline")
    assert report.reasons["deadline"] > 0
    assert report.reasons["done"] > 0
    assert all(end.ended_at - end.arrival <= 0.6 for end in report.ended)


def test_a_full_queue_turns_arrivals_away_and_the_rest_are_served() -> None:
    report = run(make_trace(500, rate=5000), max_waiting=50)
    assert report.num_rejected > 0
    assert report.reasons["done"] == 500 - report.num_rejected


def test_a_small_pool_preempts_and_still_answers_everyone() -> None:
    report = run(make_trace(400, rate=200, mean_output=30), "priority", num_blocks=60, max_running=16)
    assert report.reasons == {"done": 400}


@pytest.mark.parametrize(("shares", "index"), [([1, 1, 1], 1.0), ([1, 0, 0], 1 / 3), ([3, 1], 0.8)])
def test_jains_index(shares: list[float], index: float) -> None:
    assert jain(shares) == pytest.approx(index)


def test_percentiles_are_values_that_were_seen() -> None:
    assert spread(range(1, 101)) == (50, 90, 99)
    assert all(map(math.isnan, spread([])))
