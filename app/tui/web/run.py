"""`edgecloud chat --web`: one gateway for every tab, and the server in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence

from edgecloud.settings import Settings

from ...client import Unusable, connect
from ...logs import redirect_native_output
from ...open import build_gateway
from ...socket_server import SocketServer
from ..naming import check_model
from ..ports import Gateway, open_store, which_chat
from .server import serve


def run_web(
    settings: Settings,
    command: Sequence[str],
    port: int,
    announce: Callable[[str], None],
    *,
    model: str,
    chat: str | None,
) -> int:
    """Serve until a signal; returns the exit code. Raises `ConfigError` if the port is taken, and what is
    wrong with the `model` or the `chat` that each tab is to open: no browser is needed to find that out.
    """
    redirect_native_output()
    return asyncio.run(_run(settings, command, port, announce, model, chat))


async def _run(
    settings: Settings,
    command: Sequence[str],
    port: int,
    announce: Callable[[str], None],
    model: str,
    chat: str | None,
) -> int:
    async with _gateway(settings) as gateway:
        await check_model(gateway, settings, model)
        store = open_store(settings)
        try:
            await which_chat(store, chat)
        finally:
            await store.aclose()
        return await serve(command, port, announce)


@contextlib.asynccontextmanager
async def _gateway(settings: Settings) -> AsyncIterator[Gateway]:
    """The running server's, or one of our own. Each tab is a process: through the private socket they share
    one model.
    """
    try:
        client, is_alone = await connect(settings), True
    except Unusable:
        client, is_alone = None, False  # The socket is that server's: each tab is on its own, and says so.
    if client is not None:
        yield client
        return
    gateway = build_gateway(settings)
    private = SocketServer(gateway, "edgecloud chat --web", lambda: None)
    if is_alone:
        await private.start()
    try:
        yield gateway
    finally:
        if is_alone:
            await private.aclose()
        if lost := await gateway.aclose():
            print(f"edgecloud: warning: {lost}", file=sys.stderr)
