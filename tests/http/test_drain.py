from __future__ import annotations

import asyncio
import threading

import pytest

from edgecloud.errors import Unavailable
from edgecloud.http.asgi import Message
from edgecloud.http.drain import Drain, Watch
from edgecloud.http.server import Server, listen
from tests.support.fake_engine import FakeEngine
from tests.support.live import PATIENCE_S, Live, eventually
from tests.support.requests import chat, client, frames, post_bytes

from .conftest import Serve


class Asking(threading.Thread):
    """One request in a thread of its own; `answer` once it is there."""

    def __init__(self, live: Live, **fields: object) -> None:
        super().__init__(daemon=True)
        self.live, self.body = live, chat(**fields)
        self.start()

    def run(self) -> None:
        with client(self.live.url) as http:
            self.answer = http.post("/v1/chat/completions", json=self.body)


# cases: C177
@pytest.mark.parametrize("stream", [False, True])
def test_running_answers_finish_and_new_requests_are_refused(serve: Serve, stream: bool) -> None:
    engine = FakeEngine([b"x"] * 20, decode_s=0.05)
    live = serve(engine, drain_s=30.0)
    kept = live.connect()
    kept.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    kept.recv(4096)
    asking = Asking(live, stream=stream)
    eventually(lambda: engine.generated > 2)
    live.stop()
    eventually(lambda: live.drain.draining)
    try:
        kept.sendall(post_bytes(chat()))
        refused = kept.recv(4096)
    except ConnectionError:
        refused = b""
    assert refused == b"" or refused.startswith(b"HTTP/1.1 503 ")
    with pytest.raises(ConnectionError):
        live.connect().close()
    asking.join(PATIENCE_S)
    assert asking.answer.status_code == 200
    assert engine.finished == 1
    live.thread.join(PATIENCE_S)
    assert not live.thread.is_alive()
    assert engine.closed


def test_a_request_on_a_connection_that_outlived_the_signal_is_told_to_come_back(serve: Serve) -> None:
    live = serve()
    live.drain.draining = True
    with client(live.url) as http:
        for answer in (http.post("/v1/chat/completions", json=chat()), http.get("/v1/models")):
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "5"
            assert answer.json()["error"]["code"] == "server_stopping"
        assert http.get("/health/ready").status_code == 503
        assert http.get("/health/live").status_code == 200


# cases: C177, C178
def test_a_stream_that_outlives_the_drain_ends_with_an_error_frame(serve: Serve) -> None:
    engine = FakeEngine([b"x"] * 20, hang_at=5)
    live = serve(engine, drain_s=0.2)
    asking = Asking(live, stream=True)
    eventually(lambda: engine.generated == 5)
    live.stop()
    asking.join(PATIENCE_S)
    events = frames(asking.answer.text)
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["code"] == "server_stopping"
    assert engine.cancelled == ["decode"]
    live.thread.join(PATIENCE_S)
    assert not live.thread.is_alive()


def test_an_answer_that_outlives_the_drain_is_503(serve: Serve) -> None:
    engine = FakeEngine(prefill_s=1000)
    live = serve(engine, drain_s=0.0)
    asking = Asking(live)
    eventually(lambda: engine.running == 1)
    live.stop()
    asking.join(PATIENCE_S)
    assert asking.answer.status_code == 503
    assert asking.answer.headers["retry-after"]
    assert engine.cancelled == ["prefill"]


def test_a_second_signal_stops_now(serve: Serve) -> None:
    engine = FakeEngine(prefill_s=1000)
    live = serve(engine, drain_s=1000.0)
    asking = Asking(live, stream=True)
    eventually(lambda: engine.running == 1)
    live.stop()
    eventually(lambda: live.drain.draining)
    assert not live.drain.expired
    live.stop()
    asking.join(PATIENCE_S)
    assert frames(asking.answer.text)[-2]["error"]["code"] == "server_stopping"
    live.thread.join(PATIENCE_S)
    assert not live.thread.is_alive()


@pytest.mark.slow
def test_a_stopping_server_does_not_wait_for_clients_that_read_nothing(serve: Serve) -> None:
    engine = FakeEngine([b"x" * 1000] * 1_000_000)
    live = serve(engine, drain_s=0.0)
    with live.connect() as raw:
        raw.sendall(post_bytes(chat(stream=True)))
        eventually(lambda: engine.generated > 100)
        live.stop()
        live.thread.join(PATIENCE_S)
        assert not live.thread.is_alive()
    assert engine.cancelled == ["decode"]


@pytest.mark.slow
def test_a_stopping_server_does_not_wait_for_half_a_request(serve: Serve) -> None:
    live = serve(drain_s=0.0)
    with live.connect() as raw:
        raw.sendall(post_bytes(chat())[:-5])
        eventually(lambda: live.server.server_state.tasks)
        live.stop()
        live.thread.join(PATIENCE_S)
        assert not live.thread.is_alive()


async def hangs() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def test_work_that_would_begin_after_the_end_is_refused() -> None:
    drain = Drain()
    drain.expire()
    with pytest.raises(Unavailable):
        async with Watch(hangs, drain):
            pytest.fail("it began")


async def test_who_is_cancelled_from_outside_too_is_cancelled() -> None:
    drain = Drain()

    async def work() -> None:
        async with Watch(hangs, drain):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    drain.expire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not drain.watches


def test_a_server_that_is_stopped_twice_before_it_began_serves_nobody() -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    sockets = listen("127.0.0.1", 0)
    server = Server(app, Drain(), drain_s=1.0, handle_signals=False)
    server.stop()
    server.stop()

    server.run(sockets)

    assert server.force_exit
    for listener in sockets:
        listener.close()
