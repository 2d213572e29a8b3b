"""Where keys and values live: blocks of `block_size` slots, a slot a token, everything of a slot together.

    storage   [num_layers, num_blocks + 1, block bytes]     one allocation; the last block is the null block
    a block   [block_size, row]                             so slot = block * block_size + offset indexes rows
    a row     K of all heads | V of all heads | K scales | V scales | padding to 16 bytes

The scales of quantised caches are in the row they belong to, so whatever moves a block (copy-on-write,
swap, prefix sharing) moves them. A slot's K and V are neighbours, so on a CPU one gather reads both. The
null block is nobody's: writes to slot -1 (padding of a captured graph) are dropped or land there, and it
may hold anything.

8-bit caches on a GPU keep V transposed inside the block, `[kv_heads, head_dim, block_size]`: a tile of V is
then loaded in the order that the tensor core wants, where it would have to be turned byte by byte.
`KvLayer.v` has the same logical shape either way; only its strides differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from .dispatch import require

QUANTIZED = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The 8-bit types and the largest value of their codes; each row of each head has its own scale."""


class KvLayer(NamedTuple):
    """One layer's views. `k` and `v` are `[num_blocks + 1, block_size, kv_heads, head_dim]`, `k_scale` and
    `v_scale` `[num_blocks + 1, block_size, kv_heads]` fp32, None unless quantised. `rows` is
    `[slots, row]` of the cache's type, None where V is transposed.
    """

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    rows: torch.Tensor | None

    @property
    def scales(self) -> tuple[torch.Tensor, torch.Tensor]:
        """For kernels, whose pointers must point somewhere: the scales, or without any, `k` and `v`."""
        if self.k_scale is None or self.v_scale is None:
            return self.k, self.v
        return self.k_scale, self.v_scale

    @property
    def num_kv_heads(self) -> int:
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        return self.k.shape[3]


@dataclass(frozen=True, slots=True)
class KvCache:
    """All layers. `storage` is what block copies and swaps move; `layers` are views into it."""

    storage: torch.Tensor
    layers: tuple[KvLayer, ...]
    block_size: int
    dtype: torch.dtype

    @property
    def num_blocks(self) -> int:
        """Blocks that hold tokens: the null block is not counted."""
        return self.storage.shape[1] - 1


def row_bytes(num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes that one token takes in one layer."""
    scales = 2 * num_kv_heads * 4 if dtype in QUANTIZED else 0
    return -(-(2 * num_kv_heads * head_dim * dtype.itemsize + scales) // 16) * 16


def allocate_kv_cache(
    num_layers: int,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    transpose_v: bool | None = None,
) -> KvCache:
    """A cache of zeros. `dtype`: fp32, fp16, bf16, or int8 and float8_e4m3fn with a scale per row and head.

    `transpose_v` None decides by device, type and block size. Raises `ValueError` for a block size that is no
    power of two up to 64 or another type.
    """
    require(block_size in (1, 2, 4, 8, 16, 32, 64), f"block_size must be 1, 2, 4, … or 64, not {block_size}.")
    known = (torch.float32, torch.float16, torch.bfloat16, *QUANTIZED)
    require(dtype in known, f"A KV cache is fp32, fp16, bf16, int8 or fp8 (e4m3), not {dtype}.")
    if transpose_v is None:
        # Below 16 tokens a block, a load of V's rows is no longer 16 bytes.
        transpose_v = dtype in QUANTIZED and block_size >= 16 and torch.device(device).type == "cuda"
    row = row_bytes(num_kv_heads, head_dim, dtype)
    storage = torch.zeros(num_layers, num_blocks + 1, block_size * row, dtype=torch.uint8, device=device)
    layers = tuple(
        _view(storage[layer], block_size, num_kv_heads, head_dim, dtype, transpose_v)
        for layer in range(num_layers)
    )
    return KvCache(storage, layers, block_size, dtype)


def _view(
    storage: torch.Tensor, block_size: int, heads: int, dim: int, dtype: torch.dtype, transpose_v: bool
) -> KvLayer:
    num_blocks, width = len(storage), heads * dim
    if transpose_v:
        part = block_size * width
        blocks = storage.view(dtype)
        k = blocks[:, :part].view(num_blocks, block_size, heads, dim)
        v = blocks[:, part : 2 * part].view(num_blocks, heads, dim, block_size).permute(0, 3, 1, 2)
        scales = storage[:, 2 * part : 2 * part + 8 * heads * block_size].view(torch.float32)
        k_scale, v_scale = scales.view(num_blocks, 2, block_size, heads).unbind(1)
        return KvLayer(k, v, k_scale, v_scale, None)
    bytes_of_rows = storage.view(num_blocks * block_size, -1)
    rows = bytes_of_rows.view(dtype)
    k, v = (
        rows.unflatten(0, (num_blocks, block_size))[:, :, part : part + width].unflatten(2, (heads, dim))
        for part in (0, width)
    )
    if dtype not in QUANTIZED:
        return KvLayer(k, v, None, None, rows)
    start = 2 * width
    scales = bytes_of_rows[:, start : start + 8 * heads].view(torch.float32)
    k_scale, v_scale = scales.view(num_blocks, block_size, 2, heads).unbind(2)
    return KvLayer(k, v, k_scale, v_scale, rows)
