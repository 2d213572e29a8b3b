"""Our own types over the private socket: what goes in comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecloud import errors, types
from edgecloud.errors import (
    BadRequest,
    ContextLengthExceeded,
    EdgeCloudError,
    InternalError,
    ModelNotFound,
    UpstreamError,
)
from edgecloud.types import ChatRequest, Message, TextDelta
from edgecloud.wire import native

from .answers import PATIENT, json_values, mutate

TRAVELLING = [
    types.ChatRequest,
    types.EmbedRequest,
    types.EmbedResult,
    types.Start,
    types.TextDelta,
    types.ReasoningDelta,
    types.ToolCallDelta,
    types.ChoiceDone,
    types.Notice,
    types.Done,
    types.Finish,
    types.Capabilities,
    types.Health,
    types.ModelCard,
]

plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
finite = st.floats(allow_nan=False)

# hypothesis reads our annotations, but not where a field is called `bytes` or a mapping is read-only.
tops = st.builds(types.TopLogprob, st.text(), finite, st.binary(), st.integers())
logprobs = st.builds(
    types.TokenLogprob, st.text(), finite, st.binary(), st.integers(), st.lists(tops, max_size=2).map(tuple)
)
st.register_type_strategy(float, finite)
st.register_type_strategy(types.TokenLogprob, logprobs)
st.register_type_strategy(
    types.Sampling,
    st.builds(
        types.Sampling,
        logit_bias=st.dictionaries(st.integers(), finite, max_size=2),
        seed=st.none() | st.integers(),
    ),
)
st.register_type_strategy(
    types.Tool,
    st.builds(
        types.Tool, parameters=st.dictionaries(st.text(), plain_json, max_size=2), strict=st.booleans()
    ),
)
st.register_type_strategy(
    types.ChatRequest,
    st.builds(
        types.ChatRequest,
        messages=st.lists(st.from_type(types.Message), max_size=2).map(tuple),
        prompt=st.none() | st.text() | st.lists(st.integers(), max_size=3).map(tuple),
        sampling=st.from_type(types.Sampling),
        max_tokens=st.none() | st.integers(),
        stop=st.lists(st.text(), max_size=2).map(tuple),
        constraint=st.none() | st.from_type(types.Constraint),
        tools=st.lists(st.from_type(types.Tool), max_size=2).map(tuple),
        tool_choice=st.sampled_from(["auto", "none", "required"]) | st.builds(types.NamedTool, st.text()),
        template_kwargs=st.dictionaries(st.text(), plain_json, max_size=2),
        deadline_s=st.none() | finite,
        private=st.booleans(),
        door=st.sampled_from(["ask", "chat", "http", "api"]),
    ),
)
st.register_type_strategy(
    types.TextDelta,
    st.builds(
        types.TextDelta, st.text(), st.integers(), st.lists(logprobs, max_size=2).map(tuple), st.integers()
    ),
)


def over_the_socket(value: Any) -> Any:
    return native.load(json.loads(json.dumps(native.dump(value))))


@settings(PATIENT, max_examples=50)
@given(st.data())
@pytest.mark.parametrize("cls", TRAVELLING)
def test_every_type_comes_back_as_it_was(cls: type[Any], data: st.DataObject) -> None:
    value = data.draw(st.from_type(cls))
    back = over_the_socket(value)
    assert back == value
    assert type(back) is cls


def test_every_event_and_nothing_else_of_ours_is_in_the_list() -> None:
    parts = {
        "ToolCall",
        "Message",
        "Tool",
        "NamedTool",
        "Sampling",
        "Constraint",
        "TopLogprob",
        "TokenLogprob",
    }
    parts |= {"Usage", "Timings", "Attempt", "CacheInfo", "Receipt", "KvUse", "Loading"}
    ours = {name for name, cls in vars(types).items() if hasattr(cls, "__dataclass_fields__")}
    assert {cls.__name__ for cls in TRAVELLING} == ours - parts


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("bad", param="n", code="x"),
        ContextLengthExceeded(9, 4),
        UpstreamError("gone", upstream_status=500, retry_after=1.5),
        UpstreamError("gone"),
        ModelNotFound("x", ["y"]),
        InternalError(),
    ],
)
def test_an_error_comes_back_as_it_was(error: EdgeCloudError) -> None:
    back = over_the_socket(error)
    assert type(back) is type(error)
    assert vars(back) == vars(error)
    assert str(back) == str(error)


def test_every_error_of_the_house_travels() -> None:
    leaves = [
        cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, EdgeCloudError)
    ]
    assert len(leaves) > 15
    for cls in leaves:
        error = cls.__new__(cls)
        EdgeCloudError.__init__(error, "message")
        assert type(over_the_socket(error)) is cls


def test_a_rooms_own_error_travels_as_what_it_is_to_the_house() -> None:
    class OddPrompt(BadRequest):
        pass

    back = over_the_socket(OddPrompt("odd", param="prompt"))
    assert type(back) is BadRequest
    assert back.param == "prompt"


def test_a_plain_delta_is_short() -> None:
    assert native.dump(TextDelta("hi")) == {"type": "TextDelta", "text": "hi"}
    assert native.dump(TextDelta("hi", 1, num_tokens=2)) == {
        "type": "TextDelta",
        "text": "hi",
        "index": 1,
        "num_tokens": 2,
    }


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"type": "Nonsense"},
        {"type": 5},
        {"type": "object"},
        {"type": "Receipt"},
        {"type": "TextDelta"},
        {"type": "TextDelta", "text": 5},
        {"type": "TextDelta", "text": "x", "colour": "red"},
        {"type": "TextDelta", "text": "x", "index": True},
        {"type": "TextDelta", "text": "x", "logprobs": [{"token": "x"}]},
        {
            "type": "TextDelta",
            "text": "x",
            "logprobs": [{"token": "x", "logprob": 0, "bytes": "?", "token_id": 1}],
        },
        {"type": "ChoiceDone", "index": 0, "reason": "bored"},
        {"type": "ChatRequest", "sampling": {"logit_bias": {"x": 1}}},
        {"type": "ChatRequest", "tool_choice": "any"},
        {"type": "ChatRequest", "prompt": [1, "x"]},
        {"type": "BadRequest"},
        {"type": "BadRequest", "message": "x", "status": 200},
        {"type": "BadRequest", "message": 5},
    ],
)
def test_what_is_not_ours_is_refused(value: Any) -> None:
    with pytest.raises(BadRequest):
        native.load(value)


def test_what_does_not_travel_is_a_bug() -> None:
    with pytest.raises(TypeError):
        native.dump(Message("user"))  # type: ignore[arg-type]


REQUEST = native.dump(
    ChatRequest(
        messages=(Message("user", "x", tool_calls=(types.ToolCall("a", "f", "{}"),)),),
        sampling=types.Sampling(logit_bias={5: 1.0}, seed=1),
        tools=(types.Tool("f", parameters={"a": [1]}),),
        tool_choice=types.NamedTool("f"),
    )
)


def message_of(value: Any) -> str:
    """What is said of a value that is not ours; "" for one that is."""
    try:
        native.load(value)
    except BadRequest as error:
        return error.message
    return ""


@settings(PATIENT, max_examples=200)
@given(st.integers(0, 2**32), json_values())
def test_any_json_is_ours_or_a_bad_request(seed: int, value: Any) -> None:
    assert len(message_of(value)) < 500
    assert len(message_of(mutate(REQUEST, seed, value))) < 500
