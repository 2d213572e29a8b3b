"""The small parts: languages, agreement of answers, the index, and how an answer is packed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.cache.agreement import agree
from edgecloud.cache.index import CodeTable, encode
from edgecloud.cache.language import language_of
from edgecloud.cache.records import text_of
from edgecloud.cache.replay import pack, text_in, unpack
from edgecloud.types import Notice, ReasoningDelta, TextDelta, TokenLogprob, TopLogprob

from .building import make_events, make_vector


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Why is the sky blue?", "en"),
        ("explain monads to me", "en"),
        ("Warum ist der Himmel blau?", "de"),
        ("Pourquoi le ciel est-il bleu ?", "fr"),
        ("¿Por qué el cielo es azul?", "es"),
        ("天空为什么是蓝色的", "zh"),
        ("なぜ空は青いのですか", "ja"),
        ("Почему небо голубое?", "ru"),
        ("translate 天空为什么是蓝色的 into English", ""),
        ("12345", ""),
        ("", ""),
    ],
)
def test_languages(text: str, language: str) -> None:
    assert language_of(text) == language


@pytest.mark.parametrize(
    ("one", "other", "cosine", "same"),
    [
        ("Paris.", "paris", None, True),
        ("Paris", "Rome", None, False),
        ("It is 42 metres tall.", "It is 43 metres tall.", None, False),
        ("Yes, it is safe to eat.", "No, it is not safe to eat.", None, False),
        ("The capital of France is Paris.", "Paris is the capital of France.", None, True),
        ("是法国的首都巴黎。", "法国的首都是巴黎。", None, True),
        ("可以安全食用。", "不可以安全食用。", None, False),
        ("法国的首都是巴黎。", "水在一百度沸腾。", None, False),
        ("word " * 20 + "one", "other " * 20 + "two", 0.4, False),
    ],
)
def test_whether_two_answers_agree(one: str, other: str, cosine: float | None, same: bool) -> None:
    assert agree(one, other, cosine) is agree(other, one, cosine) is same


def test_doubtful_answers_teach_nothing() -> None:
    one = (
        "Rayleigh scattering sends short waves of light from the sun in every direction across the air above."
    )
    other = "Molecules in the air deflect light; short waves are deflected most, and eyes hardly see violet."
    assert agree(one, other) is None
    assert agree(one, other, 0.93) is True
    assert agree(one, other, 0.3) is False


def test_the_nearest_are_found_among_thousands() -> None:
    table = CodeTable(6)
    for number in range(1, 3001):
        table.add(number, encode(make_vector(seed=number)))
    assert len(table) == table.newest == 3000

    for number in (1, 1500, 3000):
        assert number in table.nearest(encode(make_vector(0.9, seed=number)))
    assert len(table.nearest(encode(make_vector(seed=1)), limit=10)) == 10


def test_the_nearest_come_in_order_and_of_equals_the_newest() -> None:
    table = CodeTable(1)
    for number, differing in enumerate([1, 0, 7, 1, 1, 3], start=1):
        table.add(number, bytes([2**differing - 1, *[0] * 7]))
    nothing = bytes(8)

    assert CodeTable(1).nearest(nothing) == []
    assert table.nearest(nothing, limit=3) == [2, 5, 4]
    assert table.nearest(nothing, limit=99) == [2, 5, 4, 1, 6, 3]


def test_a_code_is_a_bit_per_dimension_in_whole_words() -> None:
    vector = np.array([1.0, -1.0, 0.5, -0.5, -1, -1, -1, 1, 1], np.float32)
    assert encode(vector) == bytes([0b10100001, 0b10000000, 0, 0, 0, 0, 0, 0])


# cases: R59
def test_an_answer_comes_back_piece_by_piece() -> None:
    token = TokenLogprob("é", -0.5, b"\xc3", 7, (TopLogprob("e", -1.0, b"e", 8),))
    start, *rest = make_events("Light scatters in the air.")
    events = (start, ReasoningDelta("hm"), *rest[:1], TextDelta("é", logprobs=(token,)), *rest[1:])

    packed = pack((events[0], Notice("loading", "…"), *events[1:]))
    assert unpack(packed) == events
    assert text_in(packed) == text_of(events)


@given(st.lists(st.tuples(st.text() | st.just("\ud800\n"), st.integers(0, 1)), max_size=5))
def test_the_text_of_a_packed_answer_is_that_of_its_events(deltas: list[tuple[str, int]]) -> None:
    start, *rest = make_events()
    events = (start, *(TextDelta(text, index=index) for text, index in deltas), *rest)
    assert text_in(pack(events)) == text_of(events)
