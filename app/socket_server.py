"""The private door: a 0600 Unix socket that speaks our own types as JSON lines, one call per connection.

    -> {"version": "0.1.0", "op": "chat", "args": {...}}
    <- {"value": ...} per event or result, then {"end": true}; or {"error": ...}

A client that hangs up cancels its call. Another version is told so and runs in its own process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from edgecloud.errors import BadRequest, Unavailable, sentence
from edgecloud.settings import runtime_dir
from edgecloud.wire import native

from .gateway import Gateway

log = logging.getLogger(__name__)

LINE_LIMIT = 64 * 2**20
SOCKET_NAME = "edgecloud.sock"


def version() -> str:
    from importlib.metadata import version as of

    return of("edgecloud")


def socket_path() -> Path:
    return runtime_dir() / SOCKET_NAME


class SocketServer:
    """Serves one gateway. `url` is what `ping` reports; `stop` is called when a client asks the server
    to end.
    """

    def __init__(self, gateway: Gateway, url: str, stop: Callable[[], None] | None = None) -> None:
        self.gateway = gateway
        self.url = url
        self.stop = stop or (lambda: os.kill(os.getpid(), signal.SIGTERM))
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def start(self) -> bool:
        """Bind the socket; False when another live server owns it or it cannot be made here."""
        path = socket_path()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if await _alive(path):
                log.warning("another edgecloud serve owns %s: `ask` and the TUI will use that one", path.name)
                return False
            path.unlink(missing_ok=True)
            mask = os.umask(0o177)
            try:
                self._server = await asyncio.start_unix_server(self._serve, path, limit=LINE_LIMIT)
            finally:
                os.umask(mask)
        except OSError as error:
            log.warning("no private socket: %s", error.strerror or error)
            return False
        return True

    async def aclose(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        socket_path().unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------------- inside

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            line = await reader.readline()
            if line:
                await self._answer(line, reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except ValueError:  # a line over the limit
            with contextlib.suppress(ConnectionError):
                await _send(writer, {"error": native.dump(BadRequest("The request is too large."))})
        finally:
            self._calls.discard(task)
            writer.close()

    async def _answer(self, line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            call = json.loads(line)
            ours, theirs = version(), call.get("version")
            if theirs != ours:
                raise Unavailable(
                    f"The running server is edgecloud {ours}, this is {theirs}.", code="version_mismatch"
                )
            work = asyncio.create_task(self._stream(call["op"], call.get("args", {}), writer))
            gone = asyncio.create_task(reader.read(1))
            try:
                await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pending in (work, gone):
                    if not pending.done():
                        pending.cancel()
                await asyncio.gather(gone, return_exceptions=True)
            await work
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            shown = sentence(error)
            if shown is not error:
                log.exception("a call on the private socket failed")
            await _send(writer, {"error": native.dump(shown)})

    async def _stream(self, op: str, args: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        async with aclosing(self._results(op, args)) as results:  # type: ignore[type-var]
            async for result in results:
                await _send(writer, {"value": result})
        await _send(writer, {"end": True})

    async def _results(self, op: str, args: dict[str, Any]) -> AsyncIterator[Any]:
        gateway = self.gateway
        match op:
            case "ping":
                yield {
                    "version": version(),
                    "pid": os.getpid(),
                    "url": self.url,
                    "health": native.dump(await gateway.health()),
                }
            case "chat":
                async with aclosing(gateway.chat(native.load(args["request"]))) as events:
                    async for event in events:
                        yield native.dump(event)
            case "embed":
                yield native.dump(await gateway.embed(native.load(args["request"])))
            case "models":
                yield [native.dump(card) for card in await gateway.models()]
            case "count_tokens":
                yield await gateway.count_tokens(native.load(args["request"]))
            case "health":
                yield native.dump(await gateway.health())
            case "stop":
                yield True
                self.stop()
            case _:
                raise BadRequest(f"There is no operation {op!r}.")


async def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")
    await writer.drain()


async def _alive(path: Path) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_unix_connection(path), 1.0)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
