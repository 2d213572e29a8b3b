"""How a question asks: its options, how it begins and ends, what it is full of. Made for English."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import fmean

from .facts import Form

# White space has an end: else each of a thousand empty lines would look through all that follow.
OPTIONS = re.compile(r"^\s{0,99}\(?[A-Ja-j1-9][).:、]\s", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*|\d+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# A capital that does not begin a sentence.
_NAME = re.compile(r"(?<![.?!]\s)(?<!^)(?<!\n)\b[A-Z][a-z]+")
_WHAT = re.compile(r"\s*(?:what|who|when|where|which|whose)\b", re.IGNORECASE)
_HOW = re.compile(r"\s*(?:how|why)\b", re.IGNORECASE)
_SUPPOSE = re.compile(r"\s*(?:if|suppose|let|consider|given|assume|an?)\b", re.IGNORECASE)
_FOLLOWING = re.compile(
    r"\b(?:of the following|of these|best describes|following statements?|most likely)\b", re.IGNORECASE
)
_ALL_OR_NONE = re.compile(r"\b(?:all|none|both|neither|any) of (?:the above|these|them)\b", re.IGNORECASE)
_BLANK = re.compile(r"_{2,}|_\s|\.{3,}")


def form_of(text: str) -> Form:
    """The form of a question; see `Form` for units."""
    first = OPTIONS.search(text)
    stem = text[: first.start()] if first else text
    options = [each.strip() for each in OPTIONS.split(text[first.start() :])[1:]] if first else []
    if options:
        # What follows the last option, 'Answer:' say, is none of it.
        options[-1] = options[-1].split("\n")[0]
    lengths = [len(each) for each in options] or [0]
    words = [word.lower() for word in _WORD.findall(text)]
    end = stem.rstrip()
    return Form(
        stem_chars=len(stem),
        option_chars=fmean(lengths),
        option_spread=_spread(lengths),
        numeric_options=fmean(map(_is_numeric, options)) if options else 0.0,
        blanks=len(_BLANK.findall(text)),
        asks=end.endswith("?"),
        states=end.endswith("."),
        following=len(_FOLLOWING.findall(text)),
        asks_what=_WHAT.match(stem) is not None,
        asks_how=_HOW.match(stem) is not None,
        supposes=_SUPPOSE.match(stem) is not None,
        quotes=text.count('"') // 2 + text.count("“"),
        numbers=len(_NUMBER.findall(stem)),
        names=len(_NAME.findall(stem)),
        commas=text.count(","),
        all_or_none=len(_ALL_OR_NONE.findall(text)),
        longest_word=max((len(word) for word in words if word[0].isalpha()), default=0),
        distinct_words=len(set(words)) / len(words) if words else 0.0,
    )


def _spread(lengths: Sequence[int]) -> float:
    """Their standard deviation; `statistics.pstdev` takes its time to be exact to the last bit."""
    mean = sum(lengths) / len(lengths)
    return math.sqrt(sum((length - mean) ** 2 for length in lengths) / len(lengths))


def _is_numeric(option: str) -> bool:
    """At least half of what can be read in it is digits."""
    digits = sum(character.isdigit() for character in option)
    return 0 < 2 * digits >= sum(character.isalnum() for character in option)
