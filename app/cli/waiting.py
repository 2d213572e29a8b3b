"""The line on a terminal that says what is waited for: rewritten in place, gone once anything comes."""

from __future__ import annotations

import asyncio
import shutil
import sys

from ..visible import neutral
from .shell import write

PATIENCE_S = 1.5
"""A shorter wait needs no words."""


class WaitingLine:
    """Use as a context around the wait. `show` says it better; `clear` is the end of the wait."""

    def __init__(self, words: str, *, quiet: bool) -> None:
        self._words = words
        self._is_wanted = not quiet and sys.stderr.isatty()
        self._width = 0  # cells of what stands there now
        self._is_shown = False
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> WaitingLine:
        if self._is_wanted:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, words: str) -> None:
        """Say this instead, now or once it is time to say anything."""
        self._words = words
        if self._is_shown:
            self._write(words)

    def clear(self) -> None:
        """Take the line away; it does not come back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_shown:
            self._is_shown = False
            write(sys.stderr, "\r" + " " * self._width + "\r")

    def _begin(self) -> None:
        self._is_shown = True
        self._write(self._words)

    def _write(self, words: str) -> None:
        # No escape sequence, so that it works on every terminal; shorter than a row, or `\r` would not do.
        room = shutil.get_terminal_size().columns - 1
        line = neutral(f"edgecloud: {words}", is_terminal=True)[:room]
        write(sys.stderr, "\r" + line.ljust(self._width))
        self._width = len(line)
