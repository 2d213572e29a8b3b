"""What other servers send us, and what we send them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import completion_create_params

from edgecloud import errors
from edgecloud.errors import (
    BadRequest,
    ContextLengthExceeded,
    EdgeCloudError,
    NotSupported,
    Overloaded,
    PayloadTooLarge,
    Unavailable,
    UpstreamError,
)
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Constraint,
    Done,
    EngineEvent,
    Event,
    Message,
    NamedTool,
    Notice,
    ReasoningDelta,
    Sampling,
    TextDelta,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from edgecloud.wire import openai_chat, openai_completions
from edgecloud.wire.common import StreamOptions
from edgecloud.wire.constraints import constraint
from edgecloud.wire.fields import Fields
from edgecloud.wire.upstream_errors import MAX_QUOTE, decode_error

from .answers import (
    CREATED,
    PATIENT,
    as_utf8,
    json_values,
    mutate,
    text_answer,
    thinking_answer,
    tool_answer,
)

PIXEL = "data:image/png;base64,iVBO"


def decode(*chunks: Any, n: int = 1, finish: bool = True) -> list[EngineEvent]:
    decoder = openai_chat.ChunkDecoder(n)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + (decoder.finish() if finish else [])


def delta(finish: str | None = None, *, index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": fields, "finish_reason": finish}]}


def call(**fields: Any) -> dict[str, Any]:
    return delta(tool_calls=[fields])


# -------------------------------------------------------------------------------------------- what we send


def test_a_plain_request_sends_only_what_is_set() -> None:
    request = ChatRequest(messages=(Message("user", "hi"),))
    messages = [{"role": "user", "content": "hi"}]
    assert openai_chat.encode(request, "m", stream=False) == {
        "model": "m",
        "stream": False,
        "messages": messages,
    }
    assert openai_chat.encode(request, "m") == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": messages,
    }


FULL = ChatRequest(
    messages=(
        Message("system", "Be brief."),
        Message("user", "look", images=(PIXEL,), name="Ann"),
        Message("assistant", "", tool_calls=(ToolCall("c1", "weather", "{}"),), reasoning="hm"),
        Message("tool", "sunny", tool_call_id="c1"),
        Message("assistant", "It is"),
    ),
    sampling=Sampling(0.0, 5, 0.9, 0.1, 0.5, -0.5, 1.1, {5: -1.0}, 0),
    max_tokens=9,
    stop=("END",),
    stop_token_ids=(2,),
    min_tokens=3,
    ignore_eos=True,
    priority=-4,
    n=2,
    logprobs=0,
    constraint=Constraint("schema", '{"type":"object"}'),
    tools=(Tool("weather", "Tells it.", {"type": "object"}, strict=True),),
    tool_choice=NamedTool("weather"),
    parallel_tool_calls=False,
    continue_final=True,
    template_kwargs={"enable_thinking": False, "reasoning_effort": "low"},
)


def test_what_we_send_is_what_our_own_door_reads() -> None:
    request, options = openai_chat.parse(json.loads(json.dumps(openai_chat.encode(FULL, "auto"))))
    assert options == StreamOptions(True, True)
    assert replace(request, id=FULL.id, door=FULL.door) == FULL


def test_a_hosted_api_gets_no_unknown_field_unless_it_was_asked_for() -> None:
    request = ChatRequest(
        messages=FULL.messages[:2],
        sampling=Sampling(temperature=1.0, seed=3),
        logprobs=2,
        tools=FULL.tools,
        stop=("x",),
    )
    known = completion_create_params.CompletionCreateParamsBase.__annotations__.keys() | {"stream"}
    assert openai_chat.encode(request, "m").keys() <= known


def test_each_constraint_is_sent_in_a_form_that_servers_know() -> None:
    def sent(constraint: Constraint) -> dict[str, Any]:
        request = ChatRequest(messages=FULL.messages, constraint=constraint)
        return openai_chat.encode(request, "m", stream=False)

    assert sent(Constraint("json"))["response_format"] == {"type": "json_object"}
    for limit in (Constraint("grammar", "root ::= x"), Constraint("regex", "a+")):
        body = sent(limit)
        assert body["structured_outputs"] == {limit.kind: limit.source}
        assert body["grammar" if limit.kind == "grammar" else "regex"] == limit.source
        # A server of ours reads it as the one thing that it is.
        assert constraint(Fields(body)) == limit
    schema = {"name": "answer", "strict": True, "schema": {"a": 1}}
    expected = {"type": "json_schema", "json_schema": schema}
    assert sent(Constraint("schema", '{"a":1}'))["response_format"] == expected


def test_a_raw_prompt_goes_to_completions() -> None:
    request = ChatRequest(prompt=(1, 2), max_tokens=5, logprobs=0, echo=True)
    body = openai_completions.encode(request, "m", stream=False)
    assert body == {
        "model": "m",
        "stream": False,
        "max_tokens": 5,
        "prompt": [1, 2],
        "logprobs": 0,
        "echo": True,
    }
    [back], _ = openai_completions.parse(body)
    assert (back.prompt, back.max_tokens, back.logprobs, back.echo) == ((1, 2), 5, 0, True)


# ------------------------------------------------------------------------------------------- what they send


@pytest.mark.parametrize("events", [text_answer("Hel", "lo"), thinking_answer(), tool_answer()])
def test_our_own_stream_and_our_own_body_come_back_as_they_were(events: list[Event | Done]) -> None:
    request = ChatRequest(messages=(Message("user", "x"),))
    encoder = openai_chat.ChatChunks(request, StreamOptions(True, True), "auto", CREATED)
    assembler = openai_chat.ChatAssembler(request, "auto", CREATED)
    chunks = [chunk for event in events for chunk in encoder.encode(event)]
    for event in events:
        assembler.add(event)
    sent = [event for event in events[1:] if event != ToolCallDelta(1, arguments="")]
    assert decode(*chunks) == sent
    assert decode(assembler.body())[-2:] == sent[-2:]


def test_the_role_empty_and_null_content_give_nothing() -> None:
    assert (
        decode(delta(role="assistant", content=""), delta(content=None), {"choices": []}, {}, finish=False)
        == []
    )


def test_reasoning_has_two_names() -> None:
    assert decode(delta(reasoning="hm"), finish=False) == [ReasoningDelta("hm")]
    assert decode(delta(reasoning_content="hm"), finish=False) == [ReasoningDelta("hm")]
    assert decode(delta(reasoning="hm", reasoning_content="hm"), finish=False) == [ReasoningDelta("hm")]


def test_a_refusal_is_text() -> None:
    assert decode(delta(content=None, refusal="I can't."), finish=False) == [TextDelta("I can't.")]


def test_content_may_come_in_parts() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "thinking", "thinking": []},
        {"type": "text", "text": "b"},
    ]
    assert decode(delta(content=parts), finish=False) == [TextDelta("ab")]


def test_usage_may_come_in_every_chunk_or_in_the_last_or_not_at_all() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    each = [
        {**delta(content="a"), "usage": usage},
        {**delta("stop"), "usage": {**usage, "completion_tokens": 2}},
    ]
    assert decode(*each)[-1] == Done(Usage(5, 2, 4))
    last = [
        delta(content="a"),
        delta("stop"),
        {"choices": [], "usage": {**usage, "prompt_tokens_details": None}},
    ]
    assert decode(*last)[-1] == Done(Usage(5, 1))
    none = [delta(content="a"), delta(content="b"), delta("stop")]
    assert decode(*none)[-1] == Done(Usage(completion_tokens=2))


@pytest.mark.parametrize(
    "usage",
    [
        *({"prompt_tokens": 5, "completion_tokens": number} for number in ("5", -5, True, 1.5, 10**30)),
        {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": []},
        "much",
        [5, 2],
    ],
    ids=repr,
)
def test_a_whole_answer_is_not_lost_for_usage_that_makes_no_sense(usage: Any) -> None:
    events = decode(delta(content="a"), delta(content="b"), delta("stop"), {"choices": [], "usage": usage})
    assert events == [TextDelta("a"), TextDelta("b"), ChoiceDone(0, "stop"), Done(Usage(completion_tokens=2))]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [("stop", "stop"), ("eos", "stop"), ("length", "length"), ("max_tokens", "length"), ("whatever", "stop")],
)
def test_finish_reasons_are_reduced_to_ours(sent: str, reason: str) -> None:
    assert decode(delta(sent), finish=False) == [ChoiceDone(0, reason)]  # type: ignore[arg-type]


def test_a_stop_after_tool_calls_is_tool_calls() -> None:
    events = decode(
        call(index=0, id="a", function={"name": "f", "arguments": "{}"}), delta("stop"), finish=False
    )
    assert events[-1] == ChoiceDone(0, "tool_calls")


def test_the_stop_string_that_ended_it_is_kept() -> None:
    def stopped(**fields: Any) -> list[EngineEvent]:
        return decode(
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", **fields}]}, finish=False
        )

    assert stopped(stop_reason="END") == stopped(matched_stop="END") == [ChoiceDone(0, "stop", "END")]
    assert stopped(stop_reason=2) == [ChoiceDone(0, "stop")]
    assert stopped(finish_reason="length", stop_reason="END") == [ChoiceDone(0, "length")]


def test_a_content_filter_is_not_silent() -> None:
    notice, done = decode(delta("content_filter"), finish=False)
    assert isinstance(notice, Notice)
    assert done == ChoiceDone(0, "stop")


def test_a_repeated_last_chunk_is_ignored() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    events = decode(delta(content="a"), delta("stop"), {**delta("stop", content=""), "usage": usage})
    assert events == [TextDelta("a"), ChoiceDone(0, "stop"), Done(Usage(5, 1))]


def test_choices_are_kept_apart() -> None:
    events = decode(delta(content="a", index=1), delta("stop"), delta("length", index=1), n=2)
    assert events[:3] == [TextDelta("a", 1), ChoiceDone(0, "stop"), ChoiceDone(1, "length")]


def test_an_answer_that_broke_off_is_an_error() -> None:
    with pytest.raises(UpstreamError, match="broke off"):
        decode(delta(content="a"))
    with pytest.raises(UpstreamError, match="broke off"):
        decode(delta(content="a"), delta("stop"), n=2)


@pytest.mark.parametrize("error", [{"error": {"message": "out of memory"}}, {"error": "out of memory"}])
def test_an_error_chunk_is_an_error(error: dict[str, Any]) -> None:
    with pytest.raises(UpstreamError, match="out of memory"):
        decode(delta(content="a"), error)


def test_an_aborted_answer_is_an_error() -> None:
    with pytest.raises(UpstreamError):
        decode(delta("abort"))


def test_well_formed_tool_calls_keep_their_index() -> None:
    events = decode(
        call(index=0, id="a", type="function", function={"name": "f", "arguments": ""}),
        call(index=0, function={"arguments": "{}"}),
        call(index=1, id="b", type="function", function={"name": "g", "arguments": "{"}),
        call(index=1, function={"arguments": "}"}),
        finish=False,
    )
    assert events == [
        ToolCallDelta(0, "a", "f", ""),
        ToolCallDelta(0, arguments="{}"),
        ToolCallDelta(1, "b", "g", "{"),
        ToolCallDelta(1, arguments="}"),
    ]


def test_two_whole_calls_with_the_same_index_are_two_calls() -> None:
    # As Ollama sent them for a long time.
    events = decode(
        call(index=0, id="a", function={"name": "f", "arguments": "{}"}),
        call(index=0, id="b", function={"name": "f", "arguments": "{}"}),
        finish=False,
    )
    assert events == [ToolCallDelta(0, "a", "f", "{}"), ToolCallDelta(1, "b", "f", "{}")]


def test_calls_without_index_or_id_get_both() -> None:
    first, more, second = decode(
        call(function={"name": "f", "arguments": "{"}),
        call(function={"arguments": "}"}),
        call(function={"name": "g", "arguments": {"x": 1}}),
        finish=False,
    )
    assert isinstance(first, ToolCallDelta)
    assert isinstance(second, ToolCallDelta)
    assert (first.call_index, first.name, second.call_index, second.arguments) == (0, "f", 1, '{"x":1}')
    assert first.id
    assert second.id
    assert first.id != second.id
    assert more == ToolCallDelta(0, arguments="}")


def test_a_name_repeated_in_every_piece_is_one_call() -> None:
    events = decode(
        call(index=0, id="a", function={"name": "f", "arguments": "{"}),
        call(index=0, id="a", function={"name": "f", "arguments": "}"}),
        finish=False,
    )
    assert events == [ToolCallDelta(0, "a", "f", "{"), ToolCallDelta(0, arguments="}")]


def test_the_old_function_call_is_a_tool_call() -> None:
    first, more, done = decode(
        delta(function_call={"name": "f", "arguments": "{"}),
        delta(function_call={"arguments": "}"}),
        delta("function_call"),
        finish=False,
    )
    assert isinstance(first, ToolCallDelta)
    assert first.name == "f"
    assert more == ToolCallDelta(0, arguments="}")
    assert done == ChoiceDone(0, "tool_calls")


def test_logprobs_without_text_wait_for_it() -> None:
    half = {"token": "�", "logprob": -1, "bytes": [0xC3], "top_logprobs": None}
    rest = {
        "token": "�",
        "logprob": -2.5,
        "bytes": [0xA4],
        "id": 7,
        "top_logprobs": [{"token": "x", "logprob": -3.0}],
    }
    chunks = [delta(content=""), delta(content="ä")]
    chunks[0]["choices"][0]["logprobs"] = {"content": [half]}
    chunks[1]["choices"][0]["logprobs"] = {"content": [rest]}
    expected = (
        TokenLogprob("�", -1.0, b"\xc3", -1),
        TokenLogprob("�", -2.5, b"\xa4", 7, (TopLogprob("x", -3.0, b"x", -1),)),
    )
    assert decode(*chunks, finish=False) == [TextDelta("ä", 0, expected, 2)]


@pytest.mark.parametrize(
    "chunk",
    [
        [],
        "x",
        5,
        {"choices": {}},
        {"choices": ["x"]},
        {"choices": [{"index": "0"}]},
        {"choices": [{"index": -1}]},
        {"choices": [{"delta": []}, {"delta": "x"}]},
        {"choices": [{"delta": {"content": 5}}]},
        {"choices": [{"delta": {"tool_calls": "x"}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "no name"}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": "0", "function": {"name": "f"}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": {"a": math.nan}}}]}}]},
        {"choices": [{"finish_reason": 5}]},
        {"choices": [{"delta": {"content": "x"}, "logprobs": {"content": [{"logprob": 10**400}]}}]},
        {"choices": [{"delta": {"content": "x"}, "logprobs": {"content": [{"token": "x"}]}}]},
        {"choices": [{"delta": {"content": "x"}, "logprobs": {"content": [{"logprob": 0, "bytes": [300]}]}}]},
    ],
)
def test_a_chunk_that_makes_no_sense_is_an_error_of_the_upstream(chunk: Any) -> None:
    with pytest.raises(UpstreamError):
        decode(chunk)


def test_an_earlier_call_can_not_be_taken_up_again() -> None:
    with pytest.raises(UpstreamError):
        decode(
            call(index=0, id="a", function={"name": "f"}),
            call(index=1, id="b", function={"name": "g"}),
            call(index=0, function={"arguments": "{}"}),
        )


def test_lone_surrogates_from_an_upstream_are_replaced() -> None:
    assert decode(delta(content="a\ud800"), finish=False) == [TextDelta("a?")]
    [event] = decode(call(id="a", function={"name": "f", "arguments": {"k": "\ud800"}}), finish=False)
    assert event == ToolCallDelta(0, "a", "f", '{"k":"?"}')


WHOLE_CHUNK = {
    "choices": [
        {
            "index": 0,
            "delta": {
                "content": "x",
                "reasoning": "y",
                "tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}],
            },
            "logprobs": {
                "content": [
                    {
                        "token": "x",
                        "logprob": -1.0,
                        "bytes": [1],
                        "top_logprobs": [{"token": "y", "logprob": -2}],
                    }
                ]
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
}
LEGACY_CHUNK = {
    "choices": [
        {
            "index": 0,
            "text": "x",
            "logprobs": {
                "tokens": ["x"],
                "token_logprobs": [-1.0],
                "top_logprobs": [{"y": -2.0}],
                "text_offset": [0],
            },
            "finish_reason": "stop",
        }
    ]
}


def check_read_or_refused(decoder: Any, chunk: Any) -> None:
    """Feed a chunk: what comes of it are events that can be sent on and end, or an error of the upstream."""
    try:
        events = [*decoder.feed(chunk), *decoder.finish()]
    except UpstreamError:
        return
    assert [type(event) for event in events].index(Done) == len(events) - 1
    request = ChatRequest(messages=(Message("user", "x"),), logprobs=2)
    encoder = openai_chat.ChatChunks(request, StreamOptions(True, True), "auto", CREATED)
    for event in events:
        as_utf8(encoder.encode(event))


@settings(PATIENT, max_examples=200)
@given(st.integers(0, 2**32), json_values())
def test_any_json_in_a_chunk_is_events_or_an_error_of_the_upstream(seed: int, value: Any) -> None:
    check_read_or_refused(openai_chat.ChunkDecoder(), mutate(WHOLE_CHUNK, seed, value))
    check_read_or_refused(openai_completions.ChunkDecoder(), mutate(LEGACY_CHUNK, seed, value))
    check_read_or_refused(openai_chat.ChunkDecoder(), value)


def test_completion_chunks_are_text() -> None:
    decoder = openai_completions.ChunkDecoder()
    assert decoder.feed({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}) == [TextDelta("a")]
    assert decoder.feed({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}) == [
        ChoiceDone(0, "length")
    ]
    assert decoder.finish() == [Done(Usage(completion_tokens=1))]


def test_legacy_logprobs_are_read_in_falling_order_and_null_is_unknown() -> None:
    chunk = {
        "choices": [
            {
                "index": 0,
                "text": "ab",
                "logprobs": {
                    "tokens": ["a", "b"],
                    "token_logprobs": [None, -1.0],
                    "top_logprobs": [None, {"c": -2.0, "b": -1.0}],
                },
            }
        ]
    }
    [event] = openai_completions.ChunkDecoder().feed(chunk)
    assert isinstance(event, TextDelta)
    first, second = event.logprobs
    assert math.isnan(first.logprob)
    assert [top.token for top in second.top] == ["b", "c"]


# --------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (422, BadRequest),
        (401, UpstreamError),
        (402, UpstreamError),
        (403, UpstreamError),
        (404, UpstreamError),
        (413, PayloadTooLarge),
        (429, Overloaded),
        (500, UpstreamError),
        (501, NotSupported),
        (503, Unavailable),
        (504, UpstreamError),
    ],
)
def test_an_upstreams_status_says_whose_fault_it_is(status: int, kind: type[EdgeCloudError]) -> None:
    assert type(decode_error(status, {"error": {"message": "no"}})) is kind


def test_a_wait_that_the_upstream_asks_for_is_passed_on() -> None:
    assert decode_error(429, None, retry_after=7).retry_after == 7
    assert decode_error(503, None, retry_after=7).retry_after == 7


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "bad thing"}},
        {"error": "bad thing"},
        {"object": "error", "message": "bad thing"},
        {"detail": "bad thing"},
        "bad\n  thing",
    ],
)
def test_the_message_is_found_in_every_shape(body: Any) -> None:
    assert "bad thing" in decode_error(500, body).message


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_never_repeated(status: int) -> None:
    error = decode_error(status, {"error": {"message": "Incorrect API key provided: SECRET123"}})
    assert "SECRET123" not in error.message
    assert isinstance(error, UpstreamError)
    assert error.upstream_status == status


def test_the_field_that_an_upstream_refuses_is_named() -> None:
    assert decode_error(400, {"error": {"message": "no", "param": "top_k"}}).param == "top_k"
    assert decode_error(400, {"error": {"message": "no", "param": 5}}).param is None


def test_long_messages_are_cut_and_odd_ones_survive() -> None:
    assert len(decode_error(500, "x" * 10**6).message) < MAX_QUOTE + 100
    assert decode_error(500, {"error": {"message": "\ud800"}}).message.encode()
    bodies: list[Any] = [None, 5, [], {}, {"error": []}, {"error": {"message": {"a": 1}}}]
    for body in bodies:
        assert decode_error(500, body).message


def test_a_prompt_that_is_too_long_there_is_too_long_here() -> None:
    llama = {"error": {"type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 4, "message": "x"}}
    error = decode_error(400, llama)
    assert isinstance(error, ContextLengthExceeded)
    assert error.extra == {"n_prompt_tokens": 9, "n_ctx": 4}
    vllm = {
        "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"
    }
    hosted = {"error": {"code": "context_length_exceeded", "message": "too long"}}
    assert decode_error(400, vllm).code == decode_error(400, hosted).code == "context_length_exceeded"


@PATIENT
@given(st.integers(400, 599), json_values())
def test_any_error_body_gives_one_of_our_errors(status: int, body: Any) -> None:
    error = decode_error(status, body)
    assert type(error).__module__ == errors.__name__
    assert len(error.message.encode()) < 2000


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [{"index": 0, "delta": {"content": "hi"}}]},
        {"choices": [{"delta": {"content": "hi"}, "finish_reason": None, "logprobs": None}], "usage": None},
    ],
)
def test_a_chunk_of_text_alone_says_the_same_as_one_that_is_read_with_care(chunk: dict[str, Any]) -> None:
    careful = {**chunk, "choices": [{**chunk["choices"][0], "delta": {"content": "hi", "role": "assistant"}}]}
    quick, slow = openai_chat.ChunkDecoder(), openai_chat.ChunkDecoder()

    assert quick.feed(chunk) == slow.feed(careful) == [TextDelta("hi")]
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    assert quick.feed(end) == slow.feed(end) == [ChoiceDone(0, "stop")]
    assert quick.finish() == slow.finish()


@pytest.mark.parametrize("odd", [{"index": "0"}, {"finish_reason": "error"}, {"logprobs": {"content": "x"}}])
def test_a_chunk_of_text_with_something_odd_beside_it_is_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(UpstreamError):
        openai_chat.ChunkDecoder().feed({"choices": [{"index": 0, "delta": {"content": "hi"}, **odd}]})
