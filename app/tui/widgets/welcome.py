"""What an empty chat says: three lines, nothing to dismiss."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical

from ..keys import keys_of
from .label import Label


class Welcome(Vertical):
    """Explains the place on the first run, and stays out of the way later."""

    def compose(self) -> ComposeResult:
        yield Label("", id="welcome-who")
        keys = "{prompt.newline} is a new line, {chat.palette} has all commands, {chat.help} helps."
        yield Label(keys_of(self).fill(f"Enter sends, {keys}"))
        yield Label("Everything is kept here; under each answer stands where it came from.")

    def show(self, who: str) -> None:
        self.query_one("#welcome-who", Label).show(who)
