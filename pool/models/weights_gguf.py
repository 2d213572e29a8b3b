"""Weights from a GGUF, taken back to float32 one tensor at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from edgecloud import gguf
from edgecloud.errors import ModelLoadError, NotSupported
from edgecloud.gguf_header import Tensor
from edgecloud.kernels.repack import GGUF_BLOCK_BYTES, repack_gguf

from .weights import PackedPart, Part, name_in_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T", np.float32, np.uint8)

READABLE = frozenset({"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"})


class GgufWeights:
    """Implements `WeightSource`. With `turned_head_dim` the rows of queries and keys are put back in order:
    in the llama family llama.cpp rotates neighbours (0, 1), (2, 3) … of a head, where we rotate its halves,
    as the original did before it was converted.
    """

    def __init__(self, path: Path, *, turned_head_dim: int | None) -> None:
        self._tensors = gguf.read_tensors(path)
        self._turned = turned_head_dim
        self.fingerprint = gguf.fingerprint(path)

    def has(self, name: str) -> bool:
        return name_in_file(name, 0, "blk.") in self._tensors

    def read(self, name: str) -> Part:
        tensor = self._tensors.get(name_in_file(name, 0, "blk."))
        if tensor is None:
            raise ModelLoadError(f"The model has no weight {name}: it is damaged or incomplete.")
        values = read_dense(tensor)
        if self._is_turned(name):
            values = self._neighbours_to_halves(values)
        return Part(torch.from_numpy(np.ascontiguousarray(values)), tensor.type, tensor.size)

    def read_packed(self, name: str) -> PackedPart | None:
        tensor = self._tensors.get(name_in_file(name, 0, "blk."))
        if tensor is None or tensor.type not in GGUF_BLOCK_BYTES or len(tensor.shape) != 2:
            return None
        rows = np.array(_bytes_of(tensor))
        if self._is_turned(name):
            rows = self._neighbours_to_halves(rows)
        weight = repack_gguf(torch.from_numpy(np.ascontiguousarray(rows)), tensor.type)
        return PackedPart(weight, None, tensor.type, tensor.size)

    def _is_turned(self, name: str) -> bool:
        return self._turned is not None and name.partition(".")[2].startswith(("q.", "k."))

    def _neighbours_to_halves(self, values: NDArray[T]) -> NDArray[T]:
        assert self._turned is not None
        shape = values.shape
        by_head = values.reshape(-1, self._turned // 2, 2, *shape[1:])
        return by_head.swapaxes(1, 2).reshape(shape)


def read_dense(tensor: Tensor) -> NDArray[np.float32]:
    """A tensor's values, float32, slowest dimension first. Raises `NotSupported` for an unknown packing."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    if tensor.type not in READABLE:
        raise NotSupported(
            f"The pool can't read {tensor.type} weights: take a Q4_0, Q4_1, Q4_K_M, Q8_0 or F16 file."
        )
    shape = tuple(reversed(tensor.shape))
    rows = _bytes_of(tensor)
    if tensor.type == "F32":
        return np.array(rows.view(np.float32)).reshape(shape)
    if tensor.type == "F16":
        return rows.view(np.float16).astype(np.float32).reshape(shape)
    values: NDArray[np.float32] = dequantize(rows, GGMLQuantizationType[tensor.type])
    return values.reshape(shape)


def _bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    """The file's own bytes, a row for each of the tensor's."""
    data = np.memmap(tensor.path, np.uint8, "r", tensor.offset, (tensor.size,))
    return data.reshape(*reversed(tensor.shape[1:]), -1)
