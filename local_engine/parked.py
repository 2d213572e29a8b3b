"""Prefixes parked in main memory: out of the way of everybody's attention, and back in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .fit import available_memory
from .prefix import common_prefix


@dataclass(slots=True, eq=False)
class Parked:
    """The saved state of a sequence of exactly `tokens`; neither ever changes.

    `chat_id` is the chat that it may be saved to disk for, `num_uses` how often it served; `is_saved` where
    that was asked for already.
    """

    tokens: list[int]
    state: bytearray
    chat_id: str | None = None
    num_uses: int = 0
    is_saved: bool = False


class ParkedPrefixes:
    """Saved states, least recently used first, within `most_bytes` and an eighth of the free memory."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: list[Parked] = []
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Parked]:
        return iter(self._entries)

    def has_room(self, num_bytes: int) -> bool:
        """Whether a state of this size may be parked at all."""
        return num_bytes <= self._budget()

    def add(self, parked: Parked) -> list[Parked]:
        """Park a state. What it makes superfluous is let go, and so is what no longer fits: that is
        returned.
        """
        for other in list(self._entries):
            if common_prefix(other.tokens, parked.tokens) == len(other.tokens):
                parked.num_uses += other.num_uses
                self._drop(other)
        self._entries.append(parked)
        self.num_bytes += len(parked.state)
        budget = self._budget()
        let_go = []
        while self.num_bytes > budget and len(self._entries) > 1:
            let_go.append(self._entries[0])
            self._drop(let_go[-1])
        return let_go

    def best_match(self, tokens: Sequence[int]) -> tuple[Parked | None, int]:
        """The state that shares the longest prefix with `tokens`, and how long that is. The smallest of
        equals, whichever was used last: the same prompt is to find the same, to the last bit.
        """
        best: Parked | None = None
        longest = 0
        for parked in self._entries:
            length = common_prefix(parked.tokens, tokens)
            if length > longest or (best and length == longest and _rank(parked) < _rank(best)):
                best, longest = parked, length
        return best, longest

    def touch(self, parked: Parked) -> None:
        """Mark as just used. It may have been let go a moment ago, to make room for what made room for it."""
        parked.num_uses += 1
        if parked in self._entries:
            self._entries.remove(parked)
            self._entries.append(parked)

    def _drop(self, parked: Parked) -> None:
        self._entries.remove(parked)
        self.num_bytes -= len(parked.state)

    def _budget(self) -> int:
        return min(self._most_bytes, (available_memory() + self.num_bytes) // 8)


def _rank(parked: Parked) -> tuple[int, list[int]]:
    return len(parked.tokens), parked.tokens
