"""Tables, fitted to the width: columns shrink and wrap, and too many of them become a list of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from textual.content import Content

from .lines import EMPTY, Line, Row, lay_out

Align = Literal["left", "center", "right"]

_GAP = Content.styled(" │ ", "$foreground-muted")
_MIN_COLUMN = 5
"""Cells below which a column can't be read."""


class Table:
    """A header and rows of inline content, all of one length. Copied as it is drawn."""

    def __init__(
        self, header: Sequence[Content], rows: Sequence[Sequence[Content]], aligns: Sequence[Align]
    ) -> None:
        self.header = header
        self.rows = rows
        self.aligns = aligns
        self._laid_out: tuple[int, tuple[list[Row], list[str]]] | None = None

    def layout(self, width: int) -> tuple[list[Row], list[str]]:
        if self._laid_out is None or self._laid_out[0] != width:
            room = width - _GAP.cell_length * (len(self.header) - 1)
            widths = column_widths(self._natural_widths(), room)
            self._laid_out = width, (self._grid(widths) if widths else self._records(width))
        return self._laid_out[1]

    def fits(self, width: int) -> bool:
        """Whether it needs no line broken in so many cells."""
        return sum(self._natural_widths()) + _GAP.cell_length * (len(self.header) - 1) <= width

    def _natural_widths(self) -> list[int]:
        columns = zip(self.header, *self.rows, strict=True)
        return [max(1, *(cell.cell_length for cell in column)) for column in columns]

    def _grid(self, widths: Sequence[int]) -> tuple[list[Row], list[str]]:
        cells = [[self._wrapped(cell, w) for cell, w in zip(row, widths, strict=True)] for row in self.rows]
        header = [self._wrapped(cell, w) for cell, w in zip(self.header, widths, strict=True)]
        rule = Content.styled("─┼─".join("─" * width for width in widths), "$foreground-muted")
        drawn = [*self._drawn(header, widths), rule]
        # Rows of several lines run into each other without something between them.
        is_tall = any(len(cell) > 1 for row in cells for cell in row)
        for number, row in enumerate(cells):
            if is_tall and number:
                drawn.append(rule)
            drawn += self._drawn(row, widths)
        return lay_out([Line(content) for content in drawn], sum(widths) + _GAP.cell_length * len(widths))

    def _wrapped(self, cell: Content, width: int) -> list[Content]:
        return cell.wrap(width) if cell.cell_length > width else [cell]

    def _drawn(self, row: Sequence[Sequence[Content]], widths: Sequence[int]) -> list[Content]:
        height = max(len(cell) for cell in row)
        return [
            _GAP.join(
                _aligned(cell[y] if y < len(cell) else EMPTY, width, align)
                for cell, width, align in zip(row, widths, self.aligns, strict=True)
            ).rstrip()
            for y in range(height)
        ]

    def _records(self, width: int) -> tuple[list[Row], list[str]]:
        hang = Content("  ")
        lines: list[Line] = []
        for number, row in enumerate(self.rows):
            if number:
                lines.append(Line(EMPTY))
            for head, cell in zip(self.header, row, strict=True):
                lines.append(Line(Content.assemble(head.stylize("bold"), ": ", cell), rest=hang))
        return lay_out(lines, width)


def column_widths(natural: Sequence[int], room: int) -> list[int] | None:
    """How wide the columns are in `room` cells: narrow ones as they are, wide ones share what is left.

    None if some column would be too narrow to read.
    """
    widths = dict.fromkeys(range(len(natural)), 0)
    waiting = sorted(widths, key=lambda column: natural[column])
    while waiting:
        share = room // len(waiting)
        column = waiting.pop(0)
        if share < min(natural[column], _MIN_COLUMN):
            return None
        widths[column] = min(natural[column], share)
        room -= widths[column]
    return [widths[column] for column in range(len(natural))]


def _aligned(cell: Content, width: int, align: Align) -> Content:
    spare = max(0, width - cell.cell_length)
    left = {"left": 0, "center": spare // 2, "right": spare}[align]
    return Content(" " * left) + cell + Content(" " * (spare - left))
