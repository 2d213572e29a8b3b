"""Text that arrives in pieces: bytes to whole characters, and stop strings found across pieces.

Both classes give the same output however their input is cut, and never wait for more than they must.
"""

from __future__ import annotations

import codecs

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Utf8Stream:
    """Bytes of tokens in, whole characters out; a byte that cannot be UTF-8 becomes U+FFFD at once."""

    __slots__ = ("_decode",)

    def __init__(self) -> None:
        self._decode = _new_decoder(errors="replace").decode

    def feed(self, data: bytes) -> str:
        return self._decode(data)

    def finish(self) -> str:
        """U+FFFD if the last character never became whole, else nothing."""
        return self._decode(b"", True)


class StopMatcher:
    """Looks for stop strings in a stream and holds back only what may still become one.

    The stop that is complete first wins, and among those complete at the same character the one that began
    first: this depends on the text alone, not on how it was cut. After a match `rest` is the text behind it;
    feed nothing more.
    """

    __slots__ = ("_held", "_stops", "rest")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.rest = ""

    @property
    def num_held(self) -> int:
        """Characters held back now."""
        return len(self._held)

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that is safe to show, and the stop if one was found: then it is all the text before it."""
        text = self._held + text
        found: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0:
                match = (start + len(stop), start, stop)
                found = match if found is None else min(found, match)
        if found is not None:
            end, start, stop = found
            self._held = ""
            self.rest = text[end:]
            return text[:start], stop
        keep = self._ambiguous_from(text)
        self._held = text[keep:]
        return text[:keep], None

    def flush(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _ambiguous_from(self, text: str) -> int:
        """Where the longest suffix begins that is a proper prefix of a stop."""
        first = len(text)
        for stop in self._stops:
            at = text.find(stop[0], max(0, len(text) - len(stop) + 1), first)
            while at >= 0:
                if stop.startswith(text[at:]):
                    first = at
                    break
                at = text.find(stop[0], at + 1, first)
        return first
