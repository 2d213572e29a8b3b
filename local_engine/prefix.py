"""Which computed prefixes are in memory: finished sequences kept for the next turn, and how many KV cells
everything holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two token lists."""
    high = min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    low = 0
    # Slices compare at C speed, so halving beats looking at each token.
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class CellLedger:
    """Counts KV cells when sequences share prefixes.

    llama.cpp doesn't say how many cells are in use, so this mirrors it. A sequence shares its first `shared`
    cells with its parent and owns the rest:

        parent  ========------          used = sum(length - shared)
        child   ========~~~~            (= is shared, counted at the parent)

    When a parent goes, the child that shares most inherits its cells and its other children.
    """

    def __init__(self) -> None:
        self.used = 0
        self._length: dict[int, int] = {}
        self._shared: dict[int, int] = {}
        self._parent: dict[int, int] = {}

    def length(self, seq_id: int) -> int:
        return self._length.get(seq_id, 0)

    def used_only_by(self, seq_ids: Iterable[int]) -> int:
        """Cells that would be free if all of these sequences went."""
        rest = CellLedger()
        rest.used = self.used
        rest._length, rest._shared, rest._parent = dict(self._length), dict(self._shared), dict(self._parent)
        for seq_id in seq_ids:
            rest.close(seq_id)
        return self.used - rest.used

    def open(self, seq_id: int, *, parent: int | None = None, shared: int = 0) -> None:
        if seq_id in self._length or (parent is not None and shared > self._length[parent]):
            raise ValueError(f"sequence {seq_id} can't open with {shared} cells of {parent}: {self._length}")
        self._length[seq_id] = shared
        self._shared[seq_id] = shared
        if parent is not None and shared:
            self._parent[seq_id] = parent

    def grow(self, seq_id: int, count: int) -> None:
        self._length[seq_id] += count
        self.used += count

    def close(self, seq_id: int) -> None:
        """Forget a sequence; of what it shared, the child that shared most becomes the owner."""
        length = self._length.pop(seq_id)
        shared = self._shared.pop(seq_id)
        parent = self._parent.pop(seq_id, None)
        children = [c for c, p in self._parent.items() if p == seq_id]
        self.used -= length - shared
        if not children:
            return
        heir = max(children, key=self._shared.__getitem__)
        inherited = self._shared[heir]
        self._shared[heir] = min(inherited, shared)
        self.used += inherited - self._shared[heir]
        del self._parent[heir]
        if parent is not None and self._shared[heir]:
            self._parent[heir] = parent
        for child in children:
            if child != heir:
                self._parent[child] = heir

    def clear(self) -> None:
        self.used = 0
        self._length.clear()
        self._shared.clear()
        self._parent.clear()


@dataclass(slots=True)
class Recent:
    """A finished sequence whose cells are still there: `tokens` are exactly what `seq_id` holds.

    `chat_id` is the chat that it may be saved to disk for, `num_uses` how often it served.
    """

    tokens: list[int]
    seq_id: int
    chat_id: str | None = None
    num_uses: int = 0


class RecentSequences:
    """Finished sequences, least recently used first."""

    def __init__(self) -> None:
        self._entries: dict[int, Recent] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Recent]:
        return iter(list(self._entries.values()))

    def add(self, recent: Recent) -> list[Recent]:
        """Keep a sequence. Returns the entries it makes superfluous (what they hold is its beginning),
        already taken out.
        """
        covered = [other for other in self if common_prefix(other.tokens, recent.tokens) == len(other.tokens)]
        for other in covered:
            recent.num_uses += other.num_uses
            del self._entries[other.seq_id]
        self._entries[recent.seq_id] = recent
        return covered

    def best_match(self, tokens: Sequence[int]) -> tuple[Recent | None, int]:
        """The entry that shares the longest prefix with `tokens`, and how long that is."""
        best: Recent | None = None
        longest = 0
        for recent in self._entries.values():
            length = common_prefix(recent.tokens, tokens)
            if length > longest:
                best, longest = recent, length
        return best, longest

    def touch(self, recent: Recent) -> None:
        """Mark as just used."""
        recent.num_uses += 1
        self._entries[recent.seq_id] = self._entries.pop(recent.seq_id)

    def pop_oldest(self, spare: Recent | None = None) -> Recent | None:
        """Take out the least recently used entry other than `spare`; None if there is no other."""
        for seq_id, recent in self._entries.items():
            if recent is not spare:
                return self._entries.pop(seq_id)
        return None

    def pop(self, recent: Recent) -> Recent:
        return self._entries.pop(recent.seq_id)

    def clear(self) -> None:
        self._entries.clear()
