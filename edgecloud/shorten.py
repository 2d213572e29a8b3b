"""Text cut short between characters as people see them: no accent, flag or family of emoji is torn apart."""

from __future__ import annotations

import unicodedata

_JOINER = "\u200d"


def one_line(text: str, most: int) -> str:
    """The first words of a text on one line of at most `most` characters; where more was said it ends in
    `…`.
    """
    line = " ".join(text[: 5 * most].split())
    return line if len(line) <= most else line[: boundary(line, most - 1)].rstrip() + "…"


def boundary(text: str, at: int) -> int:
    """The last place up to `at` where a character begins. (The rules of Unicode's annex 29 that prose and
    chats meet: marks, joined emoji, skin tones, flags.)
    """
    while 0 < at < len(text) and _goes_on(text, at):
        at -= 1
    return at


def _goes_on(text: str, at: int) -> bool:
    """Whether what stands there belongs to what stands before it."""
    here, before = text[at], text[at - 1]
    if before == _JOINER or here == _JOINER or unicodedata.category(here)[0] == "M":
        return True
    if "\U0001f3fb" <= here <= "\U0001f3ff" or "\U000e0020" <= here <= "\U000e007f":
        return True  # skin tones, and the letters of a region's flag
    return _is_flag(here) and _num_flags(text, at) % 2 == 1


def _num_flags(text: str, end: int) -> int:
    """Letters of flags in a row that end there; two are a flag."""
    start = end
    while start and _is_flag(text[start - 1]):
        start -= 1
    return end - start


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
