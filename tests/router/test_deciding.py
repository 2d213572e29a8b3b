"""Filter and rank together, on worlds that nobody thought of."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecloud.errors import EdgeCloudError
from edgecloud.router import filter as filter_module
from edgecloud.router.decision import Allowed, Decision, Neighbour
from edgecloud.router.explain import explain
from edgecloud.router.facts import Privacy, PrivacyReason
from edgecloud.router.filter import FILTERS, filter
from edgecloud.router.priors import PriorQuality
from edgecloud.router.privacy import ASKED, PINNED
from edgecloud.router.rank import order, rank
from edgecloud.router.refusal import refusal, wait_s
from edgecloud.router.world import Budget
from edgecloud.wire.native import dump_record, load_record

from .random_worlds import Case, drawn
from .worlds import NOW, SETTINGS, FixedQuality, make_facts, make_hosted, make_local, make_world

MANY = settings(max_examples=300, deadline=None)
CASES = st.integers(0, 2**32 - 1).map(drawn)


@MANY
@given(CASES)
def test_every_engine_is_either_allowed_or_removed_for_a_reason(case: Case) -> None:
    facts, world, configured = case
    allowed = filter(facts, world, configured)

    names = [view.name for view in world.engines]
    assert sorted([*allowed.engines, *(entry.engine for entry in allowed.removed)]) == sorted(names)
    assert all(entry.code and entry.sentence.startswith(entry.engine) for entry in allowed.removed)


@MANY
@given(CASES, st.integers(0, len(FILTERS)))
def test_each_filter_only_shrinks_the_set(case: Case, count: int) -> None:
    facts, world, configured = case
    before = filter_module.FILTERS
    filter_module.FILTERS = before[:count]
    try:
        fewer = set(filter(facts, world, configured).engines)
    finally:
        filter_module.FILTERS = before

    assert set(filter(facts, world, configured).engines) <= fewer


@MANY
@given(CASES)
def test_a_stricter_request_never_gains_an_engine(case: Case) -> None:
    facts, world, configured = case
    allowed = set(filter(facts, world, configured).engines)
    here = {view.name for view in world.engines if view.local}

    for stricter in (replace(facts, private=True), replace(facts, offline=True)):
        assert set(filter(stricter, world, configured).engines) == allowed & here
    assert set(filter(replace(facts, deadline_s=0.05), world, configured).engines) <= allowed
    assert (
        set(filter(facts, replace(world, budgets=(*world.budgets, Budget("day", 0.0))), configured).engines)
        <= allowed
    )


# cases: R40
@MANY
@given(CASES)
def test_a_disallowed_engine_is_nowhere_in_a_decision(case: Case) -> None:
    facts, world, configured = case
    allowed = filter(facts, world, configured)
    if not allowed.engines:
        return

    decision = rank(facts, allowed, world, PriorQuality(), configured)

    candidates = [candidate.engine for candidate in decision.candidates]
    assert sorted(candidates) == sorted(allowed.engines)
    assert set(decision.recipients) <= set(allowed.engines)
    if decision.cascade is not None:
        assert candidates[:2] == [decision.cascade.draft, decision.cascade.escalate]
    if facts.local_only or facts.offline:
        assert decision.recipients == ()


@MANY
@given(CASES)
def test_a_decision_can_be_replayed_from_what_was_kept(case: Case) -> None:
    facts, world, configured = case

    def through_json(value: Any) -> Any:
        return load_record(type(value), json.loads(json.dumps(dump_record(value), allow_nan=False)))

    assert through_json(facts) == facts
    assert through_json(world) == world
    allowed = filter(facts, world, configured)
    assert filter(through_json(facts), through_json(world), configured) == allowed
    assert through_json(allowed) == allowed
    if allowed.engines:
        decision = rank(facts, allowed, world, PriorQuality(), configured)
        assert through_json(decision) == decision
        assert rank(through_json(facts), allowed, through_json(world), PriorQuality(), configured) == decision
        assert all(line.endswith(".") for line in explain(through_json(decision)))


@MANY
@given(CASES)
def test_an_empty_set_is_always_one_error_that_names_every_engine(case: Case) -> None:
    facts, world, configured = case
    allowed = filter(facts, world, configured)
    if allowed.engines:
        return

    error = refusal(facts, allowed, world)

    assert isinstance(error, EdgeCloudError)
    assert error.status in (400, 402, 403, 503, 504)
    asked_for = [entry for entry in allowed.removed if entry.filter != "name"]
    assert all(f"{entry.engine}=" in str(error.extra["removed"]) for entry in asked_for)
    if wait_s(facts, allowed, world, configured) is not None:
        assert error.status == 503
    # 400 is for what no engine could have done, whatever else held them.
    assert (error.status == 400) == (
        bool(asked_for) and all("capability" in entry.codes for entry in asked_for)
    )


@pytest.mark.parametrize("num_engines", [1, 8])
def test_an_engine_is_estimated_once_a_decision(num_engines: int) -> None:
    world = make_world(*(make_hosted(f"e{number}") for number in range(num_engines)))
    quality = FixedQuality({view.name: 0.5 for view in world.engines})

    rank(make_facts(), filter(make_facts(), world, SETTINGS), world, quality, SETTINGS)

    assert len(quality.asked) == num_engines


def test_a_decision_is_made_before_anything_is_looked_up_to_explain_it() -> None:
    world = make_world(make_local(), make_hosted())
    quality = FixedQuality({view.name: 0.5 for view in world.engines})
    facts, allowed = make_facts(), filter(make_facts(), world, SETTINGS)

    ranking = order(facts, allowed, world, quality, SETTINGS)

    assert not ranking.decision.counterfactuals
    assert ranking.explained().counterfactuals
    told = replace(ranking.explained(), neighbours=(), counterfactuals=())
    assert told == ranking.decision
    assert ranking.explained() == rank(facts, allowed, world, quality, SETTINGS)


def test_every_line_of_an_explanation_is_a_sentence_about_the_numbers() -> None:
    facts = make_facts(
        num_prompt_tokens={"laptop": 900, "cloud": 950, "tiny": 930},
        privacy=Privacy(False, (PrivacyReason("rule:names", "it holds a name"),)),
    )
    world = make_world(
        make_local(),
        make_hosted(),
        make_local("tiny", context=512),
        budgets=(Budget("day", 1.0, spent=0.6, starts_at=NOW - 50, ends_at=NOW + 50),),
    )
    quality = FixedQuality(
        {"laptop": (0.2, 0.3, 0.4), "cloud": (0.7, 0.8, 0.9)},
        [
            Neighbour("mmlu-17", 0.83, {"small": 0.0, "large": 1.0}),
            Neighbour("llmrouter-5", 0.5, dict(zip("abcd", [0.9, 0.4, 0.0, 0.0], strict=True))),
            Neighbour("llmrouter-6", 0.48, dict(zip("abcd", [1.0, 0.0, 1.0, 0.5], strict=True))),
            Neighbour("llmrouter-7", 0.45, dict.fromkeys("abcd", 0.0)),
        ],
    )

    text = "\n".join(explain(rank(facts, filter(facts, world, SETTINGS), world, quality, SETTINGS)))

    assert text.splitlines()[0] == "cloud was tried first: more likely right (80% against 30%) than laptop."
    assert "1. cloud: right with 80% (70% to 90%, the test), gain +50%, utility 0.0" in text
    assert "Taken by capability (context): tiny holds 512 tokens; the prompt has 930" in text
    assert "   It costs 0.00395 USD (at most 0.0347), first token 1.9 s (P90 3.9 s), whole 10.4 s" in text
    assert "It might leave this machine for cloud." in text
    assert "money counted 2.00 times (price of the budget 1.00)" in text
    assert "Near this question (similarity 0.83): mmlu-17, scores small 0, large 1." in text
    assert "llmrouter-5, 1 of 4 models right, right a." in text
    assert "llmrouter-6, 3 of 4 models right, wrong b." in text
    assert "llmrouter-7, 0 of 4 models right." in text
    assert "Kept on this machine" not in text
    assert "It would have been laptop if the price of the budget were above" in text
    assert "tiny could have been asked if the prompt were 674 tokens shorter." in text


def test_an_explanation_says_nothing_that_decided_nothing_and_keeps_its_lines_short() -> None:
    world = make_world(make_local(), make_hosted())
    many = dict(
        zip([f"a-model-with-a-long-name-{number}" for number in range(9)], [1.0] * 4 + [0.0] * 5, strict=True)
    )
    quality = FixedQuality(
        {"laptop": (0.2, 0.3, 0.4), "cloud": (0.7, 0.8, 0.9)},
        [Neighbour("llmrouter-5", 0.41, many), Neighbour("llmrouter-6", 0.39, many)],
    )
    facts = make_facts()
    lines = explain(rank(facts, filter(facts, world, SETTINGS), world, quality, SETTINGS))

    assert max(map(len, lines)) <= 110
    assert [line for line in lines if line.startswith("Near")] == [
        "Near this question (similarity 0.41): llmrouter-5, 4 of 9 models right."
    ]
    assert not any(line.startswith(("The budget", "Spending")) for line in lines)


def test_of_the_only_one_no_chance_is_told_that_nobody_looked_for() -> None:
    named = make_facts(covers=("cloud",))
    alone = make_world(make_local())
    world = make_world()
    lines = explain(rank(named, filter(named, world, SETTINGS), world, PriorQuality(), SETTINGS))
    assert lines[0] == "cloud was tried first: asked for by name."
    assert lines[2].startswith("1. cloud: costs 0.0")
    lines = explain(
        rank(make_facts(), filter(make_facts(), alone, SETTINGS), alone, PriorQuality(), SETTINGS)
    )
    assert lines[0] == "laptop was tried first: the only engine there is."
    assert not any("right with" in line for line in lines)


def test_a_wish_reads_as_one() -> None:
    facts = make_facts(privacy=Privacy(True, (ASKED, PINNED)))
    lines = explain(
        rank(facts, filter(facts, make_world(), SETTINGS), make_world(), PriorQuality(), SETTINGS)
    )
    assert "Kept on this machine: you asked for it, the chat is pinned to this machine." in lines


def test_an_explanation_of_a_private_request_says_what_kept_it() -> None:
    facts = make_facts(privacy=Privacy(True, (PrivacyReason("pii:id", "it holds an identity number"),)))
    world = make_world()
    allowed = filter(facts, world, SETTINGS)

    lines = explain(rank(facts, allowed, world, PriorQuality(), SETTINGS))

    assert "Kept on this machine: pii:id." in lines
    assert "Nothing left this machine." in lines


def test_a_draft_is_explained() -> None:
    world = make_world()
    quality = FixedQuality({"laptop": (0.4, 0.65, 0.85), "cloud": 0.75})

    lines = explain(rank(make_facts(), filter(make_facts(), world, SETTINGS), world, quality, SETTINGS))

    assert any(line.startswith("laptop drafts; its first 28 tokens are shown if") for line in lines)


def test_a_record_of_another_version_is_not_guessed_at() -> None:
    kept = dump_record(Allowed(("a",)))

    with pytest.raises(EdgeCloudError, match="Allowed"):
        load_record(Allowed, {**kept, "colour": "red"})
    with pytest.raises(EdgeCloudError, match="Decision"):
        load_record(Decision, kept)
