"""Do two answers say the same? How the caches learn from what is computed anyway, without a judge.

Two samples of one model differ in wording even for one prompt, so only the clear cases are decided, and the
doubtful ones teach nothing.
"""

from __future__ import annotations

from .reading import Reading, read

SHORT = 12
"""An answer of so few words is a value; longer ones are prose around it."""

_MUCH, _LITTLE = 0.5, 0.2
_NEAR, _FAR = 0.88, 0.55
_YES = frozenset(["yes", "yeah", "yep", "correct", "true"])
_NO = frozenset(["no", "nope", "incorrect", "false"])


def agree(one: str, other: str, cosine: float | None = None) -> bool | None:
    """Whether the answers are the same; None where that can't be told.

    `cosine` is that of the answers' own vectors, where somebody has embedded them.
    """
    a, b = read(one), read(other)
    if a.tokens == b.tokens and a.numbers == b.numbers:
        return True
    if _polarity(a) * _polarity(b) < 0:
        return False
    if a.numbers and b.numbers and set(a.numbers).isdisjoint(b.numbers):
        return False
    is_short = len(a.tokens) <= SHORT and len(b.tokens) <= SHORT
    if is_short and a.numbers != b.numbers:
        return False
    overlap = _overlap(a, b)
    if is_short:
        return overlap >= _MUCH and a.negations % 2 == b.negations % 2
    if cosine is not None and (cosine >= _NEAR or cosine <= _FAR):
        return cosine >= _NEAR and overlap > _LITTLE
    if overlap >= _MUCH:
        return True
    return False if overlap <= _LITTLE else None


def _polarity(reading: Reading) -> int:
    first = reading.tokens[0] if reading.tokens else ""
    return (first in _YES) - (first in _NO)


def _overlap(a: Reading, b: Reading) -> float:
    """The share of the shorter answer's content words that the other has too."""
    left, right = set(a.content), set(b.content)
    smaller = min(len(left), len(right))
    return len(left & right) / smaller if smaller else 0.0
