"""The line above the messages and the one below the prompt: where one is, and what a prompt would do."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from ..keys import keys_of
from ..state.preview import Preview
from .label import Label, plain


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
        yield _PreviewLine()
        hint = keys_of(self).fill("{chat.route} who · {chat.palette} all · {chat.help} help")
        yield Label(hint.replace("Ctrl+", "^"), id="keys")

    def show(self, preview: Preview) -> None:
        line = self.query_one(_PreviewLine)
        line.preview = preview


class _PreviewLine(Static):
    """As much of it as there is room for."""

    preview: reactive[Preview] = reactive(Preview("", False, 0))

    def __init__(self) -> None:
        super().__init__(id="preview", markup=False)

    def render(self) -> Content:
        return plain(self.preview.line(self.size.width or None))
