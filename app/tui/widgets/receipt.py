"""The receipt under an answer: one quiet line that opens."""

from __future__ import annotations

from textual.content import Content
from textual.events import Click
from textual.reactive import reactive
from textual.widgets import Static

from edgecloud.types import Receipt

from ..keys import keys_of
from ..state import receipt as words
from .label import visible

_CLOSED = "▸ "


class ReceiptLine(Static):
    """Where an answer came from, how fast, how many tokens and at what price."""

    is_open: reactive[bool] = reactive(False, layout=True)

    def __init__(self, receipt: Receipt) -> None:
        super().__init__(markup=False)
        self.receipt = receipt

    def watch_is_open(self, is_open: bool) -> None:
        self.set_class(is_open, "-open")

    def render(self) -> Content:
        if not self.is_open:
            forget = "Tab, {chat.forget} forgets it" if words.is_hit(self.receipt) else ""
            hint = keys_of(self).fill(forget)
            width = self.size.width - len(_CLOSED) if self.size.width else None
            return Content(_CLOSED + visible(words.line(self.receipt, hint=hint, width=width)))
        rows = words.details(self.receipt)
        width = max(len(name) for name, _ in rows)
        lines = [Content("▾ receipt")]
        lines += [
            Content.assemble((f"  {name.rjust(width)}  ", "$foreground-muted"), visible(value))
            for name, value in rows
        ]
        return Content("\n").join(lines)

    def on_click(self, event: Click) -> None:
        event.stop()
        self.is_open = not self.is_open
