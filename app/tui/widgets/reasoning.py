"""What a model thought before it answered: a line that opens."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Click
from textual.reactive import reactive

from ..render.lines import plain_lines
from .flow import Flow
from .label import Label, visible


class Reasoning(Vertical):
    """Closed until it is opened; while the model thinks, its last line is shown."""

    is_open: reactive[bool] = reactive(False)

    def __init__(self, text: str = "", *, thinking: bool = False) -> None:
        super().__init__()
        self.text = text
        self.thinking = thinking

    def compose(self) -> ComposeResult:
        yield Label(self._heading(), classes="heading")
        yield Flow(plain_lines(visible(self.text)), classes="thoughts")

    def show(self, text: str, *, thinking: bool) -> None:
        """Show what was thought so far."""
        self.text, self.thinking = text, thinking
        if self.is_mounted:
            self.query_one(Label).show(self._heading())
            if self.is_open:
                self.query_one(Flow).show(plain_lines(visible(text)))

    def watch_is_open(self, is_open: bool) -> None:
        self.set_class(is_open, "-open")
        if self.is_mounted:
            self.show(self.text, thinking=self.thinking)
            if is_open:
                self.query_one(Flow).show(plain_lines(visible(self.text)))

    def on_click(self, event: Click) -> None:
        if isinstance(event.widget, Label):
            event.stop()
            self.is_open = not self.is_open

    def _heading(self) -> str:
        mark = "▾" if self.is_open else "▸"
        num_words = len(self.text.split())
        if not self.thinking or self.is_open:
            return f"{mark} {'thinking' if self.thinking else 'thought'} · {num_words:,} words"
        last = " ".join(self.text[-200:].split())
        return f"{mark} thinking · {num_words:,} words · …{last[-60:]}"
