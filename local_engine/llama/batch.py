"""The tokens of one step, in the arrays that llama.cpp reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from .library import lib


class Batch:
    """The tokens of one step, written straight into the arrays that llama.cpp reads."""

    def __init__(self, capacity: int, num_sequences: int) -> None:
        self.capacity = capacity
        self._token = np.zeros(capacity, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._num_ids = np.ones(capacity, np.int32)
        self._output = np.zeros(capacity, np.int8)
        # llama.cpp wants a pointer to each token's sequence ids: ours all point into one table of single ids.
        self._ids = np.arange(num_sequences, dtype=np.int32)
        self._id_pointer = np.zeros(capacity, np.uintp)
        self._id_address = self._ids.ctypes.data
        int32_p = ctypes.POINTER(ctypes.c_int32)
        self.raw = lib.llama_batch(
            0,
            self._token.ctypes.data_as(int32_p),
            None,
            self._position.ctypes.data_as(int32_p),
            self._num_ids.ctypes.data_as(int32_p),
            self._id_pointer.ctypes.data_as(ctypes.POINTER(int32_p)),
            self._output.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
        self.size = 0

    @property
    def room(self) -> int:
        return self.capacity - self.size

    def clear(self) -> None:
        self.size = 0

    def add_one(self, token: int, position: int, seq_id: int) -> int:
        """Add one token with logits; returns its index in the batch."""
        at = self.size
        self._token[at] = token
        self._position[at] = position
        self._id_pointer[at] = self._id_address + 4 * seq_id
        self._output[at] = 1
        self.size = at + 1
        return at

    def add(
        self, tokens: Sequence[int], position: int, seq_id: int, *, last: bool, every: bool = False
    ) -> int:
        """Add a run of tokens of one sequence, with logits for the `last` one or `every` one; returns the
        last one's index.
        """
        start, end = self.size, self.size + len(tokens)
        self._token[start:end] = tokens
        self._position[start:end] = np.arange(position, position + len(tokens), dtype=np.int32)
        self._id_pointer[start:end] = self._id_address + 4 * seq_id
        self._output[start:end] = every
        if last:
            self._output[end - 1] = 1
        self.size = end
        return end - 1
