"""Pieces that arrived together as one event: nothing of them is lost, and nothing changes places."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgecloud.errors import UpstreamError
from edgecloud.pool.joined import joined
from edgecloud.types import ChoiceDone, EngineEvent, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta

from .builders import make_request, talking
from .scripted_upstream import DONE, Call, delta, finish, usage


def test_pieces_of_one_kind_and_choice_become_one() -> None:
    events: list[EngineEvent] = [
        ReasoningDelta("Well, "),
        ReasoningDelta("so."),
        TextDelta("a"),
        TextDelta("b", num_tokens=2),
        TextDelta("c", index=1),
        ToolCallDelta(0, "call", "look"),
        TextDelta("d"),
        ChoiceDone(0, "stop"),
    ]

    assert list(joined(events)) == [
        ReasoningDelta("Well, so.", num_tokens=2),
        TextDelta("ab", num_tokens=3),
        TextDelta("c", index=1),
        ToolCallDelta(0, "call", "look"),
        TextDelta("d"),
        ChoiceDone(0, "stop"),
    ]


def test_every_token_keeps_its_logprob() -> None:
    one, two = (TokenLogprob(text, -1.0, text.encode(), 7, ()) for text in "ab")

    (event,) = joined([TextDelta("a", logprobs=(one,)), TextDelta("b", logprobs=(two,))])

    assert event == TextDelta("ab", logprobs=(one, two), num_tokens=2)


def test_what_came_before_a_fault_comes_before_it() -> None:
    def broken() -> Iterator[EngineEvent]:
        yield TextDelta("a")
        yield TextDelta("b")
        raise UpstreamError("It broke off.")

    events = joined(broken())

    assert next(events) == TextDelta("ab", num_tokens=2)
    with pytest.raises(UpstreamError):
        next(events)


async def together(call: Call) -> None:
    await call.stream(b"".join([delta("a"), delta("b"), delta("c"), finish(), usage(1, 3), DONE]))


async def test_a_caller_who_sees_only_the_whole_gets_what_arrived_together_as_one_event() -> None:
    async with talking(together) as (engine, _):
        whole = [event async for event in engine.generate(make_request(streamed=False))]
        streamed = [event async for event in engine.generate(make_request())]

    assert [event for event in whole if isinstance(event, TextDelta)] == [TextDelta("abc", num_tokens=3)]
    assert [event for event in streamed if isinstance(event, TextDelta)] == [
        TextDelta("a"),
        TextDelta("b"),
        TextDelta("c"),
    ]
    assert whole[-2:-1] == streamed[-2:-1]
