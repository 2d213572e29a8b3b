"""Small questions above the chat: a text to type, a yes or no, a text to read."""

from __future__ import annotations

import re
from typing import ClassVar

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, TextArea

from ..keys import bound, keys_of
from ..render.lines import Layable, Line
from ..widgets.flow import Flow
from ..widgets.label import Label, visible

_BEGINS = re.compile(r" {0,12}\S[\w ]{0,12} {2,}|\d+\. ")

_CLOSE: list[BindingType] = [bound("dialog.close", "dismiss(None)", "close")]


class AskText(ModalScreen[str | None]):
    """A line of text, or several with `multiline`; None if it was left."""

    BINDINGS: ClassVar[list[BindingType]] = [*_CLOSE, bound("dialog.done", "done", "done")]

    def __init__(self, question: str, text: str = "", *, multiline: bool = False) -> None:
        super().__init__()
        self.question = question
        self.text = text
        self.multiline = multiline

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(self.question)
            if self.multiline:
                yield TextArea(self.text, tab_behavior="focus", highlight_cursor_line=False)
                yield self._hint("{dialog.done} is done")
            else:
                yield Input(self.text)
                yield self._hint("Enter is done")

    def on_mount(self) -> None:
        for area in self.query(TextArea):
            area.move_cursor(area.document.end)

    def _hint(self, done: str) -> Label:
        return Label(keys_of(self).fill(f"{done}, {{dialog.close}} leaves it as it was"), classes="hint")

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_done(self) -> None:
        self.dismiss(self.query_one(TextArea).text if self.multiline else self.query_one(Input).value)


class Confirm(ModalScreen[bool]):
    """A yes or no; leaving it is no, and so is Enter: who was typing did not see the question come."""

    # From the first moment, not once it is mounted: keys may wait already.
    AUTO_FOCUS = "#no"

    BINDINGS: ClassVar[list[BindingType]] = [
        bound("confirm.no", "dismiss(False)", "no"),
        bound("confirm.yes", "dismiss(True)", "yes"),
    ]

    def __init__(self, question: str, yes: str) -> None:
        super().__init__()
        self.question = question
        self.yes = yes

    def compose(self) -> ComposeResult:
        keys = keys_of(self)
        hint = "{confirm.yes} does it, Enter and {confirm.no} leave it as it was"
        with Vertical(classes="dialog"):
            yield Label(self.question)
            with Horizontal(classes="buttons"):
                yes, no = keys.fill("{confirm.yes}  "), keys.fill("{confirm.no}  no")
                yield Button(yes + self.yes, id="yes", variant="error", compact=True)
                yield Button(no, id="no", compact=True)
            yield Label(keys.fill(hint), classes="hint")

    @on(Button.Pressed)
    def pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")


class Reader(ModalScreen[None]):
    """A text to scroll through; its words can be selected with the mouse."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *_CLOSE,
        bound("reader.close", "dismiss(None)"),
    ]

    def __init__(self, title: str, body: str | list[Layable]) -> None:
        super().__init__()
        self.heading = title
        self.body: list[Layable] = hanging(visible(body)) if isinstance(body, str) else body

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog reader"):
            yield Label(self.heading, classes="heading")
            with VerticalScroll():
                yield Flow(self.body)
            yield Label(keys_of(self).fill("{dialog.close} closes"), classes="hint")


def hanging(text: str) -> list[Layable]:
    """Lines whose later rows stand under the first one's words: after a name or a number."""
    lines: list[Layable] = []
    for line in text.split("\n"):
        begins = _BEGINS.match(line)
        first = begins[0] if begins else ""
        lines.append(Line(Content(line[len(first) :]), Content(first), Content(" " * cell_len(first))))
    return lines
