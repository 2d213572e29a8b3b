"""Do two answers say the same? How the caches learn from what is computed anyway, without a judge.

Two samples of one model differ in wording even for one prompt, so only the clear cases are decided, and the
doubtful ones teach nothing. What is compared of an answer, its gist, is kept beside it: a lookup compares
eight answers, and reading them whole would take longer than finding them.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import NamedTuple

from .reading import read

SHORT = 12
"""An answer of so few words is a value; longer ones are prose around it."""

READ_CHARACTERS = 1000
"""So much of an answer is read for its gist: what it says, it says by then."""

_MUCH, _LITTLE = 0.5, 0.2
_NEAR, _FAR = 0.88, 0.55
_YES = frozenset(["yes", "yeah", "yep", "correct", "true"])
_NO = frozenset(["no", "nope", "incorrect", "false"])

_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_UNSPACED_NOT = re.compile("[不没沒无無未非]")


class Gist(NamedTuple):
    """What of an answer is compared: a digest of its words in order, how many they are and how many of them
    negate, whether it begins with yes (1) or no (-1), its numbers, its content words.
    """

    digest: str
    num_words: int
    negations: int
    polarity: int
    numbers: frozenset[str]
    content: frozenset[str]

    def pack(self) -> str:
        """As one line of JSON."""
        return json.dumps([*self[:4], sorted(self.numbers), sorted(self.content)], ensure_ascii=False)

    @classmethod
    def unpack(cls, line: str) -> Gist:
        """What `pack` made."""
        digest, num_words, negations, polarity, numbers, content = json.loads(line)
        return cls(digest, num_words, negations, polarity, frozenset(numbers), frozenset(content))


def gist_of(text: str) -> Gist:
    """The gist of an answer."""
    beginning, rest = text[:READ_CHARACTERS], text[READ_CHARACTERS:]
    reading = read(beginning)
    digest = hashlib.sha256(repr((reading.tokens, reading.numbers, rest)).encode()).hexdigest()
    first = reading.tokens[0] if reading.tokens else ""
    return Gist(
        digest[:16],
        sum(1 + len(_UNSPACED.findall(token)) // 2 for token in reading.tokens),
        reading.negations + len(_UNSPACED_NOT.findall(beginning)),
        (first in _YES) - (first in _NO),
        frozenset(reading.numbers),
        frozenset(piece for word in reading.content for piece in _pieces(word)),
    )


def _pieces(word: str) -> list[str]:
    """The word; what is written without spaces by twos, which is what its words are, more or less."""
    if not _UNSPACED.search(word):
        return [word]
    return [word[place : place + 2] for place in range(max(1, len(word) - 1))]


def agree(one: str, other: str, cosine: float | None = None) -> bool | None:
    """Whether the answers are the same; None where that can't be told.

    `cosine` is that of the answers' own vectors, where somebody has embedded them.
    """
    return agree_by(gist_of(one), gist_of(other), cosine)


def agree_by(a: Gist, b: Gist, cosine: float | None = None) -> bool | None:
    """Whether the answers with these gists are the same, as `agree` has it."""
    if a.digest == b.digest:
        return True
    if a.polarity * b.polarity < 0:
        return False
    if a.numbers and b.numbers and a.numbers.isdisjoint(b.numbers):
        return False
    is_short = a.num_words <= SHORT and b.num_words <= SHORT
    if is_short and a.numbers != b.numbers:
        return False
    overlap = _overlap(a.content, b.content)
    if is_short:
        return overlap >= _MUCH and a.negations % 2 == b.negations % 2
    if cosine is not None and (cosine >= _NEAR or cosine <= _FAR):
        return cosine >= _NEAR and overlap > _LITTLE
    if overlap >= _MUCH:
        return True
    return False if overlap <= _LITTLE else None


def _overlap(left: frozenset[str], right: frozenset[str]) -> float:
    """The share of the shorter answer's content words that the other has too."""
    smaller = min(len(left), len(right))
    return len(left & right) / smaller if smaller else 0.0
