"""Where seams stand: at their place in prose, after code and tables, and nowhere twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.app.chats import Seam
from edgecloud.app.tui.state.seams import placed

CODE = "Look:\n\n```python\nx = 1\ny = 2\n```\n\nSo."
TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n"


def seam(position: int) -> Seam:
    return Seam(position, f"at {position}")


@pytest.mark.parametrize(
    ("text", "positions", "pieces"),
    [
        ("Seven minutes.", [7], ["Seven m", seam(7), "inutes."]),
        ("Seven minutes.", [0], [seam(0), "Seven minutes."]),
        ("Seven minutes.", [14], ["Seven minutes.", seam(14)]),
        ("", [0], [seam(0)]),
        ("One.\n\nTwo.", [4, 8], ["One.", seam(4), "\n\nTw", seam(8), "o."]),
        (CODE, [20], [CODE[:-3], seam(20), "So."]),
        (CODE, [7], [CODE[:7], seam(7), CODE[7:]]),
        (TABLE, [15], [TABLE, seam(15)]),
        ("- one\n- two\n", [9], ["- one\n- t", seam(9), "wo\n"]),
    ],
)
def test_a_seam_stands_where_it_happened(text: str, positions: list[int], pieces: list[str | Seam]) -> None:
    assert placed(text, [seam(position) for position in positions]) == pieces


MARKDOWN = st.lists(
    st.sampled_from(["word ", "\n", "\n\n", "```\n", "| a | b |\n", "|---|---|\n", "- ", "# "]), max_size=20
).map("".join)


@given(MARKDOWN, st.lists(st.integers(0, 120), max_size=4))
def test_no_word_and_no_seam_is_lost(text: str, positions: list[int]) -> None:
    seams = [seam(position) for position in positions]
    pieces = placed(text, seams)

    assert "".join(piece for piece in pieces if isinstance(piece, str)) == text
    assert [piece for piece in pieces if isinstance(piece, Seam)] == sorted(
        seams, key=lambda seam: seam.position
    )
