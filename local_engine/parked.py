"""Prefixes parked in main memory: out of the way of everybody's attention, and back in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .fit import available_memory
from .prefix import common_prefix


@dataclass(frozen=True, slots=True, eq=False)
class Parked:
    """The saved state of a sequence of exactly `tokens`."""

    tokens: list[int]
    state: bytearray


class ParkedPrefixes:
    """Saved states, least recently used first, within `most_bytes` and an eighth of the free memory."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: list[Parked] = []
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def has_room(self, num_bytes: int) -> bool:
        """Whether a state of this size may be parked at all."""
        return num_bytes <= self._budget()

    def add(self, parked: Parked) -> None:
        """Park a state; what it makes superfluous and what no longer fits is let go."""
        for other in list(self._entries):
            if common_prefix(other.tokens, parked.tokens) == len(other.tokens):
                self._drop(other)
        self._entries.append(parked)
        self.num_bytes += len(parked.state)
        budget = self._budget()
        while self.num_bytes > budget and len(self._entries) > 1:
            self._drop(self._entries[0])

    def best_match(self, tokens: Sequence[int]) -> tuple[Parked | None, int]:
        """The state that shares the longest prefix with `tokens`, and how long that is."""
        best: Parked | None = None
        longest = 0
        for parked in self._entries:
            length = common_prefix(parked.tokens, tokens)
            if length > longest:
                best, longest = parked, length
        return best, longest

    def touch(self, parked: Parked) -> None:
        """Mark as just used."""
        self._entries.remove(parked)
        self._entries.append(parked)

    def _drop(self, parked: Parked) -> None:
        self._entries.remove(parked)
        self.num_bytes -= len(parked.state)

    def _budget(self) -> int:
        return min(self._most_bytes, (available_memory() + self.num_bytes) // 8)
