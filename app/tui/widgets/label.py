"""Text that is not ours, shown as it is: brackets are no markup, control characters are made visible."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from ...visible import neutral


class Label(Static):
    """A `Static` for a model's, a file's or a server's words. `style` is a Textual style for all of it."""

    def __init__(self, text: str = "", *, classes: str | None = None, id: str | None = None) -> None:
        super().__init__(plain(text), classes=classes, id=id, markup=False)
        self._text = text

    def show(self, text: str) -> None:
        """Show this instead. The same text again costs nothing: a new one has the whole screen laid out."""
        if text != self._text:
            self._text = text
            self.update(plain(text))


def plain(text: str) -> Content:
    """Text that no terminal and no markup acts on."""
    return Content(visible(text))


def visible(text: str) -> str:
    """Text with its control characters made visible."""
    return neutral(text, is_terminal=True)
