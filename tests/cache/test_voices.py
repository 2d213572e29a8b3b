"""What the neighbours' answers say of a candidate."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.cache.agreement import Gist, agree, agree_by, gist_of
from edgecloud.cache.answers import AnswerCache
from edgecloud.cache.reading import read
from edgecloud.cache.same import shipped
from edgecloud.cache.voices import Voice, balances

from .building import WHO, at, hit, make_answer, make_cache, make_key

FORGOT = "I forgot my password, how can I reset it?"
AROUND = (
    "Help me to change a forgotten password of mine",
    "I want a new password, the old one is forgotten",
    "Which steps lead to a new password for me?",
    "My password is gone, where do I get a new login?",
    "How do I reset my password?",
)
PROSE = "Rayleigh scattering sends short waves of light from the sun in every direction across the air above."
OTHER_PROSE = "Molecules in the air deflect light; short waves most, and eyes hardly see violet at all in it."


def voices(*said: str, answerer: str = WHO) -> list[Voice]:
    return [Voice(0.8, answerer, gist_of(text)) for text in said]


def test_answers_that_agree_speak_for_each_other_and_others_against() -> None:
    assert balances(voices("42"))[0] == 0
    assert 0 < balances(voices("42", "42"))[0] < balances(voices("42", "42", "42"))[0]
    assert balances(voices("42", "43", "43"))[0] < balances(voices("42", "43"))[0] < 0
    assert balances(voices("42", "42", "43"))[0] == pytest.approx(0)


def test_the_nearer_a_neighbour_the_louder() -> None:
    mine, contrary = voices("42", "43")
    loudness = [balances([mine, contrary._replace(cosine=cosine)])[0] for cosine in (0.3, 0.6, 0.8, 0.9)]
    assert loudness == sorted(loudness, reverse=True)
    assert loudness[0] > -0.01
    far, near = balances([mine, contrary._replace(cosine=0.9)])
    assert far < near < 0


def test_the_doubtful_another_model_and_what_has_no_gist_are_silent() -> None:
    assert agree(PROSE, OTHER_PROSE) is None
    assert balances(voices(PROSE, OTHER_PROSE))[0] == 0
    assert balances([*voices("42"), *voices("43", answerer="pool:larger")])[0] == 0
    assert balances([*voices("42"), Voice(0.8, WHO, None)])[0] == 0
    assert balances([Voice(0.8, WHO, None), *voices("42")])[0] == 0


TEXTS = st.text(max_size=40) | st.sampled_from(["Yes.", "No, never.", "42", "é 3.5 km", PROSE, OTHER_PROSE])


@given(TEXTS, TEXTS)
def test_a_gist_comes_back_from_the_disk_and_compares_as_the_text(one: str, other: str) -> None:
    gist = gist_of(one)
    assert Gist.unpack(gist.pack()) == gist
    assert agree_by(Gist.unpack(gist.pack()), gist_of(other)) is agree(one, other) is agree(other, one)
    assert agree(one, one) is True


def test_long_answers_that_only_end_differently_are_not_the_same_words() -> None:
    assert gist_of("word " * 1000).digest != gist_of("word " * 1000 + "end").digest


# ---------------------------------------------------------------------------------------- in the cache


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.db"


def fill(cache: AnswerCache, *answers: str) -> None:
    """Keep prompts around the one asked, all of them equally near."""
    for prompt, answer in zip(AROUND, answers, strict=False):
        assert cache.store(make_key(prompt), at(0.86), make_answer(answer))[0] is not None


@pytest.mark.parametrize(
    ("answers", "served"),
    [
        (["Use the link."], False),
        (["Use the link."] * 5, True),
        (["Use the link."] * 3 + ["Call 555"] * 2, False),
    ],
    ids=["alone", "agreeing", "contrary"],
)
def test_a_prompt_among_ones_of_one_answer_gets_it(path: Path, answers: list[str], served: bool) -> None:
    cache = make_cache(path)
    fill(cache, *answers)

    assert (hit(cache, FORGOT) is not None) is served
    cache.close()


def test_neighbours_raise_doubts_and_never_lift_them() -> None:
    asked, kept = read("How do I reset my router?"), read("How do I reset my password?")
    silent, agreeing, contrary = (
        shipped().judge(asked, kept, 0.9, balance=balance) for balance in (0.0, 3.0, -3.0)
    )
    assert silent.suspicion == "replaced"
    assert agreeing == silent
    assert contrary.logit < silent.logit


def test_neighbours_are_not_asked_about_the_same_words() -> None:
    asked, kept = read("How do I reset it?"), read("how do I reset it")
    assert shipped().judge(asked, kept, 1.0, balance=-5.0) == shipped().judge(asked, kept, 1.0)


def test_what_was_kept_before_gists_is_silent_and_still_served(path: Path) -> None:
    cache = make_cache(path)
    fill(cache, *["Use the link."] * 5)
    cache.close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE answers SET gist = NULL")
    connection.close()

    cache = make_cache(path)
    assert hit(cache, FORGOT) is None
    assert hit(cache, AROUND[0]) is not None
    cache.close()
