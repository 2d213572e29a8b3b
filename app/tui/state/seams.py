"""Where in an answer's text its seams are shown: at their place, or after the block that must not be cut."""

from __future__ import annotations

from collections.abc import Sequence

from ...chats import Seam
from .blocks import keeps_together, split


def placed(text: str, seams: Sequence[Seam]) -> list[str | Seam]:
    """The text in pieces, with each seam between the pieces where it happened. Code and tables stay whole:
    their seams come after them.
    """
    waiting = sorted(seams, key=lambda seam: seam.position)
    pieces: list[str | Seam] = []
    begin = at = 0
    for block in split(text) if waiting else ():
        end = at + len(block)
        is_whole = keeps_together(block)
        while waiting and waiting[0].position < end:
            cut = end if is_whole and waiting[0].position > at else waiting[0].position
            pieces += [text[begin:cut], waiting.pop(0)]
            begin = cut
        at = end
    return [piece for piece in (*pieces, text[begin:], *waiting) if piece]
