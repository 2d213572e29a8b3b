"""Tells what is pasted from what is typed on a terminal that does not say.

Most terminals mark a paste at both ends. Of the others (the Linux console, GNU screen, `tmux paste-buffer`,
many serial lines) it comes as if it were typed, and the Enter at the end of its first line would send half of
it. But nobody types that fast: letters without a pause between them that go on after an Enter are given the
marks that the terminal left out. Where a single letter is a command, whole words are none: they are text too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

BEGIN, END = "\x1b[200~", "\x1b[201~"

UNMARKED = ("linux", "vt", "ansi", "dumb", "cons", "cygwin")
"""How the names of terminals begin that write what is pasted as if it were typed."""

PAUSE_S = 0.008
"""What comes later than this after the letter before it may be typed."""

END_S = 0.05
"""A paste is over after this long; a slow line may halt in the middle of it."""

TYPED_AHEAD = 12
"""Characters that a slow line or a busy machine may hand over at once, an Enter and the next prompt among
them, although they were typed; from there on it is a paste, if the terminal is one that marks pastes."""

_TEXT = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]+")
_GOES_ON = re.compile(r"\r[^\r]")


class Bursts:
    """`take` what is read, `tick` every now and then; both return what is to be read instead.

    `now` are seconds of one clock. `shortest` is how many characters a paste has at least.
    """

    def __init__(self, shortest: int) -> None:
        self._shortest = shortest
        self._last_at = -1.0
        self._length = 0
        """Characters since the last pause."""
        self._held = ""
        """Enters at the end of a burst: they send, unless it goes on."""
        self._is_open = False
        self._is_marked = False
        """Whether the terminal's own mark was the last that was seen."""
        self._tail = ""

    def take(self, data: str, now: float, *, letters_act: bool = False) -> str:
        """What is to be read of `data`. `letters_act` is whether nothing is focused that takes text: what
        comes at once there is a paste without its Enter, so that no half of a sentence is executed.
        """
        is_text = not self._in_marks(data) and _TEXT.fullmatch(data) is not None
        pause, self._last_at = now - self._last_at, now
        before = self._resolved(goes_on=is_text and pause < END_S)
        if not is_text:
            self._length = 0
            return before + data
        if self._is_open:
            return before + data
        self._length = (self._length if pause < PAUSE_S else 0) + len(data)
        if letters_act and self._length > 1 and _is_words(data):
            return before + BEGIN + data.rstrip("\r") + END
        if self._length < self._shortest:
            return before + data
        if _GOES_ON.search(data):
            self._is_open = True
            return before + BEGIN + data
        typed = data.rstrip("\r")
        self._held = data[len(typed) :]
        return before + typed

    def tick(self, now: float) -> str:
        """What was held back, once nothing more came for a moment."""
        return self._resolved(goes_on=False) if now - self._last_at >= END_S else ""

    def _resolved(self, *, goes_on: bool) -> str:
        held, self._held = self._held, ""
        if goes_on:
            begins = BEGIN if held else ""
            self._is_open = self._is_open or bool(held)
            return begins + held
        ends = END if self._is_open else ""
        self._is_open = False
        return held + ends

    def _in_marks(self, data: str) -> bool:
        """Whether this begins within the marks of the terminal; they may be read in two pieces."""
        was_marked, seen = self._is_marked, self._tail + data
        begin, end = seen.rfind(BEGIN), seen.rfind(END)
        if begin != end:
            self._is_marked = begin > end
        self._tail = seen[1 - len(BEGIN) :]
        return was_marked


def _is_words(data: str) -> bool:
    """Whether this, in a burst, is text: a key that is held down may be read several times at once too."""
    letters = data.rstrip("\r")
    return len(letters) == 1 or len(set(letters)) > 1


def shortest_paste(environment: Mapping[str, str]) -> int:
    """From how many characters on a burst is a paste: on a terminal that never marks any, from two on."""
    term = environment.get("TERM", "")
    marks = bool(term) and not term.startswith(UNMARKED) and "STY" not in environment  # GNU screen's
    return TYPED_AHEAD if marks else 2
