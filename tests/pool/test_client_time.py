"""How long the remote engine waits, and how it lets go."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import aclosing

import pytest

from edgecloud.errors import DeadlineExceeded, UpstreamError
from edgecloud.pool import patience
from edgecloud.pool.client import RemoteEngine
from edgecloud.types import EngineEvent, Start, TextDelta

from .builders import engine_at, failure, gather, good, make_request, talking, text_of
from .scripted_upstream import DONE, Call, Script, chunked, delta, finish


async def silent(call: Call) -> None:
    await call.gone.wait()


async def stalled(call: Call) -> None:
    await call.stream(delta("so"), end=False)
    await call.gone.wait()


async def chatty(call: Call) -> None:
    """Sends pings for ever, as a server that queues us does."""
    await call.stream(end=False)
    while not call.gone.is_set():
        await call.send(chunked(b": ping\n\n"))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("script", "limits", "expected"),
    [
        (silent, {"first_byte_timeout_s": 0.2}, "did not answer for 0.2 s"),
        (stalled, {"idle_timeout_s": 0.2}, "sent nothing for 0.2 s"),
        (chatty, {"timeout_s": 0.3}, "longer than its timeout_s of 0.3 s"),
    ],
)
async def test_an_upstream_that_takes_too_long_is_given_up(
    script: Script, limits: dict[str, float], expected: str
) -> None:
    error = await failure(script, **limits)

    assert type(error) is UpstreamError
    assert expected in error.message


@pytest.mark.parametrize("script", [silent, stalled, chatty])
async def test_the_callers_deadline_ends_any_wait(script: Script) -> None:
    error = await failure(script, make_request(deadline_s=0.2))

    assert type(error) is DeadlineExceeded


async def test_pings_hold_a_silent_answer_open() -> None:
    async def script(call: Call) -> None:
        await call.stream(end=False)
        for _ in range(8):
            await call.send(chunked(b": ping\n\n"))
            await asyncio.sleep(0.2)
        await call.send(*map(chunked, [delta("at last"), finish(), DONE, b""]))

    async with talking(script, idle_timeout_s=1.0, first_byte_timeout_s=1.0) as (engine, _):
        assert text_of(await gather(engine)) == "at last"


class SleepingClock:
    """Time that jumps, as the real one does when the lid is opened again."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.slept_s


async def test_a_lid_closed_over_a_dead_upstream_is_noticed_when_it_opens() -> None:
    clock = SleepingClock()

    def close_the_lid() -> None:
        asyncio.get_running_loop().call_later(0.1, setattr, clock, "slept_s", 90.0)

    async with talking(stalled, clock=clock, idle_timeout_s=60) as (engine, _), asyncio.timeout(20):
        with pytest.raises(UpstreamError, match="sent nothing for 60 s"):
            await gather(engine, on_text=close_the_lid)


async def test_what_arrived_during_the_sleep_is_read_before_anything_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> str:
        clock.slept_s = 90.0
        await asyncio.sleep(0.03)
        return "what arrived"

    monkeypatch.setattr(patience, "LOOK_S", 0.02)
    clock = SleepingClock()
    waiting = patience.Patience("gpu-box", clock, deadline_s=None, most_s=600)

    assert await waiting.wait(work(), 60, "sent nothing") == "what arrived"


STOPPED = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
client, _ = listener.accept()
client.recv(65536)
body = b'data: {"choices": [{"index": 0, "delta": {"content": "so"}}]}\\n\\n'
client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\n\\r\\n" + body)
sys.stdin.read()
"""


async def test_an_upstream_that_is_stopped_in_the_middle_is_noticed() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STOPPED, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        async with (
            engine_at(f"http://127.0.0.1:{port}/v1", idle_timeout_s=0.3) as engine,
            asyncio.timeout(20),
        ):
            with pytest.raises(UpstreamError, match=r"sent nothing for 0\.3 s"):
                await gather(engine, on_text=lambda: os.kill(process.pid, signal.SIGSTOP))
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("script", [silent, stalled, chatty])
async def test_cancelling_closes_the_connection_at_once(script: Script) -> None:
    async with talking(script) as (engine, server):
        task = asyncio.create_task(gather(engine))
        await server.asked.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.calls[0].gone.wait(), 5)


async def test_closing_the_generator_closes_the_connection_at_once() -> None:
    async def script(call: Call) -> None:
        await call.stream(end=False)
        while not call.gone.is_set():
            await call.send(chunked(delta("more ")))

    async with talking(script) as (engine, server):
        async with aclosing(engine.generate(make_request())) as events:
            async for each in events:
                if isinstance(each, TextDelta):
                    break
        await asyncio.wait_for(server.calls[0].gone.wait(), 5)
        assert text_of(await gather_some(engine, 3)) == "more more more "


async def gather_some(engine: RemoteEngine, deltas: int) -> list[EngineEvent]:
    got: list[EngineEvent] = []
    async with aclosing(engine.generate(make_request())) as events:
        async for each in events:
            got.append(each)
            if sum(isinstance(event, TextDelta) for event in got) == deltas:
                break
    return got


async def test_the_start_waits_for_the_upstreams_consent() -> None:
    async def script(call: Call) -> None:
        await allowed.wait()
        await good(call)

    allowed = asyncio.Event()
    async with talking(script) as (engine, server), aclosing(engine.generate(make_request())) as events:
        first = asyncio.ensure_future(anext(events))
        await server.asked.wait()
        assert not first.done()
        allowed.set()
        assert isinstance(await first, Start)
