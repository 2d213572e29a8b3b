from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from edgecloud.errors import EngineFailure, UpstreamError
from edgecloud.http.asgi import Message
from edgecloud.http.sse import OPENAI, EventStream
from edgecloud.types import ChatRequest, EngineEvent
from tests.support.fake_engine import FakeEngine
from tests.support.requests import chat, client, frames, named_frames, post_bytes

from .conftest import Serve

OPENAI_PATHS = {
    "/v1/chat/completions": chat(stream=True),
    "/v1/completions": {"prompt": "hi", "stream": True, "max_tokens": 8},
}


def read_until(raw: object, text: bytes) -> bytes:
    received = b""
    while text not in received:
        chunk = raw.recv(65536)  # type: ignore[attr-defined]
        assert chunk, received
        received += chunk
    return received


# cases: P56
def test_a_piece_reaches_the_client_before_the_next_is_made(serve: Serve) -> None:
    engine = FakeEngine([b"first", b"second"], hang_at=1)
    live = serve(engine)
    with live.connect() as raw:
        raw.sendall(post_bytes(chat(stream=True)))
        head = read_until(raw, b'"first"').partition(b"\r\n\r\n")[0].lower()
    assert b"content-type: text/event-stream" in head
    assert b"cache-control: no-cache" in head
    assert b"x-accel-buffering: no" in head
    assert b"x-edgecloud-route: fake" in head
    assert b"x-edgecloud-model: fake" in head
    assert b"x-request-id: " in head
    assert engine.generated == 1


# cases: C043, P53, P70
@pytest.mark.parametrize("prefill_s", [0.6])
def test_a_silent_prefill_is_bridged_with_comments_that_the_sdk_ignores(
    serve: Serve, prefill_s: float
) -> None:
    import openai

    live = serve(FakeEngine(prefill_s=prefill_s), ping_s=0.1)
    with client(live.url) as http:
        answer = http.post("/v1/chat/completions", json=chat(stream=True))
    before, _, _ = answer.text.partition('"role"')
    assert before.count(": ping\n\n") >= 2
    sdk = openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0)
    stream = sdk.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello, world!"


def test_anthropic_is_pinged_in_its_own_way(serve: Serve) -> None:
    live = serve(FakeEngine(prefill_s=0.4), ping_s=0.1)
    with client(live.url) as http:
        answer = http.post("/v1/messages", json=chat(stream=True, max_tokens=9))
    types = [event["type"] for event in named_frames(answer.text)]
    assert types[0] == "message_start"
    assert "ping" in types
    assert types[-1] == "message_stop"


def test_what_is_known_to_be_wrong_before_a_ping_is_due_has_its_status(serve: Serve) -> None:
    engine = FakeEngine(refuse=UpstreamError("no"))
    with client(serve(engine, ping_s=60).url) as http:
        assert http.post("/v1/chat/completions", json=chat(stream=True)).status_code == 502


# cases: P57
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
def test_a_model_being_loaded_is_bridged_with_pings_and_then_answers(serve: Serve, path: str) -> None:
    body = {"/v1/completions": {"prompt": "hi"}, "/v1/responses": {"input": "hi"}}.get(path, chat())
    live = serve(FakeEngine(load_s=0.5), ping_s=0.3)
    with client(live.url) as http:
        answer = http.post(path, json={**body, "stream": True, "max_tokens": 9})
    assert answer.status_code == 200
    assert answer.text.startswith((": ping", "event: ping"))
    assert "Hello" in answer.text


def test_what_is_found_wrong_after_the_first_ping_is_an_event(serve: Serve) -> None:
    live = serve(FakeEngine(load_s=0.3, refuse=UpstreamError("The pool is gone.")), ping_s=0.1)
    with client(live.url) as http:
        answer = http.post("/v1/chat/completions", json=chat(stream=True))
    assert answer.status_code == 200
    pings, _, rest = answer.text.rpartition(": ping\n\n")
    assert set(pings.split("\n\n")) <= {": ping", ""}
    error, done = frames(rest)
    assert error["error"]["message"] == "The pool is gone."
    assert done == "[DONE]"


async def test_a_stream_that_ends_before_it_began_leaves_no_timer() -> None:
    async def send(message: Message) -> None:
        raise AssertionError(message)

    stream = EventStream(send, ping=OPENAI.ping, ping_s=0.01)
    stream.expect()
    stream.quiet()
    await asyncio.sleep(0.05)
    assert not stream.opened


async def test_pings_stop_with_the_stream_and_never_pile_up_behind_a_client_that_reads_nothing() -> None:
    sent: list[Message] = []
    reading = asyncio.Event()

    async def send(message: Message) -> None:
        if message.get("body") == OPENAI.ping:
            sent.append(message)
            await reading.wait()

    stream = EventStream(send, ping=OPENAI.ping, ping_s=0.01)
    await stream.open([])
    await asyncio.sleep(0.1)
    assert len(sent) == 1
    await stream.close()
    await asyncio.sleep(0.05)
    assert len(sent) == 1


# cases: C041, P52, P61
@pytest.mark.parametrize("path", OPENAI_PATHS)
@pytest.mark.parametrize(
    ("error", "code"),
    [(EngineFailure("the step failed"), "engine_failed"), (ZeroDivisionError("x"), "internal_error")],
)
def test_a_failure_after_the_first_token_is_one_error_frame_then_done_then_closed(
    serve: Serve, path: str, error: Exception, code: str
) -> None:
    live = serve(FakeEngine(fail_at=2, error=error))
    with live.connect() as raw:
        raw.sendall(post_bytes(OPENAI_PATHS[path], path))
        received = b""
        while chunk := raw.recv(65536):
            received += chunk
    assert received.endswith(b"0\r\n\r\n")
    with client(serve(FakeEngine(fail_at=2, error=error)).url) as http:
        events = frames(http.post(path, json=OPENAI_PATHS[path]).text)
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["code"] == code
    assert sum("error" in event for event in events) == 1
    assert len(events) > 3


def test_the_openai_sdk_sees_that_failure(serve: Serve) -> None:
    import openai

    live = serve(FakeEngine(fail_at=2, error=EngineFailure("the step failed")))
    sdk = openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0)
    stream = sdk.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with pytest.raises(openai.APIError, match="the step failed"):
        list(stream)


def test_a_failing_anthropic_stream_ends_in_its_error_event(serve: Serve) -> None:
    with client(serve(FakeEngine(fail_at=2)).url) as http:
        answer = http.post("/v1/messages", json=chat(stream=True, max_tokens=9))
    last = named_frames(answer.text)[-1]
    assert last["type"] == "error"
    assert last["error"]["type"] == "api_error"


def test_a_failing_responses_stream_ends_in_failed(serve: Serve) -> None:
    with client(serve(FakeEngine(fail_at=2)).url) as http:
        answer = http.post("/v1/responses", json={"input": "hi", "stream": True})
    events = named_frames(answer.text)
    assert events[-1]["type"] == "response.failed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


class Mute(FakeEngine):
    """Ends without a word, as no engine should."""

    async def generate(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        for event in ():
            yield event


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_says_nothing_is_a_failure_and_no_empty_answer(serve: Serve, stream: bool) -> None:
    with client(serve(Mute()).url) as http:
        answer = http.post("/v1/chat/completions", json=chat(stream=stream))
    assert answer.status_code == EngineFailure.status
    assert "without a word" in answer.json()["error"]["message"]


# cases: C041
def test_a_failure_without_a_stream_is_a_plain_status(serve: Serve) -> None:
    with client(serve(FakeEngine(fail_at=2, error=EngineFailure("the step failed"))).url) as http:
        answer = http.post("/v1/chat/completions", json=chat())
    assert answer.status_code == 500
    assert answer.headers["x-should-retry"] == "false"


# cases: P73
@pytest.mark.parametrize("stream", [False, True])
def test_the_sdk_does_not_repeat_what_cannot_be_mended(serve: Serve, stream: bool) -> None:
    import openai

    engine = (
        FakeEngine(fail_at=0, error=EngineFailure("broke"))
        if not stream
        else FakeEngine(refuse=EngineFailure("broke"))
    )
    sdk = openai.OpenAI(base_url=f"{serve(engine).url}/v1", api_key="x")
    with pytest.raises(openai.InternalServerError):
        sdk.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}], stream=stream)
    assert len(engine.requests) == 1


# cases: P15
def test_a_character_in_four_tokens_arrives_whole(serve: Serve) -> None:
    tokens = [bytes([byte]) for byte in "🦙é".encode()]
    with client(serve(FakeEngine(tokens)).url) as http:
        events = frames(http.post("/v1/chat/completions", json=chat(stream=True)).text)
    pieces = [event["choices"][0]["delta"].get("content") for event in events[:-1]]
    assert [piece for piece in pieces if piece] == ["🦙", "é"]


# cases: P16
def test_a_byte_that_is_no_text_does_not_cost_the_answer(serve: Serve) -> None:
    with client(serve(FakeEngine([b"a", b"\xff", b"b"])).url) as http:
        whole = http.post("/v1/chat/completions", json=chat())
        streamed = frames(http.post("/v1/chat/completions", json=chat(stream=True)).text)
    assert whole.json()["choices"][0]["message"]["content"] == "a\ufffdb"
    assert streamed[-1] == "[DONE]"


def test_text_that_utf8_cannot_carry_does_not_cost_the_answer(serve: Serve) -> None:
    engine = FakeEngine(thoughts=["\ud800"])
    with client(serve(engine).url) as http:
        assert http.post("/v1/chat/completions", json=chat()).status_code == 200
        assert frames(http.post("/v1/chat/completions", json=chat(stream=True)).text)[-1] == "[DONE]"
