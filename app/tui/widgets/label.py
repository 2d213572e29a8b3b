"""Text that is not ours, shown as it is: brackets are no markup, control characters are made visible."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from ...visible import neutral


class Label(Static):
    """A `Static` for a model's, a file's or a server's words. `style` is a Textual style for all of it."""

    def __init__(self, text: str = "", *, classes: str | None = None, id: str | None = None) -> None:
        super().__init__(plain(text), classes=classes, id=id, markup=False)
        self._text = text

    def show(self, text: str) -> None:
        """Show this instead. The same text costs nothing, and one row for another has no screen laid out."""
        if text != self._text:
            was_row, self._text = self._is_row, text
            self.update(plain(text), layout=not (was_row and self._is_row))

    @property
    def _is_row(self) -> bool:
        """Whether it is as high with any other text that is a row: its width is not that of its words."""
        width = self.styles.width
        has_own_width = width is not None and not width.is_auto
        return has_own_width and "\n" not in self._text and 0 < cell_len(self._text) <= self.size.width


def plain(text: str) -> Content:
    """Text that no terminal and no markup acts on."""
    return Content(visible(text))


def visible(text: str) -> str:
    """Text with its control characters made visible."""
    return neutral(text, is_terminal=True)
