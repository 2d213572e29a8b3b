"""What an empty chat says: three lines, nothing to dismiss."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical

from .label import Label


class Welcome(Vertical):
    """Explains the place on the first run, and stays out of the way later."""

    def compose(self) -> ComposeResult:
        yield Label("", id="welcome-who")
        yield Label("Enter sends, Ctrl+J is a new line, Ctrl+P has all commands, F1 helps.")
        yield Label("Everything is kept here; under each answer stands where it came from.")

    def show(self, who: str) -> None:
        self.query_one("#welcome-who", Label).show(who)
