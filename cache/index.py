"""Vector search in one partition: 1-bit codes for all, exact cosines for the few that are near by them.

A code is the sign of each dimension, 48 bytes for 384: 50,000 are searched in a millisecond without an index
to build, grow or repair. The vectors themselves stay in SQLite and are read for the `RERANKED` nearest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .records import Vector

RERANKED = 64
"""Of the nearest by code so many get their exact cosine: nine of ten true neighbours are among far fewer."""

Codes = NDArray[np.uint64]


def encode(vector: Vector) -> bytes:
    """The signs of a vector, packed: a bit per dimension, padded to whole words of eight bytes."""
    bits = np.packbits(vector > 0)
    return bits.tobytes() + bytes(-len(bits) % 8)


class CodeTable:
    """The codes of one partition, by entry number, which only grow. The arrays grow by doubling.

    Words come first, entries second: a search runs along each word of all entries, which is how memory lies.
    """

    def __init__(self, num_words: int) -> None:
        self._numbers = np.zeros(16, np.int64)
        self._codes: Codes = np.zeros((num_words, 16), np.uint64)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def newest(self) -> int:
        """The highest number in the table, 0 for none."""
        return int(self._numbers[self._size - 1]) if self._size else 0

    def add(self, number: int, code: bytes) -> None:
        """Add an entry newer than all others."""
        if self._size == len(self._numbers):
            self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])
            self._codes = np.concatenate([self._codes, np.zeros_like(self._codes)], axis=1)
        self._numbers[self._size] = number
        self._codes[:, self._size] = np.frombuffer(code, np.uint64)
        self._size += 1

    def nearest(self, code: bytes, limit: int = RERANKED) -> list[int]:
        """The numbers of the `limit` entries whose codes differ least, in order; of equals the newest."""
        if not self._size:
            return []
        asked = np.frombuffer(code, np.uint64)
        distances = np.zeros(self._size, np.uint16)
        for word, of_all in zip(asked, self._codes, strict=True):
            distances += np.bitwise_count(of_all[: self._size] ^ word)
        # Values alone are selected forty times as fast as their places, which are then looked up for few.
        last = min(limit, self._size) - 1
        near = np.flatnonzero(distances <= np.partition(distances, last)[last])[::-1]
        nearest: list[int] = self._numbers[near[np.argsort(distances[near], kind="stable")[:limit]]].tolist()
        return nearest
