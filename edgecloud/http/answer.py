"""Generations as one HTTP response, whole or streamed, over any streams of events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from edgecloud.errors import EdgeCloudError, EngineFailure, sentence
from edgecloud.http.asgi import Receive, Scope, Send, close_behind, json_bytes, reply
from edgecloud.http.body import Bodies
from edgecloud.http.call import Call, call_of
from edgecloud.http.drain import Drain, Watch
from edgecloud.http.merge import Events, merged
from edgecloud.http.origin import end_headers, notice_line, start_headers
from edgecloud.http.problem import ClientGone
from edgecloud.http.sse import OPENAI, Dialect, EventStream, comment_frame
from edgecloud.metrics import Metrics
from edgecloud.types import Done, Event, Finish, Notice, Receipt, Start
from edgecloud.wire.common import WHO_WROTE
from edgecloud.wire.errors import openai_error

log = logging.getLogger("edgecloud.http")

# How long a client that reads nothing may hold up the goodbye of a stopping server, seconds.
GOODBYE_S = 2.0

AnyEvent = Event | Done
Add = Callable[[int, AnyEvent], object]
Fail = Callable[[EdgeCloudError], Sequence[Mapping[str, Any]]]
Encode = Callable[[int, AnyEvent], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Door:
    """What all routes of one server share."""

    bodies: Bodies
    drain: Drain
    metrics: Metrics
    ping_s: float


class Answer(Response):
    """Runs generations when it is sent, and sends nothing before each has begun, so that every fault found by
    then has its own status. (Only a stream that has to wait long for that begins with a ping.)

    However the response ends, the streams are closed, which cancels the work behind them: the client hangs
    up, in any state; the server's drain runs out; another stream fails.
    """

    def __init__(self, door: Door, streams: Sequence[Events]) -> None:
        self.door = door
        self.streams = streams
        # What the routers of Starlette and FastAPI look at.
        self.status_code = 200
        self.background = None

    @asynccontextmanager
    async def _running(self, scope: Scope, receive: Receive) -> AsyncIterator[_Running]:
        """The generations under watch, counted, and closed at the end."""
        running = _Running(self.door.metrics, len(self.streams), call_of(scope))
        try:
            async with Watch(receive, self.door.drain), AsyncExitStack() as closing:
                for stream in self.streams:
                    await closing.enter_async_context(aclosing(stream))
                for number, stream in enumerate(self.streams):
                    start = await anext(stream, None)
                    if not isinstance(start, Start):
                        raise EngineFailure("The engine ended without a word.")
                    running.begin(number, start)
                running.events = await closing.enter_async_context(aclosing(merged(self.streams)))
                yield running
        finally:
            running.end(sys.exception())


class _Running:
    """The generations of one response: their starts, their events, and what is booked of them."""

    events: AsyncGenerator[tuple[int, AnyEvent], None]

    def __init__(self, metrics: Metrics, number: int, call: Call) -> None:
        self.starts: list[Start] = []
        self.unfinished = number
        self.cached_tokens = 0
        self.receipts: list[Receipt] = []
        self.notices: list[Notice] = []
        self._call = call
        self._meters = [metrics.generation() for _ in range(number)]

    def begin(self, number: int, start: Start) -> None:
        self.starts.append(start)
        self._call.model = start.model
        self._call.notes["engine"] = start.engine
        self._meters[number].see(start)

    def see(self, number: int, event: AnyEvent) -> None:
        self._meters[number].see(event)
        if isinstance(event, Finish | Done):
            self.unfinished -= 1
            self.cached_tokens += event.usage.cached_tokens
            notes = self._call.notes
            for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
                notes[name] = int(notes.get(name, 0)) + getattr(event.usage, name)
            self._note_times(event)
        elif isinstance(event, Notice) and event.kind in WHO_WROTE:
            self.notices.append(event)

    def _note_times(self, event: Finish | Done) -> None:
        """Where the time went; of several prompts in one request, as long as the slowest took."""
        call = self._call
        if isinstance(event, Finish):
            self.receipts.append(event.receipt)
            engine_s = event.receipt.total_s
        else:
            timings = event.timings
            engine_s = timings.queue_s + timings.prefill_s + timings.decode_s
            for name in ("queue_s", "prefill_s", "decode_s"):
                key, ms = name.replace("_s", "_ms"), round(getattr(timings, name) * 1000, 1)
                call.notes[key] = max(float(call.notes.get(key, 0.0)), ms)
        call.engine_s = max(call.engine_s or 0.0, engine_s)

    def end(self, error: BaseException | None) -> None:
        for meter in self._meters:
            meter.close(cancelled=isinstance(error, ClientGone | asyncio.CancelledError))


class WholeAnswer(Answer):
    """One JSON body for all streams: each event is given to `add` with its stream's number, `body` is asked
    last.
    """

    def __init__(
        self, door: Door, streams: Sequence[Events], add: Add, body: Callable[[], Mapping[str, Any]]
    ) -> None:
        super().__init__(door, streams)
        self.add = add
        self.whole = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        add = self.add
        async with self._running(scope, receive) as running:
            for number, start in enumerate(running.starts):
                add(number, start)
            async for number, event in running.events:
                running.see(number, event)
                add(number, event)
        known = end_headers(running.receipts, running.cached_tokens, running.notices)
        headers = start_headers(running.starts) + known
        await reply(send, 200, json_bytes(self.whole()), headers)


class StreamedAnswer(Answer):
    """Server-sent events in one dialect: `encode` makes none, one or several bodies of an event of a
    stream.
    """

    def __init__(
        self,
        door: Door,
        streams: Sequence[Events],
        encode: Encode,
        fail: Fail = lambda error: [openai_error(error)],
        dialect: Dialect = OPENAI,
    ) -> None:
        super().__init__(door, streams)
        self.encode = encode
        self.fail = fail
        self.dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encode, frame = self.encode, self.dialect.frame
        stream = EventStream(send, ping=self.dialect.ping, ping_s=self.door.ping_s)
        # The last frames wait until the generation is closed: uvicorn reports a hang-up as soon as a response
        # is complete.
        last = b""
        stream.expect()
        try:
            async with self._running(scope, receive) as running:
                await stream.open(start_headers(running.starts))
                for number, start in enumerate(running.starts):
                    first = b"".join(map(frame, encode(number, start)))
                    if first:
                        await stream.write(first)
                async for number, event in running.events:
                    running.see(number, event)
                    frames = b"".join(map(frame, encode(number, event)))
                    if isinstance(event, Notice) and event.kind in WHO_WROTE:
                        frames += comment_frame(f"edgecloud {notice_line(event)}")
                    if not running.unfinished:
                        last += frames
                    elif frames:
                        await stream.write(frames)
        except ClientGone:
            raise
        except Exception as error:
            if not stream.opened:
                raise
            last = self._goodbye(scope, error)
        finally:
            stream.quiet()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S if self.door.drain.draining else None):
                await stream.close(last + self.dialect.end)

    def _goodbye(self, scope: Scope, error: Exception) -> bytes:
        shown = sentence(error)
        if shown is not error:
            log.error("a stream failed", exc_info=error)
        call = call_of(scope)
        call.error = shown.code or shown.type
        close_behind(scope)
        return b"".join(map(self.dialect.frame, self.fail(shown)))
