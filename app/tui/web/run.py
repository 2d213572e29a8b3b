"""`edgecloud chat --web`: one gateway for every tab, and the server in front of them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence

from edgecloud.settings import Settings

from ...client import Unusable, connect
from ...logs import redirect_native_output
from ...open import build_gateway
from ...socket_server import SocketServer
from .server import serve


def run_web(settings: Settings, command: Sequence[str], port: int, announce: Callable[[str], None]) -> int:
    """Serve until a signal; returns the exit code. Raises `ConfigError` if the port is taken."""
    redirect_native_output()
    return asyncio.run(_run(settings, command, port, announce))


async def _run(settings: Settings, command: Sequence[str], port: int, announce: Callable[[str], None]) -> int:
    try:
        is_alone = await connect(settings) is None
    except Unusable:
        is_alone = False  # The socket is that server's: each tab answers in its own process, and says so.
    if not is_alone:
        return await serve(command, port, announce)
    # Each tab is a process: through the private socket they share one model.
    gateway = build_gateway(settings)
    private = SocketServer(gateway, "edgecloud chat --web", lambda: None)
    await private.start()
    try:
        return await serve(command, port, announce)
    finally:
        await private.aclose()
        if lost := await gateway.aclose():
            print(f"edgecloud: warning: {lost}", file=sys.stderr)
