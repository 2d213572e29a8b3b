"""The remote engine against an upstream that behaves: what comes back, what is sent, what can be asked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from edgecloud.engine import Engine
from edgecloud.errors import NotSupported, Unavailable, UpstreamError
from edgecloud.pool import client
from edgecloud.types import ChoiceDone, Done, Health, Start, ToolCallDelta, Usage

from .builders import KEY, engine_at, failure, free_port, gather, good, make_request, talking, text_of
from .scripted_upstream import DONE, Call, Script, chunked, delta, event, finish, upstream, usage


async def test_an_answer_comes_as_events_with_the_upstreams_own_usage() -> None:
    async with talking(good) as (engine, server):
        events = await gather(engine)

    assert isinstance(engine, Engine)
    assert isinstance(events[0], Start)
    assert (events[0].engine, events[0].model) == ("gpu-box", "big")
    assert text_of(events) == "Because of air."
    assert events[-2] == ChoiceDone(0, "stop")
    assert isinstance(events[-1], Done)
    assert events[-1].usage == Usage(prompt_tokens=12, completion_tokens=5)
    assert server.calls[0].json["model"] == "big"
    assert server.calls[0].json["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("before", [(), (delta("a"),)])
@pytest.mark.parametrize(("timings", "decode_s"), [(None, 0.0), ({"predicted_ms": 1500}, 1.5)])
async def test_an_answer_that_came_at_once_has_the_speed_that_the_upstream_tells_or_none(
    before: tuple[bytes, ...], timings: Any, decode_s: float
) -> None:
    seen = asyncio.Event()
    end = event({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 7}, "timings": timings})

    async def script(call: Call) -> None:
        await call.stream(*before, end=False)
        if before:
            await seen.wait()
        await call.send(
            chunked(b"".join([*(delta("a") for _ in range(6)), finish(), end, DONE])), chunked(b"")
        )

    async with talking(script) as (engine, _):
        events = await gather(engine, on_text=seen.set)

    assert isinstance(events[-1], Done)
    assert events[-1].timings.decode_s == decode_s


async def test_an_answer_that_came_piece_by_piece_has_the_speed_of_its_pieces() -> None:
    seen = asyncio.Event()

    async def script(call: Call) -> None:
        await call.stream(end=False)
        for _ in range(4):
            await call.send(chunked(delta("a")))
            await seen.wait()
            seen.clear()
        await call.send(chunked(finish()), chunked(usage(12, 4)), chunked(DONE), chunked(b""))

    async with talking(script) as (engine, _):
        events = await gather(engine, on_text=seen.set)

    assert isinstance(events[-1], Done)
    assert events[-1].timings.decode_s > 0


async def test_what_is_written_beyond_the_limit_is_shown_and_counted_as_it_is_told() -> None:
    async def script(call: Call) -> None:
        await call.stream(delta("one"), delta(" two three"), finish("length"), usage(12, 3), DONE)

    async with talking(script) as (engine, _):
        events = await gather(engine, make_request(max_tokens=1))

    assert text_of(events) == "one two three"
    assert isinstance(events[-1], Done)
    assert events[-1].usage.completion_tokens == 3


async def test_usage_is_counted_here_if_the_upstream_sends_none() -> None:
    async def script(call: Call) -> None:
        await call.stream(delta("a"), delta("b"), delta("c"), finish(), DONE)

    async with talking(script) as (engine, _):
        start, *_, done = await gather(engine)

    assert isinstance(start, Start)
    assert isinstance(done, Done)
    assert done.usage == Usage(prompt_tokens=start.prompt_tokens, completion_tokens=3)
    assert start.prompt_tokens > 0


async def test_a_prompt_goes_to_completions_and_its_text_comes_back() -> None:
    async def script(call: Call) -> None:
        text = event({"choices": [{"index": 0, "text": " upon a time", "finish_reason": "length"}]})
        await call.stream(text, usage(2, 3), DONE)

    async with talking(script) as (engine, server):
        events = await gather(engine, make_request(messages=(), prompt="Once", max_tokens=3))

    assert server.calls[0].path == "/v1/completions"
    assert text_of(events) == " upon a time"
    assert events[-2] == ChoiceDone(0, "length")


async def test_tool_calls_keep_their_indexes_and_end_as_tool_calls() -> None:
    def piece(index: int, **function: str) -> bytes:
        call = {"index": index, "id": f"call-{index}", "function": function}
        return event({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})

    async def script(call: Call) -> None:
        first = [piece(0, name="look", arguments="{}"), piece(1, name="go", arguments='{"x": 1}')]
        await call.stream(*first, finish("tool_calls"), DONE)

    async with talking(script) as (engine, _):
        events = await gather(engine)

    calls = [event for event in events if isinstance(event, ToolCallDelta)]
    assert [(call.call_index, call.name) for call in calls] == [(0, "look"), (1, "go")]
    assert events[-2] == ChoiceDone(0, "tool_calls")


async def test_a_stream_cut_at_every_byte_is_the_same_answer() -> None:
    whole = delta("é") + b": ping\r\n\r\n" + delta("🎈!") + finish() + DONE

    async def script(call: Call) -> None:
        await call.stream(*(whole[at : at + 1] for at in range(len(whole))))

    async with talking(script) as (engine, _):
        assert text_of(await gather(engine)) == "é🎈!"


@pytest.mark.parametrize("tail", [b"", b"data: [DONE]"], ids=["no [DONE]", "[DONE] without a blank line"])
async def test_a_complete_answer_needs_no_proper_end(tail: bytes) -> None:
    async def script(call: Call) -> None:
        await call.stream(delta("yes"), finish(), *[tail] * bool(tail))

    async with talking(script) as (engine, _):
        events = await gather(engine)

    assert text_of(events) == "yes"
    assert isinstance(events[-1], Done)


async def test_requests_share_one_connection() -> None:
    async with talking(good) as (engine, server):
        for _ in range(5):
            await gather(engine)

    assert (len(server.calls), server.connections) == (5, 1)


async def test_an_end_that_comes_after_done_still_leaves_the_connection_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(call: Call) -> None:
        await call.stream(delta("x"), finish(), DONE, end=False)
        await asyncio.sleep(0.01)
        await call.send(chunked(b""))

    monkeypatch.setattr(client, "TAIL_S", 5.0)
    async with talking(script) as (engine, server):
        await gather(engine)
        await gather(engine)

    assert server.connections == 1


async def test_a_kept_connection_that_the_server_closed_meanwhile_is_replaced_unseen() -> None:
    async def script(call: Call) -> None:
        if len(server.calls) == 2:
            # It read the request only to find that it had meant to close.
            call.reset()
        else:
            await good(call)

    async with talking(script) as (engine, server):
        first, second = await gather(engine), await gather(engine)

    assert text_of(first) == text_of(second) == "Because of air."
    assert len(server.calls) == 3


async def test_a_fresh_connection_that_breaks_is_not_tried_again() -> None:
    async def script(call: Call) -> None:
        call.reset()

    async with talking(script) as (engine, server):
        with pytest.raises(UpstreamError, match=r"without an answer|broke off"):
            await gather(engine)

    assert len(server.calls) == 1


# ------------------------------------------------------------------------------------- what is sent, and not


async def test_request_id_and_deadline_travel_with_the_request() -> None:
    async with talking(good) as (engine, server):
        await gather(engine, make_request(id="req-7", deadline_s=30.0))

    headers = server.calls[0].headers
    assert headers["x-request-id"] == "req-7"
    assert 29_000 < int(headers["x-request-deadline-ms"]) <= 30_000


async def test_each_upstream_gets_its_own_key_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password netrc-password\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-someone-elses")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    async def script(call: Call) -> None:
        await call.stream(delta("x"), finish(), DONE)

    async with (
        talking(script, api_key=SecretStr(KEY)) as (keyed, first),
        talking(script) as (keyless, second),
    ):
        await gather(keyed)
        await gather(keyless)

    assert first.calls[0].headers["authorization"] == f"Bearer {KEY}"
    sent = second.calls[0].headers
    assert not {"authorization", "x-api-key", "cookie", "proxy-authorization"} & set(sent)


async def test_cookies_of_one_answer_are_not_sent_with_the_next() -> None:
    async def script(call: Call) -> None:
        await call.answer(503, b"{}", Set_Cookie="session=someone")

    async with talking(script) as (engine, server):
        for _ in range(2):
            with pytest.raises(Unavailable):
                await gather(engine)

    assert "cookie" not in server.calls[1].headers


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_our_key_is_in_no_sentence_even_if_the_upstream_repeats_it(status: int) -> None:
    async def script(call: Call) -> None:
        key = call.headers["authorization"]
        await call.answer(status, f'{{"error": {{"message": "bad key {key}"}}}}'.encode())

    error = await failure(script, api_key=SecretStr(KEY))

    assert KEY not in error.message + str(error) + repr(error)


async def test_a_redirect_is_not_followed() -> None:
    async def script(call: Call) -> None:
        await call.answer(307, b"", Location="http://elsewhere.example/v1/chat/completions")

    error = await failure(script, api_key=SecretStr(KEY))

    assert isinstance(error, UpstreamError)
    assert "redirects" in error.message


@pytest.mark.parametrize(
    ("url", "path"),
    [("", "/v1/chat/completions"), ("/", "/v1/chat/completions"), ("/v1/", "/v1/chat/completions"),
     ("/api/v9?version=2", "/api/v9/chat/completions?version=2")],
)  # fmt: skip
async def test_the_base_path_is_v1_unless_the_url_has_its_own(url: str, path: str) -> None:
    async with upstream(good) as server, engine_at(server.url.removesuffix("/v1") + url) as engine:
        await gather(engine)

    assert server.calls[0].path == path


# ------------------------------------------------------------------------------------- questions on the side


def router(**pages: Any) -> Script:
    """Answers paths (`_` for `/`) with JSON, the rest with 404."""

    async def script(call: Call) -> None:
        answer = pages.get(call.path.strip("/").replace("/", "_"))
        if callable(answer):
            answer = answer(call)
        status = 404 if answer is None else 200
        await call.answer(status, json.dumps({} if answer is None else answer).encode())

    return script


async def test_health_is_the_upstreams_own_page_or_its_model_list() -> None:
    async with talking(router(health={"status": "ok"})) as (engine, server):
        assert (await engine.health()).ok
        assert [call.path for call in server.calls] == ["/health"]
    async with talking(router(v1_models={"data": []})) as (engine, server):
        assert (await engine.health()).ok
        assert [call.path for call in server.calls] == ["/health", "/v1/models"]


async def test_a_sick_upstream_is_not_healthy_and_says_why() -> None:
    async def loading(call: Call) -> None:
        await call.answer(503, b'{"error": {"message": "loading model"}}')

    async with talking(loading) as (engine, _):
        health = await engine.health()
    async with engine_at(f"http://127.0.0.1:{free_port()}/v1") as engine:
        gone = await engine.health()

    assert (health.ok, "loading model" in health.detail) == (False, True)
    assert isinstance(gone, Health)
    assert (gone.ok, "refused" in gone.detail) == (False, True)


async def test_tokens_come_from_the_upstreams_tokenizer() -> None:
    pages = router(
        tokenize=lambda call: {"tokens": [1, 2, 3], "count": 3 if "content" in call.json else 21},
        detokenize={"prompt": "sky"},
    )
    async with talking(pages) as (engine, _):
        assert await engine.tokenize("blue sky") == [1, 2, 3]
        assert await engine.detokenize([2]) == "sky"
        assert await engine.token_bytes(2) == b"sky"
        assert await engine.count_tokens(make_request()) == 21
        assert await engine.count_tokens(make_request(messages=(), prompt="blue sky")) == 3
        assert await engine.count_tokens(make_request(messages=(), prompt=(5, 6))) == 2


async def test_a_page_that_is_not_there_is_not_asked_for_again() -> None:
    async with talking(router(tokenize={"count": 21})) as (engine, server):
        assert await engine.count_tokens(make_request()) == 21
        assert await engine.count_tokens(make_request()) == 21

    assert [call.path for call in server.calls] == [
        "/v1/chat/completions/input_tokens",
        "/tokenize",
        "/tokenize",
    ]


async def test_half_a_character_cannot_be_told() -> None:
    async with talking(router(detokenize={"content": "\ufffd"})) as (engine, _):
        with pytest.raises(NotSupported, match="no whole character"):
            await engine.token_bytes(7)


async def test_an_upstream_without_a_tokenizer_gets_an_estimate_and_says_what_it_lacks() -> None:
    async with talking(router()) as (engine, _):
        assert await engine.count_tokens(make_request()) == 9
        with pytest.raises(NotSupported, match="does not tokenize"):
            await engine.tokenize("blue sky")
        with pytest.raises(NotSupported, match="does not detokenize"):
            await engine.detokenize([1])


@pytest.mark.parametrize("tokens", [None, "1,2", [1, "2"], [-1], [True]])
async def test_tokens_that_are_none_are_an_upstream_error(tokens: Any) -> None:
    async with talking(router(tokenize={"tokens": tokens})) as (engine, _):
        with pytest.raises(UpstreamError):
            await engine.tokenize("blue sky")


@pytest.mark.parametrize(
    ("meta", "parameters"),
    [({"n_params": 8_030_261_248}, 8_030_261_248), ({"n_params": "8B"}, 0), ("odd", 0)],
)
async def test_how_large_the_model_is_comes_with_its_context(meta: Any, parameters: int) -> None:
    models = {"data": [{"id": "small", "meta": {"n_params": 1}}, {"id": "big", "meta": meta}]}
    async with talking(router(v1_models=models)) as (engine, _):
        assert engine.num_parameters == 0
        await engine.capabilities()

        assert engine.num_parameters == parameters


@pytest.mark.parametrize(
    ("told", "entry", "continues"),
    [
        ({"continue_final_message": True}, {"price_out": 1.0}, True),
        ({"continue_final_message": False, "owned_by": "vllm"}, {}, False),
        ({"continue_final_message": "yes"}, {"price_out": 1.0}, False),
        ({"owned_by": "vllm"}, {"price_out": 1.0}, True),
        ({"owned_by": "sglang"}, {"price_in": 1.0}, True),
        ({"owned_by": "llamacpp"}, {"price_in": 1.0}, True),
        ({"owned_by": "vllm"}, {"lacks": ("continue_final",)}, False),
        ({"owned_by": "openai"}, {"price_in": 1.0}, False),
        ({"owned_by": "library"}, {}, True),
        ({"owned_by": "openai"}, {"price_in": 1.0, "continues": True}, True),
        ({"continue_final_message": False}, {"price_in": 1.0, "continues": True}, True),
    ],
)
async def test_whether_a_message_is_continued_is_what_the_model_list_says_or_whose_server_it_is(
    told: Any, entry: Any, continues: bool
) -> None:
    models = {"data": [{"id": "other"}, {"id": "the-big-one", "aliases": ["big"], **told}]}
    async with talking(router(v1_models=models), **entry) as (engine, _):
        assert (await engine.capabilities()).continue_final is continues
        assert engine.continues is continues


async def test_as_long_as_nothing_is_told_hosted_apis_are_not_expected_to_continue() -> None:
    paid = {"price_out": 1.0}
    for entry, continues in ((paid, False), ({}, True), ({**paid, "continues": True}, True)):
        async with talking(router(), **entry) as (engine, _):
            assert (await engine.capabilities()).continue_final is continues


@pytest.mark.parametrize(
    ("entry", "context"),
    [
        ({"max_model_len": 4096}, 4096),
        ({"context_length": 8192}, 8192),
        ({"meta": {"n_ctx": 2048}}, 2048),
        ({"max_model_len": "lots"}, 0),
        ({}, 0),
    ],
)
async def test_the_context_is_what_the_model_list_says(entry: dict[str, Any], context: int) -> None:
    models = {"data": ["odd", {"id": "small", "max_model_len": 1}, {"id": "big", **entry}]}
    async with talking(router(v1_models=models)) as (engine, server):
        assert (await engine.capabilities()).context == context
        await engine.capabilities()

    assert len(server.calls) == 1
