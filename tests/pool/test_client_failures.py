"""The remote engine against upstreams that are not there, refuse, break and lie: one sentence each."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from edgecloud.errors import (
    BadRequest,
    ContextLengthExceeded,
    EdgeCloudError,
    Overloaded,
    Unavailable,
    UpstreamError,
)
from edgecloud.pool import client
from edgecloud.types import Done, EngineEvent

from .builders import engine_at, failure, free_port, gather, make_request, talking, text_of
from .scripted_upstream import DONE, Call, chunked, delta, event, finish, usage


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


async def test_a_refused_connection_says_so() -> None:
    async with engine_at(f"http://127.0.0.1:{free_port()}/v1") as engine:
        with pytest.raises(UpstreamError, match="refused the connection") as caught:
            await gather(engine)

    assert caught.value.retryable


async def test_an_unknown_host_says_so(no_network: list[str]) -> None:
    async with engine_at("http://gpu.example/v1") as engine:
        with pytest.raises(UpstreamError, match="host name that can't be found"):
            await gather(engine)

    assert no_network == ["lookup gpu.example"]


async def test_https_to_a_plain_server_says_what_to_check() -> None:
    def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server, engine_at(f"https://127.0.0.1:{port_of(server)}/v1") as engine:
        with pytest.raises(UpstreamError, match="TLS"):
            await gather(engine)


def make_certificate(folder: Path) -> ssl.SSLContext:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
         "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return tls


async def test_a_certificate_that_no_one_vouches_for_is_refused(tmp_path: Path) -> None:
    tls = make_certificate(tmp_path)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls)
    async with server, engine_at(f"https://127.0.0.1:{port_of(server)}/v1") as engine:
        with pytest.raises(UpstreamError, match="certificate"):
            await gather(engine)


async def test_plain_http_to_a_port_of_tls_is_told_so(tmp_path: Path) -> None:
    tls = make_certificate(tmp_path)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=tls)
    async with server, engine_at(f"http://127.0.0.1:{port_of(server)}/v1") as engine:
        with pytest.raises(UpstreamError, match=r"should be https://|without an answer"):
            await gather(engine)


async def test_a_connection_that_is_never_made_is_given_up() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", port))
            async with engine_at(f"http://127.0.0.1:{port}/v1", connect_timeout_s=0.2) as engine:
                with pytest.raises(UpstreamError, match=r"connected to within 0\.2 s"):
                    await gather(engine)
        finally:
            for each in waiting:
                each.close()


# -------------------------------------------------------------------------------------- statuses that refuse


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b'{"error": {"message": "temperature is too hot", "param": "temperature"}}', BadRequest),
        (400, b'{"error": {"type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8}}',
         ContextLengthExceeded),
        (401, b'{"error": {"message": "no"}}', UpstreamError),
        (403, b"", UpstreamError),
        (404, b'{"error": {"message": "no model big"}}', UpstreamError),
        (429, b'{"error": {"message": "slow down"}}', Overloaded),
        (500, b"<html>oops</html>", UpstreamError),
        (503, b'{"error": {"message": "loading"}}', Unavailable),
        (599, b"\xff\xfe", UpstreamError),
        (204, b"", UpstreamError),
    ],
)  # fmt: skip
async def test_a_status_becomes_its_class(status: int, body: bytes, expected: type[EdgeCloudError]) -> None:
    async def script(call: Call) -> None:
        await call.answer(status, body)

    error = await failure(script)

    assert type(error) is expected
    assert "\n" not in error.message
    assert "<" not in error.message


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("1e9", 3600.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)],
)
async def test_retry_after_is_kept_in_bounds(header: str, seconds: float) -> None:
    async def script(call: Call) -> None:
        await call.answer(429, b"{}", Retry_After=header)

    assert (await failure(script)).retry_after == seconds


@pytest.mark.parametrize("header", ["soon", "nan", "", "inf"])
async def test_a_retry_after_that_makes_no_sense_is_dropped(header: str) -> None:
    async def script(call: Call) -> None:
        await call.answer(429, b"{}", Retry_After=header)

    assert (await failure(script)).retry_after is None


async def test_a_page_that_is_not_there_points_at_the_url() -> None:
    async def script(call: Call) -> None:
        await call.answer(404, b"<html>nginx</html>", "text/html")

    assert "check its url" in (await failure(script)).message


async def test_an_endless_error_body_is_read_only_in_part() -> None:
    sent = 0

    async def script(call: Call) -> None:
        nonlocal sent
        await call.send(b"HTTP/1.1 500 X\r\nContent-Type: text/plain\r\n\r\n")
        while not call.gone.is_set():
            await call.send(b"boo " * 16384)
            sent += 65536

    error = await failure(script)

    assert sent < 16 * 1024 * 1024
    assert error.message.startswith("gpu-box failed with status 500")
    assert len(error.message) < 400


# ---------------------------------------------------------------------------------------- upstreams that lie


LIES: dict[str, list[bytes]] = {
    "bad JSON": [b"data: {not json\n\n"],
    "deep JSON": [b"data: " + b"[" * 100_000 + b"\n\n"],
    "a long number": [b'data: {"choices": [{"index": ' + b"9" * 10_000 + b"}]}\n\n"],
    "a list": [b"data: []\n\n"],
    "choices of another kind": [event({"choices": {"0": 1}})],
    "a delta of another kind": [event({"choices": [{"index": 0, "delta": "text"}]})],
    "HTML in an event": [b"data: <html>\n\n"],
    "an error frame": [delta("so"), event({"error": {"message": "CUDA out of memory"}}), DONE],
    "no end": [delta("so")],
    "[DONE] before the end": [delta("so"), DONE],
    "nothing": [],
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_is_one_upstream_error(lie: str) -> None:
    async def script(call: Call) -> None:
        await call.stream(*LIES[lie])

    error = await failure(script)

    assert type(error) is UpstreamError
    assert error.message.endswith((".", "memory"))
    assert len(error.message) < 400


BEHIND = {
    "bad JSON": [b"data: {not json\n\n"],
    "an error frame": [event({"error": {"message": "CUDA out of memory"}})],
    "choices of another kind": [event({"choices": {"0": 1}})],
    "a lost connection": [],
    "silence": [],
    "no [DONE]": [usage(12, 2)],
}


@pytest.mark.parametrize("what", BEHIND)
async def test_a_whole_answer_is_not_lost_for_what_goes_wrong_behind_it(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(client, "ASIDE_S", 0.05)

    async def script(call: Call) -> None:
        await call.stream(delta("All"), delta(" of it."), finish(), *BEHIND[what], end=False)
        if what == "a lost connection":
            await asyncio.sleep(0.05)
            call.reset()
        await call.gone.wait()

    async with talking(script) as (engine, _), asyncio.timeout(20):
        events = await gather(engine)

    assert text_of(events) == "All of it."
    done = events[-1]
    assert isinstance(done, Done)
    assert done.usage.completion_tokens == 2


async def test_of_two_choices_one_that_is_whole_does_not_make_the_answer_so() -> None:
    async def script(call: Call) -> None:
        await call.stream(delta("One", 0), delta("Two", 1), finish(index=0), b"data: {not json\n\n")

    assert "not JSON" in (await failure(script, make_request(n=2))).message


async def test_an_answer_that_its_upstream_gives_up_is_not_whole() -> None:
    async def script(call: Call) -> None:
        await call.stream(delta("One"), finish("abort"), usage(12, 1), DONE)

    assert "gave up" in (await failure(script)).message


@pytest.mark.parametrize("space", [delta(" \n" * 50), delta("\t")], ids=["lines", "tabs"])
async def test_endless_white_space_is_one_error(space: bytes) -> None:
    async def script(call: Call) -> None:
        await call.stream(delta("{"), end=False)
        while not call.gone.is_set():
            await call.send(chunked(space * 100))

    assert "nothing but white space" in (await failure(script)).message


async def test_white_space_between_words_is_part_of_the_answer() -> None:
    space = " " * 3000

    async def script(call: Call) -> None:
        await call.stream(delta("a"), delta(space), delta("b"), delta(space), delta("c"), finish(), DONE)

    async with talking(script) as (engine, _):
        assert text_of(await gather(engine)) == f"a{space}b{space}c"


@pytest.mark.parametrize("flood", [b" ", b"\n", b": ping\n\n", b"data: x"], ids=repr)
async def test_a_flood_that_is_no_answer_is_cut_off(flood: bytes) -> None:
    sent = 0

    async def script(call: Call) -> None:
        nonlocal sent
        await call.stream(end=False)
        while not call.gone.is_set():
            await call.send(chunked(flood * (65536 // len(flood))))
            sent += 65536

    error = await failure(script)

    assert type(error) is UpstreamError
    assert sent < 32 * 1024 * 1024


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("text/html", b"<html>captive portal</html>", "text/html"),
        ("application/json", b'{"choices": [{"message": {"content": "whole"}}]}', "application/json"),
        ("application/json", b'{"error": {"message": "out of credit"}}', "out of credit"),
        ("application/json", b"[" * 100_000, "application/json"),
    ],
)
async def test_an_answer_that_is_no_stream_is_one_error(kind: str, body: bytes, said: str) -> None:
    async def script(call: Call) -> None:
        await call.answer(200, body, kind)

    error = await failure(script)

    assert type(error) is UpstreamError
    assert said in error.message


@pytest.mark.parametrize(
    "answer",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"",
    ],
    ids=["no HTTP", "no status", "huge header", "nothing"],
)
async def test_an_answer_that_is_no_http_is_one_error(answer: bytes) -> None:
    async def script(call: Call) -> None:
        await call.send(answer)
        call.writer.close()

    assert type(await failure(script)) is UpstreamError


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_connection_lost_in_the_middle_keeps_what_came_and_is_one_error(how: str) -> None:
    async def script(call: Call) -> None:
        await call.stream(delta("half an "), end=False)
        await seen.wait()
        call.reset() if how == "reset" else call.writer.close()

    seen = asyncio.Event()
    got: list[EngineEvent] = []
    async with talking(script) as (engine, _):
        with pytest.raises(UpstreamError, match="broke off"):
            await gather(engine, got=got, on_text=seen.set)

    assert text_of(got) == "half an "
