"""Chat answers, whole and streamed, as the OpenAI SDK reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import APIError, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from edgecloud.errors import EngineFailure
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Done,
    Event,
    Message,
    Notice,
    ReasoningDelta,
    Start,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from edgecloud.wire import openai_chat
from edgecloud.wire.common import StreamOptions
from edgecloud.wire.errors import openai_error

from .answers import CREATED, PATIENT, START, make_logprob, script, text_answer, thinking_answer, tool_answer
from .judges import canned, judge, sse

REQUEST = ChatRequest(messages=(Message("user", "hello"),), id="req-abc")
STREAM = StreamOptions(stream=True)
WITH_USAGE = StreamOptions(stream=True, include_usage=True)


def whole(
    events: Iterable[Event | Done], request: ChatRequest = REQUEST, model: str = "auto"
) -> dict[str, Any]:
    assembler = openai_chat.ChatAssembler(request, model, CREATED)
    for event in events:
        assembler.add(event)
    body = assembler.body()
    judge(ChatCompletion, body)
    return body


def chunks(
    events: Iterable[Event | Done],
    options: StreamOptions = STREAM,
    request: ChatRequest = REQUEST,
    model: str = "auto",
) -> list[dict[str, Any]]:
    encoder = openai_chat.ChatChunks(request, options, model, CREATED)
    made = [chunk for event in events for chunk in encoder.encode(event)]
    for chunk in made:
        judge(ChatCompletionChunk, chunk)
    return made


def choices(made: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [choice for chunk in made for choice in chunk["choices"] if choice["index"] == index]


def test_a_whole_answer() -> None:
    assert whole(text_answer("Hel", "lo")) == {
        "id": "chatcmpl-abc",
        "object": "chat.completion",
        "created": CREATED,
        "model": "smollm2",
        "system_fingerprint": "edgecloud-local-Q4_1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 3,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 5},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
    }


def test_an_explicit_model_name_is_echoed_and_auto_says_who_answered() -> None:
    assert whole(text_answer("x"), model="small")["model"] == "small"
    assert {chunk["model"] for chunk in chunks(text_answer("x"), model="small")} == {"small"}
    assert {chunk["model"] for chunk in chunks(text_answer("x"))} == {"smollm2"}


def test_an_answer_without_calls_has_no_tool_calls_and_one_with_calls_no_empty_content() -> None:
    assert "tool_calls" not in whole(text_answer("x"))["choices"][0]["message"]
    only_call = script(ToolCallDelta(0, "c", "f", "{}"), ChoiceDone(0, "tool_calls"))
    assert whole(only_call)["choices"][0]["message"]["content"] is None


def test_tool_calls_and_reasoning_of_a_whole_answer() -> None:
    choice = whole(tool_answer())["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    assert [(call["id"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]] == [
        ("call_1", '{"town":"Oslo"}'),
        ("call_2", "{}"),
    ]
    message = whole(thinking_answer())["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hmm", "So.")


def test_asking_for_an_answer_before_it_is_done_is_a_bug() -> None:
    assembler = openai_chat.ChatAssembler(REQUEST, "auto", CREATED)
    assembler.add(TextDelta("x"))
    with pytest.raises(RuntimeError):
        assembler.body()


def test_a_stream_begins_with_the_role_and_ends_with_one_finish_reason() -> None:
    made = choices(chunks(text_answer("Hel", "lo", reason="length")))
    assert made[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [choice["delta"] for choice in made[1:]] == [{"content": "Hel"}, {"content": "lo"}, {}]
    assert [choice["finish_reason"] for choice in made] == [None, None, None, "length"]


def test_each_choice_of_a_stream_has_its_own_role_and_finish() -> None:
    request = replace(REQUEST, n=2)
    events = script(TextDelta("a", 1), TextDelta("b"), ChoiceDone(1, "stop"), ChoiceDone(0, "length"))
    made = chunks(events, request=request)
    for index, reason in ((0, "length"), (1, "stop")):
        own = choices(made, index)
        assert [("role" in choice["delta"]) for choice in own] == [True, False, False]
        assert [choice["finish_reason"] for choice in own] == [None, None, reason]
    assert [choice["message"]["content"] for choice in whole(events, request)["choices"]] == ["b", "a"]


def test_usage_comes_last_and_alone_and_only_when_asked_for() -> None:
    assert all("usage" not in chunk for chunk in chunks(text_answer("x")))
    made = chunks(text_answer("x"), WITH_USAGE)
    assert [chunk["usage"] for chunk in made[:-1]] == [None] * 3
    assert made[-1]["choices"] == []
    assert made[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}


def test_continuous_usage_only_grows() -> None:
    events = script(TextDelta("a"), TextDelta("b", num_tokens=2), ChoiceDone(0, "stop"))
    usages = [chunk["usage"] for chunk in chunks(events, StreamOptions(True, True, True))]
    assert [usage["completion_tokens"] for usage in usages] == [1, 1, 3, 3, 3]
    assert all(usage["total_tokens"] == 7 + usage["completion_tokens"] for usage in usages)


def test_a_notice_and_an_early_end_of_the_queue_make_no_chunk() -> None:
    assert chunks([START, Notice("rerouted", "x")]) == []


def test_a_reroute_before_the_first_text_goes_unseen() -> None:
    made = chunks([START, Start("pool", "llama", 7), *text_answer("x")[1:]])
    assert {chunk["model"] for chunk in made} == {"llama"}
    assert sum("role" in choice["delta"] for choice in choices(made)) == 1


def test_the_first_piece_of_each_tool_call_has_id_and_name() -> None:
    calls = [
        call for choice in choices(chunks(tool_answer())) for call in choice["delta"].get("tool_calls", ())
    ]
    assert [(call["index"], call.get("id"), call["function"].get("name")) for call in calls] == [
        (0, "call_1", "weather"),
        (0, None, None),
        (1, "call_2", "weather"),
        (1, None, None),
    ]


def test_logprobs_are_null_unless_asked_for() -> None:
    events = script(TextDelta("a", logprobs=(make_logprob("a"),)), ChoiceDone(0, "stop"))
    assert whole(events)["choices"][0]["logprobs"] is None
    assert all(choice["logprobs"] is None for choice in choices(chunks(events)))


def test_logprobs_have_bytes_and_alternatives_and_fit_into_json() -> None:
    request = replace(REQUEST, logprobs=2)
    entries = (make_logprob("�", raw=b"\xf0\x9f", top=2), make_logprob("a", float("-inf")))
    events = script(TextDelta("a", logprobs=entries), ChoiceDone(0, "stop"))
    expected = [
        {
            "token": "�",
            "logprob": -0.5,
            "bytes": [0xF0, 0x9F],
            "top_logprobs": [
                {"token": "t0", "logprob": -0.5, "bytes": [0x74, 0x30]},
                {"token": "t1", "logprob": -1.5, "bytes": [0x74, 0x31]},
            ],
        },
        {"token": "a", "logprob": -9999.0, "bytes": [0x61], "top_logprobs": []},
    ]
    assert whole(events, request)["choices"][0]["logprobs"] == {"content": expected, "refusal": None}
    assert choices(chunks(events, request=request))[1]["logprobs"]["content"] == expected


@pytest.mark.parametrize("events", [text_answer("Hel", "lo"), thinking_answer(), tool_answer()])
def test_the_sdk_puts_a_stream_together_to_the_whole_answer(events: list[Event | Done]) -> None:
    with canned(sse(chunks(events, WITH_USAGE))) as url:
        client = OpenAI(base_url=url, api_key="x", max_retries=0)
        with client.chat.completions.stream(model="auto", messages=[]) as stream:
            streamed = stream.get_final_completion()
    expected = judge(ChatCompletion, whole(events))
    assert streamed.choices[0].message.content == expected.choices[0].message.content
    assert streamed.choices[0].finish_reason == expected.choices[0].finish_reason
    assert streamed.usage == expected.usage
    calls = expected.choices[0].message.tool_calls or []
    assert [call.id for call in streamed.choices[0].message.tool_calls or []] == [call.id for call in calls]
    assert [call.function.arguments for call in streamed.choices[0].message.tool_calls or []] == [
        call.function.arguments for call in calls if call.type == "function"
    ]


def test_the_sdk_raises_an_error_that_came_in_the_stream() -> None:
    frames = [*chunks([START, TextDelta("x")]), openai_error(EngineFailure("A step failed."))]
    with canned(sse(frames)) as url:
        client = OpenAI(base_url=url, api_key="x", max_retries=0)
        stream = client.chat.completions.create(model="auto", messages=[], stream=True)
        with pytest.raises(APIError, match="A step failed"):
            list(stream)


deltas = st.one_of(
    st.builds(TextDelta, st.text(min_size=1), st.integers(0, 2)),
    st.builds(ReasoningDelta, st.text(min_size=1), st.integers(0, 2)),
)


@PATIENT
@given(st.lists(deltas, max_size=20), st.booleans())
def test_a_stream_says_what_the_whole_answer_says(
    events: list[TextDelta | ReasoningDelta], usage: bool
) -> None:
    request = replace(REQUEST, n=3)
    answer = [START, *events, *(ChoiceDone(index, "stop") for index in range(3)), Done(Usage(1, 2))]
    made = chunks(answer, StreamOptions(True, usage), request)
    body = whole(answer, request)
    for index in range(3):
        own = choices(made, index)
        joined = "".join(choice["delta"].get("content", "") for choice in own)
        thought = "".join(choice["delta"].get("reasoning_content", "") for choice in own)
        message = body["choices"][index]["message"]
        assert (joined, thought) == (message["content"], message.get("reasoning_content", ""))
        assert "" not in [choice["delta"].get("content") for choice in own[1:]]
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]
    json.dumps(made, allow_nan=False).encode()
