"""Splits Markdown that arrives in pieces into blocks that are finished and the one that is still open.

A finished block never changes, so it is laid out once. The open one is shown as plain text: to parse a list
or a fence again for each of its tokens costs more than the answer itself.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:[ \t]|$)")
_TABLE = re.compile(r"[^\n]*\|[^\n]*\n {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\||\n|$)")
_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")


class BlockSplitter:
    """`feed` text, take the blocks that it finished; `open` is the rest.

    The blocks and `open`, joined, are what was fed. Each block holds the blank lines after it.
    """

    def __init__(self) -> None:
        self.open = ""
        self._seen = 0
        """Characters of `open` that were split into lines already: every line is looked at once."""
        self._blank = False
        self._in_list = False
        self._in_indented_code = False
        self._fence: re.Pattern[str] | None = None
        self._closed_here = False

    def feed(self, text: str) -> list[str]:
        """The blocks that end with this piece of text, in order."""
        self.open += text
        blocks: list[str] = []
        while (end := self.open.find("\n", self._seen)) >= 0:
            start, self._seen = self._seen, end + 1
            if self._begins_block(self.open[start:end], is_first=start == 0):
                blocks.append(self.open[:start])
                self.open = self.open[start:]
                self._seen -= start
        return blocks

    def close(self) -> str:
        """What is left when the answer is over; the splitter is then as new."""
        rest = self.open
        self.__init__()  # type: ignore[misc]
        return rest

    @property
    def in_fence(self) -> bool:
        """Whether the open block is code."""
        return self._fence is not None or _FENCE.match(self.open) is not None

    def _begins_block(self, line: str, *, is_first: bool) -> bool:
        """Take in one line; True if everything before it is a block of its own."""
        if self._fence is not None:
            if self._fence.match(line):
                self._fence, self._closed_here = None, True
            return False
        if not line.strip():
            self._blank = True
            return False
        is_item, fence = bool(_ITEM.match(line)), _FENCE.match(line)
        indented = line[0] in " \t"
        was_closed, self._closed_here = self._closed_here, False
        begins = not is_first and (
            was_closed
            or (fence is not None and not (self._in_list and indented))
            or (_HEADING.match(line) is not None and not (self._in_list and indented))
            or (self._blank and not self._goes_on(is_item=is_item, indented=indented))
        )
        if begins or is_first:
            self._in_list = is_item
            self._in_indented_code = not is_item and line.startswith(("    ", "\t"))
        self._blank = False
        if not self._in_list:
            if fence is not None:
                mark = fence[1]
                self._fence = re.compile(rf" {{0,3}}{re.escape(mark[0])}{{{len(mark)},}}[ \t]*$")
            elif _HEADING.match(line):
                self._closed_here = True
        return begins

    def _goes_on(self, *, is_item: bool, indented: bool) -> bool:
        """Whether a line after a blank one is still part of the open block."""
        return (self._in_list and (is_item or indented)) or (self._in_indented_code and indented)


def keeps_together(block: str) -> bool:
    """Whether a block is code or a table, of which half is none."""
    return _FENCE.match(block.partition("\n")[0]) is not None or _TABLE.match(block) is not None


def split(text: str) -> list[str]:
    """The blocks of a whole text."""
    splitter = BlockSplitter()
    blocks = splitter.feed(text if text.endswith("\n") else text + "\n")
    rest = splitter.close()
    return [*blocks, rest] if rest.strip() else blocks
