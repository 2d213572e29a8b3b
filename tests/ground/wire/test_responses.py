"""OpenAI Responses without state, as the OpenAI SDK reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent

from edgecloud.errors import BadRequest, EngineFailure, Overloaded
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Constraint,
    Done,
    Event,
    Message,
    NamedTool,
    Start,
    TextDelta,
    Tool,
    ToolCall,
)
from edgecloud.wire import openai_responses
from edgecloud.wire.common import StreamOptions
from edgecloud.wire.openai_responses_answer import ResponseEvents

from .answers import (
    CREATED,
    PATIENT,
    START,
    as_utf8,
    check_made_or_refused,
    json_values,
    make_logprob,
    mutate,
    script,
    text_answer,
    thinking_answer,
    tool_answer,
)
from .judges import canned, judge, judge_union, sse

# OpenAI sends these, though the SDK's types don't have them.
SENT_BY_OPENAI = ("store", "name", "bytes")
PIXEL = "data:image/png;base64,iVBO"
SCHEMA = {"type": "object"}
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tells it.",
    "parameters": SCHEMA,
    "strict": True,
}

FULL_BODY = {
    "model": "smollm2",
    "instructions": "Be brief.",
    "input": [
        {"role": "developer", "content": "Rhyme."},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Look"}, {"type": "input_image", "image_url": PIXEL}],
        },
        {
            "type": "reasoning",
            "id": "r",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
    ],
    "tools": [WEATHER, {"type": "web_search"}],
    "tool_choice": {"type": "function", "name": "weather"},
    "parallel_tool_calls": False,
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}, "verbosity": "low"},
    "max_output_tokens": 20,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_logprobs": 2,
    "reasoning": {"effort": "low", "summary": "auto"},
    "metadata": {"k": "v"},
    "store": True,
    "include": ["reasoning.encrypted_content"],
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "user": "ann",
}


def parse(**fields: Any) -> ChatRequest:
    return openai_responses.parse({"input": "hello", **fields}).request


# ----------------------------------------------------------------------------------------------- the request


def test_every_field_we_know_is_read() -> None:
    call = openai_responses.parse(FULL_BODY)
    request = call.request
    assert request.messages == (
        Message("system", "Be brief."),
        Message("system", "Rhyme."),
        Message("user", "Look", images=(PIXEL,)),
        Message(
            "assistant",
            "Let me see.",
            tool_calls=(ToolCall("c1", "weather", "{}"), ToolCall("c2", "weather", "{}")),
            reasoning="hm",
        ),
        Message("tool", "sunny", tool_call_id="c1"),
        Message("tool", "rain", tool_call_id="c2"),
    )
    assert request.tools == (Tool("weather", "Tells it.", SCHEMA, strict=True),)
    assert (request.tool_choice, request.parallel_tool_calls) == (NamedTool("weather"), False)
    assert request.constraint == Constraint("schema", '{"type":"object"}')
    assert (request.max_tokens, request.logprobs, request.sampling.temperature) == (20, 2, 0.5)
    assert request.template_kwargs == {"reasoning_effort": "low"}
    assert call.options == StreamOptions(True)


def test_a_string_is_a_user_message() -> None:
    assert parse().messages == (Message("user", "hello"),)


def test_two_answers_in_a_row_stay_two_messages() -> None:
    turns = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert parse(input=turns).messages == (Message("assistant", "a"), Message("assistant", "b"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.json_schema"),
        ({"text": {"format": {"type": "sound"}}}, "text.format.type"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "web_search"}, {"type": "local_shell"}]}, "tools"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"instructions": "\ud800"}, "instructions"),
    ],
)
def test_a_bad_field_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    assert caught.value.param == param


def request_of(body: Any) -> list[ChatRequest]:
    call = openai_responses.parse(body)
    # The answer repeats these, so they must be JSON too.
    as_utf8(call.echo)
    return [call.request]


@settings(PATIENT, max_examples=200)
@given(st.integers(0, 2**32), json_values())
def test_any_json_anywhere_in_a_body_is_a_request_or_a_bad_request(seed: int, value: Any) -> None:
    for body in (mutate(FULL_BODY, seed, value), value):
        check_made_or_refused(request_of, body)


# ------------------------------------------------------------------------------------------------ the answer


def make_encoder(body: dict[str, Any] | None = None, model: str = "auto") -> ResponseEvents:
    return ResponseEvents(openai_responses.parse(body or {"input": "hello"}), model, CREATED)


def frames(events: Iterable[Event | Done], encoder: ResponseEvents | None = None) -> list[dict[str, Any]]:
    encoder = encoder or make_encoder()
    made = [frame for event in events for frame in encoder.encode(event)]
    for frame in made:
        judge_union(ResponseStreamEvent, frame, extensions=SENT_BY_OPENAI)
    return made


def whole(events: Iterable[Event | Done], encoder: ResponseEvents | None = None) -> dict[str, Any]:
    encoder = encoder or make_encoder()
    frames(events, encoder)
    judge(Response, encoder.body(), extensions=SENT_BY_OPENAI)
    return encoder.body()


def test_the_order_of_a_stream() -> None:
    made = frames(text_answer("Hel", "lo"))
    assert [frame["type"] for frame in made] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [frame["sequence_number"] for frame in made] == list(range(10))
    ids = {frame.get("item_id") or frame["item"]["id"] for frame in made[2:-1]}
    assert len(ids) == 1


def test_a_frame_does_not_change_after_it_was_sent() -> None:
    made = frames(text_answer("Hel", "lo"))
    assert made[0]["response"]["status"] == "in_progress"
    assert made[0]["response"]["output"] == []
    assert made[2]["item"]["content"] == []
    assert made[3]["part"]["text"] == ""


def test_a_whole_answer_repeats_what_was_asked_for() -> None:
    body = whole(text_answer("Hello"), make_encoder(FULL_BODY, "smollm2"))
    assert (body["object"], body["status"], body["error"], body["created_at"]) == (
        "response",
        "completed",
        None,
        CREATED,
    )
    assert (body["model"], body["instructions"], body["max_output_tokens"]) == ("smollm2", "Be brief.", 20)
    assert body["tools"] == [WEATHER]
    assert body["tool_choice"] == {"type": "function", "name": "weather"}
    assert body["text"] == {"format": FULL_BODY["text"]["format"]}  # type: ignore[index]
    assert (body["metadata"], body["user"], body["store"]) == ({"k": "v"}, "ann", False)
    assert body["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 10,
    }


def test_an_answer_that_was_cut_is_incomplete() -> None:
    made = frames(text_answer("Hel", reason="length"))
    assert made[-1]["type"] == "response.incomplete"
    assert made[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert made[-1]["response"]["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("events", [text_answer("Hel", "lo"), thinking_answer(), tool_answer()])
def test_the_sdk_puts_a_stream_together_to_the_whole_answer(events: list[Event | Done]) -> None:
    encoder = make_encoder()
    with canned(sse(frames(events, encoder), named=True)) as url:
        client = OpenAI(base_url=url, api_key="x", max_retries=0)
        with client.responses.stream(model="auto", input="x") as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            streamed = stream.get_final_response()
    expected = judge(Response, encoder.body(), extensions=SENT_BY_OPENAI)
    assert streamed.output_text == expected.output_text == "".join(deltas)
    assert [item.type for item in streamed.output] == [item.type for item in expected.output]
    assert streamed.usage == expected.usage


def test_reasoning_and_calls_are_items_of_their_own() -> None:
    assert [item["type"] for item in whole(thinking_answer())["output"]] == ["reasoning", "message"]
    output = whole(tool_answer())["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert [(item["call_id"], item["arguments"]) for item in output[1:]] == [
        ("call_1", '{"town":"Oslo"}'),
        ("call_2", "{}"),
    ]
    assert len({item["id"] for item in output}) == 3


def test_logprobs_are_in_delta_done_and_item() -> None:
    events = script(TextDelta("a", logprobs=(make_logprob("a", top=1),)), ChoiceDone(0, "stop"))
    made = frames(events)
    entry = made[4]["logprobs"][0]
    assert (entry["token"], entry["top_logprobs"][0]["token"]) == ("a", "t0")
    assert made[5]["logprobs"] == made[-1]["response"]["output"][0]["content"][0]["logprobs"] == [entry]


def test_a_stream_that_fails_says_so_and_keeps_what_there_was() -> None:
    encoder = make_encoder()
    made = [frame for event in (START, TextDelta("Hel")) for frame in encoder.encode(event)]
    [failed] = encoder.fail(EngineFailure("A step failed."))
    judge_union(ResponseStreamEvent, failed, extensions=SENT_BY_OPENAI)
    assert failed["sequence_number"] == len(made)
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "A step failed."}
    assert failed["response"]["output"][0]["content"][0]["text"] == "Hel"


def test_a_stream_that_fails_before_it_began_is_a_bare_error() -> None:
    [frame] = make_encoder().fail(Overloaded("Come back."))
    judge_union(ResponseStreamEvent, frame)
    assert (frame["type"], frame["code"], frame["sequence_number"]) == ("error", "queue_full", 0)


def test_a_reroute_creates_no_second_response() -> None:
    types = [frame["type"] for frame in frames([START, Start("pool", "llama", 7), *text_answer("x")[1:]])]
    assert types.count("response.created") == 1


def test_tools_that_are_not_run_here_are_named_where_nothing_else_is_offered() -> None:
    kinds = [{"type": "web_search"}, {"type": "file_search"}, {"type": "web_search"}]
    with pytest.raises(BadRequest, match=r"of type web_search, file_search is not run here"):
        openai_responses.parse({"input": "x", "tools": kinds})
