"""Prefixes that token lists share, and how many KV cells sequences hold that share them."""

from __future__ import annotations

from collections.abc import Sequence


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
