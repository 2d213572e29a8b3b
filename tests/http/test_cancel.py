"""A client that leaves takes its work with it, whatever state that is in."""

from __future__ import annotations

import random
import socket
import struct
import threading

import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.live import Live, eventually
from tests.support.requests import chat, client, post_bytes

from .conftest import Serve

BODIES = {
    "/v1/chat/completions": chat(),
    "/v1/completions": {"prompt": "hi", "max_tokens": 1000},
    "/v1/messages": chat(max_tokens=1000),
    "/v1/responses": {"input": "hi"},
}
PATHS = list(BODIES)


def leave(raw: socket.socket, *, rudely: bool = False) -> None:
    if rudely:  # a reset instead of an orderly end
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


def ask(live: Live, path: str, *, stream: bool) -> socket.socket:
    raw = live.connect()
    raw.sendall(post_bytes({**BODIES[path], "stream": stream}, path))
    return raw


# cases: C093, C094, P11, P13
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_leaves_during_the_prefill_ends_it(serve: Serve, path: str, stream: bool) -> None:
    engine = FakeEngine(prefill_s=1000)
    live = serve(engine)
    raw = ask(live, path, stream=stream)
    eventually(lambda: engine.running == 1)
    leave(raw)
    eventually(lambda: engine.cancelled == ["prefill"])
    assert (engine.running, engine.generated) == (0, 0)


@pytest.mark.parametrize("rudely", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_leaves_during_the_answer_ends_it(
    serve: Serve, path: str, stream: bool, rudely: bool
) -> None:
    engine = FakeEngine([b"x"] * 1_000_000, hang_at=5)
    live = serve(engine)
    raw = ask(live, path, stream=stream)
    eventually(lambda: engine.generated == 5)
    leave(raw, rudely=rudely)
    eventually(lambda: engine.cancelled == ["decode"])
    assert (engine.running, engine.generated) == (0, 5)


def test_a_client_that_leaves_while_tokens_flow_ends_them(serve: Serve) -> None:
    engine = FakeEngine([b"x"] * 1_000_000, decode_s=0.001)
    live = serve(engine)
    raw = ask(live, "/v1/chat/completions", stream=True)
    eventually(lambda: engine.generated > 20)
    leave(raw)
    eventually(lambda: engine.cancelled == ["decode"])
    assert engine.generated < 100_000


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_the_queue_is_never_served(serve: Serve, stream: bool) -> None:
    engine = FakeEngine([b"x"] * 10, parallel=1, hang_at=5)
    live = serve(engine)
    first = ask(live, "/v1/chat/completions", stream=True)
    eventually(lambda: engine.generated == 5)
    queued = ask(live, "/v1/chat/completions", stream=stream)
    eventually(lambda: engine.waiting == 1)
    leave(queued)
    eventually(lambda: engine.cancelled == ["queued"])
    assert (engine.running, engine.waiting) == (1, 0)
    leave(first)
    eventually(lambda: engine.cancelled == ["queued", "decode"])


def test_a_client_that_leaves_a_batch_of_prompts_ends_them_all(serve: Serve) -> None:
    engine = FakeEngine(prefill_s=1000)
    live = serve(engine)
    with live.connect() as raw:
        raw.sendall(post_bytes({"prompt": ["a", "b", "c"], "stream": True}, "/v1/completions"))
        eventually(lambda: engine.running == 3)
    eventually(lambda: engine.cancelled == ["prefill"] * 3)
    assert (engine.running, engine.waiting, engine.generated) == (0, 0, 0)


def test_one_failing_prompt_ends_the_others(serve: Serve) -> None:
    engine = FakeEngine(prefill_s=1000)
    with client(serve(engine).url) as http:
        answer = http.post("/v1/completions", json={"prompt": ["a", [999]]})
    assert answer.status_code == 400
    assert engine.cancelled == ["queued"]


def test_an_embedding_that_nobody_waits_for_is_ended(serve: Serve) -> None:
    live = serve()
    with client(live.url) as http:
        assert http.post("/v1/embeddings", json={"input": "hi"}).status_code == 200
    assert not live.drain.watches


def test_a_client_that_reads_nothing_and_leaves_takes_its_work_along(serve: Serve) -> None:
    engine = FakeEngine([b"x" * 1000] * 1_000_000)
    live = serve(engine)
    raw = ask(live, "/v1/chat/completions", stream=True)
    eventually(lambda: engine.generated > 100)
    leave(raw)
    eventually(lambda: engine.cancelled == ["decode"])
    assert engine.running == 0
    assert engine.generated < 100_000, "who reads nothing is waited for, not written for"


# cases: C095, C011
def test_two_hundred_clients_vanish_at_random_points_and_the_next_is_served(serve: Serve) -> None:
    chance = random.Random(7)
    engine = FakeEngine([b"x"] * 40, parallel=4, prefill_s=0.005, decode_s=0.001)
    live = serve(engine)

    def vanish(seed: int) -> None:
        chance = random.Random(seed)
        path = chance.choice(PATHS)
        request = post_bytes({**BODIES[path], "stream": chance.random() < 0.7}, path)
        raw = live.connect()
        raw.sendall(request[: len(request) if chance.random() < 0.9 else chance.randrange(len(request))])
        raw.settimeout(chance.random() * 0.3 + 0.001)
        try:
            while chance.random() < 0.9 and raw.recv(chance.choice((1, 100, 65536))):
                pass
        except TimeoutError:
            pass
        leave(raw, rudely=chance.random() < 0.5)

    threads = [threading.Thread(target=vanish, args=(chance.random(),)) for _ in range(200)]
    for thread in threads:
        thread.start()
    with client(live.url) as http:
        assert http.post("/v1/chat/completions", json=chat()).status_code == 200
    for thread in threads:
        thread.join()
    eventually(lambda: (engine.running, engine.waiting) == (0, 0))
    eventually(lambda: not live.server.server_state.tasks)
    assert not live.drain.watches
    assert engine.cancelled
    with client(live.url) as http:
        assert http.post("/v1/chat/completions", json=chat()).status_code == 200
        assert http.get("/load").json() == {"server_load": 0}
        text = http.get("/metrics").text
    assert "edgecloud_num_requests_running 0.0" in text
    assert "edgecloud_num_requests_waiting 0.0" in text
    assert "edgecloud_http_requests_in_flight 1.0" in text  # the one that asks
