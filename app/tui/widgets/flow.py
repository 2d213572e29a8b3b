"""Lines of styled text that wrap with hanging indents: one widget for a whole list, table or stream.

Only rows in view are drawn, and a line that did not change is not wrapped again, so a block of hundreds of
lines can grow many times a second. Text is never read as markup.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.content import Content
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style

from ..render.lines import Layable, Row, lay_out
from .growing import Growing


class Flow(Growing):
    """Shows `items` below each other."""

    DEFAULT_CSS = """
    Flow { height: auto; }
    """

    def __init__(self, items: Sequence[Layable] = (), *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._items = items
        self._laid_out: tuple[int, list[Row], list[str]] | None = None

    def show(self, items: Sequence[Layable]) -> None:
        """Show these instead. The place on the screen is measured again only if the height changed; else only
        the rows from the first other item on are drawn again.
        """
        before, was_laid_out, self._items, self._laid_out = self._items, self._laid_out, items, None
        if was_laid_out is None or len(rows := self._rows(was_laid_out[0])) != len(was_laid_out[1]):
            self.refresh(layout=True)
            return
        same = next(
            (at for at, (old, new) in enumerate(zip(before, items, strict=False)) if old is not new), 0
        )
        width = was_laid_out[0]
        top = sum(len(item.layout(width)[0]) for item in items[:same])
        self.refresh(Region(0, top, width, len(rows) - top))

    @property
    def text(self) -> str:
        """What is shown, without the breaks of wrapping."""
        return "\n".join(lay_out(self._items, 80)[1] if self._laid_out is None else self._laid_out[2])

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._rows(width))

    def render_line(self, y: int) -> Strip:
        width, style = self.size.width, self.visual_style
        rows = self._rows(width)
        if y >= len(rows):
            return Strip.blank(width, style.rich_style)
        row, selection = rows[y], self.text_selection
        content = row.content if selection is None else self._selected(row, selection)
        segments = [
            Segment(text, (style + part).rich_style)
            for text, part in row.prefix.render(style, "", self._get_style)
        ]
        x = row.x
        for text, part in content.render(style, "", self._get_style):
            segments.append(Segment(text, (style + part).rich_style_with_offset(x, row.line)))
            x += len(text)
        return Strip(segments).adjust_cell_length(width, style.rich_style)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract(self.text), "\n"

    def _rows(self, width: int) -> list[Row]:
        if self._laid_out is None or self._laid_out[0] != width:
            self._laid_out = (width, *lay_out(self._items, width))
        return self._laid_out[1]

    def _selected(self, row: Row, selection: Selection) -> Content:
        span = selection.get_span(row.line)
        if span is None:
            return row.content
        length = len(row.content.plain)
        start = max(0, span[0] - row.x)
        end = length if span[1] == -1 else min(length, span[1] - row.x)
        if start >= end:
            return row.content
        style = Style.from_styles(self.screen.get_component_styles("screen--selection"))
        return row.content.stylize(style, start, end)
