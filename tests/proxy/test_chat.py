"""`/v1/chat/completions` over scripted engines, read by httpx."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.requests import chat, client, frames

from .conftest import Serve

PATH = "/v1/chat/completions"
WORDS = [b"one", b" two", b" three", b" four", b" five", b" six", b" seven", b" eight", b" nine"]


def chunks(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    events = frames(answer.text)
    assert events.pop() == "[DONE]"
    return events


# cases: C012
def test_an_answer_has_everything_that_clients_read(serve: Serve) -> None:
    with client(serve(FakeEngine(WORDS)).url) as http:
        answer = http.post(PATH, json=chat("say nine words", model="fake", max_tokens=8))
    body = answer.json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert isinstance(body["created"], int)
    assert body["model"] == "fake"
    choice = body["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == "one two three four five six seven eight"
    assert choice["message"]["refusal"] is None  # cases: P10
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None  # cases: C062
    assert "tool_calls" not in choice["message"]  # cases: C117
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == 8
    assert answer.headers["x-edgecloud-route"] == "fake"
    assert answer.headers["x-edgecloud-model"] == "fake"
    assert answer.headers["x-edgecloud-cached-tokens"] == "0"


# cases: C013, P5
def test_the_new_name_of_the_limit_wins(serve: Serve) -> None:
    with client(serve(FakeEngine(WORDS)).url) as http:
        body = http.post(PATH, json=chat(max_completion_tokens=5, max_tokens=8)).json()
    assert body["usage"]["completion_tokens"] == 5
    assert body["choices"][0]["finish_reason"] == "length"


def test_auto_reports_who_answered_and_a_name_is_echoed(serve: Serve) -> None:
    with client(serve(FakeEngine(name="first"), FakeEngine(name="second")).url) as http:
        for sent, shown, answered in (
            ({}, "first", "first"),
            ({"model": "auto"}, "first", "first"),
            ({"model": "alias"}, "alias", "first"),
            ({"model": "second"}, "second", "second"),
        ):
            whole = http.post(PATH, json=chat(**sent))
            streamed = http.post(PATH, json=chat(stream=True, **sent))
            assert whole.json()["model"] == shown
            assert {chunk["model"] for chunk in chunks(streamed)} == {shown}
            assert whole.headers["x-edgecloud-model"] == streamed.headers["x-edgecloud-model"] == answered


# cases: P59
@pytest.mark.parametrize(
    "model", ["gpt-4", "/etc/passwd", "hf:owner/repo:Q4_0", "../smollm2", "./model.gguf", "fake-embedder"]
)
def test_only_listed_names_are_models(serve: Serve, model: str) -> None:
    with client(serve().url) as http:
        answer = http.post(PATH, json=chat(model=model))
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert answer.json()["error"]["param"] == "model"


# cases: C014
def test_content_in_parts_is_the_joined_text(serve: Serve) -> None:
    engine = FakeEngine(lambda request: [request.messages[0].content.encode()])
    parts = [{"type": "text", "text": "one two"}, {"type": "text", "text": " three"}]
    with client(serve(engine).url) as http:
        joined = http.post(PATH, json=chat("one two three")).json()
        split = http.post(PATH, json={"messages": [{"role": "user", "content": parts}]}).json()
    assert split["choices"] == joined["choices"]
    assert split["usage"] == joined["usage"]


# cases: C016
def test_fields_that_nobody_knows_are_ignored(serve: Serve) -> None:
    body = chat(store=True, service_tier="auto", user="me", metadata={"a": "b"}, whatever=[1])
    body["messages"][0] |= {"cache_control": {"type": "ephemeral"}, "whatever": 1}
    with client(serve().url) as http:
        assert http.post(PATH, json=body).status_code == 200


# cases: C182
def test_null_is_the_same_as_absent(serve: Serve) -> None:
    optional = """frequency_penalty presence_penalty logit_bias logprobs top_logprobs max_tokens
        max_completion_tokens n response_format seed stop stream stream_options temperature top_p top_k min_p
        tools tool_choice parallel_tool_calls user metadata store service_tier reasoning_effort modalities
        functions function_call repeat_penalty ignore_eos chat_template_kwargs model"""
    engine = FakeEngine()
    with client(serve(engine).url) as http:
        plain = http.post(PATH, json=chat())
        nulls = http.post(PATH, json=chat(**dict.fromkeys(optional.split())))
    assert (plain.status_code, nulls.status_code) == (200, 200)
    assert plain.json()["choices"] == nulls.json()["choices"]
    first, second = engine.requests
    assert first.sampling == second.sampling
    assert (first.max_tokens, first.stop, first.n, first.tools) == (
        second.max_tokens,
        second.stop,
        second.n,
        second.tools,
    )


# cases: C027, C039, C055, C057, C061, C067, C068, C069, C100, C101, C107, C109, C021, P74, P76, P77, P60
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"presence_penalty": 9}, "presence_penalty"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": "yes"}, "logprobs"),
        ({"response_format": {"type": "sound"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": 123, "content": "x"}]}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
def test_a_bad_field_is_400_and_named(serve: Serve, fields: dict[str, Any], param: str) -> None:
    engine = FakeEngine()
    with client(serve(engine).url) as http:
        answer = http.post(PATH, json=chat() | fields)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"].startswith(param)
        assert param in error["message"]
        assert engine.requests == []
        assert http.post(PATH, json=chat()).status_code == 200


# cases: C023, C024, P65
def test_several_choices_are_told_apart(serve: Serve) -> None:
    with client(serve().url) as http:
        whole = http.post(PATH, json=chat(n=3)).json()
        streamed = chunks(http.post(PATH, json=chat(n=3, stream=True)))
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["completion_tokens"] == 12
    for index in range(3):
        mine = [c["choices"][0] for c in streamed if c["choices"][0]["index"] == index]
        assert sum("role" in choice["delta"] for choice in mine) == 1
        assert sum(choice["finish_reason"] is not None for choice in mine) == 1


# cases: C031, C033, C035, C038
def test_a_stream_has_one_role_first_and_one_reason_last(serve: Serve) -> None:
    with client(serve(FakeEngine(WORDS)).url) as http:
        streamed = chunks(http.post(PATH, json=chat(stream=True)))
    assert all("usage" not in chunk or chunk["usage"] is None for chunk in streamed)
    choices = [chunk["choices"][0] for chunk in streamed]
    assert choices[0]["delta"]["role"] == "assistant"
    assert not choices[0]["delta"]["content"]
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert all(choice["delta"]["content"] for choice in choices[1:-1])
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "stop"
    assert not choices[-1]["delta"].get("content")
    assert len({chunk["id"] for chunk in streamed}) == 1


# cases: C037
def test_usage_is_one_last_chunk_when_asked_for(serve: Serve) -> None:
    with client(serve(FakeEngine(WORDS)).url) as http:
        body = chat(stream=True, stream_options={"include_usage": True})
        streamed = chunks(http.post(PATH, json=body))
    assert streamed[-1]["choices"] == []
    assert streamed[-1]["usage"]["completion_tokens"] == 9
    assert all(chunk["usage"] is None for chunk in streamed[:-1])


# cases: C040
def test_usage_can_come_with_every_chunk(serve: Serve) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    with client(serve(FakeEngine(WORDS)).url) as http:
        streamed = chunks(http.post(PATH, json=chat(stream=True, stream_options=options)))
    counts = [chunk["usage"]["completion_tokens"] for chunk in streamed]
    assert counts == sorted(counts)
    for chunk in streamed:
        usage = chunk["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


# cases: C064, C066
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_whole_and_ordered(serve: Serve, stream: bool) -> None:
    with client(serve(FakeEngine(WORDS)).url) as http:
        answer = http.post(PATH, json=chat(logprobs=True, top_logprobs=5, stream=stream))
    bodies = chunks(answer) if stream else [answer.json()]
    shown = [b["choices"][0]["logprobs"] for b in bodies if b["choices"][0]["logprobs"]]
    entries = [entry for logprobs in shown for entry in logprobs["content"]]
    assert len(entries) == len(WORDS)
    for entry, token in zip(entries, WORDS, strict=True):
        assert bytes(entry["bytes"]) == token
        assert -9999 <= entry["logprob"] <= 0
        tops = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(tops) == 5
        assert tops == sorted(tops, reverse=True)


# cases: C085, P38
def test_cached_tokens_are_reported(serve: Serve) -> None:
    with client(serve(FakeEngine(cached_tokens=1)).url) as http:
        answer = http.post(PATH, json=chat())
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    assert answer.headers["x-edgecloud-cached-tokens"] == "1"


# cases: C119, C120
def test_reasoning_has_its_own_field_both_ways(serve: Serve) -> None:
    engine = FakeEngine(thoughts=["first ", "then"])
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "because"},
        {"role": "assistant", "content": "b", "reasoning": "because"},
        {"role": "user", "content": "c"},
    ]
    with client(serve(engine).url) as http:
        whole = http.post(PATH, json={"messages": history}).json()["choices"][0]["message"]
        streamed = chunks(http.post(PATH, json={"messages": history, "stream": True}))
    assert whole["reasoning_content"] == "first then"
    assert whole["content"] == "Hello, world!"
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "first then"
    assert [message.reasoning for message in engine.requests[0].messages] == [
        None,
        "because",
        "because",
        None,
    ]


# cases: C029, C150
def test_tokens_can_be_counted_before(serve: Serve) -> None:
    with client(serve().url) as http:
        body = chat("how many words are these")
        counted = http.post(f"{PATH}/input_tokens", json=body).json()["input_tokens"]
        tokenized = http.post("/tokenize", json=body).json()["count"]
        used = http.post(PATH, json=body).json()["usage"]["prompt_tokens"]
    assert counted == tokenized == used


# cases: C141, C175
@pytest.mark.parametrize(
    ("url", "statuses"),
    [
        ("file:///etc/passwd", {400}),
        ("http://169.254.169.254/latest", {400}),
        ("https://example.com/cat.png", {400}),
        ("data:image/png;base64,!!!", {400}),
        ("data:image/png;base64,iVBORw0KGgo=", {400, 501}),
    ],
)
def test_an_image_is_neither_fetched_nor_silently_dropped(serve: Serve, url: str, statuses: set[int]) -> None:
    parts = [{"type": "text", "text": "what is it"}, {"type": "image_url", "image_url": {"url": url}}]
    with client(serve().url) as http:
        answer = http.post(PATH, json={"messages": [{"role": "user", "content": parts}]})
    assert answer.status_code in statuses
    assert "image" in answer.json()["error"]["message"]


# cases: C116, P49
@pytest.mark.parametrize("calls", [None, []])
def test_no_tool_calls_are_no_calls(serve: Serve, calls: list[Any] | None) -> None:
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": calls},
        {"role": "user", "content": "c"},
    ]
    with client(serve().url) as http:
        assert http.post(PATH, json={"messages": history}).status_code == 200


def test_a_deadline_comes_with_a_header(serve: Serve) -> None:
    engine = FakeEngine(prefill_s=1000)
    with client(serve(engine).url) as http:
        answer = http.post(PATH, json=chat(), headers={"x-request-deadline-ms": "50"})
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "deadline_exceeded"
        assert engine.requests[0].deadline_s == 0.05
        for nonsense in ("soon", "-1", "0", "nan", "inf"):
            answer = http.post(PATH, json=chat(), headers={"x-request-deadline-ms": nonsense})
            assert answer.status_code == 400


# cases: P1
def test_a_later_short_answer_overtakes_an_earlier_long_one(serve: Serve) -> None:
    import threading

    engine = FakeEngine(lambda request: [b"x"] * int(request.messages[0].content), decode_s=0.01)
    finished: list[str] = []
    live = serve(engine)

    def ask(length: str) -> None:
        with client(live.url) as http:
            assert http.post(PATH, json=chat(length)).status_code == 200
        finished.append(length)

    threads = [threading.Thread(target=ask, args=(length,)) for length in ("200", "4")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert finished == ["4", "200"]


def test_paths_work_without_v1_too(serve: Serve) -> None:
    with client(serve().url) as http:
        assert http.post("/chat/completions", json=chat()).status_code == 200
        assert http.post("/completions", json={"prompt": "x"}).status_code == 200
        assert http.post("/embeddings", json={"input": "x"}).status_code == 200
        assert http.post("/messages", json=chat(max_tokens=5)).status_code == 200
        assert http.post("/responses", json={"input": "x"}).status_code == 200
        assert http.get("/models").status_code == 200
