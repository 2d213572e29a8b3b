"""Where text is cut short, and where it isn't."""

from __future__ import annotations

import pytest

from edgecloud.shorten import boundary, one_line


@pytest.mark.parametrize(
    ("text", "most", "line"),
    [
        ("", 5, ""),
        ("short", 5, "short"),
        (" a  line\nor\ttwo ", 20, "a line or two"),
        ("a line that is too long", 10, "a line th…"),
        ("one two three", 9, "one two…"),
    ],
)
def test_a_line_has_the_first_words(text: str, most: int, line: str) -> None:
    assert one_line(text, most) == line


@pytest.mark.parametrize(
    "whole",
    ["e\u0301", "नि", "ก็", "👩‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "🇩🇪", "🏴\U000e0067\U000e0062\U000e007f", "❤️"],
)
def test_nothing_is_cut_in_two(whole: str) -> None:
    text = f"x{whole}{whole}y"
    whole_ones = {0, 1, 1 + len(whole), 1 + 2 * len(whole), len(text)}

    assert {boundary(text, at) for at in range(len(text) + 1)} == whole_ones
    for most in range(2, len(text)):
        assert one_line(text, most).removesuffix("…") in ("x", f"x{whole}", f"x{whole}{whole}")


def test_text_of_nothing_but_marks_ends() -> None:
    assert one_line("\u0301" * 50, 10) == "…"
