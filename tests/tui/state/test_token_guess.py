"""How many tokens a text may be, by its characters."""

from __future__ import annotations

import pytest

from edgecloud.app.tui.state.token_guess import SAMPLE, guess


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("".join(f"line {number} of my paste\n" for number in range(1, 61)) + " summarise", 473),
        ("What is the capital of France?", 7),
        ("今日は天気がいいですね", 11),
        ("", 0),
    ],
)
def test_it_is_near_what_a_tokenizer_counts(text: str, counted: int) -> None:
    assert abs(guess(text) - counted) <= counted / 8


def test_a_long_text_is_guessed_by_its_beginning() -> None:
    beginning = "a word or two " * (SAMPLE // 14)
    assert guess(beginning * 100) == pytest.approx(100 * guess(beginning), rel=0.01)
