"""What clients do to a server of the real model; afterwards the next one is served as if nothing had been."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.process import Process
from tests.support.requests import chat, client, frames, post_bytes

from .house import STORY, Gauges, answers, comes_to_rest, connect, footprint, house, wait_for

LARGE = 100 * 2**20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with house(tmp_path_factory.mktemp("abuse")) as opened:
        serving = opened.serve("--parallel", 4, EDGECLOUD_SERVER__PING_S="1")
        yield serving
        assert "Traceback" not in serving.text
        assert serving.process.poll() is None


@pytest.fixture
def url(server: Process) -> Iterator[str]:
    """The server before the abuse; after it, everything must be as before."""
    yield server.url
    comes_to_rest(server.url)
    answers(server.url)


def pieces(size: int, *, chunked: bool) -> Iterator[bytes]:
    step = 2**20
    for _ in range(size // step):
        yield (b"%x\r\n" % step if chunked else b"") + b" " * step + (b"\r\n" if chunked else b"")


# cases: C131, P68
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_100_mb_is_refused_and_never_held(server: Process, url: str, chunked: bool) -> None:
    before, _ = footprint(server)
    head = "transfer-encoding: chunked" if chunked else f"content-length: {LARGE}"
    with connect(url) as connection:
        connection.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n{head}\r\n\r\n".encode()
        )
        # Whoever sends first and reads later must not lose the answer to a reset.
        for piece in pieces(LARGE, chunked=chunked):
            connection.sendall(piece)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert footprint(server)[0] - before < LARGE / 2


DEEP = 10_000
ODD_BODIES = {
    "10,000 lists deep": b"[" * DEEP + b"]" * DEEP,
    "10,000 objects deep": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep below messages": b'{"messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep in a field nobody knows": b'{"messages":[{"role":"user","content":"x"}],"x":'
    + b"[" * DEEP
    + b"]" * DEEP
    + b"}",
    "NaN": b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    "Infinity": b'{"messages":[{"role":"user","content":"x"}],"temperature":-Infinity}',
    "1e999": b'{"messages":[{"role":"user","content":"x"}],"temperature":1e999}',
    "a lone surrogate": rb'{"messages":[{"role":"user","content":"\ud800"}],"max_tokens":1}',
    "a lone surrogate as a name": rb'{"messages":[{"role":"user","content":"x"}],"model":"\udfff"}',
    "a surrogate in a stop": rb'{"messages":[{"role":"user","content":"x"}],"stop":"\ud800","max_tokens":1}',
    "bytes that are no text": b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
    "a NUL": rb'{"messages":[{"role":"user","content":"\u0000"}],"max_tokens":1}',
    "an endless number": b'{"messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 100_000 + b"}",
    "half of it": b'{"messages":[{"role":"us',
    "nothing": b"",
    "two of them": b'{"messages":[]}{"messages":[]}',
    "a million messages": b'{"messages":[' + b",".join([b"{}"] * 1_000_000) + b"]}",
}


# cases: C122, P26
@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/tokenize",
    ],
)
def test_odd_bodies_are_400_or_answered(url: str, path: str) -> None:
    with client(url) as http:
        statuses = {
            name: http.post(path, content=body, headers={"content-type": "application/json"}).status_code
            for name, body in ODD_BODIES.items()
        }
    assert {name: status for name, status in statuses.items() if status not in (200, 400, 404, 413)} == {}
    assert statuses["NaN"] == statuses["half of it"] == statuses["10,000 lists deep"] == 400


class Vanishing:
    """A client that hangs up at a moment of its own: before, during or after anything."""

    def __init__(self, url: str, dice: random.Random) -> None:
        body = chat(
            f"{dice.random()} " + STORY * dice.choice([1, 1, 10, 60]),
            stream=dice.random() < 0.5,
            max_tokens=dice.choice([1, 50, 400]),
            n=dice.choice([1, 1, 1, 2]),
        )
        path = dice.choice(["/v1/chat/completions", "/v1/chat/completions", "/v1/messages"])
        content = post_bytes({**body, "n": 1} if path.endswith("messages") else body, path)
        self.connection = connect(url)
        # A few never finish what they ask.
        self.connection.sendall(content if dice.random() < 0.9 else content[: dice.randrange(len(content))])
        self.leaves_at = time.monotonic() + dice.expovariate(1 / 4)
        self.abruptly = dice.random() < 0.5

    def leave(self) -> None:
        if self.abruptly:  # a reset instead of an orderly end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()


# cases: C011, C093, C094, C095, P11, P13
def test_two_hundred_clients_vanish_wherever_they_are_and_the_next_is_served(url: str) -> None:
    dice = random.Random(20)
    clients = [Vanishing(url, dice) for _ in range(200)]
    for leaving in sorted(clients, key=lambda client: client.leaves_at):
        time.sleep(max(0.0, leaving.leaves_at - time.monotonic()))
        leaving.leave()
    answers(url)
    comes_to_rest(url)
    settled = Gauges(url)
    time.sleep(1)
    # Nobody's answer is still being computed.
    assert Gauges(url)["generation_tokens_total"] == settled["generation_tokens_total"]


# cases: C089, P2
def test_sixteen_at_once_of_any_length_five_times(url: str) -> None:
    dice = random.Random(5)

    def ask(number: int) -> int:
        body = chat(
            f"{number}: " + STORY * dice.choice([1, 3, 12]),
            max_tokens=dice.randint(1, 24),
            stream=number % 2 == 1,
            temperature=dice.choice([0, 1]),
        )
        with client(url) as http:
            answer = http.post("/v1/chat/completions", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        if body["stream"]:
            assert frames(answer.text)[-1] == "[DONE]"
        return number

    with ThreadPoolExecutor(16) as pool:
        for round_number in range(5):
            numbers = range(16 * round_number, 16 * round_number + 16)
            assert list(pool.map(ask, numbers)) == list(numbers)
    with client(url) as http:
        assert http.get("/health").json() == {"status": "ok", "running": 0, "waiting": 0}


def test_slow_readers_stall_nobody_and_get_everything(url: str) -> None:
    """Four clients take all places, ask for more than their windows hold, and do not read for a while."""
    body = chat(
        "Hi",
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=100,
        ignore_eos=True,
        logprobs=True,
        top_logprobs=20,
    )
    readers = [connect(url, window=16384) for _ in range(4)]
    for reader in readers:
        reader.sendall(post_bytes(body))
    answers(url)
    for reader in readers:
        text = b""
        while b"[DONE]" not in text[-20_000:]:
            piece = reader.recv(4096)
            assert piece, text[-200:]
            text += piece
        reader.close()
        assert b'"completion_tokens":100,' in text


def test_readers_who_never_read_are_not_waited_for(url: str) -> None:
    body = chat("Hi", stream=True, max_tokens=1000, ignore_eos=True, logprobs=True, top_logprobs=20)
    readers = [connect(url, window=4096) for _ in range(4)]
    for reader in readers:
        reader.sendall(post_bytes(body))
    wait_for(lambda: Gauges(url)["num_requests_running"] == 4)
    for reader in readers:
        reader.close()
    answers(url)


def test_half_open_connections_cost_no_place(url: str) -> None:
    silent = [connect(url) for _ in range(300)]
    for number, connection in enumerate(silent):
        if number % 3 == 1:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: loc")
        elif number % 3 == 2:
            connection.sendall(post_bytes(chat())[:-5])
    answers(url)
    with client(url) as http:
        assert http.get("/load").json() == {"server_load": 0}
    for connection in silent:
        connection.close()


def test_a_client_that_only_closes_its_own_side_is_answered_or_let_go(url: str) -> None:
    with connect(url) as connection:
        connection.sendall(post_bytes(chat(max_tokens=4)))
        connection.shutdown(socket.SHUT_WR)
        got = b"".join(iter(lambda: connection.recv(4096), b""))
    assert not got or (got.startswith(b"HTTP/1.1 200 ") and b"chat.completion" in got)
    answers(url)


NO_KINDS: list[Any] = ["nothing", 3, {}]
KINDS = ("object", "array", "string", "number", "null")
BROKEN_SCHEMAS: list[Any] = [
    *({"type": kind, "$ref": "#/nowhere"} for kind in KINDS),
    *({"type": kind, "enum": 3} for kind in KINDS),
    {"type": "object", "properties": {"a": 3}},
    *({"type": "object", "properties": {"a": {"type": kind}}} for kind in NO_KINDS),
    *(
        {"type": "object", "properties": {"a": {"$ref": ref}}}
        for ref in ("#/nowhere", "file:///etc/passwd", 3)
    ),
    *({"type": "string", "pattern": pattern} for pattern in ("(unclosed", "[", "a{2,1}", "(?=x)", "*", 3)),
    *({"type": "string", key: value} for key in ("minLength", "maxLength") for value in (-1, "x")),
    *({"type": "array", key: value} for key in ("minItems", "maxItems") for value in (-1, "x")),
    *({kind: value} for kind in ("anyOf", "oneOf", "allOf") for value in (3, "x", [3], [])),
    *({"type": kind} for kind in [*NO_KINDS, [], ["string", "nothing"]]),
    {"type": "object", "properties": 7},
    {"type": "object", "required": 3},
    {"type": "array", "items": "x"},
    {"type": "integer", "minimum": 5, "maximum": 1},
    {"enum": []},
    {"$ref": "#"},
    "object",
    [],
    3,
]
BROKEN_GRAMMARS = [
    *(
        "",
        "root",
        "root ::= missing",
        "::=",
        "root ::= root",
        "root ::= [",
        'root ::= "',
        "x",
        "\0",
        "root : x",
    ),
    *(
        "#",
        "root ::= " + "(" * 500,
        "root ::= " + "(" * 50_000,
        "root ::= a\na ::= b\nb ::= a",
        "root ::= [z-a]",
    ),
]


# cases: C104, P25, P74
def test_fifty_broken_schemas_and_grammars_are_400_each(url: str) -> None:
    assert len(BROKEN_SCHEMAS) >= 50
    passed = []
    with client(url) as http:
        for schema in BROKEN_SCHEMAS:
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            answer = http.post("/v1/chat/completions", json=chat(max_tokens=8, response_format=form))
            if answer.status_code != 400 or not answer.json()["error"]["message"]:
                passed.append((schema, answer.status_code))
        for grammar in BROKEN_GRAMMARS:
            answer = http.post("/v1/chat/completions", json=chat(max_tokens=8, grammar=grammar))
            if answer.status_code != 400 or not answer.json()["error"]["message"]:
                passed.append((grammar, answer.status_code))
    assert passed == []
