"""An answer's text: finished blocks as Markdown, the one that is still being written as plain text; between
them what happened to the answer on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget

from ...chats import Seam
from ..render.lines import Line, plain_lines
from ..render.markdown import Code, render
from ..state.blocks import BlockSplitter, keeps_together, split
from ..state.seams import placed
from .code import CodeBlock
from .flow import Flow
from .growing import Growing
from .label import visible


class MarkdownText(Vertical, Growing):
    """`append` what comes, `mark` where something happened, `finish` when no more comes."""

    def __init__(self, text: str = "", seams: Sequence[Seam] = ()) -> None:
        self._has_blocks = False
        super().__init__(*self._pieces(placed(text, seams)))
        self._splitter = BlockSplitter()
        self._late: list[str] = []
        """Seams in the open block, which is shown whole first."""
        self._open: Flow | None = None
        self._open_text = ""
        self._open_lines: list[Line] = []

    def append(self, text: str) -> None:
        """Show more text: new blocks that it finished, and what is open now."""
        blocks = self._splitter.feed(visible(text))
        if blocks:
            self._close(blocks)
        self._show_open()

    def mark(self, sentence: str) -> None:
        """Say what happened at this place of the text; after code or a table that is open."""
        self._late.append(sentence)
        if not keeps_together(self._splitter.open):
            self.finish()

    def finish(self) -> None:
        """Show what is open as what it is."""
        rest = self._splitter.close()
        self._close(split(rest))

    def _close(self, blocks: list[str]) -> None:
        if self._open is not None:
            self._open.remove()
            self._open = None
        self._open_text, self._open_lines = "", []
        seams, self._late = [Seam(0, sentence) for sentence in self._late], []
        self.mount(*self._pieces([*blocks[:1], *seams, *blocks[1:]]))

    def _pieces(self, pieces: Sequence[str | Seam]) -> list[Widget]:
        """Widgets with a blank line before every one but the first."""
        widgets: list[Widget] = []
        for piece in pieces:
            if isinstance(piece, Seam):
                widgets.append(seam_widget(piece.text))
            else:
                widgets += [widget for block in split(visible(piece)) for widget in block_widgets(block)]
        for widget in widgets:
            widget.add_class("block")
            widget.set_class(not self._has_blocks, "-first")
            self._has_blocks = True
        return widgets

    def _show_open(self) -> None:
        text = self._splitter.open
        if not text.strip():
            return
        # All lines but the last are as they were.
        if not text.startswith(self._open_text):
            self._open_lines = []
        kept = self._open_lines[:-1]
        start = sum(len(line.content.plain) + 1 for line in kept) if "\t" not in text else 0
        wrap: Literal["word", "fold"] = "fold" if self._splitter.in_fence else "word"
        lines = [*kept, *plain_lines(text[start:], wrap=wrap)] if start else plain_lines(text, wrap=wrap)
        self._open_text, self._open_lines = text, lines
        shown = lines[:-1] if not lines[-1].content.plain and len(lines) > 1 else lines
        if self._open is None:
            self._open = Flow(shown, classes="block" if self._has_blocks else "block -first")
            self.mount(self._open)
        else:
            self._open.show(shown)


def seam_widget(sentence: str) -> Widget:
    """What happened here, unlike anything that an answer says."""
    line = Content.styled(visible(sentence), "$text-warning")
    return Flow([Line(line, Content.styled("╌╌ ⚡ ", "$text-warning"), Content(" " * 6))], classes="seam")


def block_widgets(block: str) -> list[Widget]:
    """The widgets of one block's Markdown."""
    return [
        CodeBlock(piece.text, piece.language) if isinstance(piece, Code) else Flow(piece.items)
        for piece in render(block)
    ]
