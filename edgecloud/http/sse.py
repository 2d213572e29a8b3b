"""Server-sent events that survive proxies: comments while it is silent, and an end that a client can tell
from a cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgecloud.http.asgi import Headers, Send, json_bytes

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would hold the stream back otherwise.
    (b"x-accel-buffering", b"no"),
)


def data_frame(body: Mapping[str, Any]) -> bytes:
    """One unnamed event."""
    return b"data: " + json_bytes(body) + b"\n\n"


def named_frame(body: Mapping[str, Any]) -> bytes:
    """One event named after the body's `type`."""
    return b"event: " + str(body["type"]).encode() + b"\ndata: " + json_bytes(body) + b"\n\n"


def comment_frame(text: str) -> bytes:
    """A line that clients skip and people read."""
    return b": " + " ".join(text.split()).encode(errors="replace") + b"\n\n"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a family of clients reads a stream: how a body is framed, what a ping looks like, and what marks
    the end.
    """

    frame: Callable[[Mapping[str, Any]], bytes]
    ping: bytes
    end: bytes


OPENAI = Dialect(frame=data_frame, ping=b": ping\n\n", end=b"data: [DONE]\n\n")
RESPONSES = Dialect(frame=named_frame, ping=b": ping\n\n", end=b"")
ANTHROPIC = Dialect(frame=named_frame, ping=named_frame({"type": "ping"}), end=b"")


class EventStream:
    """One response that is a stream of events: `expect`, `open`, `write` any number of times, `close`.

    After `ping_s` seconds of silence, also before the first event, a ping goes out by itself. If the answer
    has not even begun by then (a model is being loaded), the stream opens without it: proxies cut what says
    nothing.
    """

    def __init__(self, send: Send, *, ping: bytes, ping_s: float) -> None:
        self._send = send
        self._ping = ping
        self._ping_s = ping_s
        self._loop = asyncio.get_running_loop()
        self._opening: asyncio.Task[None] | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.opened = False

    def expect(self) -> None:
        """Wait for the answer to begin, for as long as silence may last."""
        self._timer = self._loop.call_later(self._ping_s, self._open_unbegun)

    async def open(self, headers: Headers) -> None:
        """Send status 200, unless it has been: from here on errors can only be events."""
        if self._opening is not None:
            await self._opening
        else:
            await self._begin(headers)

    async def write(self, frames: bytes) -> None:
        """Send whole events."""
        self._written = self._loop.time()
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})

    async def close(self, frames: bytes = b"") -> None:
        """Send the last events and end the response."""
        self.quiet()
        if self._opening is not None:
            await self._opening
        await self._send({"type": "http.response.body", "body": frames, "more_body": False})

    def quiet(self) -> None:
        """Send no more pings."""
        if self._timer is not None:
            self._timer.cancel()
        if self._pinging is not None:
            self._pinging.cancel()

    def _open_unbegun(self) -> None:
        self.opened = True
        self._opening = self._loop.create_task(self._begin((), self._ping))

    async def _begin(self, headers: Headers, frames: bytes = b"") -> None:
        self.opened = True
        await self._send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, *headers]})
        if frames:
            await self.write(frames)
        self._written = self._loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._ping_s, self._silent)

    def _silent(self) -> None:
        due = self._written + self._ping_s
        if self._loop.time() >= due:
            # A client that reads nothing keeps the last ping waiting: one is enough.
            if self._pinging is None or self._pinging.done():
                self._pinging = self._loop.create_task(self.write(self._ping))
            due = self._loop.time() + self._ping_s
        self._timer = self._loop.call_at(due, self._silent)
