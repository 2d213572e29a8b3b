"""What a scheduler believes of time comes from the steps that ran."""

from __future__ import annotations

import pytest

from edgecloud.pool.blocks import Copy
from edgecloud.pool.cost_meter import CostMeter
from edgecloud.pool.costs import StepCosts
from edgecloud.pool.plan import Item, StepPlan


def make_plan(*num_tokens: int, num_moved: int = 0) -> StepPlan:
    items = tuple(Item(i, i, 0, 0, size, 0, 1, ()) for i, size in enumerate(num_tokens))
    moved = (Copy(0, 0),) * num_moved
    return StepPlan(0, items, [0] * sum(num_tokens), [], [], [], moved, (), (), (), ())


def test_decodes_prompts_and_moves_each_teach_their_own_cost() -> None:
    meter = CostMeter(StepCosts())
    for _ in range(100):
        meter.observe(make_plan(1, 1, 1), 0.010)
        meter.observe(make_plan(1, 100), 0.110)
        meter.observe(make_plan(1, num_moved=5), 0.020)

    costs = meter.costs
    assert (costs.step_s, costs.token_s, costs.block_swap_s) == pytest.approx((0.010, 0.001, 0.002))


def test_the_first_step_seen_replaces_what_was_believed_of_another_machine() -> None:
    meter = CostMeter(StepCosts(step_s=1000.0))
    meter.observe(make_plan(1), 0.5)

    assert meter.costs.step_s == 0.5


def test_a_load_that_changes_is_followed_and_one_odd_step_is_not_believed() -> None:
    meter = CostMeter(StepCosts())
    for _ in range(100):
        meter.observe(make_plan(1), 0.010)
    meter.observe(make_plan(1), 1.0)
    assert meter.costs.step_s < 0.04
    for _ in range(300):
        meter.observe(make_plan(1), 0.020)
    assert meter.costs.step_s == pytest.approx(0.020, rel=0.05)


def test_nothing_is_ever_free() -> None:
    meter = CostMeter(StepCosts(step_s=1.0))
    meter.observe(make_plan(64), 0.5)

    assert meter.costs.token_s > 0
