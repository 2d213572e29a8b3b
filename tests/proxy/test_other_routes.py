"""Completions, embeddings, models, tokens, responses and messages over scripted engines."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from edgecloud.errors import BadRequest
from edgecloud.types import ToolCall
from tests.support.fake_engine import FakeEngine
from tests.support.requests import chat, client, frames, named_frames

from .conftest import Serve

CALLS = (ToolCall("call_1", "weather", '{"city": "Oslo"}'), ToolCall("call_2", "time", "{}"))
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "time")
]


# ----------------------------------------------------------------------------------------------- completions


# cases: C072, C079
@pytest.mark.parametrize("prompt", ["hi", [104, 105], ["a", "b"], [[1], [2, 3]], ["a", [2, 3]]])
def test_each_prompt_has_its_choice_streamed_or_not(serve: Serve, prompt: Any) -> None:
    engine = FakeEngine(lambda request: [str(request.prompt).encode(), b"!"])
    with client(serve(engine).url) as http:
        whole = http.post("/v1/completions", json={"prompt": prompt}).json()
        events = frames(http.post("/v1/completions", json={"prompt": prompt, "stream": True}).text)
    prompts = prompt if isinstance(prompt, list) and isinstance(prompt[0], str | list) else [prompt]
    expected = [f"{tuple(p) if isinstance(p, list) else p}!" for p in prompts]
    assert [choice["text"] for choice in whole["choices"]] == expected
    assert [choice["index"] for choice in whole["choices"]] == list(range(len(expected)))
    assert events.pop() == "[DONE]"
    for index, text in enumerate(expected):
        mine = [e["choices"][0] for e in events if e["choices"] and e["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in mine) == text
        # cases: C074
        assert sum(choice["finish_reason"] is not None for choice in mine) == 1


# cases: C076, C077, P63
@pytest.mark.parametrize("prompt", ["", [], [[]], [""], [999], [-1], [1.5], None, {"a": 1}])
def test_a_prompt_that_is_none_is_400(serve: Serve, prompt: Any) -> None:
    with client(serve().url) as http:
        assert http.post("/v1/completions", json={"prompt": prompt}).status_code == 400
        assert http.post("/v1/completions", json={"prompt": "ok"}).status_code == 200


# cases: C070
def test_legacy_log_probabilities_have_the_legacy_shape(serve: Serve) -> None:
    with client(serve().url) as http:
        for count in (0, 5):
            body = {"prompt": "hi", "logprobs": count}
            logprobs = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
            assert logprobs["tokens"] == ["Hello", ",", " world", "!"]
            assert logprobs["text_offset"] == [0, 5, 6, 12]
            assert len(logprobs["token_logprobs"]) == 4
        assert http.post("/v1/completions", json={"prompt": "hi", "logprobs": 21}).status_code == 400


# ------------------------------------------------------------------------------------------------ embeddings


# cases: C152, P37
def test_base64_and_floats_are_the_same_numbers(serve: Serve) -> None:
    with client(serve().url) as http:
        body = {"input": ["one", "two"], "model": "fake-embedder"}
        floats = http.post("/v1/embeddings", json=body).json()
        packed = http.post("/v1/embeddings", json=body | {"encoding_format": "base64"}).json()
    assert [entry["index"] for entry in floats["data"]] == [0, 1]
    for plain, coded in zip(floats["data"], packed["data"], strict=True):
        numbers = struct.unpack("<4f", base64.b64decode(coded["embedding"]))
        assert numbers == pytest.approx(plain["embedding"])


def test_an_embedding_tells_of_how_many_inputs_it_read_only_the_beginning(serve: Serve) -> None:
    with client(serve(FakeEngine()).url) as http:
        short = http.post("/v1/embeddings", json={"input": "x"})
        long = http.post("/v1/embeddings", json={"input": ["x" * 1001, "x", "y" * 5000]})
    assert "x-edgecloud-truncated" not in short.headers
    assert long.headers["x-edgecloud-truncated"] == "2"


# cases: C155
def test_a_chat_model_gives_no_embeddings(serve: Serve) -> None:
    with client(serve().url) as http:
        answer = http.post("/v1/embeddings", json={"input": "x", "model": "fake"})
    assert answer.status_code in (400, 501)
    assert "embeddings" in answer.json()["error"]["message"]


# ---------------------------------------------------------------------------------------------------- models


# cases: C007
def test_models_are_listed_and_every_name_can_be_asked_for(serve: Serve) -> None:
    with client(serve(FakeEngine(name="owner/model"), FakeEngine(name="second")).url) as http:
        models = http.get("/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["auto", "owner/model", "second", "fake-embedder"]
        assert http.get("/v1/models/").json()["data"] == models
        for model in models:
            assert http.get(f"/v1/models/{model['id']}").json() == model
            assert model["object"] == "model"
            for name in (model["id"], *model["aliases"]):
                if model["kind"] != "embedding":
                    assert http.post("/v1/chat/completions", json=chat(model=name)).status_code == 200
        assert models[1]["aliases"] == ["alias"]
        assert http.get("/v1/models/alias").json() == models[1]
        missing = http.get("/v1/models/owner/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


# cases: C005
def test_the_version_is_told(serve: Serve) -> None:
    with client(serve().url) as http:
        assert http.get("/version").json()["version"]


# ---------------------------------------------------------------------------------------------------- tokens


# cases: C149
@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokens_make_the_round_trip(serve: Serve, prefix: str) -> None:
    text = "round trip é🦙"
    with client(serve().url) as http:
        llama = http.post(f"{prefix}/tokenize", json={"content": text}).json()
        vllm = http.post(f"{prefix}/tokenize", json={"prompt": text, "model": "fake"}).json()
        back = http.post(f"{prefix}/detokenize", json={"tokens": llama["tokens"]}).json()
        added = http.post(f"{prefix}/tokenize", json={"content": text, "add_special": True}).json()
        pieces = http.post(f"{prefix}/tokenize", json={"content": "aé", "with_pieces": True}).json()
    assert back == {"content": text, "prompt": text}
    assert vllm["tokens"] == added["tokens"] == [256, *llama["tokens"]]
    assert vllm["count"] == len(vllm["tokens"])
    assert [vllm["max_model_len"], llama["max_model_len"]] == [4096, 4096]
    assert pieces["tokens"] == [
        {"id": 97, "piece": "a"},
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
    ]


def test_a_chat_is_tokenized_as_it_would_be_charged(serve: Serve) -> None:
    with client(serve().url) as http:
        tokens = http.post("/tokenize", json=chat("two words")).json()
        charged = http.post("/v1/chat/completions", json=chat("two words")).json()["usage"]["prompt_tokens"]
    assert tokens == {"count": charged, "max_model_len": 4096, "tokens": list(range(charged))}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"content": 5}),
        ("/tokenize", []),
        ("/tokenize", {"content": "x", "add_special": "yes"}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": "x"}),
        ("/detokenize", {"tokens": [999]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["a"]}),
    ],
)
def test_bad_token_requests_are_400(serve: Serve, path: str, body: Any) -> None:
    with client(serve().url) as http:
        assert http.post(path, json=body).status_code == 400
        assert http.post("/tokenize", json={"content": ""}).json()["tokens"] == []
        assert http.post("/tokenize", json={"content": "x", "model": "none"}).status_code == 404


# ----------------------------------------------------------------------------------------------------- tools


# cases: C106, C117, P44, P45, P47
def test_two_calls_are_streamed_with_their_numbers(serve: Serve) -> None:
    engine = FakeEngine([], calls=CALLS, reason="tool_calls")
    with client(serve(engine).url) as http:
        whole = http.post("/v1/chat/completions", json=chat(tools=TOOLS)).json()["choices"][0]
        events = frames(http.post("/v1/chat/completions", json=chat(tools=TOOLS, stream=True)).text)
    assert whole["finish_reason"] == "tool_calls"
    assert not whole["message"]["content"]
    assert [call["function"]["name"] for call in whole["message"]["tool_calls"]] == ["weather", "time"]
    deltas = [call for event in events[:-1] for call in event["choices"][0]["delta"].get("tool_calls", ())]
    assert {call["index"] for call in deltas} == {0, 1}
    for index, expected in enumerate(CALLS):
        mine = [call for call in deltas if call["index"] == index]
        assert (mine[0]["id"], mine[0]["function"]["name"]) == (expected.id, expected.name)
        assert "".join(call["function"]["arguments"] for call in mine) == expected.arguments
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"


# ------------------------------------------------------------------------------------------------- responses


# cases: C157, C158, P35
def test_a_responses_stream_is_in_order_and_numbered(serve: Serve) -> None:
    with client(serve().url) as http:
        events = named_frames(http.post("/v1/responses", json={"input": "hi", "stream": True}).text)
    types = [event["type"].removeprefix("response.") for event in events]
    assert types == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 4,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert len({event["item_id"] for event in events if "item_id" in event}) == 1
    text = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
    assert text == events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello, world!"


# cases: C160
def test_a_response_that_met_its_limit_is_incomplete(serve: Serve) -> None:
    with client(serve().url) as http:
        body = http.post("/v1/responses", json={"input": "hi", "max_output_tokens": 2}).json()
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}


def test_nothing_is_stored(serve: Serve) -> None:
    with client(serve().url) as http:
        answer = http.post("/v1/responses", json={"input": "hi", "previous_response_id": "resp_1"})
        assert answer.status_code == 400
        counted = http.post("/v1/responses/input_tokens", json={"input": "one two"}).json()
        assert counted["input_tokens"] == 3


# -------------------------------------------------------------------------------------------------- messages


# cases: C164
def test_a_message_is_anthropics_and_nothing_else(serve: Serve) -> None:
    with client(serve(FakeEngine(cached_tokens=1)).url) as http:
        body = http.post("/v1/messages", json=chat(max_tokens=2)).json()
    assert (body["type"], body["role"], body["stop_reason"]) == ("message", "assistant", "max_tokens")
    assert body["content"] == [{"type": "text", "text": "Hello,"}]
    assert (body["usage"]["input_tokens"], body["usage"]["cache_read_input_tokens"]) == (1, 1)
    assert "choices" not in body


# cases: C169, P51
@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/messages/count_tokens"])
def test_a_messages_tokens_are_counted(serve: Serve, path: str) -> None:
    with client(serve().url) as http:
        assert http.post(path, json=chat("one two")).json() == {"input_tokens": 3}


# cases: C170, C172
def test_tools_and_stop_sequences_have_their_reasons(serve: Serve) -> None:
    tool = {"name": "weather", "input_schema": {"type": "object"}}
    calling = FakeEngine([], name="calling", calls=CALLS[:1], reason="tool_calls")
    stopped = FakeEngine(name="stopped", stopped_by="END")
    with client(serve(calling, stopped).url) as http:
        body = http.post("/v1/messages", json=chat(max_tokens=9, tools=[tool])).json()
        assert body["stop_reason"] == "tool_use"
        block = body["content"][0]
        assert (block["type"], block["id"], block["name"]) == ("tool_use", "call_1", "weather")
        assert block["input"] == {"city": "Oslo"}
        body = http.post(
            "/v1/messages", json=chat(model="stopped", max_tokens=9, stop_sequences=["END"])
        ).json()
        assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "END")


# cases: P77
def test_a_message_without_messages_is_400(serve: Serve) -> None:
    with client(serve().url) as http:
        assert http.post("/v1/messages", json={"max_tokens": 5}).status_code == 400


# cases: C142
def test_what_the_client_shows_us_is_nothing_that_an_engine_sees(serve: Serve) -> None:
    engine = FakeEngine()
    headers = {"authorization": "Bearer CANARY", "cookie": "CANARY", "x-api-key": "CANARY"}
    with client(serve(engine).url, headers=headers) as http:
        http.post("/v1/chat/completions", json=chat())
    assert "CANARY" not in repr(engine.requests)


@pytest.mark.parametrize(
    ("inner", "sent"), [("messages", "input"), ("max_tokens", "max_output_tokens"), ("tools", "tools")]
)
def test_a_response_s_error_names_the_field_that_was_sent(serve: Serve, inner: str, sent: str) -> None:
    engine = FakeEngine(fail_at=0, error=BadRequest("No.", param=inner))
    with client(serve(engine).url) as http:
        answer = http.post("/v1/responses", json={"input": "hi", "model": "fake"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, sent)
