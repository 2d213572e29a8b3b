"""Answers that go in circles."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from edgecloud.app.circles import LOOKED_AT, STOPPED, cutting_circles, goes_in_circles
from edgecloud.app.gateway import Gateway
from edgecloud.settings import Settings
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Done,
    EngineEvent,
    Finish,
    Message,
    Notice,
    Start,
    TextDelta,
    Usage,
)
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog

WHO = ("we", "you", "they", "Ann", "Bob", "the wolf", "the old king", "nobody", "his sister", "a dragon")


@pytest.mark.parametrize(
    ("text", "circles"),
    [
        ("l'exécute de " * 500, True),
        ("你好，世界。" * 600, True),
        ("a" * LOOKED_AT, True),
        ("a" * (LOOKED_AT - 1), False),
        ("".join(f"They keep it, and {who} lose it. " * 9 for who in WHO), True),
        ("".join(f"{who} said that it was {what}. " for what in WHO for who in WHO), False),
        (", ".join(map(str, range(1000))), False),
        ("\ud800" * LOOKED_AT, True),
        ("", False),
    ],
)
def test_what_a_circle_is(text: str, circles: bool) -> None:
    assert goes_in_circles(text[-LOOKED_AT:]) is circles


class Endless:
    """An engine's answer that says `words` for ever, and how much of it was asked for."""

    def __init__(self, first: str, words: str, times: int) -> None:
        self.num_events, self.closed = 0, False
        self._texts = [first] + [words] * times

    async def events(self) -> AsyncGenerator[EngineEvent, None]:
        try:
            yield Start("fake", "fake", 7)
            for text in self._texts:
                self.num_events += 1
                yield TextDelta(text, num_tokens=2)
            yield ChoiceDone(0, "stop")
            yield Done(Usage(7, 2 * len(self._texts), 3))
        finally:
            self.closed = True


async def collected(events: AsyncIterator[EngineEvent]) -> list[EngineEvent]:
    return [event async for event in events]


async def test_an_answer_in_circles_is_cut_and_its_engine_stopped() -> None:
    endless = Endless("Paris. ", "l'exécute de ", 10_000)
    events = await collected(cutting_circles(endless.events()))

    assert events[-3:-1] == [Notice("truncated", STOPPED), ChoiceDone(0, "length")]
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (7, 2 * endless.num_events)
    assert endless.num_events < 300
    assert endless.closed


async def test_others_pass_as_they_are() -> None:
    other = Endless("A list: ", "item, ", 100)
    events = await collected(cutting_circles(other.events()))

    assert events == await collected(Endless("A list: ", "item, ", 100).events())


@pytest.mark.parametrize(
    ("fields", "cut"),
    [
        ({"door": "ask"}, True),
        ({"door": "chat"}, True),
        ({"door": "ask", "max_tokens": 400}, False),
        ({"door": "ask", "n": 2}, False),
        ({"door": "http"}, False),
        ({}, False),
    ],
)
async def test_only_people_without_a_limit_are_spared(fields: dict[str, object], cut: bool) -> None:
    gateway = Gateway(Settings(), FakeCatalog([FakeEngine([b"round and round "] * 400)]))
    request = ChatRequest(messages=(Message("user", "hi"),), **fields)  # type: ignore[arg-type]
    events = [event async for event in gateway.chat(request)]

    assert (Notice("truncated", STOPPED) in events) is cut
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert (finish.receipt.completion_tokens < 400) is cut
