"""Stop strings among tokens that come several at a time, as accepted drafts do."""

from __future__ import annotations

import pytest

from edgecloud.pool.runner import Draw
from edgecloud.pool.stops import StopFinder
from edgecloud.vocabulary import TokenScore


def spell(token: int) -> bytes:
    return bytes([token])


def make_draw(text: bytes, *, stop: bool = False) -> Draw:
    return Draw(tuple(text), stop, tuple(TokenScore(token, -1.0) for token in text))


# cases: E66
@pytest.mark.parametrize("before", range(5))
def test_what_was_accepted_behind_a_stop_was_never_said(before: int) -> None:
    finder = StopFinder(("STOP",), spell)
    text = b"ab STOP and more"
    first = finder.cut(make_draw(text[:before])) if before else Draw(())
    second = finder.cut(make_draw(text[before:]))

    assert bytes([*first.tokens, *second.tokens]) == b"ab STOP"
    assert second.stop
    assert [score.token_id for score in second.scores] == list(second.tokens)


def test_without_a_stop_the_draw_is_left_as_it_was() -> None:
    draw = make_draw(b"STO", stop=True)

    assert StopFinder(("STOP",), spell).cut(draw) is draw


def test_a_stop_may_lie_inside_of_a_character_that_comes_in_pieces() -> None:
    snowman = "\N{SNOWMAN}".encode()
    finder = StopFinder(("\N{SNOWMAN}",), spell)

    assert not finder.cut(make_draw(b"a" + snowman[:2])).stop
    assert finder.cut(make_draw(snowman[2:] + b"b")).tokens == tuple(snowman[2:])


@pytest.mark.parametrize(("least", "said"), [(0, b"."), (1, b".a."), (2, b".a."), (3, b".a.b.")])
def test_the_first_tokens_end_nothing(least: int, said: bytes) -> None:
    draw = StopFinder((".",), spell, least).cut(make_draw(b".a.b.c"))

    assert (bytes(draw.tokens), draw.stop) == (said, True)
