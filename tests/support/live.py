"""A real server on a free loopback port, in a thread of its own, for clients that nobody here wrote."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from urllib.parse import urlsplit

import uvloop

from edgecloud.app.proxy.app import create_app
from edgecloud.engine import Engine
from edgecloud.http.asgi import ASGIApp
from edgecloud.http.drain import Drain
from edgecloud.http.server import Server, listen, url_of
from edgecloud.metrics import Metrics
from edgecloud.settings import ServerSettings, Settings

from .fake_gateway import fake_gateway

PATIENCE_S = 10.0


class Live:
    """A running server. `url` has no `/v1`."""

    def __init__(self, url: str, server: Server, thread: threading.Thread, drain: Drain) -> None:
        self.url = url
        self.server = server
        self.thread = thread
        self.drain = drain
        self.host, self.port = urlsplit(url).hostname, urlsplit(url).port

    def stop(self) -> None:
        """As one SIGTERM."""
        self.server.stop()

    def connect(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection((self.host, self.port), timeout=PATIENCE_S)


@contextlib.contextmanager
def live_server(*engines: Engine, **server: object) -> Iterator[Live]:
    """Serve scripted engines with `server` settings; drained and joined at the end."""
    settings = Settings(server=ServerSettings.model_validate({"drain_s": 0.0, **server}))
    drain = Drain()
    gateway = fake_gateway(*engines, settings=settings)
    app = create_app(gateway, settings, drain=drain, metrics=Metrics())
    with live_app(app, drain, settings.server.drain_s, gateway.aclose) as live:
        yield live


@contextlib.contextmanager
def live_app(
    app: ASGIApp, drain: Drain, drain_s: float, close: Callable[[], Awaitable[None]]
) -> Iterator[Live]:
    """Serve any app; `close` is called once it is drained."""
    sockets = listen("127.0.0.1", 0)
    ready = threading.Event()
    running = Server(app, drain, drain_s=drain_s, ready=ready.set, handle_signals=False)

    async def run() -> None:
        await running.serve(sockets)
        await close()

    def main() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield Live(url_of(sockets), running, thread, drain)
    finally:
        if not running.should_exit:
            running.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def eventually(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait for something that another thread will bring about; fail if it doesn't."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
