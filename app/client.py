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
from edgecloud.folders import expanded, runtime_dir
from edgecloud.settings import Settings
from edgecloud.types import ChatRequest, EmbedRequest, EmbedResult, Event, Health, ModelCard
from edgecloud.wire import native

from .fingerprint import promise

CONNECT_S = 2.0
ANSWER_S = 10.0
"""How long a server that is there is waited for: on a busy machine it may load a model for somebody."""

LINE_LIMIT = 64 * 2**20


def version() -> str:
    from importlib.metadata import version as of

    return of("edgecloud")


def socket_path() -> Path:
    """Where the running server's private socket is."""
    return runtime_dir() / "edgecloud.sock"


class Gone(Unavailable):
    """No server takes the call, so that nothing was asked of it."""

    def __init__(self) -> None:
        super().__init__("The running edgecloud server is gone, or takes no calls: start it again.")


class Unusable(Unavailable):
    """The running server does not answer for this process, which runs without it."""


class Silent(Unusable):
    """The running server takes calls and answers none."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(
            f"The running server has not answered for {waited_s:g} s, so this runs without it: "
            "restart it with `edgecloud serve` if it hangs."
        )


class Stuck(Unusable):
    """The running server talks, and a model of its can't go on."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"The running server is stuck ({detail.rstrip('.')}), so this runs without it: "
            "restart it with `edgecloud serve`."
        )


class OtherSettings(Unusable):
    """The running server would not keep what the settings of this process promise."""

    def __init__(self, differs: Sequence[str]) -> None:
        super().__init__(
            f"The running server has other settings ({', '.join(differs)}), so this runs without it: "
            "restart it with `edgecloud serve` to use them there."
        )


class GatewayClient:
    """One connection per call; closing a stream hangs up, which cancels it in the server.

    A server that doesn't keep what `settings` promise answers nothing but `ping` and `stop`; without
    settings nothing else can be called.
    """

    aside = ""

    def __init__(self, path: Path, settings: Settings | None = None) -> None:
        self.path = path
        self._promise = None if settings is None else promise(settings)

    async def chat(self, request: ChatRequest) -> AsyncGenerator[Event, None]:
        """As `Gateway.chat`. Raises `Unavailable` if the server dies before the end; its journal keeps the
        partial. `Gone`, as all methods, if there is none to ask.
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
        """The server's version, pid, URL and health, and which of our settings `differs` from its own."""
        result: dict[str, Any] = await self._one("ping")
        return result

    async def stop(self) -> None:
        """Ask the server to drain and end, as SIGTERM does."""
        await self._one("stop")

    async def aclose(self) -> str:
        """As `Gateway.aclose`: nothing is held between calls, so nothing is lost."""
        return ""

    # ------------------------------------------------------------------------------------------------- inside

    async def _one(self, op: str, **args: Any) -> Any:
        async with aclosing(self._call(op, **args)) as results:
            async for result in results:
                return result
        raise Unavailable("The running server gave no answer.")

    async def _call(self, op: str, **args: Any) -> AsyncGenerator[Any, None]:
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_unix_connection(self.path, limit=LINE_LIMIT), CONNECT_S
            )
        except OSError as why:  # a lost patience is one too
            raise Gone from why
        try:
            call = {"version": version(), "op": op, "args": args, "settings": self._promise}
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


async def connect(settings: Settings) -> GatewayClient | None:
    """A client of the running server; None when there is none, or one of another version.

    Raises `OtherSettings`, `Silent`, `Stuck`.
    """
    path = socket_path()
    if not path.exists():
        return None
    client = GatewayClient(path, settings)
    try:
        report = await asyncio.wait_for(client.ping(), ANSWER_S)
    except TimeoutError:
        raise Silent(ANSWER_S) from None
    except Gone as gone:
        if isinstance(gone.__cause__, TimeoutError):
            raise Silent(ANSWER_S) from None
        return None
    except (EdgeCloudError, ValueError):
        return None
    if report["differs"]:
        raise OtherSettings(report["differs"])
    health = native.load(report["health"])
    if not health.ok:
        raise Stuck(health.detail)
    return client


def _absolute(request: ChatRequest) -> ChatRequest:
    """Paths mean this process's folder, not the server's."""
    if request.model.endswith(".gguf"):
        return dataclasses.replace(request, model=str(expanded(request.model).absolute()))
    return request
