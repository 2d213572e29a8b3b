"""The gateway of a running `edgecloud serve`, through its private socket; the same methods as
`app.gateway.Gateway`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from edgecloud.errors import EdgeCloudError, Unavailable
from edgecloud.settings import runtime_dir
from edgecloud.types import ChatRequest, EmbedRequest, EmbedResult, Event, Health, ModelCard
from edgecloud.wire import native

CONNECT_S = 2.0
LINE_LIMIT = 64 * 2**20


def version() -> str:
    from importlib.metadata import version as of

    return of("edgecloud")


def socket_path() -> Path:
    """Where the running server's private socket is."""
    return runtime_dir() / "edgecloud.sock"


class GatewayClient:
    """One connection per call; closing a stream hangs up, which cancels it in the server."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def chat(self, request: ChatRequest) -> AsyncGenerator[Event, None]:
        """As `Gateway.chat`. Raises `Unavailable` if the server dies before the end; its journal keeps the
        partial.
        """
        async with aclosing(self._call("chat", request=native.dump(_absolute(request)))) as results:
            async for result in results:
                yield native.load(result)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        result: EmbedResult = native.load(await self._one("embed", request=native.dump(request)))
        return result

    async def models(self) -> list[ModelCard]:
        return [native.load(card) for card in await self._one("models")]

    async def count_tokens(self, request: ChatRequest) -> int:
        return int(await self._one("count_tokens", request=native.dump(_absolute(request))))

    async def health(self) -> Health:
        result: Health = native.load(await self._one("health"))
        return result

    async def explain(self, request: ChatRequest) -> dict[str, Any]:
        """As `Gateway.explain`."""
        result: dict[str, Any] = await self._one("explain", request=native.dump(_absolute(request)))
        return result

    async def why(self, request_id: str) -> dict[str, Any]:
        """As `Gateway.why`."""
        result: dict[str, Any] = await self._one("why", id=request_id)
        return result

    async def blame(self, entry_id: str) -> bool:
        """As `Gateway.blame`."""
        return bool(await self._one("blame", entry_id=entry_id))

    async def feedback(self, answer: str, verdict: str, *, over: Sequence[str] = ()) -> None:
        """As `Gateway.feedback`."""
        await self._one("feedback", answer=answer, verdict=verdict, over=list(over))

    async def ping(self) -> dict[str, Any]:
        """The server's version, pid, URL and health."""
        result: dict[str, Any] = await self._one("ping")
        return result

    async def stop(self) -> None:
        """Ask the server to drain and end, as SIGTERM does."""
        await self._one("stop")

    async def aclose(self) -> None:
        """Nothing is held between calls."""

    # ------------------------------------------------------------------------------------------------- inside

    async def _one(self, op: str, **args: Any) -> Any:
        async with aclosing(self._call(op, **args)) as results:
            async for result in results:
                return result
        raise Unavailable("The running server gave no answer.")

    async def _call(self, op: str, **args: Any) -> AsyncGenerator[Any, None]:
        reader, writer = await asyncio.wait_for(
            asyncio.open_unix_connection(self.path, limit=LINE_LIMIT), CONNECT_S
        )
        try:
            call = {"version": version(), "op": op, "args": args}
            writer.write(json.dumps(call, ensure_ascii=False).encode() + b"\n")
            await writer.drain()
            while True:
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    raise Unavailable(
                        "The running edgecloud server went away before the answer was complete."
                    )
                message = json.loads(line)
                if "error" in message:
                    error = native.load(message["error"])
                    raise (
                        error
                        if isinstance(error, EdgeCloudError)
                        else Unavailable("The running server sent no sense.")
                    )
                if message.get("end"):
                    return
                yield message["value"]
        except ConnectionError:
            raise Unavailable(
                "The running edgecloud server went away before the answer was complete."
            ) from None
        finally:
            writer.close()


async def connect() -> GatewayClient | None:
    """A client of the running server; None when there is none, or one of another version."""
    path = socket_path()
    if not path.exists():
        return None
    client = GatewayClient(path)
    try:
        await asyncio.wait_for(client.ping(), CONNECT_S)
    except (OSError, TimeoutError, EdgeCloudError, ValueError):
        return None
    return client


def _absolute(request: ChatRequest) -> ChatRequest:
    """Paths mean this process's folder, not the server's."""
    if request.model.endswith(".gguf"):
        return dataclasses.replace(request, model=str(Path(request.model).expanduser().absolute()))
    return request
