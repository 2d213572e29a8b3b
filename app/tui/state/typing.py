"""Rules of the prompt: when Enter sends, and what a large paste looks like."""

from __future__ import annotations

import re

CHIP_LINES = 20
CHIP_CHARACTERS = 4000
"""A paste longer than either is shown as one word: the prompt should stay readable, and typing quick."""

_FENCE = re.compile(r"^[^\S\n]*(```|~~~)", re.MULTILINE)


def enter_sends(text: str, *, is_at_end: bool) -> bool:
    """Whether Enter sends what is typed; else it is a new line.

    It does not inside of an open code fence, nor in the middle of several lines.
    """
    if len(_FENCE.findall(text)) % 2 == 1:
        return False
    return is_at_end or "\n" not in text


class Chips:
    """Large pastes, each shown as a word that stands for it until the prompt is sent."""

    def __init__(self) -> None:
        self._pastes: dict[str, str] = {}

    def put(self, pasted: str) -> str:
        """What to show for a paste: itself, or the word that stands for it."""
        num_lines = len(pasted.splitlines())
        if num_lines <= CHIP_LINES and len(pasted) <= CHIP_CHARACTERS:
            return pasted
        size = f"{num_lines:,} lines" if num_lines > 1 else f"{len(pasted):,} characters"
        number = len(self._pastes) + 1
        chip = f"[pasted {size}]" if number == 1 else f"[pasted {size}, {number}]"
        self._pastes[chip] = pasted
        return chip

    def unfold(self, text: str) -> str:
        """The text with every paste in its place."""
        for chip, pasted in self._pastes.items():
            text = text.replace(chip, pasted)
        return text

    def clear(self) -> None:
        self._pastes.clear()
