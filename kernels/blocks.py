"""Moving whole blocks of a KV cache: copy-on-write, and swaps between device and host memory.

    target[:, b] = source[:, a]   for each pair (a, b)

`source` and `target` are `KvCache.storage`, `[num_layers, blocks, block bytes]` uint8: a block's row holds
its K, V and scales, so one copy moves all of them, of any type. All sources are read as they were before
the call.

The kernel copies within one GPU, 8-byte words, one program a pair, a layer and 16 KiB. Between GPU and host
the bus sets the time and torch's copies do as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import torch

from .dispatch import cdiv, jit, on_triton, require, tl

Pairs = Sequence[tuple[int, int]]
BLOCK = 2048


def copy_blocks_reference(storage: torch.Tensor, pairs: Pairs) -> None:
    before = storage.clone()
    for source, target in pairs:
        storage[:, target] = before[:, source]


def copy_blocks_cpu(storage: torch.Tensor, pairs: Pairs) -> None:
    sources, targets = zip(*pairs, strict=True)
    storage[:, list(targets)] = storage[:, list(sources)]


@jit
@no_type_check
def _copy_blocks_kernel(
    STORAGE, PAIRS, stride_layer: tl.int64, stride_block: tl.int64, num_words, BLOCK: tl.constexpr
):
    pair, layer = tl.program_id(0), tl.program_id(1)
    source = tl.load(PAIRS + 2 * pair).to(tl.int64)
    target = tl.load(PAIRS + 2 * pair + 1).to(tl.int64)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    base = STORAGE + layer * stride_layer + at
    words = tl.load(base + source * stride_block, mask=at < num_words, other=0)
    tl.store(base + target * stride_block, words, mask=at < num_words)


def _launch(storage: torch.Tensor, pairs: Pairs) -> None:
    # Rows are padded to 16 bytes.
    words = storage.view(torch.int64)
    table = torch.tensor(pairs, dtype=torch.int32, device=storage.device)
    grid = (len(pairs), words.shape[0], cdiv(words.shape[2], BLOCK))
    _copy_blocks_kernel[grid](
        words, table, words.stride(0), words.stride(1), words.shape[2], BLOCK=BLOCK, num_warps=8
    )


def copy_blocks(storage: torch.Tensor, pairs: Pairs) -> None:
    """Copy blocks within one cache, in place. Raises `ValueError` if two pairs have one target."""
    if not pairs:
        return
    targets = {target for _, target in pairs}
    require(len(targets) == len(pairs), f"Two of these copies write the same block: {list(pairs)}.")
    # A chain (a to b, b to c) goes the other way on a GPU too: programs have no order, so one could read what
    # another has written.
    if on_triton(storage) and targets.isdisjoint(source for source, _ in pairs):
        _launch(storage, pairs)
    else:
        copy_blocks_cpu(storage, pairs)


def move_blocks(source: torch.Tensor, target: torch.Tensor, pairs: Pairs) -> None:
    """Copy blocks from one tier to another, in place. A GPU's side is gathered or spread there, so that what
    crosses the bus is one contiguous piece, and the call returns when it has arrived."""
    if not pairs:
        return
    sources, targets = (torch.tensor(ids) for ids in zip(*pairs, strict=True))
    require(len(targets.unique()) == len(pairs), f"Two of these moves write the same block: {list(pairs)}.")
    moved = source.index_select(1, sources.to(source.device)).to(target.device)
    target.index_copy_(1, targets.to(target.device), moved)
