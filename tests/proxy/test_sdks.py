"""Judges nobody here wrote: the openai and anthropic SDKs with strict types, and a strict SSE reader."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import httpx_sse
import openai
import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from edgecloud.types import ToolCall
from tests.support.fake_engine import FakeEngine
from tests.support.live import Live, eventually
from tests.support.requests import chat, client, frames, named_frames

from .conftest import Serve

HI: Any = [{"role": "user", "content": "hi"}]
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def sdk(live: Live, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0, **options)


def claude(live: Live) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=live.url, api_key="x", max_retries=0)


@pytest.fixture
def live(serve: Serve) -> Live:
    calling = FakeEngine(
        [], name="calling", calls=[ToolCall("call_1", "weather", '{"city": "Oslo"}')], reason="tool_calls"
    )
    return serve(FakeEngine(cached_tokens=1), calling, FakeEngine(name="small", context=10))


# ---------------------------------------------------------------------------------------------------- openai


def test_openai_chat(live: Live) -> None:
    raw = sdk(live).chat.completions.with_raw_response.create(model="fake", messages=HI)
    answer = raw.parse()
    assert answer.choices[0].message.content == "Hello, world!"
    assert answer.usage
    assert answer.usage.prompt_tokens_details
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    assert answer._request_id == raw.headers["x-request-id"]


def test_openai_stream(live: Live) -> None:
    stream = sdk(live).chat.completions.create(
        model="fake", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[-1].usage
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello, world!"


def test_openai_stream_helper(live: Live) -> None:
    with sdk(live).chat.completions.stream(model="calling", messages=HI, tools=[WEATHER]) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls
    assert calls[0].function.name == "weather"
    assert final.choices[0].finish_reason == "tool_calls"


def test_openai_legacy_completions(live: Live) -> None:
    answer = sdk(live).completions.create(model="fake", prompt=["a", "b"])
    assert [choice.text for choice in answer.choices] == ["Hello, world!"] * 2
    streamed = list(sdk(live).completions.create(model="fake", prompt="a", stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == "Hello, world!"


def test_openai_embeddings_by_default_and_as_floats(live: Live) -> None:
    coded = sdk(live).embeddings.create(model="fake-embedder", input=["a", "b"])
    plain = sdk(live).embeddings.create(model="fake-embedder", input=["a", "b"], encoding_format="float")
    for left, right in zip(coded.data, plain.data, strict=True):
        assert left.embedding == pytest.approx(right.embedding)


def test_openai_responses(live: Live) -> None:
    answer = sdk(live).responses.create(model="fake", input="hi")
    assert answer.output_text == "Hello, world!"
    with sdk(live).responses.stream(model="fake", input="hi") as stream:
        events = list(stream)
        assert stream.get_final_response().output_text == "Hello, world!"
    assert events[-1].type == "response.completed"


def test_openai_models(live: Live) -> None:
    assert [model.id for model in sdk(live).models.list()][:2] == ["auto", "fake"]
    assert sdk(live).models.retrieve("fake").id == "fake"


def test_openai_errors_have_their_classes(live: Live, serve: Serve) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        sdk(live).chat.completions.create(model="nope", messages=HI)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        sdk(live).chat.completions.create(
            model="small", messages=[{"role": "user", "content": "x " * 50}], stream=True
        )
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        sdk(serve(api_keys=("k",))).models.list()


def test_openai_waits_and_repeats_when_told_to(serve: Serve) -> None:
    engine = FakeEngine(queue_limit=0)
    asking = openai.OpenAI(base_url=f"{serve(engine).url}/v1", api_key="x", max_retries=1)
    with pytest.raises(openai.RateLimitError):
        asking.chat.completions.create(model="fake", messages=HI)
    assert len(engine.requests) == 2


async def test_openai_async_break_cancels(serve: Serve) -> None:
    engine = FakeEngine([b"x"] * 100_000, decode_s=0.001)
    live = serve(engine)
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="x") as asking:
        stream = await asking.chat.completions.create(model="fake", messages=HI, stream=True)
        async for _ in stream:
            break
        await stream.close()
    eventually(lambda: engine.cancelled == ["decode"])


# ------------------------------------------------------------------------------------------------- anthropic


def test_anthropic_message(live: Live) -> None:
    answer = claude(live).messages.create(model="fake", max_tokens=32, messages=HI)
    assert answer.content[0].text == "Hello, world!"  # type: ignore[union-attr]
    assert answer.stop_reason == "end_turn"
    assert answer._request_id


def test_anthropic_models(live: Live) -> None:
    page = claude(live).models.list()
    assert [(model.id, model.type, model.display_name) for model in page.data][:2] == [
        ("auto", "model", "auto"),
        ("fake", "model", "fake"),
    ]
    assert all(model.created_at.tzinfo is not None for model in page.data)
    assert (page.has_more, page.first_id, page.last_id) == (False, "auto", page.data[-1].id)
    assert [model.id for model in page] == [model.id for model in page.data], "there is one page"
    assert claude(live).models.retrieve("fake").display_name == "fake"


def test_anthropic_stream(live: Live) -> None:
    with claude(live).messages.stream(model="fake", max_tokens=32, messages=HI) as stream:
        assert "".join(stream.text_stream) == "Hello, world!"
        assert stream.get_final_message().usage.output_tokens == 4


def test_anthropic_tools(live: Live) -> None:
    tool: Any = {"name": "weather", "input_schema": {"type": "object"}}
    with claude(live).messages.stream(model="calling", max_tokens=32, messages=HI, tools=[tool]) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert final.content[0].input == {"city": "Oslo"}  # type: ignore[union-attr]


def test_anthropic_counts_and_errors(live: Live) -> None:
    assert claude(live).messages.count_tokens(model="fake", messages=HI).input_tokens == 2
    with pytest.raises(anthropic.NotFoundError):
        claude(live).messages.create(model="nope", max_tokens=32, messages=HI)
    with pytest.raises(anthropic.BadRequestError):
        claude(live).messages.create(model="fake", max_tokens=32, messages=[])


def test_anthropic_token_as_bearer(serve: Serve) -> None:
    live = serve(api_keys=("k",))
    asking = anthropic.Anthropic(base_url=live.url, auth_token="k", api_key=None)
    assert asking.messages.create(model="fake", max_tokens=8, messages=HI).content


def test_anthropic_sees_a_failure_in_its_stream(serve: Serve) -> None:
    live = serve(FakeEngine(fail_at=2))
    with (
        pytest.raises(anthropic.APIStatusError, match="told to fail"),
        claude(live).messages.stream(model="fake", max_tokens=32, messages=HI) as stream,
    ):
        stream.until_done()


# ----------------------------------------------------------------------------------- strict types, strict SSE


def strictly(kind: type[BaseModel], body: Any) -> None:
    """Validate with the SDK's own model, which the SDK itself only constructs."""
    kind.model_validate(body)


# cases: C180, P10, P35
def test_every_body_is_what_the_sdk_declares(live: Live) -> None:
    with client(live.url) as http:
        for fields in ({}, {"logprobs": True, "top_logprobs": 2}, {"model": "calling", "tools": [WEATHER]}):
            body = chat(**fields)
            strictly(ChatCompletion, http.post("/v1/chat/completions", json=body).json())
            options = {"stream": True, "stream_options": {"include_usage": True}}
            for chunk in frames(http.post("/v1/chat/completions", json=body | options).text)[:-1]:
                strictly(ChatCompletionChunk, chunk)
        strictly(Completion, http.post("/v1/completions", json={"prompt": "x", "logprobs": 2}).json())
        strictly(CreateEmbeddingResponse, http.post("/v1/embeddings", json={"input": "x"}).json())
        for model in http.get("/v1/models").json()["data"]:
            strictly(Model, model)
        strictly(Response, http.post("/v1/responses", json={"input": "x"}).json())
        strictly(anthropic.types.Message, http.post("/v1/messages", json=chat(max_tokens=9)).json())
        event_type: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
        for event in named_frames(http.post("/v1/responses", json={"input": "x", "stream": True}).text):
            event_type.validate_python(event)
        message_event: TypeAdapter[Any] = TypeAdapter(anthropic.types.RawMessageStreamEvent)
        text = http.post("/v1/messages", json=chat(max_tokens=9, stream=True)).text
        for event in named_frames(text):
            message_event.validate_python(event)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"])
def test_a_strict_reader_of_events_reads_every_stream(serve: Serve, path: str) -> None:
    live = serve(
        FakeEngine([b"line\n", b"\r\n", b"data: x", b"\n\n", "\u2028é".encode()], prefill_s=0.2), ping_s=0.05
    )
    body = {"prompt": "x"} if path.endswith("/completions") and "chat" not in path else chat(max_tokens=9)
    body = {"input": "x"} if path.endswith("responses") else body
    with (
        httpx.Client(base_url=live.url, trust_env=False) as http,
        httpx_sse.connect_sse(http, "POST", path, json=body | {"stream": True}) as source,
    ):
        events = list(source.iter_sse())
    assert len(events) > 5
    for event in events:
        assert event.data == "[DONE]" or isinstance(event.json(), dict)
