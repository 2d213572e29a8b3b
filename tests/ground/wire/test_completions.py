"""Legacy completions: many prompts in one body, and the legacy shape of logprobs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.types import Completion

from edgecloud.errors import BadRequest
from edgecloud.types import ChatRequest, ChoiceDone, Done, Start, TextDelta, Usage
from edgecloud.wire import openai_completions
from edgecloud.wire.common import StreamOptions

from .answers import (
    CREATED,
    DONE,
    PATIENT,
    START,
    check_made_or_refused,
    json_values,
    make_logprob,
    mutate,
    script,
)
from .judges import canned, judge, sse

FULL_BODY = {
    "prompt": ["hello", [1, 2]],
    "model": "m",
    "n": 2,
    "best_of": 2,
    "max_tokens": 3,
    "logprobs": 2,
    "echo": True,
    "suffix": "",
    "stop": "END",
    "temperature": 1,
    "grammar": "root ::= x",
    "stream": True,
    "stream_options": {"include_usage": True},
}


def prompts(prompt: Any) -> list[Any]:
    return [request.prompt for request in openai_completions.parse({"prompt": prompt})[0]]


def make_requests(count: int = 1, n: int = 1, logprobs: int | None = None) -> list[ChatRequest]:
    return [ChatRequest(prompt="x", n=n, logprobs=logprobs, id=f"req-{number}") for number in range(count)]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", ["hi"]),
        ([1, 2], [(1, 2)]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [(1,), (2, 3)]),
        (["a", [1]], ["a", (1,)]),
    ],
)
def test_a_prompt_has_five_forms(prompt: Any, expected: list[Any]) -> None:
    assert prompts(prompt) == expected


@pytest.mark.parametrize(
    "prompt", [None, "", [], [""], [[]], ["a", ""], [1.5], [True], [-1], {}, 5, ["a", 5], "\ud800"]
)
def test_an_empty_or_odd_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        prompts(prompt)
    assert str(caught.value.param).startswith("prompt")


def test_each_prompt_is_a_request_with_the_same_fields() -> None:
    requests, options = openai_completions.parse(FULL_BODY)
    assert options == StreamOptions(True, True)
    assert [request.prompt for request in requests] == ["hello", (1, 2)]
    assert len({request.id for request in requests}) == 2
    for request in requests:
        assert (request.n, request.max_tokens, request.logprobs, request.echo) == (2, 3, 2, True)
        assert (request.stop, request.sampling.temperature, request.model) == (("END",), 1.0, "m")


def test_sixteen_tokens_unless_said_otherwise() -> None:
    for fields, limit in (
        ({}, 16),
        ({"max_tokens": None}, 16),
        ({"max_tokens": 5}, 5),
        ({"n_predict": -1}, None),
    ):
        [request], _ = openai_completions.parse({"prompt": "x", **fields})
        assert request.max_tokens == limit


def test_no_tokens_at_all_only_scores_an_echoed_prompt() -> None:
    [request], _ = openai_completions.parse({"prompt": "x", "max_tokens": 0, "echo": True, "logprobs": 1})
    assert (request.max_tokens, request.echo) == (0, True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"n": 129}, "n"),
        ({"n": 65, "prompt": ["a", "b"]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"echo": 1}, "echo"),
    ],
)
def test_a_bad_field_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        openai_completions.parse({"prompt": "x", **fields})
    assert caught.value.param == param


SCRIPT: list[tuple[int, Any]] = [
    (1, replace(START, prompt_tokens=2)),
    (0, START),
    (0, TextDelta("a")),
    (1, TextDelta("b", 1)),
    (1, ChoiceDone(1, "stop")),
    (0, TextDelta("c", 1)),
    (1, ChoiceDone(0, "length")),
    (0, ChoiceDone(0, "stop")),
    (0, ChoiceDone(1, "stop")),
    (1, Done(Usage(2, 1, 1))),
    (0, DONE),
]


def test_answers_are_numbered_by_prompt_and_choice() -> None:
    assembler = openai_completions.CompletionAssembler(make_requests(2, n=2), "auto", CREATED)
    for prompt_no, event in SCRIPT:
        assembler.add(prompt_no, event)
    body = assembler.body()
    judge(Completion, body)
    assert (body["id"], body["model"], body["object"]) == ("cmpl-0", "smollm2", "text_completion")
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "a"),
        (1, "c"),
        (2, ""),
        (3, "b"),
    ]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "stop", "length", "stop"]
    assert [choice["logprobs"] for choice in body["choices"]] == [None] * 4
    assert (body["usage"]["prompt_tokens"], body["usage"]["total_tokens"]) == (9, 13)
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}


def test_a_stream_of_many_prompts_has_one_finish_each_and_one_usage() -> None:
    encoder = openai_completions.CompletionChunks(
        make_requests(2, n=2), StreamOptions(True, True), "auto", CREATED
    )
    made = [chunk for prompt_no, event in SCRIPT for chunk in encoder.encode(prompt_no, event)]
    seen = [
        (choice["index"], choice["text"], choice["finish_reason"])
        for chunk in made
        for choice in chunk["choices"]
    ]
    assert seen == [
        (0, "a", None),
        (3, "b", None),
        (3, "", "stop"),
        (1, "c", None),
        (2, "", "length"),
        (0, "", "stop"),
        (1, "", "stop"),
    ]
    assert [chunk["usage"] for chunk in made[:-1]] == [None] * 7
    assert (made[-1]["choices"], made[-1]["usage"]["total_tokens"]) == ([], 13)


def test_the_sdk_reads_the_stream() -> None:
    encoder = openai_completions.CompletionChunks(make_requests(), StreamOptions(True), "auto", CREATED)
    answer = script(TextDelta("Hel"), TextDelta("lo"), ChoiceDone(0, "stop"))
    frames = [chunk for event in answer for chunk in encoder.encode(0, event)]
    with canned(sse(frames)) as url:
        client = OpenAI(base_url=url, api_key="x", max_retries=0)
        stream = client.completions.create(model="auto", prompt="x", stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == "Hello"


def test_continuous_usage_adds_up_all_prompts() -> None:
    options = StreamOptions(True, True, True)
    encoder = openai_completions.CompletionChunks(make_requests(2, n=2), options, "auto", CREATED)
    made = [chunk for prompt_no, event in SCRIPT for chunk in encoder.encode(prompt_no, event)]
    assert [chunk["usage"]["total_tokens"] for chunk in made[:4]] == [10, 11, 11, 12]


def legacy(*entries: Any, is_openais: bool = True) -> dict[str, Any]:
    assembler = openai_completions.CompletionAssembler(make_requests(logprobs=1), "auto", CREATED)
    for event in script(TextDelta("x", logprobs=entries), ChoiceDone(0, "stop")):
        assembler.add(0, event)
    if is_openais:
        judge(Completion, assembler.body())
    logprobs: dict[str, Any] = assembler.body()["choices"][0]["logprobs"]
    return logprobs


def test_legacy_logprobs_are_four_lists_with_the_chosen_token_among_the_best() -> None:
    assert legacy(make_logprob("ab", -1.0, top=1), make_logprob("c", -2.0)) == {
        "tokens": ["ab", "c"],
        "token_logprobs": [-1.0, -2.0],
        "top_logprobs": [{"t0": -1.0, "ab": -1.0}, {"c": -2.0}],
        "text_offset": [0, 2],
    }


def test_the_first_echoed_token_has_no_probability() -> None:
    # As OpenAI and vLLM answer and lm-eval reads it, though the SDK's type doesn't know.
    logprobs = legacy(make_logprob("a", math.nan), make_logprob("b", -1.0), is_openais=False)
    assert logprobs["token_logprobs"] == [None, -1.0]
    assert logprobs["top_logprobs"] == [None, {"b": -1.0}]


def test_parts_of_a_character_share_its_offset_and_are_named_by_their_bytes() -> None:
    parts = [make_logprob("�", raw=bytes([byte])) for byte in "🙂".encode()]
    logprobs = legacy(make_logprob("a"), *parts, make_logprob("b"))
    assert logprobs["text_offset"] == [0, 1, 1, 1, 1, 2]
    assert logprobs["tokens"][1:3] == ["bytes:\\xf0", "bytes:\\x9f"]


def test_a_byte_that_is_no_character_counts_as_the_replacement_that_is_shown() -> None:
    logprobs = legacy(make_logprob("�", raw=b"\xff"), make_logprob("a"))
    assert (logprobs["tokens"], logprobs["text_offset"]) == (["bytes:\\xff", "a"], [0, 1])


def test_offsets_go_on_through_a_stream_and_do_not_mind_text_held_back() -> None:
    requests = make_requests(2, logprobs=0)
    encoder = openai_completions.CompletionChunks(requests, StreamOptions(True), "auto", CREATED)
    held = [make_logprob("EN"), make_logprob("D"), make_logprob("!")]
    events = [
        (0, TextDelta("ab", logprobs=(make_logprob("ab"),))),
        (1, TextDelta("x", logprobs=(make_logprob("x"),))),
    ]
    events += [(0, TextDelta("END!", logprobs=tuple(held)))]
    made = [chunk for prompt_no, event in events for chunk in encoder.encode(prompt_no, event)]
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in made] == [[0], [0], [2, 4, 5]]


def test_a_reroute_changes_the_model_that_is_named() -> None:
    encoder = openai_completions.CompletionChunks(make_requests(), StreamOptions(True), "auto", CREATED)
    encoder.encode(0, START)
    encoder.encode(0, Start("pool", "llama", 7))
    assert encoder.encode(0, TextDelta("x"))[0]["model"] == "llama"


@settings(PATIENT, max_examples=200)
@given(st.integers(0, 2**32), json_values())
def test_any_json_anywhere_in_a_body_is_requests_or_a_bad_request(seed: int, value: Any) -> None:
    for body in (mutate(FULL_BODY, seed, value), {"prompt": value}, value):
        check_made_or_refused(lambda body: openai_completions.parse(body)[0], body)
