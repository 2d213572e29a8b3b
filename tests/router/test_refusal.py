"""The error where no engine is left: which one, and what it says."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest

from edgecloud.errors import EdgeCloudError
from edgecloud.router.facts import Facts, Needs, Privacy, PrivacyReason
from edgecloud.router.filter import filter
from edgecloud.router.refusal import refusal, wait_s
from edgecloud.router.world import BreakerView, Budget, EngineView, KeyLimits, Speed, World

from .worlds import NOW, SETTINGS, make_facts, make_hosted, make_local, make_settings, make_world

PRIVATE = Privacy(True, (PrivacyReason("pii:id", "it holds an identity number"),))
SMALL = make_local(context=50)
RESTING = BreakerView("open", NOW + 12, reason="3 failures")


def refused(facts: Facts, *engines: EngineView, **world: Any) -> EdgeCloudError:
    state = make_world(*engines, **world)
    allowed = filter(facts, state, SETTINGS)
    assert allowed.engines == ()
    return refusal(facts, allowed, state)


@pytest.mark.parametrize(
    ("facts", "world"),
    [
        (make_facts(privacy=PRIVATE), {}),
        (make_facts(offline=True), {}),
        (make_facts(mode="local"), {}),
        (make_facts(), {"key": KeyLimits("work", engines=())}),
    ],
)
def test_what_was_not_permitted_is_403_with_exit_code_3(facts: Facts, world: dict[str, Any]) -> None:
    error = refused(facts, SMALL, make_hosted(), **world)

    assert (error.status, error.code, error.exit_code, error.retryable) == (
        403,
        "no_permitted_route",
        3,
        False,
    )
    assert "laptop" in error.message
    assert "cloud" in error.message
    assert re.fullmatch(r"laptop=\w+:\w+ cloud=\w+:\w+", str(error.extra["removed"]))


def test_what_the_budget_does_not_allow_is_402_with_exit_code_4() -> None:
    error = refused(make_facts(), SMALL, make_hosted(), budgets=(Budget("day", 0.001),))

    assert (error.status, error.code, error.exit_code, error.retryable) == (402, "budget_exceeded", 4, False)
    assert "the day's budget of 0.001" in error.message


def test_a_budget_that_is_out_is_402_even_while_the_engine_rests() -> None:
    error = refused(make_facts(), make_hosted(breaker=RESTING), budgets=(Budget("day", 0.001),))

    assert error.status == 402


def test_a_mode_that_was_chosen_hides_neither_the_budget_nor_the_deadline() -> None:
    poor = refused(make_facts(mode="pool"), make_local(), make_hosted(), budgets=(Budget("day", 0.001),))
    late = refused(
        make_facts(mode="pool", deadline_s=0.1), make_local(), make_hosted(speed=Speed(num_samples=9))
    )
    private = refused(make_facts(mode="pool", private=True), make_local(), make_hosted())
    both = refused(make_facts(mode="local"), make_hosted(), budgets=(Budget("day", 0.001),))

    assert [error.status for error in (poor, late, private, both)] == [402, 504, 403, 403]
    assert "use the mode `local`" in poor.message
    assert "use the mode `local`" not in both.message


def test_a_prompt_that_fits_nowhere_is_400_with_the_widest_context() -> None:
    facts = make_facts(num_prompt_tokens={"laptop": 60, "cloud": 70}, max_tokens=5, offline=True)

    error = refused(facts, SMALL, make_hosted(context=74))

    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
    assert error.extra["n_ctx"] == 74
    assert error.extra["n_prompt_tokens"] == 70
    assert "the answer needs 5" in error.message
    assert "local.ctx_size" not in error.message, "that of the cloud is not ours to set"


def test_what_no_engine_can_do_is_400_and_named() -> None:
    error = refused(make_facts(needs=Needs(images=True), offline=True), make_local(), make_hosted())

    assert (error.status, error.param) == (400, "messages")
    assert "sees no images" in error.message


def test_a_named_model_that_is_too_small_is_no_matter_of_permission() -> None:
    error = refused(make_facts(covers=("laptop",)), SMALL, make_hosted())

    assert error.code == "context_length_exceeded"
    assert "local.ctx_size" in error.message
    assert "cloud" not in str(error.extra["removed"])


def test_a_deadline_that_none_can_keep_is_504() -> None:
    measured = Speed(num_samples=9)
    error = refused(make_facts(deadline_s=0.1), make_local(speed=measured), make_hosted(speed=measured))

    assert (error.status, error.exit_code) == (504, 5)


def test_no_engine_at_all_is_said() -> None:
    error = refused(make_facts(covers=()), make_local())

    assert error.status == 503
    assert "edgecloud models" in error.message


# cases: R13
def test_where_only_breakers_hold_it_the_first_to_come_back_is_waited_for() -> None:
    facts = make_facts(deadline_s=30)
    world = make_world(
        make_hosted("a", breaker=BreakerView("open", NOW + 25)), make_hosted("b", breaker=RESTING)
    )
    allowed = filter(facts, world, SETTINGS)

    assert wait_s(facts, allowed, world, SETTINGS) == 12
    error = refusal(facts, allowed, world)
    assert (error.status, error.retry_after, error.retryable) == (503, 12, True)
    assert "3 failures" in error.message


@pytest.mark.parametrize(("deadline_s", "wait"), [(12.5, 12), (12, None), (1, None), (None, 12)])
def test_nobody_waits_longer_than_there_is_time(deadline_s: float | None, wait: float | None) -> None:
    facts = make_facts(deadline_s=deadline_s, max_tokens=1)
    world = make_world(make_hosted(breaker=RESTING))

    assert wait_s(facts, filter(facts, world, SETTINGS), world, SETTINGS) == wait


def test_patience_without_a_deadline_is_a_setting() -> None:
    world = make_world(make_hosted(breaker=RESTING))
    settings = make_settings(router={"wait_s": 5.0})

    assert wait_s(make_facts(), filter(make_facts(), world, settings), world, settings) is None


def test_nobody_waits_for_what_is_not_permitted() -> None:
    facts = make_facts(privacy=PRIVATE)
    world = make_world(make_hosted(breaker=RESTING))
    allowed = filter(facts, world, SETTINGS)

    assert wait_s(facts, allowed, world, SETTINGS) is None
    assert refusal(facts, allowed, world).status == 403


def test_an_engine_that_is_allowed_is_no_reason_to_refuse() -> None:
    world: World = make_world()

    with pytest.raises(ValueError, match="laptop"):
        refusal(make_facts(), filter(make_facts(), world, SETTINGS), world)


def test_no_way_to_a_local_answer_is_told_where_nothing_here_could_give_one() -> None:
    poor = Budget("day", 0.001)

    assert "`local`" not in refused(make_facts(), SMALL, make_hosted(), budgets=(poor,)).message


OBSTACLES: dict[str, tuple[dict[str, Any], str]] = {
    "mode": ({"mode": "local"}, "choose another mode"),
    "private": ({"privacy": PRIVATE}, "leave out what makes it private"),
    "offline": ({"offline": True}, "switch offline mode off"),
    "key": ({"key": KeyLimits("work", engines=())}, "use another key"),
    "quota": ({"key": KeyLimits("work", tokens_left=0)}, "wait until the key's quota is renewed"),
    "money": ({"budgets": (Budget("day", 0.001),)}, "raise the config's [budget]"),
    "breaker": ({"breaker": RESTING}, "wait until it has rested"),
    "deadline": ({"deadline_s": 0.1, "speed": Speed(num_samples=9)}, "allow more time"),
}


@pytest.mark.parametrize(
    "chosen", [each for size in (1, 2, 3) for each in combinations(OBSTACLES, size)], ids="+".join
)
def test_the_way_out_takes_every_obstacle_of_the_engine_that_it_names(chosen: tuple[str, ...]) -> None:
    given = {name: value for each in chosen for name, value in OBSTACLES[each][0].items()}
    of_world = {name: given.pop(name) for name in ("key", "budgets") if name in given}
    of_engine = {name: given.pop(name) for name in ("breaker", "speed") if name in given}
    error = refused(make_facts(**given), make_hosted(**of_engine), **of_world)

    if error.status == 403:
        _, way_out = error.message.split("To have cloud answer, ")
        if not {"key", "quota"} <= set(chosen):  # a key that may not ask it has no say about its tokens
            assert all(OBSTACLES[each][1] in way_out for each in chosen)
        absent = set(OBSTACLES) - set(chosen)
        assert not any(OBSTACLES[each][1] in way_out for each in absent)
    else:
        assert not set(chosen) & {"private", "offline", "key", "quota"}


def test_the_engine_that_least_stands_in_the_way_of_is_the_way_out() -> None:
    message = refused(
        make_facts(mode="pool", private=True, offline=True), make_hosted(), make_local()
    ).message

    assert message.endswith("To have laptop answer, choose another mode.")


def test_a_model_that_may_answer_is_named_where_another_was_asked_for() -> None:
    facts = make_facts(covers=("cloud",), privacy=PRIVATE)

    assert "or ask laptop instead" in refused(facts, make_hosted(), make_local()).message
    assert "instead" not in refused(facts, make_hosted(), SMALL).message


def test_offline_it_says_how_a_pool_on_this_machine_is_let_answer() -> None:
    assert "`local = true`" in refused(make_facts(offline=True), make_hosted()).message
    assert "`local = true`" not in refused(make_facts(privacy=PRIVATE), make_hosted()).message


@pytest.mark.parametrize(
    ("counts", "told"), [({}, "is about 2,000 tokens"), ({"laptop": 2000}, "is 2,000 tokens")]
)
def test_a_prompt_that_nobody_counted_is_told_as_an_estimate(counts: dict[str, int], told: str) -> None:
    error = refused(make_facts(estimated_tokens=2000, num_prompt_tokens=counts), SMALL)

    assert error.code == "context_length_exceeded"
    assert f"The prompt {told}" in error.message
