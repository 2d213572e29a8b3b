"""Keeps what a user wrote from becoming a control token, however it is spelled.

Text that a user sent is marked before it is rendered, with a character that occurs nowhere in it: inside
every spelled control token, and where its end might complete one together with the template's text. A control
token of the finished text that spans a mark is forged, and comes out as a segment of its own that is to be
tokenized as plain text. Text with nothing forged in it stays one segment, the same as if nothing had been
marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, pairwise
from typing import NamedTuple


class Segment(NamedTuple):
    """A stretch of a rendered prompt; in a `special` one the spelling of a control token means the token."""

    text: str
    special: bool


def unused_characters(texts: Iterable[str], count: int) -> list[str]:
    """Characters that none of the texts holds: Unicode's noncharacters first, then private ones."""
    used = set().union(*texts)
    candidates = map(chr, chain(range(0xFDD0, 0xFDF0), range(0xF0000, 0xFFFFE)))
    found = [char for char, _ in zip((c for c in candidates if c not in used), range(count), strict=False)]
    if len(found) < count:
        raise ValueError("the texts hold every private character there is")
    return found


class ControlTokens:
    """The spellings of a vocabulary's control tokens; those of one character cannot be guarded."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = sorted({token for token in tokens if len(token) > 1}, key=len, reverse=True)
        self._longest = len(self._tokens[0]) if self._tokens else 0
        self._pattern = re.compile("|".join(map(re.escape, self._tokens)) or r"(?!)")
        self._heads = {token[:cut] for token in self._tokens for cut in range(1, len(token))}
        self._tails = {token[cut:] for token in self._tokens for cut in range(1, len(token))}

    def places(self, text: str, *, whole: bool = False) -> list[int]:
        """Where marks belong in a user's text; with `whole`, also if all of it may be a token's middle."""
        places = {match.start() + 1 for match in self._overlapping(text, 0, len(text))}
        bare = text.strip()
        if bare:
            start = len(text) - len(text.lstrip())
            lengths = range(1, min(self._longest, len(bare) + 1))
            if any(bare[:n] in self._tails for n in lengths) or (
                whole and any(bare in token for token in self._tokens)
            ):
                places.add(start)
            if any(bare[-n:] in self._heads for n in lengths):
                places.add(start + len(bare))
        return sorted(places)

    def mark(self, text: str, mark: str, *, whole: bool = False) -> str:
        places = self.places(text, whole=whole)
        bounds = [0, *places, len(text)]
        return mark.join(text[a:b] for a, b in pairwise(bounds))

    def segments(self, marked: str, mark: str) -> tuple[Segment, ...]:
        """The rendered text without its marks, cut where a control token spans one."""
        parts = marked.split(mark)
        text = "".join(parts)
        forged: list[tuple[int, int]] = []
        at = 0
        for part in parts[:-1]:
            at += len(part)
            for match in self._overlapping(text, at - self._longest + 1, at + self._longest - 1):
                if match.start() < at < match.end():
                    forged.append(match.span())
        return _cut(text, forged)

    def _overlapping(self, text: str, start: int, end: int) -> Iterable[re.Match[str]]:
        match = self._pattern.search(text, max(0, start), end)
        while match is not None:
            yield match
            match = self._pattern.search(text, match.start() + 1, end)


def _cut(text: str, forged: list[tuple[int, int]]) -> tuple[Segment, ...]:
    """Special text with the forged ranges (which may overlap) as plain segments."""
    segments: list[Segment] = []
    done = 0
    for start, end in sorted(forged):
        if start > done:
            segments.append(Segment(text[done:start], True))
        if end > done:
            if segments and not segments[-1].special and start <= done:
                segments[-1] = Segment(segments[-1].text + text[done:end], False)
            else:
                segments.append(Segment(text[max(start, done) : end], False))
            done = end
    if done < len(text) or not segments:
        segments.append(Segment(text[done:], True))
    return tuple(segments)
