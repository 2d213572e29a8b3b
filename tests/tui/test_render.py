"""Markdown as lines on a screen."""

from __future__ import annotations

import pytest
from textual.content import Content

from edgecloud.app.tui.render.lines import Line, lay_out
from edgecloud.app.tui.render.markdown import Code, Prose, render
from edgecloud.app.tui.render.table import column_widths


def rows(markdown: str, width: int = 40) -> list[str]:
    """What stands on the screen."""
    drawn = []
    for piece in render(markdown):
        assert isinstance(piece, Prose)
        drawn += [(row.prefix + row.content).plain for row in lay_out(piece.items, width)[0]]
    return drawn


def test_a_list_hangs_and_nests() -> None:
    assert rows("- one two three four\n  1. inner\n- last", 12) == [
        "• one two",
        "  three four",
        "  1. inner",
        "• last",
    ]


def test_numbers_begin_where_the_list_does_and_stand_right() -> None:
    assert rows("9. nine\n10. ten") == [" 9. nine", "10. ten"]


def test_the_lines_of_a_poem_stay_lines_in_a_list_and_in_bold_too() -> None:
    assert rows("Rain on the *roof\nall* night.\n\n- Ada\n  12 High Street\n\n> one\n> two") == [
        "Rain on the roof",
        "all night.",
        "",
        "• Ada",
        "  12 High Street",
        "",
        "▎ one",
        "▎ two",
    ]


def test_task_items_have_boxes() -> None:
    assert rows("- [x] done\n- [ ] not") == ["☑ done", "☐ not"]


def test_wide_characters_count_as_two_cells() -> None:
    table = rows("| a | b |\n|---|---|\n| 日本 | x |\n| ab | y |")

    assert table == ["a    │ b", "─────┼──", "日本 │ x", "ab   │ y"]


def test_no_row_is_wider_than_the_screen() -> None:
    wide = "| " + " | ".join(["a long cell of words"] * 4) + " |"
    markdown = f"{wide}\n{'|---' * 4}|\n{wide}\n\n> " + "日本語 " * 40 + "\n\n- " + "word " * 60

    for width in (20, 40, 80):
        for piece in render(markdown):
            for row in lay_out(piece.items, width)[0]:  # type: ignore[union-attr]
                assert (row.prefix + row.content).cell_length <= width


def test_more_columns_than_fit_become_records() -> None:
    header = "| " + " | ".join(f"column{number}" for number in range(8)) + " |"
    table = f"{header}\n{'|---' * 8}|\n{header.replace('column', 'value of a cell ')}"

    assert rows(table, 30)[0] == "column0: value of a cell 0"


@pytest.mark.parametrize(
    ("natural", "room", "widths"),
    [
        ([3, 4], 20, [3, 4]),
        ([3, 40], 20, [3, 17]),
        ([30, 40, 2], 32, [15, 15, 2]),
        ([9, 9, 9, 9], 12, None),
    ],
)
def test_narrow_columns_stay_and_wide_ones_share(
    natural: list[int], room: int, widths: list[int] | None
) -> None:
    assert column_widths(natural, room) == widths


def test_a_link_says_where_it_leads() -> None:
    assert rows("[a bank](http://evil.example/x)") == ["a bank (http://evil.example/x)"]
    assert rows("<http://a.example>") == ["http://a.example"]


def test_code_keeps_its_language_and_every_character() -> None:
    (code,) = render("```Python title=x\n\n  a\tb\n\n```\n")

    assert code == Code("Python", "\n  a\tb\n")


def test_html_and_markup_are_text() -> None:
    assert rows("<b>[red]x[/red]</b>") == ["<b>[red]x[/red]</b>"]


def test_a_wrapped_row_knows_where_it_came_from() -> None:
    line = Line(Content("alpha beta  gamma delta"))

    pieces = line.layout(12)[0]

    assert [line.content.plain[row.x : row.x + len(row.content.plain)] for row in pieces] == [
        row.content.plain for row in pieces
    ]
    assert len(pieces) == 2


def test_folded_code_loses_no_space() -> None:
    line = Line(Content("a" * 9 + "   " + "b" * 9), wrap="fold")

    assert "".join(row.content.plain for row in line.layout(10)[0]) == line.content.plain
