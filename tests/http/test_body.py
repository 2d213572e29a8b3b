from __future__ import annotations

import gzip
import json
import socket
import time
import zlib
from collections.abc import Callable

import pytest
import zstandard

from edgecloud.errors import BadRequest, Overloaded
from edgecloud.http.asgi import Message
from edgecloud.http.body import MAX_DEPTH, Bodies, parse_json
from tests.support.fake_engine import FakeEngine
from tests.support.live import eventually
from tests.support.requests import chat, client

from .conftest import Serve

PATH = "/v1/chat/completions"
MIB = 2**20


# cases: C122, P26
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"[]",
        b'"text"',
        b"42",
        b"null",
        b"true",
        b"{",
        b'{"messages": [',
        b'{"messages": NaN}',
        b'{"messages": [], "temperature": Infinity}',
        b"[" * 10_000 + b"]" * 10_000,
        b'{"messages":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"messages":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"seed":' + b"9" * 5000 + b"}",
        b"\x00\x01\x02",
    ],
)
def test_a_body_that_is_no_request_is_400_and_the_server_lives(serve: Serve, body: bytes) -> None:
    with client(serve().url) as http:
        answer = http.post(PATH, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert len(answer.content) < 1000
        assert http.post(PATH, json=chat()).status_code == 200


def test_depth_is_counted_not_brackets() -> None:
    flat = {"messages": [{"content": [{}] * 1000}]}
    assert parse_json(json.dumps(flat).encode()) == flat
    at_limit = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert parse_json(at_limit)
    assert parse_json(b"[[]," + b"[" * (MAX_DEPTH - 1) + b"1" + b"]" * MAX_DEPTH)
    with pytest.raises(BadRequest, match="deeper"):
        parse_json(b"[" + at_limit + b"]")


def test_a_later_duplicate_wins_and_a_byte_order_mark_is_forgiven() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1, "a": 2}') == {"a": 2}


# cases: C123
@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("text/plain", 200),
        ("application/json; charset=utf-8", 200),
        ("application/json; charset=latin-1", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 200),
    ],
)
def test_the_content_type_may_be_sloppy_but_no_form(serve: Serve, content_type: str, status: int) -> None:
    body = json.dumps(chat()).encode()
    with client(serve().url) as http:
        assert http.post(PATH, content=body, headers={"content-type": content_type}).status_code == status


# cases: C163
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body)[2:-4]),
        ("zstd", zstandard.compress),
        ("identity", bytes),
    ],
)
def test_a_packed_body_is_unpacked(serve: Serve, encoding: str, pack: object) -> None:
    body = pack(json.dumps(chat("packed")).encode())  # type: ignore[operator]
    engine = FakeEngine()
    with client(serve(engine).url) as http:
        assert http.post(PATH, content=body, headers={"content-encoding": encoding}).status_code == 200
    assert engine.requests[0].messages[0].content == "packed"


@pytest.mark.parametrize("encoding", ["br", "gzip, zstd", "nonsense"])
def test_an_unknown_packing_is_415(serve: Serve, encoding: str) -> None:
    with client(serve().url) as http:
        answer = http.post(PATH, content=b"x", headers={"content-encoding": encoding})
    assert answer.status_code == 415


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_a_damaged_packing_is_400(serve: Serve, encoding: str) -> None:
    pack = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.compress}[encoding]
    packed = pack(json.dumps(chat("x" * 1000)).encode())
    with client(serve().url) as http:
        for body in (b"nonsense", packed[: len(packed) // 2], packed + b"more"):
            answer = http.post(PATH, content=body, headers={"content-encoding": encoding})
            assert answer.status_code == 400


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body)[2:-4]),
        ("zstd", zstandard.compress),
        ("zstd", zstandard.ZstdCompressor(write_checksum=True).compress),
    ],
)
async def test_a_packed_body_that_is_cut_short_anywhere_is_said_to_be(
    encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(json.dumps(chat("x" * 40 + " a question")).encode())
    for length in range(len(packed)):
        with pytest.raises(BadRequest, match="cut short"):
            await unpacked(encoding, packed[:length])
    assert await unpacked(encoding, packed) == chat("x" * 40 + " a question")


@pytest.mark.parametrize("size", [1, 300, 70_000])
async def test_frames_behind_each_other_are_one_body_and_the_last_must_be_whole(size: int) -> None:
    first, second = (zstandard.compress(part) for part in (b'["', b"x" * size + b'"]'))
    assert await unpacked("zstd", first + second) == ["x" * size]
    with pytest.raises(BadRequest, match="cut short"):
        await unpacked("zstd", first + second[:-1])


async def unpacked(encoding: str, body: bytes) -> object:
    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    scope = {"type": "http", "headers": [(b"content-encoding", encoding.encode())], "state": {}}
    return await Bodies(MIB).json(scope, receive)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_a_bomb_is_413_and_never_unpacked(serve: Serve, encoding: str) -> None:
    pack = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.compress}[encoding]
    bomb = pack(b" " * (200 * MIB))
    assert len(bomb) < MIB
    with client(serve(body_limit_mb=1).url) as http:
        answer = http.post(PATH, content=bomb, headers={"content-encoding": encoding})
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "payload_too_large"
        assert http.post(PATH, json=chat()).status_code == 200


# cases: C131, P68
def test_a_declared_100_mb_body_is_refused_before_any_of_it_is_sent(serve: Serve) -> None:
    live = serve()
    with live.connect() as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 104857600\r\n\r\n"
        )
        answer = b""
        # Head and body come together or one by one.
        while b"payload_too_large" not in answer and (received := raw.recv(65536)):
            answer += received
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer
    assert b"payload_too_large" in answer


@pytest.mark.slow
def test_a_declared_100_mb_body_that_expects_to_be_asked_is_never_asked_for(serve: Serve) -> None:
    live = serve()
    with live.connect() as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 104857600\r\n"
            b"expect: 100-continue\r\n\r\n"
        )
        answer = b""
        while chunk := raw.recv(65536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in answer


@pytest.mark.parametrize("declared", [True, False])
def test_a_client_that_sends_100_mb_first_and_reads_later_still_gets_its_413(
    serve: Serve, declared: bool
) -> None:
    with client(serve().url) as http:
        block = b"x" * MIB
        body = block * 100 if declared else (block for _ in range(100))
        answer = http.post(PATH, content=body)
        assert answer.status_code == 413
        assert answer.headers["connection"] == "close"
        assert http.post(PATH, json=chat()).status_code == 200


def test_the_answer_is_not_lost_to_a_reset_while_the_body_is_still_being_sent(serve: Serve) -> None:
    size = 50 * MIB
    head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n\r\n"
    with serve().connect() as raw:
        raw.sendall(head.encode() + b"x" * size)
        assert raw.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.slow
def test_an_endless_body_is_cut_off(serve: Serve) -> None:
    live = serve(body_limit_mb=1)
    with live.connect() as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        block = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        with pytest.raises(ConnectionError):
            send_without_end(raw, block)


def send_without_end(raw: socket.socket, block: bytes) -> None:
    for _ in range(10_000):
        raw.sendall(block)
        time.sleep(0.001)


def test_a_large_body_to_nowhere_or_without_a_key_is_not_read_either(serve: Serve) -> None:
    live = serve(api_keys=("right",))
    for path in (b"/nowhere", b"/v1/chat/completions"):
        with live.connect() as raw:
            raw.sendall(
                b"POST " + path + b" HTTP/1.1\r\nhost: localhost\r\ncontent-length: 104857600\r\n\r\n"
            )
            answer = raw.recv(65536)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in answer


# cases: C129
def test_a_megabyte_of_nonsense_in_a_field_gives_a_small_error(serve: Serve) -> None:
    with client(serve().url) as http:
        for field in ("model", "stop", "temperature", "tool_choice", "response_format", "messages"):
            answer = http.post(
                PATH, json=chat(**{field: "x" * MIB}) if field != "messages" else {field: "x" * MIB}
            )
            assert 400 <= answer.status_code < 500
            assert len(answer.content) < 32_000
            assert "x" * 1000 not in answer.text


async def test_half_sent_bodies_share_a_budget() -> None:
    bodies = Bodies(100, budget=250)
    asked = 0

    async def never_ends() -> Message:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": b"x" * 50, "more_body": True}

    bodies._arriving = 220
    with pytest.raises(Overloaded):
        await bodies.read({"headers": []}, never_ends)
    assert asked == 1
    assert bodies._arriving == 220


async def test_bodies_that_came_to_their_end_leave_the_budget_to_the_next() -> None:
    bodies = Bodies(100, budget=150)

    async def body_of(*sizes: int) -> int:
        pieces = [{"type": "http.request", "body": b"x" * size, "more_body": True} for size in sizes]
        coming = iter([*pieces, {"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Message:
            return next(coming)

        return len(await bodies.read({"headers": []}, receive))

    assert [await body_of(50, 40) for _ in range(4)] == [90] * 4


async def test_a_body_that_stops_arriving_is_given_up() -> None:
    import asyncio

    async def silent() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(BadRequest, match="did not arrive"):
        await Bodies(100, timeout_s=0.01).read({"headers": []}, silent)


def test_a_client_that_leaves_within_its_body_leaves_nothing_behind(serve: Serve) -> None:
    engine = FakeEngine()
    live = serve(engine)
    raw = live.connect()
    raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500\r\n\r\nhalf")
    raw.close()
    eventually(lambda: not live.server.server_state.tasks)
    assert engine.requests == []
