"""The private door: a 0600 Unix socket that speaks our own types as JSON lines, one call per connection.

    -> {"version": "0.1.0", "op": "chat", "args": {...}, "settings": {"salt": ..., "hashes": {...}}}
    <- {"value": ...} per event or result, then {"end": true}; or {"error": ...}

A client that hangs up cancels its call. Another version, and who has other settings, is told so and runs in
its own process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from edgecloud.errors import BadRequest, Unavailable, sentence
from edgecloud.http.drain import Drain, Watch, stopping
from edgecloud.http.problem import ClientGone
from edgecloud.metrics import Metrics, metrics
from edgecloud.settings import Settings
from edgecloud.types import Event
from edgecloud.wire import native

from .client import LINE_LIMIT, socket_path, version
from .fingerprint import differences
from .gateway import Gateway

log = logging.getLogger(__name__)


class SocketServer:
    """Serves one gateway, draining with the HTTP server whose `drain` it shares.

    `url` is what `ping` reports; `stop` is called when a client asks the server to end. `settings` are what
    its clients must have alike: the gateway's own, but for what flags changed for those who use the server.
    """

    def __init__(
        self,
        gateway: Gateway,
        url: str,
        stop: Callable[[], None],
        *,
        settings: Settings | None = None,
        drain: Drain | None = None,
        metrics: Metrics = metrics,
    ) -> None:
        self.gateway = gateway
        self.url = url
        self.stop = stop
        self.settings = settings or gateway.settings
        self.drain = drain or Drain()
        self.metrics = metrics
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
        """Take no more calls; end those that run now, or where a drain has begun, let it end them."""
        if self._server is None:
            return
        self._server.close()
        socket_path().unlink(missing_ok=True)
        if not self.drain.draining:
            self.drain.expire()
        # They end by themselves, or when the drain expires.
        await asyncio.gather(*self._calls, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------- inside

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            line = await reader.readline()
            if line:
                await self._answer(line, reader, writer)
        except (ConnectionError, ClientGone):
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
            if self.drain.draining:
                raise stopping()

            async def hang_up() -> dict[str, str]:
                await reader.read(1)
                return {"type": "http.disconnect"}

            op, promised = call["op"], call.get("settings")
            differs = differences(promised, self.settings) if promised else ()
            args = call.get("args", {})
            if op == "ping":
                args = {"differs": differs}
            elif op != "stop" and (differs or not promised):
                # Checked at each call: a chat may outlive the server that it began with.
                raise Unavailable(
                    f"The running server has other settings than this ({', '.join(differs)}): "
                    "restart whichever is older.",
                    code="settings_mismatch",
                )
            async with Watch(hang_up, self.drain):
                await self._stream(op, args, writer)
        except (ConnectionError, ClientGone):
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
                    "differs": args["differs"],
                }
            case "chat":
                async with aclosing(self._counted(gateway.chat(native.load(args["request"])))) as events:
                    async for event in events:
                        yield native.dump(event)
            case "embed":
                yield native.dump(await gateway.embed(native.load(args["request"])))
            case "models":
                yield [native.dump(card) for card in await gateway.models()]
            case "count_tokens":
                yield await gateway.count_tokens(native.load(args["request"]))
            case "explain":
                yield await gateway.explain(native.load(args["request"]))
            case "why":
                yield await gateway.why(str(args["id"]))
            case "blame":
                yield await gateway.blame(args["entry_id"])
            case "feedback":
                await gateway.feedback(args["answer"], args["verdict"], over=args.get("over", ()))
                yield True
            case "health":
                yield native.dump(await gateway.health())
            case "stop":
                yield True
                self.stop()
            case _:
                raise BadRequest(f"There is no operation {op!r}.")

    async def _counted(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """The events, booked in the metrics as those of an answer over HTTP are."""
        meter, failed = self.metrics.generation(), False
        try:
            async with aclosing(events):
                async for event in events:
                    meter.see(event)
                    yield event
        except Exception:
            failed = True
            raise
        finally:
            meter.close(cancelled=not failed)


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
