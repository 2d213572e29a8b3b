"""Runs the app in a terminal, from the first key to the exit code, and leaves everything in order."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from edgecloud.errors import EdgeCloudError
from edgecloud.folders import data_dir
from edgecloud.settings import Settings

from ..logs import log_bug, redirect_native_output
from ..visible import neutral
from .app import EdgeCloudApp
from .draft import DraftFile
from .garbage import spare_what_stays
from .input_filter import install as install_input_filter
from .lasting import Lasting
from .naming import check_model
from .ports import Gateway, open_store, which_chat
from .state.preferences import Preferences
from .terminal import Terminal, in_browser

CLOSE_S = 45.0
"""Longer than the journal waits for another program that has the database."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the chat begins."""

    preferences: Preferences
    chat: str | None = None
    """The id of a chat, or the beginning of one; 'last' is the last one."""
    prompt: str = ""
    theme: str = ""
    inline: bool = False


def run(settings: Settings, open_gateway: Callable[[Settings], Awaitable[Gateway]], options: Options) -> int:
    """Chat until the user leaves; returns the exit code. Raises `EdgeCloudError` after a bug of ours too."""
    crashes: list[Exception] = []
    losses: list[str] = []
    spare_what_stays()
    if in_browser():
        redirect_native_output()
        code = asyncio.run(_run(None, settings, open_gateway, options, crashes.append, losses.append))
    else:
        with Terminal() as terminal:
            code = asyncio.run(_run(terminal, settings, open_gateway, options, crashes.append, losses.append))
    for lost in filter(None, losses):
        print(f"edgecloud: warning: {neutral(lost, is_terminal=sys.stderr.isatty())}", file=sys.stderr)
    if crashes:
        place = log_bug(crashes[0])
        raise EdgeCloudError(
            f"Something went wrong inside edgecloud ({type(crashes[0]).__name__}); what was said is kept, "
            + (f"the details are in {place}." if place else "but the details could not be written down.")
        )
    return code


async def _run(
    terminal: Terminal | None,
    settings: Settings,
    open_gateway: Callable[[Settings], Awaitable[Gateway]],
    options: Options,
    crashed: Callable[[Exception], None],
    missed: Callable[[str], None],
) -> int:
    store = open_store(settings)
    gateway = Lasting(await open_gateway(settings), lambda: open_gateway(settings))
    app = None
    try:
        if options.preferences.model != "auto":
            await check_model(gateway, settings, options.preferences.model)
        app = EdgeCloudApp(
            gateway,
            store,
            settings,
            preferences=options.preferences,
            open_chat=await which_chat(store, options.chat),
            prompt=options.prompt,
            theme=options.theme or settings.chat.theme,
            keys=dict(settings.chat.keys),
            draft=DraftFile(data_dir() / "draft.md") if settings.history.enabled else None,
            crashed=crashed,
            aside=gateway.aside,
        )
        install_input_filter(lambda: app.letters_act)
        leaving: set[asyncio.Task[None]] = set()

        def leave(code: int) -> None:
            leaving.add(asyncio.ensure_future(app.leave(code)))

        with terminal.signals(leave) if terminal is not None else contextlib.nullcontext():
            await app.run_async(inline=options.inline, inline_no_clear=options.inline)
            return app.return_code or 0
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                if app is not None:
                    await app.chat.desk.keep()
                missed(await gateway.aclose())
                await store.aclose()
