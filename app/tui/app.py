"""The terminal app: a shell around the chat. Its gateway and history are given to it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import ClassVar

from textual.actions import SkipAction
from textual.app import App, ScreenStackError, SystemCommand
from textual.binding import BindingType
from textual.notifications import Notify
from textual.screen import Screen
from textual.widgets import Input, TextArea
from textual.worker import WorkerFailed

from edgecloud.settings import Settings

from . import clipboard
from .chat import ChatScreen
from .draft import DraftFile
from .keys import bound
from .ports import Gateway, Store
from .state.commands import COMMANDS
from .state.keys import Keys
from .state.preferences import Preferences
from .themes import theme_called

ASIDE_S = 10.0

MAX_TOASTS = 2
"""More would stand on the text, on the prompt and on what is asked."""


class EdgeCloudApp(App[None]):
    """`crashed` is told of a bug of ours; whoever runs the app says so once the terminal is itself again.
    `aside` is shown at the start.
    """

    CSS_PATH = "style/app.tcss"
    TITLE = "edgecloud"
    ENABLE_COMMAND_PALETTE = True

    BINDINGS: ClassVar[list[BindingType]] = [
        bound("chat.quit", "quit", "leave", priority=True),
        bound("chat.palette", "command_palette", "find a command", priority=True),
        # Before what Esc does besides: what is said in a corner stands over dialogs too.
        bound("chat.hush", "hush", "close this help, put sentences away", priority=True),
    ]

    def __init__(
        self,
        gateway: Gateway,
        store: Store,
        settings: Settings,
        *,
        preferences: Preferences = Preferences(),  # noqa: B008
        open_chat: str | None = None,
        prompt: str = "",
        theme: str = "dark",
        keys: dict[str, str] | None = None,
        draft: DraftFile | None = None,
        crashed: Callable[[Exception], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        aside: str = "",
    ) -> None:
        # NO_COLOR means none: Textual would paint in greys else.
        super().__init__(ansi_color=True if os.environ.get("NO_COLOR") else None)
        self.gateway = gateway
        self.store = store
        self.chat = ChatScreen(
            gateway,
            store,
            settings,
            preferences=preferences,
            open_chat=open_chat,
            prompt=prompt,
            draft=draft,
            clock=clock,
        )
        self.theme = theme_called(theme)
        self.keys = Keys(keys or {})
        self.set_keymap(keys or {})
        self._crashed = crashed
        self._aside = aside

    def on_mount(self) -> None:
        # After `fg` the terminal is empty, and Textual draws what changes only.
        self.app_resume_signal.subscribe(self, lambda app: app.refresh(layout=True))
        if self._aside:
            self.notify(self._aside, severity="warning", markup=False, timeout=ASIDE_S)

    def on_notify(self, event: Notify) -> None:
        """Make room for a toast, which Textual adds after this: the newest stay, none says the same twice."""
        said = event.notification.message
        others = [shown for shown in self._notifications if shown.message != said]
        kept = others[-(MAX_TOASTS - 1) :]
        for shown in list(self._notifications):
            if shown not in kept:
                self._unnotify(shown, refresh=False)

    def action_hush(self) -> None:
        self.clear_notifications()
        self.chat.unsay()
        if self.screen.query("HelpPanel"):
            self.action_hide_help_panel()
            return
        raise SkipAction  # Esc means something else too

    @property
    def letters_act(self) -> bool:
        """Whether nothing that takes text is focused in the chat: letters are commands there."""
        try:
            focused = self.focused if self.screen is self.chat else None
        except ScreenStackError:
            return False  # it begins, or ends
        return focused is not None and not isinstance(focused, (Input, TextArea))

    def get_default_screen(self) -> Screen[None]:
        return self.chat

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: the one table of commands."""
        for command in COMMANDS:
            yield SystemCommand(
                command.name, command.help, lambda name=command.name: self.chat.run_command(name)
            )

    def action_show_help_panel(self) -> None:
        # Textual's Markdown takes a moment to import.
        from .widgets.help import Help

        if not self.screen.query(Help):
            self.chat.make_room()
            self.screen.mount(Help())

    def copy_to_clipboard(self, text: str) -> None:
        """Copy, and say what was done."""
        driver = self._driver
        sentence = clipboard.copy(text, driver.write if driver is not None else lambda sequence: None)
        self._clipboard = text
        self.chat.say(sentence)

    async def action_quit(self) -> None:
        await self.leave(0)

    async def leave(self, code: int) -> None:
        """End with an exit code; what was typed is kept with its chat."""
        try:
            await self.chat.desk.keep()
        finally:
            self.exit(return_code=code)

    def _fatal_error(self) -> None:
        """A bug of ours: the terminal first, then one sentence. Textual would print every local variable."""
        error = self._exception
        if isinstance(error, WorkerFailed) and isinstance(error.error, Exception):
            error = error.error
        if error is not None and self._crashed is not None:
            self._crashed(error)
        self._close_messages_no_wait()
