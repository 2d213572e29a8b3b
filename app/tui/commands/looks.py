"""Commands on what is seen: receipts and thoughts opened, colours, help, and the way out."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from edgecloud.config.editing import set_value
from edgecloud.errors import BadRequest, ConfigError

from ..screens.picker import Choice, Picker
from ..themes import theme_called
from ..widgets.reasoning import Reasoning
from ..widgets.receipt import ReceiptLine
from ..widgets.turns import AnswerView

if TYPE_CHECKING:
    from ..chat_view import ChatView


async def receipt(screen: ChatView, _: str) -> None:
    if not _toggle(screen, ReceiptLine):
        raise BadRequest("There is no receipt here: nobody was asked for this answer yet, or history is off.")


async def reasoning(screen: ChatView, _: str) -> None:
    if not _toggle(screen, Reasoning):
        raise BadRequest("The model did not say what it thought.")


async def theme(screen: ChatView, name: str) -> None:
    app = screen.app
    if not name:

        async def load() -> list[Choice]:
            return [
                Choice(theme.name, theme.name, "dark" if theme.dark else "light")
                for theme in sorted(app.available_themes.values(), key=lambda theme: theme.name)
            ]

        picked = await app.push_screen_wait(Picker("Colours", load, current=app.theme))
        name = picked or ""
    if not name:
        return
    try:
        app.theme = theme_called(name)
    except ConfigError:
        raise BadRequest(f"There is no theme {name[:40]!r}; /theme lists them.") from None
    await asyncio.to_thread(set_value, "chat.theme", name)


async def help_(screen: ChatView, _: str) -> None:
    if screen.query("HelpPanel"):
        screen.app.action_hide_help_panel()
    else:
        screen.app.action_show_help_panel()


async def suspend(screen: ChatView, _: str) -> None:
    # Who began the terminal's session has no shell below, and nobody would type `fg`.
    if screen.app.is_web or screen.app.is_inline or os.getsid(0) == os.getpid():
        raise BadRequest("There is no shell to go back to here.")
    screen.app.action_suspend_process()


async def quit_(screen: ChatView, _: str) -> None:
    await screen.app.action_quit()


def _toggle(screen: ChatView, kind: type[ReceiptLine] | type[Reasoning]) -> bool:
    answer = screen.answer
    view = screen.transcript.view_of(answer) if answer is not None else None
    return isinstance(view, AnswerView) and view.toggle(kind)
