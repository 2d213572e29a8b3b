"""An upstream that does exactly what a test says, byte by byte, on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@dataclass
class Call:
    """One request that arrived, and the connection to answer it on."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    gone: asyncio.Event

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def stream(self, *parts: bytes, end: bool = True) -> None:
        """The head of an event stream and each part as one HTTP chunk."""
        await self.send(STREAM, *(chunked(part) for part in parts))
        if end:
            await self.send(chunked(b""))

    async def answer(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Call], Awaitable[None]]


@dataclass
class Upstream:
    url: str
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)


def chunked(part: bytes) -> bytes:
    return f"{len(part):x}\r\n".encode() + part + b"\r\n"


def event(body: Any) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


def delta(text: str, index: int = 0) -> bytes:
    return event({"choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]})


def finish(reason: str = "stop", index: int = 0) -> bytes:
    return event({"choices": [{"index": index, "delta": {}, "finish_reason": reason}]})


def usage(prompt: Any, completion: Any) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def upstream(script: Script) -> AsyncIterator[Upstream]:
    """A server on loopback that gives every request to `script` and keeps connections open."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.connections += 1
        tasks.append(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                call = await read_call(reader, writer)
                running.calls.append(call)
                running.asked.set()
                watching = asyncio.create_task(watch(reader, call.gone))
                try:
                    await script(call)
                except ConnectionError:
                    call.gone.set()
                    raise
                finally:
                    watching.cancel()
                    with suppress(asyncio.CancelledError):
                        await watching
        writer.close()

    async def watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
        """Sees the client leave while the script still answers, and leaves a next request in the buffer."""
        while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        gone.set()

    tasks: list[asyncio.Task[Any] | None] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    running = Upstream(f"http://127.0.0.1:{port}/v1")
    try:
        yield running
    finally:
        server.close()
        for task in tasks:
            if task is not None:
                task.cancel()


async def read_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Call(method, path, headers, body, writer, asyncio.Event())
