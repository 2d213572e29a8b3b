"""Who goes next under each policy, and that nobody waits for ever."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.pool.blocks import BlockTable
from edgecloud.pool.policy import (
    EarliestDeadline,
    FairShare,
    FirstCome,
    Policy,
    Priority,
    RankedQueue,
    ShortestJob,
)
from edgecloud.pool.prefix import Namespace
from edgecloud.pool.sequence import Job, Request, Sequence

ids = itertools.count()


def make_sequence(
    arrival: float = 0.0,
    *,
    num_prompt: int = 10,
    max_tokens: int = 10,
    priority: int = 0,
    deadline: float | None = None,
    tenant: str = "",
) -> Sequence:
    job = Job((1,) * num_prompt, max_tokens, priority=priority, deadline=deadline, tenant=tenant)
    number = next(ids)
    return Sequence(number, Request(number, job, arrival), 0, list(job.prompt), BlockTable(Namespace()))


def drain(policy: Policy) -> list[Sequence]:
    return [policy.pop() for _ in range(len(policy))]


def push(policy: Policy, *sequences: Sequence) -> None:
    for sequence in sequences:
        policy.push(sequence)


def prompt_seconds(sequence: Sequence) -> float:
    return (sequence.num_tokens - sequence.num_hit) * 0.01


def test_first_come_first_served_and_ties_by_id() -> None:
    a, b, c = make_sequence(2.0), make_sequence(1.0), make_sequence(1.0)
    policy = FirstCome()
    push(policy, a, c, b)
    assert drain(policy) == [b, c, a]


def test_the_earliest_deadline_goes_first_and_none_means_patience() -> None:
    policy = EarliestDeadline(patience_s=10)
    late, soon, patient = make_sequence(deadline=30), make_sequence(deadline=5), make_sequence()
    push(policy, late, soon, patient)
    assert drain(policy) == [soon, patient, late]


def test_the_shortest_job_goes_first_after_its_prefix_hit() -> None:
    policy = ShortestJob(prompt_seconds, ageing=0.02)
    short, long = make_sequence(num_prompt=20), make_sequence(num_prompt=100)
    push(policy, long, short)
    assert drain(policy) == [short, long]
    push(policy, long, short)
    policy.refresh(lambda sequence: 96 if sequence is long else 0)
    assert drain(policy) == [long, short]


def test_a_long_job_is_only_passed_by_those_who_come_soon_enough() -> None:
    policy = ShortestJob(prompt_seconds, ageing=0.1)
    long = make_sequence(0.0, num_prompt=100)
    in_time, too_late = make_sequence(8.9, num_prompt=1), make_sequence(10.0, num_prompt=1)
    push(policy, long, in_time, too_late)
    assert drain(policy) == [in_time, long, too_late]


def test_an_admitted_job_keeps_its_rank_when_the_cache_changes() -> None:
    policy = ShortestJob(prompt_seconds)
    sequence = make_sequence(num_prompt=100)
    policy.push(sequence)
    before = sequence.rank
    sequence.admitted = True
    policy.refresh(lambda _: 96)
    assert sequence.rank == before
    assert policy.pop() is sequence


def test_priority_is_a_head_start_so_low_priority_is_not_for_ever() -> None:
    policy = Priority(head_start_s=60)
    low, high, much_later = make_sequence(0), make_sequence(59, priority=1), make_sequence(61, priority=1)
    push(policy, low, high, much_later)
    assert drain(policy) == [high, low, much_later]


def test_the_tenant_served_least_goes_next() -> None:
    policy = FairShare()
    ann = [make_sequence(tenant="ann") for _ in range(3)]
    bob = [make_sequence(tenant="bob") for _ in range(3)]
    push(policy, *ann, *bob)
    order = []
    while policy:
        order.append(policy.pop())
        policy.charge(order[-1], 10, 0)
    assert order == [ann[0], bob[0], ann[1], bob[1], ann[2], bob[2]]


def test_output_costs_twice_and_weights_divide() -> None:
    policy = FairShare({"ann": 2.0})
    ann, bob = make_sequence(tenant="ann"), make_sequence(tenant="bob")
    push(policy, ann, bob)
    policy.charge(ann, 10, 5)
    policy.charge(bob, 10, 5)
    assert policy.counters == {"ann": 10.0, "bob": 20.0}


def test_a_tenant_who_was_away_is_lifted_and_earns_no_credit() -> None:
    policy = FairShare()
    push(policy, *(make_sequence(tenant="ann") for _ in range(3)))
    policy.charge(policy.pop(), 100, 0)
    newcomer = make_sequence(tenant="bob")
    policy.push(newcomer)
    assert policy.counters["bob"] == 100
    drain(policy)
    third = make_sequence(tenant="cy")
    policy.push(third)
    assert policy.counters["cy"] == 100, "with nobody waiting, the level of who left last"


def test_a_tenant_cannot_shed_what_it_was_served_by_leaving() -> None:
    policy = FairShare()
    push(policy, make_sequence(tenant="ann"), make_sequence(tenant="bob"))
    policy.charge(policy.pop(), 100, 0)
    policy.push(make_sequence(tenant="ann"))
    assert policy.counters == {"ann": 100, "bob": 0}


def test_looking_at_a_tenants_only_request_does_not_lift_it() -> None:
    policy = FairShare()
    ann, bob = make_sequence(tenant="ann"), make_sequence(tenant="bob")
    push(policy, ann, bob)
    policy.charge(bob, 50, 0)
    assert policy.pop() is ann
    policy.restore(ann)
    assert policy.counters["ann"] == 0
    assert policy.pop() is ann


def test_a_preempted_sequence_comes_back_before_any_tenants_next() -> None:
    policy = FairShare()
    resumed, other = make_sequence(tenant="ann"), make_sequence(tenant="bob")
    policy.push(resumed)
    policy.pop()
    resumed.admitted = True
    policy.charge(resumed, 1000, 0)
    policy.push(other)
    policy.restore(resumed)
    assert drain(policy) == [resumed, other]


def test_who_gave_way_comes_back_after_the_one_it_made_way_for() -> None:
    # Both were pre-empting and pre-empted for ever, when all that had run went first.
    policy = FairShare()
    first, second = make_sequence(tenant="ann"), make_sequence(tenant="ann")
    policy.push(first)
    policy.charge(policy.pop(), 1000, 0)
    policy.push(second)
    assert policy.pop() is second
    second.admitted = True
    behind = make_sequence(tenant="bob")
    policy.push(behind)
    policy.counters["bob"] = 10.0
    assert second.rank > (10.0, behind.id)
    policy.restore(second)
    assert drain(policy) == [behind, second]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50)), min_size=30, max_size=60),
    st.floats(0.25, 4),
)
def test_backlogged_tenants_are_never_further_apart_than_one_request(
    work: list[tuple[str, int]], weight: float
) -> None:
    policy = FairShare({"a": weight})
    for tenant, size in work:
        policy.push(make_sequence(num_prompt=size, tenant=tenant))
    waiting = [tenant for tenant, _ in work]
    while "a" in waiting and "b" in waiting:
        sequence = policy.pop()
        waiting.remove(sequence.request.job.tenant)
        policy.charge(sequence, sequence.num_tokens, 0)
        assert abs(policy.counters["a"] - policy.counters["b"]) <= 50 / min(weight, 1)


@pytest.mark.parametrize(
    "policy", [FirstCome(), EarliestDeadline(), ShortestJob(prompt_seconds), Priority(), FairShare()]
)
def test_a_removed_sequence_is_never_offered(policy: Policy) -> None:
    sequences = [make_sequence(float(i), tenant=str(i % 3)) for i in range(9)]
    push(policy, *sequences)
    gone, resumed = sequences[4], sequences[0]
    policy.remove(gone)
    assert policy.pop() is resumed
    resumed.admitted = True
    policy.restore(resumed)
    policy.remove(resumed)
    assert set(policy) == set(sequences) - {gone, resumed}
    assert set(drain(policy)) == set(sequences) - {gone, resumed}


@given(st.lists(st.tuples(st.sampled_from(["push", "pop", "remove"]), st.integers(0, 9))))
def test_the_queue_agrees_with_a_sorted_list(operations: list[tuple[str, int]]) -> None:
    queue, model = RankedQueue(), []
    for operation, number in operations:
        if operation == "push":
            sequence = make_sequence()
            queue.push(sequence, (float(number), sequence.id))
            model.append((float(number), sequence.id, sequence))
            model.sort(key=lambda entry: entry[:2])
        elif operation == "pop" and model:
            assert queue.pop() is model.pop(0)[2]
        elif operation == "remove" and model:
            queue.remove(model.pop(number % len(model))[2])
        assert len(queue) == len(model)
        assert {sequence.id for sequence in queue} == {entry[1] for entry in model}
