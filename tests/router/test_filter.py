"""Hard constraints: what each takes, and that nothing ever comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgecloud.router.facts import Facts, Needs, Privacy, PrivacyReason, Spread
from edgecloud.router.filter import filter, mode_of, reserved_tokens
from edgecloud.router.world import BreakerView, Budget, KeyLimits, Speed, World
from edgecloud.settings import Settings

from .worlds import NOW, SETTINGS, make_facts, make_hosted, make_local, make_settings, make_world

PRIVATE = Privacy(True, (PrivacyReason("pii:email", "it holds an email address"),))


def test_everything_that_can_serve_is_allowed_in_the_worlds_order() -> None:
    allowed = filter(make_facts(), make_world(), SETTINGS)

    assert allowed.engines == ("laptop", "cloud")
    assert allowed.removed == ()
    assert "cloud" in allowed
    assert "elsewhere" not in allowed


CASES: list[tuple[str, str, Facts, World, Settings]] = [
    ("name", "not_asked_for", make_facts(covers=("laptop",)), make_world(), SETTINGS),
    ("mode", "mode_local", make_facts(mode="local"), make_world(), SETTINGS),
    ("mode", "mode_local", make_facts(), make_world(), make_settings(router={"mode": "local"})),
    ("privacy", "private", make_facts(privacy=PRIVATE), make_world(), SETTINGS),
    ("privacy", "private", make_facts(private=True), make_world(), SETTINGS),
    ("privacy", "region", make_facts(), make_world(), make_settings(privacy={"regions": ("eu",)})),
    ("offline", "offline", make_facts(offline=True), make_world(), SETTINGS),
    ("offline", "offline", make_facts(), make_world(), make_settings(offline=True)),
    (
        "key",
        "key_engine",
        make_facts(),
        make_world(key=KeyLimits("work", engines=("laptop",))),
        SETTINGS,
    ),
    ("money", "budget", make_facts(), make_world(budgets=(Budget("day", 0.001),)), SETTINGS),
    ("money", "currency", make_facts(), make_world(make_local(), make_hosted(currency="CNY")), SETTINGS),
]


@pytest.mark.parametrize(("name", "code", "facts", "world", "settings"), CASES)
def test_a_filter_takes_the_cloud_and_leaves_the_laptop(
    name: str, code: str, facts: Facts, world: World, settings: Settings
) -> None:
    allowed = filter(facts, world, settings)

    assert allowed.engines == ("laptop",)
    [removed] = allowed.removed
    assert (removed.engine, removed.filter, removed.code) == ("cloud", name, code)
    assert removed.sentence.startswith("cloud ")


@pytest.mark.parametrize(
    ("code", "needs", "can"),
    [
        ("chat", Needs(), {"chat": False}),
        ("completions", Needs(chat=False), {"completions": False}),
        ("tools", Needs(tools=True), {"tools": False}),
        ("json", Needs(json=True), {"json": False}),
        ("images", Needs(images=True), {"images": False}),
        ("logprobs", Needs(logprobs=True), {"logprobs": False}),
        ("continue_final", Needs(continue_final=True), {"continue_final": False}),
    ],
)
def test_an_engine_that_cannot_do_it_is_taken(code: str, needs: Needs, can: dict[str, Any]) -> None:
    able = {"images": True}
    world = make_world(make_local(can=able), make_hosted(can={**able, **can}))

    allowed = filter(make_facts(needs=needs), world, SETTINGS)

    assert allowed.engines == ("laptop",)
    assert [(entry.filter, entry.code) for entry in allowed.removed] == [("capability", code)]


# cases: R9
def test_a_long_history_with_a_trivial_last_turn_is_kept_from_the_small_window() -> None:
    world = make_world(make_local(context=16_384), make_hosted())

    allowed = filter(make_facts(num_prompt_tokens={"laptop": 17_000, "cloud": 15_800}), world, SETTINGS)

    assert allowed.engines == ("cloud",)
    assert "holds 16,384 tokens; the prompt has 17,000 and the answer needs" in allowed.removed[0].sentence


def test_the_context_has_room_for_the_answer_by_each_engines_own_count() -> None:
    world = make_world(make_local("a", context=1000), make_local("b", context=1000))
    counts = {"a": 900, "b": 901}

    def engines(**limits: Any) -> tuple[str, ...]:
        return filter(make_facts(num_prompt_tokens=counts, **limits), world, SETTINGS).engines

    assert engines(output_tokens=Spread(100, 500)) == ("a",)
    assert engines(output_tokens=Spread(100, 500), max_tokens=99) == ("a", "b")
    # A client's huge limit is cut where the context ends: it reserves no more than an answer takes.
    assert engines(output_tokens=Spread(99, 500), max_tokens=100_000) == ("a", "b")


def test_an_engine_that_cannot_be_counted_for_gets_the_estimate() -> None:
    assert make_facts(num_prompt_tokens={"a": 7}, estimated_tokens=9).prompt_tokens("b") == 9
    assert reserved_tokens(make_facts(output_tokens=Spread(10.2, 20))) == 11


@pytest.mark.parametrize(
    ("breaker", "code"),
    [
        (BreakerView(), None),
        (BreakerView("open", NOW + 30, reason="3 failures"), "resting"),
        (BreakerView("half-open", NOW + 60), "probing"),
        (BreakerView("half-open", NOW + 60, probe=True), None),
        (BreakerView("open", NOW - 1, probe=True), None),
    ],
)
def test_a_resting_engine_is_left_alone_but_for_its_probe(breaker: BreakerView, code: str | None) -> None:
    allowed = filter(make_facts(), make_world(make_hosted(breaker=breaker)), SETTINGS)

    assert [entry.code for entry in allowed.removed] == ([] if code is None else [code])
    assert allowed.reopens_at == (None if code is None else breaker.reopens_at)


def test_why_it_rests_is_part_of_the_sentence() -> None:
    world = make_world(make_hosted(breaker=BreakerView("open", NOW + 5, reason="It is busy.")))

    [removed] = filter(make_facts(), world, SETTINGS).removed

    assert removed.sentence == "cloud rests for 5 s after failures (It is busy)"


def test_only_an_engine_that_nothing_else_holds_is_waited_for() -> None:
    world = make_world(
        make_hosted("a", breaker=BreakerView("open", NOW + 5), can={"tools": False}),
        make_hosted("b", breaker=BreakerView("open", NOW + 50)),
        make_hosted("c", breaker=BreakerView("open", NOW + 20)),
    )

    assert filter(make_facts(needs=Needs(tools=True)), world, SETTINGS).reopens_at == NOW + 20


def test_a_quota_counts_the_prompt_and_the_answer() -> None:
    facts = make_facts(estimated_tokens=100, output_tokens=Spread(50, 80))

    def engines(left: int) -> tuple[str, ...]:
        world = make_world(key=KeyLimits("work", tokens_left=left))
        return filter(facts, world, SETTINGS).engines

    assert engines(150) == ("laptop", "cloud")
    assert engines(149) == ()


def test_money_is_checked_at_the_most_that_the_answer_may_cost() -> None:
    # 1,000 prompt tokens at 2 and 500 answered at 8 a million are 0.006.
    facts = make_facts(estimated_tokens=1000, max_tokens=500)

    def engines(**budget: float) -> tuple[str, ...]:
        world = make_world(budgets=(Budget("month", 100.0), Budget("day", **budget)))
        return filter(facts, world, SETTINGS).engines

    assert engines(limit=0.01, spent=0.004) == ("laptop", "cloud")
    assert engines(limit=0.01, spent=0.003, reserved=0.002) == ("laptop",)
    # A limit of nothing is a limit.
    assert engines(limit=0.0) == ("laptop",)


def test_money_is_checked_as_it_is_set_aside_and_what_is_left_is_told_in_tokens() -> None:
    # 10 tokens by their length, but up to 1,000, at 2 a million; 500 answered, at 8.
    facts = make_facts(estimated_tokens=10, most_prompt_tokens=1000, max_tokens=500)

    def taken(limit: float, **changes: Any) -> list[str]:
        world = make_world(make_hosted(), budgets=(Budget("day", limit),))
        return [each.sentence for each in filter(replace(facts, **changes), world, SETTINGS).removed]

    assert taken(0.006) == []
    assert taken(0.00599)[0].endswith("has 0.00599 left, enough for an answer of 498 tokens")
    assert taken(0.00599, num_choices=2)[0].endswith("enough for an answer of 249 tokens")
    assert taken(0.002)[0].endswith("has 0.002 left")
    # An answer of what was told is paid for.
    assert taken(0.00599, max_tokens=498) == []


def test_another_currency_counts_by_its_rate() -> None:
    facts = make_facts(estimated_tokens=1000, max_tokens=500)

    def engines(rate: float) -> tuple[str, ...]:
        world = make_world(make_hosted(currency="CNY"), budgets=(Budget("day", 0.001),), rates={"CNY": rate})
        return filter(facts, world, SETTINGS).engines

    assert engines(0.14) == ("cloud",)
    assert engines(0.2) == ()


def test_a_deadline_takes_what_is_too_slow_for_it() -> None:
    slow = Speed(queue_s=Spread(1.0, 2.0), prefill=Spread(100, 50), decode=Spread(10, 5), num_samples=9)
    facts = make_facts(estimated_tokens=100, output_tokens=Spread(50, 80))
    world = make_world(make_local(speed=slow))

    assert filter(replace(facts, deadline_s=7.0), world, SETTINGS).engines == ("laptop",)
    assert filter(replace(facts, deadline_s=6.9), world, SETTINGS).removed[0].code == "deadline"


def test_a_guess_of_the_speed_takes_nobody() -> None:
    unmeasured = Speed(queue_s=Spread(1.0, 2.0), prefill=Spread(100, 50), decode=Spread(10, 5), num_samples=0)

    world = make_world(make_local(speed=unmeasured))

    assert filter(make_facts(deadline_s=0.1), world, SETTINGS).engines == ("laptop",)


def test_who_takes_no_raw_prompts_takes_chats() -> None:
    world = make_world(make_local(can={"completions": False}))

    assert filter(make_facts(needs=Needs(chat=True)), world, SETTINGS).engines == ("laptop",)
    assert filter(make_facts(needs=Needs(chat=False)), world, SETTINGS).removed[0].code == "completions"


def test_the_first_filter_takes_an_engine_and_the_others_are_noted_in_their_order() -> None:
    cloud = make_hosted(
        can={"images": False},
        breaker=BreakerView("open", NOW + 5),
        speed=Speed(queue_s=Spread(99.0, 120.0), num_samples=9),
    )
    world = make_world(cloud, budgets=(Budget("day", 0.0),), key=KeyLimits("work", engines=("laptop",)))
    facts = make_facts(
        covers=("laptop",),
        mode="local",
        privacy=PRIVATE,
        offline=True,
        needs=Needs(images=True),
        deadline_s=1.0,
    )

    [removed] = filter(facts, world, SETTINGS).removed

    assert (removed.filter, removed.code) == ("name", "not_asked_for")
    assert list(removed.codes.items()) == [
        ("name", "not_asked_for"),
        ("mode", "mode_local"),
        ("privacy", "private"),
        ("offline", "offline"),
        ("capability", "images"),
        ("breaker", "resting"),
        ("key", "key_engine"),
        ("money", "budget"),
        ("slo", "deadline"),
    ]


def test_the_sentence_is_that_of_the_first_filter() -> None:
    [removed] = filter(make_facts(privacy=PRIVATE, offline=True), make_world(make_hosted()), SETTINGS).removed

    assert removed.codes == {"privacy": "private", "offline": "offline"}
    assert "it holds an email address" in removed.sentence


def test_an_allowed_set_can_only_be_narrowed() -> None:
    allowed = filter(make_facts(), make_world(), SETTINGS)

    assert allowed.without("cloud").engines == ("laptop",)
    assert allowed.without("elsewhere") == allowed


def test_a_request_has_the_last_word_on_the_mode() -> None:
    settings = make_settings(router={"mode": "cheap"})

    assert mode_of(make_facts(), settings) == "cheap"
    assert mode_of(make_facts(mode="quality"), settings) == "quality"


# cases: R24
def test_limits_that_are_not_set_limit_nothing() -> None:
    unlimited = KeyLimits("work", engines=None, tokens_left=None)
    facts = make_facts(max_tokens=None, deadline_s=None, covers=None)

    assert filter(facts, make_world(key=unlimited, budgets=()), SETTINGS).removed == ()
