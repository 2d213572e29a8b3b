"""Drafts: by form, then by the logprobs of their first tokens."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.router.acceptance import CENTRE, Draft, chance, judge
from edgecloud.router.decision import Estimate

BEFORE = Estimate(0.65, 0.4, 0.85, "the test")
SURE = (-0.05,) * 28
GOOD = "The capital of France is Paris, which lies on the Seine and has"


def test_a_sure_draft_of_good_form_is_shown() -> None:
    verdict = judge(Draft(GOOD, SURE), BEFORE, 0.6)

    assert verdict.accepted
    assert verdict.objection is None
    assert verdict.p_ok > BEFORE.mean


def test_an_unsure_draft_is_not() -> None:
    verdict = judge(Draft(GOOD, (-0.9,) * 28), BEFORE, 0.6)

    assert (verdict.accepted, verdict.objection) == (False, "unsure")
    assert verdict.p_ok < 0.6


def test_the_floor_itself_is_enough() -> None:
    draft = Draft(GOOD, SURE)
    p_ok = judge(draft, BEFORE, 0.0).p_ok

    assert judge(draft, BEFORE, p_ok).accepted
    assert not judge(draft, BEFORE, math.nextafter(p_ok, 1)).accepted


@pytest.mark.parametrize(
    ("text", "objection"),
    [
        ("", "empty"),
        (" \n\n \t", "empty"),
        ("I'm sorry, but I can't help with that.", "refusal"),
        ("I am unable to", "refusal"),
        ("As an AI language model, I", "refusal"),
        ("Unfortunately, I do not have access to", "refusal"),
        ("抱歉，我无法回答这个问题。", "refusal"),
        ("作为一个人工智能，我", "refusal"),
        ("the cat the cat the cat the cat the cat", "loop"),
        ("好的好的好的好的好的", "loop"),
        ("No. No. No. No. No. No.", "loop"),
    ],
)
def test_bad_form_is_never_made_good_by_logprobs(text: str, objection: str) -> None:
    verdict = judge(Draft(text, (0.0,) * 28), Estimate(0.99, 0.9, 1.0, "the test"), 0.1)

    assert (verdict.accepted, verdict.objection) == (False, objection)


@pytest.mark.parametrize(
    "text",
    [
        "-----------------------------",
        "| a | b |\n|---|---|---|---|---|\n| 1 | 2 |",
        "1000000000000000",
        "I can do that. Sorry is a word of",
        "Sorry! is the name of a board game",
        "I know that as an example",
        "我可以回答",
    ],
)
def test_what_only_looks_like_a_loop_or_a_refusal_is_shown(text: str) -> None:
    assert judge(Draft(text, SURE), BEFORE, 0.6).accepted


@pytest.mark.parametrize(("text", "accepted"), [('{"a": 1', True), (" [1", True), ("Sure! {", False)])
def test_an_answer_that_has_to_be_json_begins_like_it(text: str, accepted: bool) -> None:
    assert judge(Draft(text, SURE), BEFORE, 0.6, json=True).accepted is accepted
    assert judge(Draft(text, SURE), BEFORE, 0.6).accepted


def test_a_draft_at_the_centre_says_nothing() -> None:
    assert chance(0.65, (CENTRE,) * 5) == pytest.approx(0.65)
    assert chance(0.65, ()) == pytest.approx(0.65)


def test_one_token_that_a_grammar_forced_does_not_decide() -> None:
    assert chance(0.65, (*SURE, -math.inf)) > 0.1


@given(
    st.floats(0, 1),
    st.lists(st.floats(max_value=0, allow_nan=False), min_size=1, max_size=40),
    st.floats(0, 3),
)
def test_a_chance_is_one_and_grows_with_the_logprobs(
    before: float, logprobs: list[float], more: float
) -> None:
    lower = chance(before, logprobs)

    assert 0 <= lower <= 1
    assert lower <= chance(before, [one + more for one in logprobs])
