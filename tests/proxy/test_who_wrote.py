"""An answer that another engine went on with says so to whoever reads it: in a stream, whole, and by SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from edgecloud.app.proxy.app import create_app
from edgecloud.errors import UpstreamError
from edgecloud.http.drain import Drain
from edgecloud.metrics import Metrics
from edgecloud.settings import PoolEntry, RouterSettings, Settings
from edgecloud.wire import openai_chat
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import fake_gateway
from tests.support.live import Live, live_app
from tests.support.requests import chat, client, frames, named_frames

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SENTENCE = "It fell over. second goes on from here."
FIELD = {"notices": [{"kind": "continued", "text": SENTENCE}]}
MODE = {"x-edgecloud-mode": "pool"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: chat(model="auto"),
    MESSAGES: chat(model="auto", max_tokens=20),
    RESPONSES: {"model": "auto", "input": "hi"},
}


@pytest.fixture
def live() -> Iterator[Live]:
    """The first of two pools breaks off behind its second word, unless it is asked by name."""
    pools = [
        PoolEntry(name="first", url="http://first/v1", model="m"),
        PoolEntry(name="second", url="http://second/v1", model="m", price_out=1.0),
    ]
    settings = Settings(pool=tuple(pools), router=RouterSettings(continue_elsewhere=True))
    engines = [
        FakeEngine(name="small"),
        FakeEngine(
            [b"one", b" two"], name="first", local=False, fail_at=2, error=UpstreamError("It fell over.")
        ),
        FakeEngine([b" three"], name="second", local=False),
    ]
    drain, gateway = Drain(), fake_gateway(*engines, settings=settings)
    app = create_app(gateway, settings, drain=drain, metrics=Metrics())
    with live_app(app, drain, 0.0, gateway.aclose) as live:
        yield live


def ask(live: Live, path: str, **fields: Any) -> httpx.Response:
    with client(live.url, headers=MODE) as http:
        answer = http.post(path, json={**BODIES[path], **fields})
    assert answer.status_code == 200, answer.text
    return answer


def test_a_chat_stream_says_it_where_it_happens_and_in_the_chunk_that_ends_it(live: Live) -> None:
    text = ask(live, CHAT, stream=True).text

    before, _, after = text.partition(f": edgecloud continued: {SENTENCE}\n\n")
    assert (" two" in before, " three" in after) == (True, True)
    *chunks, done = frames(text)
    assert done == "[DONE]"
    assert [chunk.get("edgecloud") for chunk in chunks] == [None] * (len(chunks) - 1) + [FIELD]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(("path", "kind"), [(MESSAGES, "message_delta"), (RESPONSES, "response.completed")])
def test_so_do_the_other_streams(live: Live, path: str, kind: str) -> None:
    text = ask(live, path, stream=True).text

    assert f": edgecloud continued: {SENTENCE}\n\n" in text
    told = {each["type"]: each.get("response", each).get("edgecloud") for each in named_frames(text)}
    assert {at: field for at, field in told.items() if field is not None} == {kind: FIELD}


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_whole_answer_says_it_in_a_header_and_a_field(live: Live, path: str) -> None:
    answer = ask(live, path)

    assert answer.headers["x-edgecloud-notice"] == f"continued: {SENTENCE}"
    assert answer.headers["x-edgecloud-attempts"] == "first=upstream_failed, second=ok"
    assert answer.json()["edgecloud"] == FIELD


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_where_nobody_else_had_a_part_nothing_is_said(live: Live, path: str) -> None:
    whole, streamed = ask(live, path, model="second"), ask(live, path, model="second", stream=True)

    assert "x-edgecloud-notice" not in whole.headers
    assert "edgecloud" not in whole.json()
    assert '"edgecloud":' not in streamed.text
    assert ": edgecloud" not in streamed.text


def test_the_openai_sdk_has_it(live: Live) -> None:
    sdk = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", default_headers=MODE)
    messages: Any = [{"role": "user", "content": "hi"}]
    chunks = list(sdk.chat.completions.create(model="auto", messages=messages, stream=True))
    whole = sdk.chat.completions.create(model="auto", messages=messages)

    assert "".join(each.choices[0].delta.content or "" for each in chunks) == "one two three"
    assert chunks[-1].model_extra == whole.model_extra == {"edgecloud": FIELD}


def test_the_anthropic_sdk_has_it(live: Live) -> None:
    sdk = anthropic.Anthropic(base_url=live.url, api_key="none", default_headers=MODE)
    messages: Any = [{"role": "user", "content": "hi"}]
    with sdk.messages.stream(model="auto", max_tokens=20, messages=messages) as stream:
        events = list(stream)
    whole = sdk.messages.create(model="auto", max_tokens=20, messages=messages)

    (end,) = [event for event in events if event.type == "message_delta"]
    assert stream.get_final_text() == "one two three"
    assert (end.model_extra or {})["edgecloud"] == (whole.model_extra or {})["edgecloud"] == FIELD


def test_a_server_before_ours_takes_it_from_the_chunk_and_believes_no_other_shape() -> None:
    def told(value: Any) -> list[Any]:
        chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "edgecloud": value}
        *notices, _ = openai_chat.ChunkDecoder().feed(chunk)
        return [(each.kind, each.text) for each in notices]  # type: ignore[union-attr]

    assert told(FIELD) == [("continued", SENTENCE)]
    for odd in ("x", {}, {"notices": "x"}, {"notices": [1, {"kind": "history", "text": "x"}, {"kind": []}]}):
        assert told(odd) == []
