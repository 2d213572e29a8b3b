"""The order of trial: gain, money, time, the warm prefix, and drafting first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgecloud.router.decision import Candidate, Decision, Estimate
from edgecloud.router.explain import explain
from edgecloud.router.facts import Facts, Needs, Spread
from edgecloud.router.filter import filter
from edgecloud.router.latency import REMOTE_PRIOR, Estimates
from edgecloud.router.rank import rank
from edgecloud.router.utility import score_all, weights_of
from edgecloud.router.world import Budget, EngineView, KeyLimits, Speed, World
from edgecloud.types import Timings, Usage

from .worlds import (
    NOW,
    PAID,
    SETTINGS,
    FixedQuality,
    make_facts,
    make_hosted,
    make_local,
    make_settings,
    make_world,
)

EVEN = Speed(Spread(0, 0), Spread(1000, 1000), Spread(50, 50))
DAY = 86_400.0


def decide(world: World, chances: dict[str, Any], facts: Facts | None = None, **settings: Any) -> Decision:
    facts = facts or make_facts()
    configured = make_settings(router=settings)
    return rank(facts, filter(facts, world, configured), world, FixedQuality(chances), configured)


def order(decision: Decision) -> list[str]:
    return [candidate.engine for candidate in decision.candidates]


def even_world(*engines: EngineView, **changes: Any) -> World:
    """Two engines that differ in the price alone."""
    return make_world(*(engines or (make_local(speed=EVEN), make_hosted(speed=EVEN))), **changes)


def test_a_gain_that_is_worth_its_price_is_paid_for() -> None:
    decision = decide(even_world(), {"laptop": 0.3, "cloud": 0.8})

    assert order(decision) == ["cloud", "laptop"]
    assert decision.chosen.gain == pytest.approx(0.5)
    assert decision.candidates[1].gain == 0
    assert decision.reason == "more likely right (80% against 30%) than laptop"
    assert decision.recipients == ("cloud",)


def test_where_both_fail_nothing_is_paid() -> None:
    # The chance that the local engine is right says nothing: it is the gain that money buys.
    assert order(decide(even_world(), {"laptop": 0.04, "cloud": 0.08})) == ["laptop", "cloud"]
    assert order(decide(even_world(), {"laptop": 0.9, "cloud": 0.95})) == ["laptop", "cloud"]


def test_numbers_are_in_the_worlds_currency() -> None:
    facts = make_facts(estimated_tokens=1000, output_tokens=Spread(100, 300), max_tokens=1000)
    world = make_world(make_hosted(currency="CNY", speed=EVEN), rates={"CNY": 0.5})

    candidate = decide(world, {"cloud": 0.5}, facts).chosen

    assert candidate.cost == pytest.approx((1000 * 2 + 100 * 8) / 1e6 / 2)
    assert candidate.worst_cost == pytest.approx((1000 * 2 + 1000 * 8) / 1e6 / 2)
    assert candidate.first_token_s == Spread(1.0, 1.0)
    assert candidate.total_s == Spread(3.0, 3.0)


# cases: R44
@pytest.mark.parametrize(
    ("mode", "first"), [("quality", "cloud"), ("balanced", "laptop"), ("cheap", "laptop")]
)
def test_a_mode_says_what_a_right_answer_is_worth(mode: str, first: str) -> None:
    assert decide(even_world(), {"laptop": 0.6, "cloud": 0.66}, mode=mode).chosen.engine == first


def test_cheap_pays_for_nothing_less_than_a_rout() -> None:
    assert decide(even_world(), {"laptop": 0.1, "cloud": 0.9}, mode="cheap").chosen.engine == "laptop"


def test_a_budget_ahead_of_its_time_makes_money_dear_and_one_behind_it_does_not() -> None:
    def chosen(spent: float) -> str:
        budget = Budget("day", 10.0, spent=spent, starts_at=NOW - DAY / 2, ends_at=NOW + DAY / 2)
        return decide(even_world(budgets=(budget,)), {"laptop": 0.4, "cloud": 0.8}).chosen.engine

    assert chosen(1.0) == "cloud"
    assert chosen(5.0) == "cloud"
    assert chosen(8.0) == "laptop"


def test_the_price_of_a_budget_is_how_far_spending_is_ahead() -> None:
    budget = Budget("day", 10.0, spent=5.0, reserved=1.0, starts_at=NOW - DAY / 2, ends_at=NOW + DAY / 2)

    assert budget.price(NOW) == pytest.approx(1.0)
    assert budget.price(NOW + DAY / 2) == 0
    assert budget.price(NOW - 10 * DAY) == pytest.approx(6.0)
    assert Budget("chat", 10.0, spent=9.0).price(NOW) == 0
    assert make_world(budgets=(Budget("chat", 1.0), budget)).budget_price == pytest.approx(1.0)


def test_waiting_costs_and_the_slow_tenth_beyond_the_slo_costs_twice() -> None:
    steady = make_local("steady", speed=replace(EVEN, queue_s=Spread(5, 5)))
    shaky = make_local("shaky", speed=replace(EVEN, queue_s=Spread(4, 40)))
    chances = {"steady": 0.5, "shaky": 0.5}

    assert order(decide(make_world(steady, shaky), chances)) == ["steady", "shaky"]
    assert order(decide(make_world(steady, shaky), chances, slo_s=100.0)) == ["shaky", "steady"]
    reason = decide(make_world(steady, shaky), chances, slo_s=100.0).reason
    assert reason == "faster (9.2 s against 10.2 s) than steady"


def test_the_tails_of_independent_parts_do_not_add_up() -> None:
    speed = Speed(Spread(1, 4), Spread(100, 20), Spread(50, 50))
    world = make_world(make_local(speed=speed))

    # 100 tokens: 1 s, in a tenth of the cases 5 s. The distances are 3 and 4, together 5.
    assert decide(world, {"laptop": 0.5}).chosen.first_token_s == Spread(2.0, 7.0)


def test_the_last_token_is_always_computed() -> None:
    world = make_world(make_local(speed=EVEN, warm_tokens=10**6))

    assert decide(world, {"laptop": 0.5}).chosen.first_token_s.p50 == pytest.approx(1 / 1000)


def test_every_choice_costs_and_none_is_longer_than_the_context() -> None:
    facts = make_facts(estimated_tokens=1000, output_tokens=Spread(100, 300), num_choices=3)
    world = make_world(make_hosted(context=1500, speed=EVEN))

    candidate = decide(world, {"cloud": 0.5}, facts).chosen

    assert candidate.cost == pytest.approx((1000 * 2 + 3 * 100 * 8) / 1e6)
    assert candidate.worst_cost == pytest.approx((1000 * 2 + 3 * 500 * 8) / 1e6)


def test_the_baseline_of_a_gain_is_the_best_that_this_machine_has() -> None:
    world = make_world(make_local("a"), make_local("b"), make_hosted())

    gains = {one.engine: one.gain for one in decide(world, {"a": 0.3, "b": 0.5, "cloud": 0.9}).candidates}

    assert gains == {"a": pytest.approx(-0.2), "b": 0, "cloud": pytest.approx(0.4)}


def test_where_this_machine_has_nobody_a_gain_is_over_the_worst() -> None:
    world = make_world(make_hosted("a"), make_hosted("b"))

    gains = {one.engine: one.gain for one in decide(world, {"a": 0.3, "b": 0.9}).candidates}

    assert gains == {"a": 0, "b": pytest.approx(0.6)}


def test_prices_without_a_rate_are_never_weighed() -> None:
    views = (make_hosted(currency="CNY"),)
    weights = weights_of("balanced", make_facts(), make_world(*views), SETTINGS.router)

    with pytest.raises(ValueError, match="CNY"):
        score_all(
            make_facts(), views, make_world(*views), {"cloud": Estimate(0.5, 0.4, 0.6, "")}, weights, SETTINGS
        )


@pytest.mark.parametrize("budget_price", [0.0, 1.0])
def test_leaving_a_warm_prefix_costs_what_computing_it_again_does(budget_price: float) -> None:
    spent = 5.0 + budget_price
    budget = Budget("day", 10.0, spent=spent, starts_at=NOW - DAY / 2, ends_at=NOW + DAY / 2)
    world = even_world(make_local(speed=EVEN), make_hosted(speed=EVEN, warm_tokens=1000), budgets=(budget,))

    costs = {one.engine: one.switch_cost for one in decide(world, {"laptop": 0.5, "cloud": 0.5}).candidates}

    # A thousand tokens at 2.0 instead of 0.2 a million, and a second to read them.
    money = 1000 * (PAID.prompt - PAID.cached) / 1e6
    assert costs == {"cloud": 0, "laptop": pytest.approx((1 + world.budget_price) * money + 0.0005)}
    assert world.budget_price == pytest.approx(budget_price)


def test_a_deadline_is_an_slo_too() -> None:
    shaky = make_local("shaky", speed=replace(EVEN, queue_s=Spread(4, 14)))
    world = make_world(make_local("steady", speed=replace(EVEN, queue_s=Spread(5, 5))), shaky)
    chances = {"steady": 0.5, "shaky": 0.5}

    assert decide(world, chances).chosen.engine == "shaky"
    assert decide(world, chances, make_facts(deadline_s=15)).chosen.engine == "steady"


def test_an_answer_that_may_be_late_is_worth_less_and_a_deadline_of_hours_changes_nothing() -> None:
    quick = replace(EVEN, num_samples=9)
    shaky = replace(EVEN, queue_s=Spread(4, 12), num_samples=9)
    world = even_world(make_local(speed=quick), make_hosted(speed=shaky))
    chances = {"laptop": 0.5, "cloud": 0.75}

    calm = decide(world, chances, make_facts(deadline_s=3600))
    hurried = decide(world, chances, make_facts(deadline_s=10.5), slo_s=100.0)

    assert (calm.chosen.engine, calm.chosen.in_time) == ("cloud", pytest.approx(1.0))
    assert decide(world, chances).chosen.in_time == 1
    assert hurried.chosen.engine == "laptop"
    assert "more likely in time" in hurried.reason
    # Half of its answers take less than it typically does.
    assert decide(world, chances, make_facts(deadline_s=9.22)).candidates[1].in_time == pytest.approx(
        0.5, abs=0.02
    )


def test_with_little_time_those_come_first_whose_speed_is_known() -> None:
    speed = Estimates(REMOTE_PRIOR).speed
    tried = Estimates(REMOTE_PRIOR)
    for _ in range(20):
        tried.learn(Usage(100, 100), Timings(ttft_s=0.9, decode_s=2.2))
    known = make_hosted("known", speed=tried.speed)
    world = make_world(known, make_hosted("new", speed=speed))
    chances = {"known": 0.6, "new": 0.65}

    assert decide(world, chances, make_facts(deadline_s=8.0), mode="quality").chosen.engine == "known"
    # Whoever has time finds out how fast the new one is.
    assert decide(world, chances, make_facts(deadline_s=60.0), mode="quality").chosen.engine == "new"


def test_whoever_is_left_only_because_nobody_has_measured_it_is_said_to_be_a_guess() -> None:
    slow = make_local(speed=replace(EVEN, decode=Spread(1, 1), num_samples=9))
    world = even_world(slow, make_hosted())

    decision = decide(world, {"laptop": 0.9, "cloud": 0.5}, make_facts(deadline_s=60.0))

    assert order(decision) == ["cloud"]
    assert decision.reason == (
        "the only one left (laptop: the deadline); "
        "how fast it is nobody knows yet, and laptop would be too late"
    )
    assert any("a guess)" in line for line in explain(decision))


def test_coming_back_counts_too_when_a_chat_might_leave() -> None:
    home = make_hosted("home", speed=EVEN, warm_tokens=5000)
    world = make_world(home, make_hosted("other", speed=EVEN))
    facts = make_facts(estimated_tokens=5200)

    decision = decide(world, {"home": 0.3, "other": 0.9}, facts)
    stayed, other = decision.candidates

    # This turn alone would be worth the move: it is the way back that is not.
    assert stayed.engine == "home"
    assert other.utility + other.switch_cost > stayed.utility


# cases: R36
def test_a_chat_stays_where_its_prefix_is_over_twenty_turns() -> None:
    names = ["a", "b", "c", "d"]
    chances = dict.fromkeys(names, 0.5)
    warm: dict[str, int] = {}
    visited = []
    for turn in range(1, 21):
        facts = make_facts(estimated_tokens=300 * turn)
        engines = [make_hosted(name, speed=EVEN, warm_tokens=warm.get(name, 0)) for name in names]
        chosen = decide(make_world(*engines), chances, facts).chosen.engine
        visited.append(chosen)
        warm[chosen] = 300 * turn

    assert len(set(visited)) == 1


def test_a_chat_leaves_its_prefix_when_the_gain_pays() -> None:
    home = make_hosted("home", speed=EVEN, warm_tokens=5000)
    world = make_world(home, make_hosted("other", speed=EVEN))
    facts = make_facts(estimated_tokens=5200)

    near = decide(world, {"home": 0.5, "other": 0.7}, facts)
    far = decide(world, {"home": 0.2, "other": 0.95}, facts, answer_value=0.1)

    assert order(near) == ["home", "other"]
    assert near.candidates[1].switch_cost > 0
    assert near.chosen.switch_cost == 0
    # 5,000 tokens at 0.2 instead of 2 a million.
    assert near.candidates[1].cost - near.chosen.cost == pytest.approx(0.009)
    assert order(far) == ["other", "home"]


def test_an_empty_set_is_not_ranked() -> None:
    facts, world = make_facts(offline=True), make_world(make_hosted())

    with pytest.raises(ValueError, match="none allowed"):
        rank(facts, filter(facts, world, SETTINGS), world, FixedQuality({}), SETTINGS)


def test_nobody_asks_for_the_chances_of_an_engine_that_is_not_allowed() -> None:
    quality, world = FixedQuality({"laptop": 0.5}), make_world()
    facts = make_facts(private=True)

    decision = rank(facts, filter(facts, world, SETTINGS), world, quality, SETTINGS)

    assert quality.asked == ["laptop"]
    assert decision.recipients == ()
    assert decision.reason == "the only one left (cloud: privacy)"


def test_an_only_engine_is_said_to_be_one() -> None:
    assert decide(make_world(make_local()), {"laptop": 0.5}).reason == "the only engine there is"


def test_ties_go_to_the_cheaper_then_to_this_machine() -> None:
    free = replace(PAID, prompt=0.0, cached=0.0, completion=0.0)
    world = make_world(make_hosted("a", speed=EVEN, price=free), make_local("b", speed=EVEN))

    decision = decide(world, {"a": 0.5, "b": 0.5})

    assert order(decision) == ["b", "a"]
    assert decision.reason == "as good as a"


# ------------------------------------------------------------------------------------------------- cascade

GREY = {"laptop": (0.4, 0.65, 0.85), "cloud": 0.75}


def test_in_the_grey_zone_the_local_model_drafts_first() -> None:
    decision = decide(even_world(), GREY)

    assert decision.cascade is not None
    assert (decision.cascade.draft, decision.cascade.escalate) == ("laptop", "cloud")
    assert decision.cascade.p_accept == pytest.approx((0.85 - 0.6) / (0.85 - 0.4))
    assert order(decision) == ["laptop", "cloud"]
    assert decision.reason == "drafted here first: good enough with a chance of 56%, else cloud"


@pytest.mark.parametrize(
    ("facts", "chances", "settings"),
    [
        (make_facts(), {"laptop": (0.61, 0.7, 0.8), "cloud": 0.9}, {}),
        (make_facts(), {"laptop": (0.1, 0.3, 0.59), "cloud": 0.9}, {}),
        (make_facts(), GREY, {"cascade": False}),
        (make_facts(), GREY, {"mode": "local"}),
        (make_facts(), GREY, {"mode": "pool"}),
        (make_facts(private=True), GREY, {}),
        (make_facts(needs=Needs(tools=True)), GREY, {}),
        # Straight to the better one, or nowhere: in between nothing is worth a draft.
        (make_facts(), {**GREY, "cloud": 0.95}, {}),
        (make_facts(), GREY, {"mode": "cheap"}),
        # As good as the other, and a long draft would be lost time if it is not accepted.
        (
            make_facts(output_tokens=Spread(10, 20)),
            {**GREY, "cloud": 0.67},
            {"second_value": 0.01, "hold_back": 64},
        ),
    ],
)
def test_there_is_no_draft_where_it_does_not_pay(
    facts: Facts, chances: dict[str, Any], settings: dict[str, Any]
) -> None:
    fast = make_hosted(speed=replace(EVEN, prefill=Spread(100_000, 100_000)))
    world = even_world(make_local(speed=EVEN, context=16_384), fast)

    assert decide(world, GREY).cascade is not None
    assert decide(world, chances, facts, **settings).cascade is None


def test_a_short_draft_of_an_engine_as_good_is_made() -> None:
    facts, chances = make_facts(output_tokens=Spread(10, 20)), {**GREY, "cloud": 0.67}
    decision = decide(even_world(), chances, facts, second_value=0.001, hold_back=8)

    assert decision.cascade is not None
    # Both are asked, so nothing would have to differ for the other to be.
    assert decision.counterfactuals == ()


def test_a_draft_that_cannot_be_judged_is_not_made() -> None:
    world = even_world(make_local(speed=EVEN, can={"logprobs": False}), make_hosted(speed=EVEN))

    assert decide(world, GREY).cascade is None


def test_the_others_come_after_the_draft_and_its_escalation() -> None:
    world = even_world(make_local(speed=EVEN), make_local("second", speed=EVEN), make_hosted(speed=EVEN))

    decision = decide(world, {**GREY, "second": (0.3, 0.6, 0.85)})

    assert order(decision) == ["laptop", "cloud", "second"]


# ------------------------------------------------------------------------------------- what might have been


def named(decision: Decision, what: str) -> Any:
    [found] = [one for one in decision.counterfactuals if one.what == what]
    return found


def chosen_at(world: World, chances: dict[str, Any], facts: Facts) -> Candidate:
    return decide(world, chances, facts).chosen


def test_the_price_of_the_budget_that_would_have_decided_otherwise_does() -> None:
    chances = {"laptop": 0.4, "cloud": 0.8}
    decision = decide(even_world(), chances)
    crossing = named(decision, "budget_price").value

    def at(price: float) -> str:
        budget = Budget("day", 1000.0, spent=100 * price, starts_at=NOW, ends_at=NOW + DAY)
        return decide(even_world(budgets=(budget,)), chances).chosen.engine

    assert decision.chosen.engine == "cloud"
    assert at(crossing - 0.01) == "cloud"
    assert at(crossing + 0.01) == "laptop"
    assert (
        f"laptop if the price of the budget were above {crossing:.2f}"
        in named(decision, "budget_price").sentence
    )


def test_the_gain_that_would_have_decided_otherwise_does() -> None:
    decision = decide(even_world(), {"laptop": 0.7, "cloud": 0.75})
    gain = named(decision, "gain").value

    assert decision.chosen.engine == "laptop"
    assert decide(even_world(), {"laptop": 0.7, "cloud": 0.75 + gain + 1e-6}).chosen.engine == "cloud"
    assert decide(even_world(), {"laptop": 0.7, "cloud": 0.75 + gain - 1e-6}).chosen.engine == "laptop"


@pytest.mark.parametrize("little", [0.05, 0.0004, 0.00004])
def test_the_chance_that_would_have_decided_otherwise_is_told_from_what_it_was(little: float) -> None:
    enough = 0.75 + named(decide(even_world(), {"laptop": 0.7, "cloud": 0.75}), "gain").value
    chance = enough - little

    sentence = named(decide(even_world(), {"laptop": 0.7, "cloud": chance}), "gain").sentence

    told = sentence.rpartition(" ")[2].removesuffix("%")
    digits = len(told.partition(".")[2])
    assert told != f"{100 * chance:.{digits}f}"
    assert float(told) == pytest.approx(100 * enough, abs=0.5 * 10**-digits)


def test_the_tokens_that_would_have_decided_otherwise_do() -> None:
    slow = replace(EVEN, prefill=Spread(100, 100))
    world = make_world(make_local(speed=slow), make_hosted(speed=EVEN, price=replace(PAID, prompt=0.0)))
    facts = make_facts(num_prompt_tokens={"laptop": 2000, "cloud": 2000})
    chances = {"laptop": 0.7, "cloud": 0.75}
    shorter = int(named(decide(world, chances, facts), "prompt_tokens").value)

    def at(tokens: int) -> str:
        return chosen_at(
            world, chances, make_facts(num_prompt_tokens={"laptop": tokens, "cloud": tokens})
        ).engine

    assert (at(2000), at(2000 - shorter + 1), at(2000 - shorter)) == ("cloud", "cloud", "laptop")


def test_a_prompt_that_is_too_long_for_an_engine_is_told_by_how_much() -> None:
    facts = make_facts(num_prompt_tokens={"laptop": 8000, "cloud": 8000}, output_tokens=Spread(300, 900))

    decision = decide(make_world(), {"cloud": 0.5}, facts)

    found = named(decision, "prompt_tokens")
    assert (found.engine, found.value) == ("laptop", 8000 + 300 - 8192)
    assert filter(
        make_facts(estimated_tokens=8000 - int(found.value), output_tokens=Spread(300, 900)),
        make_world(),
        SETTINGS,
    ).engines == (
        "laptop",
        "cloud",
    )


def test_a_shorter_prompt_is_no_help_where_more_is_in_the_way() -> None:
    facts = make_facts(num_prompt_tokens={"laptop": 100, "cloud": 200_000}, offline=True)

    assert decide(make_world(), {"laptop": 0.5}, facts).counterfactuals == ()
    small = make_local("small", context=64, can={"tools": False})
    facts = make_facts(needs=Needs(tools=True))
    assert decide(make_world(make_local(), small), {"laptop": 0.5}, facts).counterfactuals == ()
    full = KeyLimits("work", engines=("laptop",))
    world = make_world(make_local(), make_local("small", context=64), key=full)
    assert decide(world, {"laptop": 0.5}).counterfactuals == ()


def test_a_warm_prefix_that_decided_is_named() -> None:
    world = make_world(make_hosted("home", speed=EVEN, warm_tokens=5000), make_hosted("other", speed=EVEN))

    decision = decide(world, {"home": 0.5, "other": 0.6}, make_facts(estimated_tokens=5200))

    assert decision.chosen.engine == "home"
    assert named(decision, "prefix").engine == "other"
    assert decision.reason == "holds 5000 tokens of this chat already"
