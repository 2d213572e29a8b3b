"""uvicorn as our servers need it: our own sockets, our drain, exit code 0 after a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from types import FrameType

import uvicorn

from edgecloud.errors import ConfigError
from edgecloud.http.asgi import ASGIApp
from edgecloud.http.drain import Drain
from edgecloud.http.protocol import Protocol

# Clients pool connections; ours must outlive theirs, or they meet a reset.
KEEP_ALIVE_S = 130
BACKLOG = 2048
SWITCH_S = 0.0001


class PortInUse(ConfigError):
    """Somebody listens there already."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of `host` (several hosts with commas between), all on one port; 0
    picks one.

    Raises `ConfigError` in one sentence when the port is taken, not allowed, or the host not ours.
    """
    sockets: list[socket.socket] = []
    try:
        for name in host.split(","):
            for family, address in _addresses(name.strip(), port):
                listener = _bind(family, address, port)
                if listener is not None:
                    sockets.append(listener)
                    port = listener.getsockname()[1]
        if not sockets:
            raise ConfigError(f"None of the addresses of {host} can be listened on here.")
    except BaseException:
        for listener in sockets:
            listener.close()
        raise
    return sockets


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise ConfigError(
            f"There is no address for the host {host!r}: use 127.0.0.1, or one of this machine's."
        ) from None
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket | None:
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"Port {port} on {address} is in use: stop what runs there, or choose another with --port."
            ) from None
        if error.errno == errno.EACCES:
            raise ConfigError(
                f"Port {port} needs more rights than this user has: choose one above 1023."
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise ConfigError(f"Cannot listen on {address} port {port}: {error.strerror}.") from None
    return listener


class Server(uvicorn.Server):
    """Serves an app until a signal or `stop()`: the first starts the drain, the second ends it."""

    def __init__(
        self,
        app: ASGIApp,
        drain: Drain,
        *,
        drain_s: float,
        ready: Callable[[], None] = lambda: None,
        handle_signals: bool = True,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                # What the drain could not end by itself (an upload that never comes) is cancelled a little
                # later.
                timeout_graceful_shutdown=int(drain_s) + 3,
                backlog=BACKLOG,
            )
        )
        self._drain = drain
        self._drain_s = drain_s
        self._ready = ready
        self._handle_signals = handle_signals
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Begin to drain; called again, stop now. Safe from a signal handler and from another thread."""
        if self.should_exit:
            self.force_exit = True
            if self._loop is not None:  # it may not have begun yet
                self._loop.call_soon_threadsafe(self._drain.expire)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        # What is there now stays: a collection that walks through all of it again costs every stream a pause.
        gc.collect()
        gc.freeze()
        # A thread that keeps the books lets go of the interpreter sooner: a stream waits for it. And so does
        # the loop: the embedder waits for that before a pass and after it.
        sys.setswitchinterval(SWITCH_S)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._drain.begin(self._drain_s)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn's, but a signal that ended in a clean drain is not raised again: the exit code is 0."""
        if not self._handle_signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.stop()


def url_of(sockets: Sequence[socket.socket]) -> str:
    """Where a person finds the first of the sockets."""
    host, port = sockets[0].getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
