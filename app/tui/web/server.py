"""Serves the chat to browsers on this machine: one page, its parts, and a websocket a chat."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from aiohttp import web

from edgecloud.errors import ConfigError

from .bridge import Bridge
from .door import COOKIE, Door

MAX_CHATS = 8
"""At once. Each is a process."""

HEADERS = {
    # textual.js puts its styles into the page.
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; script-src 'self'; "
        "img-src 'self' data:; connect-src 'self' ws://127.0.0.1:* ws://localhost:*; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_REFUSED = "Open the address that `edgecloud chat --web` printed; it opens once.\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ChatServer:
    """Listens on loopback only. `command` starts one chat; `port` 0 takes a free one."""

    def __init__(self, command: Sequence[str], *, port: int = 0) -> None:
        self.command = command
        self.port = port
        self.door = Door(port)
        self._runner: web.AppRunner | None = None
        self._chats = 0

    async def start(self) -> None:
        """Listen. Raises `ConfigError` if the port is taken."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/page.js", self._script),
                web.get("/ws", self._chat),
                web.static("/static", static_folder(), show_index=False),
            ]
        )
        app.on_response_prepare.append(_add_headers)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(
                f"Port {self.port} cannot be used ({error.strerror}): give another with --port."
            ) from None
        self.port = self.door.port = self._runner.addresses[0][1]

    async def aclose(self) -> None:
        """Stop listening and end every chat; each keeps what it has."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self.door.is_ours(request.host, request.headers.get("Origin")):
            return web.Response(status=403, text="This server has another name.\n")
        if request.path == "/" and (token := request.query.get("token")) is not None:
            cookie = self.door.take(token)
            if cookie is None:
                return web.Response(status=403, text=_REFUSED)
            # The token leaves the address bar, the history and whatever looks over a shoulder.
            response: web.StreamResponse = web.Response(status=303, headers={"Location": "/"})
            response.set_cookie(COOKIE, cookie, httponly=True, samesite="Strict")
            return response
        if not self.door.knows(request.cookies.get(COOKIE)):
            return web.Response(status=403, text=_REFUSED)
        return await handler(request)

    async def _page(self, request: web.Request) -> web.StreamResponse:
        page = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
        return web.Response(text=page.replace("SOCKET", f"ws://{request.host}/ws"), content_type="text/html")

    async def _script(self, request: web.Request) -> web.StreamResponse:
        script = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
        return web.Response(text=script, content_type="text/javascript")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if self._chats >= MAX_CHATS:
            return web.Response(status=503, text=f"{MAX_CHATS} chats are open already: close one.\n")
        if request.headers.get("Origin") is None:
            return web.Response(status=403, text="Only our own page may connect.\n")
        socket = web.WebSocketResponse(heartbeat=15, max_msg_size=16 * 2**20)
        await socket.prepare(request)
        self._chats += 1
        try:
            await Bridge(socket, self.command).run(_size(request, "width", 80), _size(request, "height", 24))
        finally:
            self._chats -= 1
            await socket.close()
        return socket


async def serve(command: Sequence[str], port: int, announce: Callable[[str], None]) -> int:
    """Serve until a signal; returns the exit code. `announce` is told the address that opens once."""
    server = ChatServer(command, port=port)
    await server.start()
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(number: int) -> None:
        if not ended.done():
            ended.set_result(0 if number == signal.SIGINT else 128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        announce(server.door.address)
        return await ended
    finally:
        await server.aclose()


def static_folder() -> Path:
    """The page's script and fonts, from the package that has them; nothing comes from the network."""
    spec = importlib.util.find_spec("textual_serve")
    assert spec is not None, "textual-serve is a dependency of ours"
    assert spec.origin is not None
    return Path(spec.origin).parent / "static"


def chat_command(arguments: Sequence[str]) -> list[str]:
    """What starts one chat with these arguments of `edgecloud`."""
    return [sys.executable, "-m", "edgecloud", *arguments]


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def _size(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    return min(max(int(text), 10), 1000) if text.isascii() and text.isdigit() else default
