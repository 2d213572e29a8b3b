"""The line above the messages and the one below the prompt: where one is, and what a prompt would do."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal

from .label import Label


class TitleBar(Horizontal):
    """The chat's title, and on the right what holds for it."""

    def compose(self) -> ComposeResult:
        yield Label("new chat", id="title")
        yield Label("", id="badges")

    def show(self, title: str, badges: list[str]) -> None:
        self.query_one("#title", Label).show(title or "new chat")
        self.query_one("#badges", Label).show(" · ".join(badges))


class FootBar(Horizontal):
    """What would happen if the prompt were sent now, and the keys that help on."""

    def compose(self) -> ComposeResult:
        yield Label("", id="preview")
        yield Label("^T who · ^P all · F1 help", id="keys")

    def show(self, preview: str) -> None:
        self.query_one("#preview", Label).show(preview)
