"""Which prompts are never taken for each other, and that none is ever vetoed against itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.cache.reading import read
from edgecloud.cache.vetoes import compare, is_same, suspicion, veto


def verdict(one: str, other: str) -> str:
    a, b = read(one), read(other)
    difference = compare(a, b)
    return veto(a, b, difference) or suspicion(a, b, difference)


# cases: R49, R64
@pytest.mark.parametrize(
    ("one", "other", "rule"),
    [
        ("Is it safe to swim in Hungary?", "Is it not safe to swim in Hungary?", "negation"),
        ("Is it safe to swim in Hungary?", "Is it dangerous to swim in Hungary?", "negation"),
        ("How do I turn the light on?", "How do I turn the light off?", "negation"),
        ("How can I become a hopeful person?", "How can I become a person who isn't hopeful?", "negation"),
        ("What did she do before becoming a nurse?", "What did she do after becoming a nurse?", "negation"),
        ("Is Ann an actor or an author?", "Is Ann an actor and an author?", "negation"),
        ("How do I install it with pip?", "How do I install it without pip?", "negation"),
        ("Would he reject the offer?", "Would she reject the offer?", "person"),
        ("Will World War 3 happen soon?", "Will World War 4 happen soon?", "numbers"),
        ("Is five miles a long run?", "Is six miles a long run?", "numbers"),
        ("Does it work with or without sugar?", "Does it work with sugar?", "negation"),
        ("What does --max-cost mean here?", "What does --max-heads mean here?", "literals"),
        ("What does parse_args return?", "What does parse_known return?", "literals"),
        ("What is in `a.txt` by default?", "What is in `b.txt` by default?", "literals"),
        ("Are banks open on Monday morning?", "Are banks open on Sunday morning?", "time"),
        ("What is the capital of France?", "What is the capital of Italy?", "names"),
        ("Does Kayla dislike Sara?", "Is Kayla disliked by Sara?", "order"),
        ("Flights from Oslo to Rome", "Flights from Rome to Oslo", "order"),
        ("Does a tax cause inflation?", "Does inflation cause a tax?", "order"),
        ("How does yeast make bread rise?", "Why is my laptop slow?", "nothing shared"),
        ("What is my name?", "Do you know what your name is?", "person"),
        ("When were you born?", "Tell me where you were born.", "question"),
        ("What do you call me?", "Tell me what I should call you.", "order"),
        ("How do I cook rice?", "How do I cook pasta?", "replaced"),
        ("is zachary a photographer?", "is zachary a bad photographer?", "added"),
    ],
)
def test_what_changes_the_answer_is_seen_from_either_side(one: str, other: str, rule: str) -> None:
    assert verdict(one, other) == verdict(other, one) == rule


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("How do I reset my password?", "how do i reset my password"),
        ("Can you please tell me how to cook rice?", "How to cook rice"),
        ("Is Ann an actor or an author?", "Is Ann an author or an actor?"),
        ("What is my card's limit and your fee?", "What is your fee and my card's limit?"),
        ("Is my card like your card?", "Is your card like my card?"),
        ("What does a visa cost, please tell me?", "What would a visa cost you?"),
        ("What should I call you?", "Can you tell me what to call you?"),
        ("Can you find out what hours banks keep?", "Find me the hours that banks keep."),
        ("Did Ann steal the old rifle?", "Was the old rifle stolen by Ann?"),
        ("How can I be an unhappy person?", "How can I be a person who is not happy?"),
        ("Is Ann married to Bob?", "Is Bob married to Ann?"),
        ("How can I become less modest?", "How can I become less humble?"),
        ("My card has not arrived yet, what can I do?", "What can I do, my card hasn't arrived yet?"),
        ("Where are the States in session?", "Where are the states in session?"),
    ],
)
def test_what_says_the_same_passes(one: str, other: str) -> None:
    assert verdict(one, other) == verdict(other, one) == ""


WORDS = """is the not Ann Bob's 5 five before after he she don't `x` --flag and or by stolen Rome? "a b" U.S.
    hopeful unhappy Monday x_y really states State's 3rd with without"""
PROMPTS = st.lists(
    st.sampled_from(WORDS.split()) | st.text(max_size=8),
    max_size=12,
).map(" ".join)


@given(PROMPTS)
def test_no_text_is_vetoed_against_itself(text: str) -> None:
    assert is_same(read(text), read(text))
    assert verdict(text, text) == ""


@given(PROMPTS, PROMPTS)
def test_every_rule_is_symmetric(one: str, other: str) -> None:
    assert verdict(one, other) == verdict(other, one)
