"""Requests and scripted events to build answers from, and JSON to break parsers with."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from edgecloud.errors import BadRequest
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Done,
    Event,
    FinishReason,
    ReasoningDelta,
    Start,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from edgecloud.wire import native
from edgecloud.wire.errors import openai_error

# A busy machine is no failure.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

CREATED = 1_700_000_000
START = Start("local", "smollm2", prompt_tokens=7, variant="Q4_1")
DONE = Done(Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=5, reasoning_tokens=1))
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
}


def make_body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], **fields}


def make_logprob(
    token: str, logprob: float = -0.5, *, raw: bytes | None = None, top: int = 0
) -> TokenLogprob:
    tops = tuple(TopLogprob(f"t{rank}", logprob - rank, f"t{rank}".encode(), rank) for rank in range(top))
    return TokenLogprob(token, logprob, token.encode() if raw is None else raw, 1, tops)


def script(*events: Event | Done) -> list[Event | Done]:
    """A whole answer: what begins and ends every one, and these in between."""
    return [START, *events, DONE]


def text_answer(*texts: str, reason: FinishReason = "stop", stop: str | None = None) -> list[Event | Done]:
    return script(*(TextDelta(text) for text in texts), ChoiceDone(0, reason, stop))


def thinking_answer() -> list[Event | Done]:
    thoughts = (ReasoningDelta("hm"), ReasoningDelta("m"))
    return script(*thoughts, TextDelta("So"), TextDelta("."), ChoiceDone(0, "stop"))


def tool_answer() -> list[Event | Done]:
    return script(
        TextDelta("Let me see."),
        ToolCallDelta(0, "call_1", "weather", '{"town":'),
        ToolCallDelta(0, arguments='"Oslo"}'),
        ToolCallDelta(1, "call_2", "weather", ""),
        ToolCallDelta(1, arguments="{}"),
        ChoiceDone(0, "tool_calls"),
    )


def json_values() -> st.SearchStrategy[Any]:
    """Anything a JSON reader may hand over: NaN, huge numbers and lone surrogates too."""
    text = st.text(st.characters(), max_size=12) | st.sampled_from(["\ud800", "a\udfff", "", "user", "auto"])
    scalars = st.none() | st.booleans() | st.integers() | st.integers(-3, 3) | st.floats() | text
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
        max_leaves=12,
    )


def mutate(body: dict[str, Any], seed: int, value: Any) -> dict[str, Any]:
    """A copy of the body with the value somewhere in it, anywhere down to its leaves."""
    mutant = copy.deepcopy(body)
    pick = random.Random(seed)
    at: Any = mutant
    while True:
        key = pick.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if not isinstance(at[key], dict | list) or not at[key] or pick.random() < 0.3:
            at[key] = value
            return mutant
        at = at[key]


def check_made_or_refused(parse: Callable[[Any], Iterable[ChatRequest]], body: Any) -> None:
    """Parse a body: what comes of it are requests that another process reads as the same, or a short
    refusal.
    """
    try:
        requests = list(parse(body))
    except BadRequest as refusal:
        requests, problem = [], openai_error(refusal)
    else:
        problem = None
    assert len(as_utf8(problem)) < 600
    for request in requests:
        assert native.load(json.loads(as_utf8(native.dump(request)))) == request


def as_utf8(value: Any) -> bytes:
    """JSON as a strict reader takes it: raises `ValueError` for NaN, infinities and lone surrogates."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
