"""Anthropic messages, as the anthropic SDK reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from anthropic import Anthropic, APIStatusError
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecloud.errors import BadRequest, EdgeCloudError, EngineFailure, InternalError, Overloaded, Unavailable
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Done,
    Event,
    Message,
    NamedTool,
    Start,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
)
from edgecloud.wire import anthropic
from edgecloud.wire.common import StreamOptions
from edgecloud.wire.errors import anthropic_error, openai_error

from .answers import (
    PATIENT,
    START,
    check_made_or_refused,
    json_values,
    mutate,
    script,
    text_answer,
    thinking_answer,
    tool_answer,
)
from .judges import canned, judge, judge_union, sse

REQUEST = ChatRequest(messages=(Message("user", "hello"),), id="req-abc")
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}

FULL_BODY = {
    "model": "smollm2",
    "max_tokens": 20,
    "system": [
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "!"},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look"}, IMAGE]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"town": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "sunny"}, IMAGE],
                },
                {"type": "text", "text": "Well?"},
            ],
        },
    ],
    "tools": [WEATHER, {"type": "custom", "name": "tides", "input_schema": {}}],
    "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    "stop_sequences": ["END"],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "metadata": {"user_id": "ann"},
    "stream": True,
}


def make_body(**fields: Any) -> dict[str, Any]:
    return {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}], **fields}


def parse(**fields: Any) -> ChatRequest:
    return anthropic.parse(make_body(**fields))[0]


# ----------------------------------------------------------------------------------------------- the request


def test_every_field_we_know_is_read() -> None:
    request, options = anthropic.parse(FULL_BODY)
    uri = "data:image/png;base64,iVBO"
    assert request.messages == (
        Message("system", "Be brief.!"),
        Message("user", "Look", images=(uri,)),
        Message(
            "assistant",
            "Let me see.",
            tool_calls=(ToolCall("t1", "weather", '{"town":"Oslo"}'),),
            reasoning="hm",
        ),
        Message("tool", "sunny", images=(uri,), tool_call_id="t1"),
        Message("user", "Well?"),
    )
    assert request.tools == (Tool("weather", "Tells it.", SCHEMA), Tool("tides"))
    assert request.tool_choice == NamedTool("weather")
    assert (request.parallel_tool_calls, request.stop, request.max_tokens) == (False, ("END",), 20)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 0.9, 5)
    assert request.template_kwargs == {"enable_thinking": True}
    assert options == StreamOptions(True)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [({"type": "auto"}, "auto"), ({"type": "any"}, "required"), ({"type": "none"}, "none")],
)
def test_tool_choices(choice: dict[str, Any], expected: str) -> None:
    assert parse(tools=[WEATHER], tool_choice=choice).tool_choice == expected


def test_the_least_that_can_be_asked() -> None:
    request = parse(max_tokens=1)
    assert request == ChatRequest(
        messages=(Message("user", "hello"),), max_tokens=1, door="http", id=request.id
    )


def test_a_last_message_of_the_assistants_is_continued() -> None:
    turns = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "1, 2,"}]
    assert parse(messages=turns).continue_final
    assert not parse().continue_final


def test_an_empty_list_of_blocks_is_an_empty_message() -> None:
    assert parse(messages=[{"role": "user", "content": []}]).messages == (Message("user"),)


def test_counting_needs_no_limit() -> None:
    request = anthropic.parse_count(
        {"messages": [{"role": "user", "content": "hello"}], "system": "Be brief."}
    )
    assert [message.role for message in request.messages] == ["system", "user"]
    assert anthropic.count_body(12) == {"input_tokens": 12}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        ({"messages": [{"role": "user", "content": "\udfff"}]}, "messages[0].content"),
        ({"system": [IMAGE]}, "system[0].type"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "zzz", "content": "x"}]}, "messages[0].role"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {}}, "tool_choice.type"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temperature": 3}, "temperature"),
    ],
)
def test_a_bad_field_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        anthropic.parse(make_body(**fields))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("source", "param"),
    [
        ({"type": "url", "url": "http://169.254.169.254/"}, "type"),
        ({"type": "file", "file_id": "x"}, "type"),
        ({"type": "base64", "media_type": "text/html", "data": "aGk="}, "media_type"),
        ({"type": "base64", "media_type": "image/png", "data": "@@"}, "data"),
        ({"type": "base64", "media_type": "image/png"}, "data"),
    ],
)
def test_only_valid_base64_images_are_taken(source: dict[str, Any], param: str) -> None:
    block = {"type": "image", "source": source}
    with pytest.raises(BadRequest) as caught:
        parse(messages=[{"role": "user", "content": [block]}])
    assert caught.value.param == f"messages[0].content[0].source.{param}"


def test_a_text_document_is_read_as_its_text() -> None:
    document = {
        "type": "document",
        "title": "Notes",
        "source": {"type": "text", "media_type": "text/plain", "data": "It rains."},
    }
    content = [document, {"type": "text", "text": "What of the weather?"}]
    request = parse(messages=[{"role": "user", "content": content}])
    assert request.messages == (Message("user", "\n\nNotes\nIt rains.\n\nWhat of the weather?"),)


@pytest.mark.parametrize("block", [
    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}},
    {"type": "container_upload", "file_id": "f"},
])  # fmt: skip
def test_a_block_that_can_t_be_read_is_told_by_its_type(block: dict[str, Any]) -> None:
    kind = block.get("source", block)["type"]
    with pytest.raises(BadRequest, match=f"is '{kind}'"):
        parse(messages=[{"role": "user", "content": [block]}])


@settings(PATIENT, max_examples=200)
@given(st.integers(0, 2**32), json_values())
def test_any_json_anywhere_in_a_body_is_a_request_or_a_bad_request(seed: int, value: Any) -> None:
    for body in (mutate(FULL_BODY, seed, value), value):
        check_made_or_refused(lambda body: anthropic.parse(body)[:1], body)


# ------------------------------------------------------------------------------------------------ the answer


def whole(events: Iterable[Event | Done], model: str = "auto") -> dict[str, Any]:
    assembler = anthropic.MessageAssembler(REQUEST, model)
    for event in events:
        assembler.add(event)
    body = assembler.body()
    judge(AnthropicMessage, body, extensions=())
    return body


def frames(events: Iterable[Event | Done], model: str = "auto") -> list[dict[str, Any]]:
    encoder = anthropic.MessageEvents(REQUEST, model)
    made = [frame for event in events for frame in encoder.encode(event)]
    for frame in made:
        judge_union(RawMessageStreamEvent, frame)
    return made


def test_a_whole_answer() -> None:
    assert whole(text_answer("Hel", "lo")) == {
        "id": "msg_abc",
        "type": "message",
        "role": "assistant",
        "model": "smollm2",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 5,
            "output_tokens": 3,
        },
    }


def test_stop_reasons() -> None:
    assert whole(text_answer("x", reason="length"))["stop_reason"] == "max_tokens"
    assert whole(tool_answer())["stop_reason"] == "tool_use"
    stopped = whole(text_answer("x", stop="END"))
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "END")


def test_tool_use_has_its_input_as_an_object() -> None:
    blocks = whole(tool_answer())["content"]
    assert [block["type"] for block in blocks] == ["text", "tool_use", "tool_use"]
    assert blocks[1] == {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"town": "Oslo"}}


@pytest.mark.parametrize("arguments", ["not json", "[1]", '{"a":'])
def test_arguments_that_are_no_object_are_kept_readable(arguments: str) -> None:
    events = script(ToolCallDelta(0, "c", "f", arguments), ChoiceDone(0, "tool_calls"))
    assert whole(events)["content"][0]["input"] == {"arguments": arguments}


def test_the_order_of_a_stream() -> None:
    assert [frame["type"] for frame in frames(text_answer("Hel", "lo"))] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize("events", [text_answer(), text_answer("x"), thinking_answer(), tool_answer()])
def test_blocks_of_a_stream_are_numbered_and_never_overlap(events: list[Event | Done]) -> None:
    blocks = [frame for frame in frames(events) if frame["type"].startswith("content_block")]
    opened = -1
    closed = -1
    for frame in blocks:
        if frame["type"] == "content_block_start":
            assert (opened, frame["index"]) == (closed, opened + 1)
            opened += 1
        if frame["type"] == "content_block_stop":
            closed += 1
        assert frame["index"] == opened
    assert opened == closed


@pytest.mark.parametrize(
    "events", [text_answer("Hel", "lo"), text_answer("x", stop="END"), thinking_answer(), tool_answer()]
)
def test_the_sdk_puts_a_stream_together_to_the_whole_answer(events: list[Event | Done]) -> None:
    stream_body = sse([{"type": "ping"}, *frames(events)], named=True, done=False)
    with canned(stream_body) as url:
        client = Anthropic(base_url=url, api_key="x", max_retries=0)
        with client.messages.stream(model="auto", max_tokens=9, messages=[]) as stream:
            streamed = stream.get_final_message()
    expected = AnthropicMessage.model_validate(whole(events))
    assert streamed.to_dict(exclude_none=True) == expected.to_dict(exclude_none=True)


def test_the_sdk_raises_an_error_that_came_in_the_stream() -> None:
    encoder = anthropic.MessageEvents(REQUEST, "auto")
    made = [
        *encoder.encode(START),
        *encoder.encode(TextDelta("x")),
        *encoder.fail(EngineFailure("A step failed.")),
    ]
    with canned(sse(made, named=True, done=False)) as url:
        client = Anthropic(base_url=url, api_key="x", max_retries=0)
        with (
            pytest.raises(APIStatusError, match="A step failed"),
            client.messages.stream(model="auto", max_tokens=9, messages=[]) as stream,
        ):
            stream.until_done()


def test_a_reroute_starts_no_second_message() -> None:
    types = [frame["type"] for frame in frames([START, Start("pool", "llama", 7), *text_answer("x")[1:]])]
    assert types.count("message_start") == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (Overloaded("x"), "rate_limit_error"),
        (Unavailable("x"), "overloaded_error"),
        (InternalError(), "api_error"),
    ],
)
def test_errors_have_anthropics_types(error: EdgeCloudError, kind: str) -> None:
    body = anthropic_error(error, "req-1")
    assert body == {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": "req-1"}


def test_the_openai_error_has_its_four_keys_and_ours() -> None:
    error = BadRequest("Bad.", param="n", extra={"n_ctx": 5})
    assert openai_error(error) == {
        "error": {"message": "Bad.", "type": "invalid_request_error", "param": "n", "code": None, "n_ctx": 5}
    }
