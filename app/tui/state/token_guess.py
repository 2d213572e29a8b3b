"""About how many tokens a text is, where no tokenizer is at hand: by what its characters are."""

from __future__ import annotations

import re
from functools import lru_cache

SAMPLE = 10_000
"""Characters that are looked at: the rest is taken to be like them, and a long paste slows no key."""

_PIECES = re.compile(r"[^\W\d_]+|\d+|_|[^\w\s]+|\n+")
_IDEOGRAPHS = "\u2e80"
"""From here on a character is about a token: Chinese, Japanese, Korean."""


@lru_cache(maxsize=1024)
def guess(text: str) -> int:
    """Tokens: one for a word and its space, more for a long one, one for a digit, for signs, a new line."""
    sample = text[:SAMPLE]
    tokens = sum(_piece(piece) for piece in _PIECES.findall(sample))
    return round(tokens * len(text) / len(sample)) if sample else 0


def _piece(piece: str) -> int:
    if piece[0].isdigit():
        return 1 + len(piece)
    if not piece[0].isalpha():
        return 1 + len(piece) // 6
    if piece[0] >= _IDEOGRAPHS:
        return len(piece)
    return 1 + (len(piece) - 1) // (8 if piece.isascii() else 3)
