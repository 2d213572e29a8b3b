from __future__ import annotations

import json
import socket

import pytest

from edgecloud.http import protocol
from tests.support.fake_engine import FakeEngine
from tests.support.live import eventually
from tests.support.requests import chat, post_bytes

from .conftest import Serve


def read_all(raw: socket.socket) -> bytes:
    received = b""
    while chunk := raw.recv(65536):
        received += chunk
    return received


def send_without_end(raw: socket.socket, block: bytes) -> None:
    for _ in range(10_000):
        raw.sendall(block)


def test_what_is_not_http_gets_the_envelope_and_the_door(serve: Serve) -> None:
    for nonsense in (b"\x16\x03\x01\x02\x00\x01\x00\x01", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        with serve().connect() as raw:
            raw.sendall(nonsense)
            head, _, body = read_all(raw).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_an_endless_head_is_cut_off(serve: Serve) -> None:
    live = serve()
    with live.connect() as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
        with pytest.raises(ConnectionError):
            send_without_end(raw, b"x-more: " + b"y" * 8000 + b"\r\n")
    eventually(lambda: not live.server.server_state.connections)


@pytest.mark.parametrize("start", [b"", b"GET /heal", b"GET /health HTTP/1.1\r\nhost: loc"])
def test_a_head_that_never_comes_is_given_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.1)
    live = serve()
    with live.connect() as raw:
        raw.sendall(start)
        assert read_all(raw) == b""


def test_a_hundred_half_requests_do_not_keep_one_whole_one_waiting(serve: Serve) -> None:
    live = serve()
    halves = [live.connect() for _ in range(100)]
    for number, half in enumerate(halves):
        half.sendall(post_bytes(chat())[: 20 + number])
    with live.connect() as raw:
        raw.sendall(post_bytes(chat()))
        assert raw.recv(4096).startswith(b"HTTP/1.1 200 ")
    for half in halves:
        half.close()


def test_a_request_may_come_byte_by_byte(serve: Serve) -> None:
    with serve().connect() as raw:
        for byte in post_bytes(chat()):
            raw.sendall(bytes([byte]))
        assert raw.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_requests_in_a_row_on_one_connection_are_answered_in_order(serve: Serve) -> None:
    with serve(FakeEngine(lambda request: [request.messages[0].content.encode()])).connect() as raw:
        raw.sendall(b"".join(post_bytes(chat(f"answer-{number}")) for number in range(3)))
        received = b""
        while received.count(b"HTTP/1.1 200 ") < 3 or b"answer-2" not in received:
            received += raw.recv(65536)
    assert received.index(b"answer-0") < received.index(b"answer-1") < received.index(b"answer-2")


# cases: P67
def test_an_idle_connection_is_kept_longer_than_clients_keep_theirs(serve: Serve) -> None:
    live = serve()
    assert live.server.config.timeout_keep_alive >= 120
    with live.connect() as raw:
        for _ in range(2):
            raw.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert raw.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_http_1_0_without_a_host_is_answered_and_closed(serve: Serve) -> None:
    with serve().connect() as raw:
        raw.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert read_all(raw).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 5\r\ncontent-length: 6",
        b"content-length: -1",
        b"content-length: 5\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked, identity",
    ],
)
def test_ambiguous_framing_is_refused(serve: Serve, head: bytes) -> None:
    with serve().connect() as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n\r\n0\r\n\r\n"
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")
