"""A block of code: its language, the code as it was written, and a way to copy it."""

from __future__ import annotations

import asyncio

from textual import work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.highlight import highlight
from textual.message import Message
from textual.widgets import Static

from ..render.lines import Line
from .flow import Flow

AT_ONCE = 1_500
"""Characters that a lexer colours before anybody notices; more are shown plain and coloured in a thread."""

LONGEST_COLOURED = 100_000
"""Characters. Longer code stays in one colour."""


class CodeBlock(Vertical):
    """Long lines are folded on the screen and copied whole."""

    class CopyRequested(Message):
        """The head of the block was clicked."""

        def __init__(self, code: str) -> None:
            super().__init__()
            self.code = code

    def __init__(self, code: str, language: str) -> None:
        super().__init__()
        self.code = code
        self.language = language

    def compose(self) -> ComposeResult:
        name = self.language or "text"
        yield _Head(
            Content.assemble((name, "$foreground-muted"), "  ", ("copy", "$text-accent")), markup=False
        )
        is_short = len(self.code) <= AT_ONCE
        lines = coloured(self.code, self.language) if is_short else uncoloured(self.code)
        yield Flow([Line(line, wrap="fold") for line in lines])

    def on_mount(self) -> None:
        if AT_ONCE < len(self.code) <= LONGEST_COLOURED and self.language:
            self.colour()

    @work(exit_on_error=True)
    async def colour(self) -> None:
        lines = await asyncio.to_thread(coloured, self.code, self.language)
        self.query_one(Flow).show([Line(line, wrap="fold") for line in lines])

    def on_click(self, event: Click) -> None:
        if isinstance(event.widget, _Head):
            event.stop()
            self.post_message(self.CopyRequested(self.code))


class _Head(Static):
    """The line that is clicked to copy."""

    ALLOW_SELECT = False


def uncoloured(code: str) -> list[Content]:
    """Lines of code as they are."""
    return [Content(line) for line in code.split("\n")]


def coloured(code: str, language: str) -> list[Content]:
    """Lines of code in colours, if the language is known."""
    if not language:
        return uncoloured(code)
    # A lexer drops blank lines at both ends; they are put back, so that copies are whole.
    stripped = code.strip("\n")
    lines = highlight(stripped, language=language.lower()).split("\n", allow_blank=True)
    before, after = len(code) - len(code.lstrip("\n")), len(code) - len(code.rstrip("\n"))
    if not stripped:
        return [Content("")] * (before + 1)
    return [Content("")] * before + list(lines) + [Content("")] * after
