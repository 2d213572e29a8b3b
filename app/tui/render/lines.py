"""Text laid out for a width: logical lines, each wrapped with a hanging indent, and where each row is from.

A row knows with which character of which logical line it begins, so that what a mouse selects is copied
without the breaks that the width of the terminal made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from textual.content import Content

EMPTY = Content("")


class Row(NamedTuple):
    """One row of the screen. `x` is the index of its first character in the logical line `line`, which counts
    from the beginning of what was laid out together."""

    prefix: Content
    content: Content
    line: int
    x: int


class Layable(Protocol):
    """Something that can be laid out for a width in cells: its rows and the plain text of its lines."""

    def layout(self, width: int) -> tuple[list[Row], list[str]]: ...


class Line:
    """One logical line. `first` stands before its first row, `rest` before the others.

    Prose breaks between words; 'fold' breaks anywhere and keeps every space, for code.
    """

    def __init__(
        self,
        content: Content,
        first: Content = EMPTY,
        rest: Content = EMPTY,
        *,
        wrap: Literal["word", "fold"] = "word",
    ) -> None:
        self.content = content.expand_tabs(4) if "\t" in content.plain else content
        self.first = first
        self.rest = rest
        self.wrap = wrap
        self._laid_out: tuple[int, list[Row]] | None = None

    def layout(self, width: int) -> tuple[list[Row], list[str]]:
        """Its rows at this width, at least one. The last width is remembered: a stream adds lines, and all
        earlier ones are as they were."""
        if self._laid_out is None or self._laid_out[0] != width:
            self._laid_out = width, list(self._rows(width))
        return self._laid_out[1], [self.content.plain]

    def _rows(self, width: int) -> list[Row]:
        room = max(1, width - max(self.first.cell_length, self.rest.cell_length))
        if self.content.cell_length <= room:
            return [Row(self.first, self.content, 0, 0)]
        pieces = self.content.fold(room) if self.wrap == "fold" else self.content.wrap(room)
        rows, x = [], 0
        plain = self.content.plain
        for number, piece in enumerate(pieces):
            # Pieces follow each other; only spaces between them were dropped.
            x = plain.find(piece.plain, x)
            rows.append(Row(self.rest if number else self.first, piece, 0, x))
            x += len(piece.plain)
        return rows

    def indented(self, first: Content, rest: Content) -> Line:
        """The same line further in."""
        return Line(self.content, first + self.first, rest + self.rest, wrap=self.wrap)


class Rule:
    """A line across the width."""

    def layout(self, width: int) -> tuple[list[Row], list[str]]:
        return [Row(EMPTY, Content.styled("─" * width, "$foreground-muted"), 0, 0)], ["---"]


def lay_out(items: Sequence[Layable], width: int) -> tuple[list[Row], list[str]]:
    """All rows of some items below each other, their lines counted through."""
    rows: list[Row] = []
    texts: list[str] = []
    for item in items:
        item_rows, item_texts = item.layout(width)
        offset = len(texts)
        rows += [row._replace(line=row.line + offset) for row in item_rows] if offset else item_rows
        texts += item_texts
    return rows, texts


def plain_lines(text: str, style: str = "", *, wrap: Literal["word", "fold"] = "word") -> list[Line]:
    """Text as it is, a line each."""
    return [Line(Content.styled(line, style), wrap=wrap) for line in text.split("\n")]
