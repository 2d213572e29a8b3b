"""What is read fast is a paste, whatever the terminal says of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.app.tui.state.bursts import BEGIN, END, Bursts, shortest_paste

FAST, SLOW, LATE = 0.001, 0.02, 0.2


def read(*pieces: str | tuple[float, str], shortest: int = 12) -> str:
    """What is read of pieces that come after their pauses, until nothing more comes."""
    bursts, now, out = Bursts(shortest), 0.0, ""
    for piece in pieces:
        pause, data = piece if isinstance(piece, tuple) else (FAST, piece)
        if pause >= LATE:
            out += bursts.tick(now + pause / 2)
        now += pause
        out += bursts.take(data, now)
    return out + bursts.tick(now + LATE)


@pytest.mark.parametrize(
    ("pieces", "meant"),
    [
        (["first line\rsecond"], f"{BEGIN}first line\rsecond{END}"),
        (["first line\rsecond\r"], f"{BEGIN}first line\rsecond\r{END}"),
        (["first line\rsec", "ond\r", (SLOW, "third\r")], f"{BEGIN}first line\rsecond\rthird\r{END}"),
        (["the first line\r", "second\r"], f"the first line{BEGIN}\rsecond\r{END}"),
        (["the first line\r\r", "second"], f"the first line{BEGIN}\r\rsecond{END}"),
        (list("letter by letter\rs"), f"letter by letter{BEGIN}\rs{END}"),
        (["first line\rsecond", (LATE, "\r")], f"{BEGIN}first line\rsecond{END}\r"),
    ],
)
def test_letters_that_go_on_after_an_enter_are_marked(pieces: list[str], meant: str) -> None:
    assert read(*pieces) == meant


@pytest.mark.parametrize(
    "pieces",
    [
        ["one\rtwo\r"],
        ["a whole prompt at once\r"],
        ["a whole prompt at once\r", (LATE, "next")],
        ["h", (LATE, "i"), (LATE, "\r")],
        [*((SLOW, letter) for letter in "typed fast\rand on")],
        ["a whole prompt at once\r", "\x11"],
        ["\x1b[A\x1b[B\rlonger than twelve"],
        [f"{BEGIN}first line\rsecond", " line\rthird line", f"\rend{END}"],
        [f"{BEGIN}first line\rsecond line\x1b[20", "1~", "typed"],
    ],
)
def test_what_is_typed_or_marked_already_is_left_alone(pieces: list[str]) -> None:
    whole = "".join(piece if isinstance(piece, str) else piece[1] for piece in pieces)

    assert read(*pieces) == whole


def test_an_enter_that_ends_a_burst_waits_until_it_is_sure() -> None:
    bursts = Bursts(12)

    assert bursts.take("a whole prompt\r", 0.0) == "a whole prompt"
    assert bursts.tick(0.01) == ""
    assert bursts.tick(0.06) == "\r"
    assert bursts.tick(0.2) == ""


@pytest.mark.parametrize(
    ("environment", "shortest"),
    [
        ({"TERM": "xterm-256color"}, 12),
        ({"TERM": "linux"}, 2),
        ({"TERM": "screen", "STY": "1.tty"}, 2),
        ({"TERM": "screen-256color", "TMUX": "x"}, 12),
        ({}, 2),
    ],
)
def test_a_terminal_that_never_marks_has_short_pastes(environment: dict[str, str], shortest: int) -> None:
    assert shortest_paste(environment) == shortest


PIECES = st.lists(
    st.tuples(st.sampled_from([FAST, SLOW, LATE]), st.text("ab\r\x1b\x03é", min_size=1, max_size=9)),
    max_size=12,
)


@given(PIECES, st.sampled_from([2, 12]))
def test_nothing_is_lost_nor_said_twice_and_every_mark_has_its_other(
    pieces: list[tuple[float, str]], shortest: int
) -> None:
    out = read(*pieces, shortest=shortest)

    marks = [mark for mark in out.replace(BEGIN, "<").replace(END, ">") if mark in "<>"]
    assert out.replace(BEGIN, "").replace(END, "") == "".join(data for _, data in pieces)
    assert marks == ["<", ">"] * (len(marks) // 2)


@pytest.mark.parametrize(
    ("pieces", "meant"),
    [
        (["hey explore more"], f"{BEGIN}hey explore more{END}"),
        (["hey explore more\r"], f"{BEGIN}hey explore more{END}"),
        (["h", "ey"], f"h{BEGIN}ey{END}"),
        (["jjj"], "jjj"),
        (["r", "\r"], "r\r"),
    ],
)
def test_words_that_come_at_once_are_text_where_letters_are_commands(pieces: list[str], meant: str) -> None:
    bursts, now, out = Bursts(12), 0.0, ""
    for piece in pieces:
        now += FAST
        out += bursts.take(piece, now, letters_act=True)
    assert out + bursts.tick(now + LATE) == meant


def test_letters_one_by_one_are_commands_where_they_are() -> None:
    bursts = Bursts(12)
    assert (
        "".join(bursts.take(letter, SLOW * at, letters_act=True) for at, letter in enumerate("rey")) == "rey"
    )
