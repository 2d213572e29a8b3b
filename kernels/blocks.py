"""Moving whole blocks of a KV cache: copy-on-write, and swaps between device and host memory.

    target[:, b] = source[:, a]   for each pair (a, b)

`source` and `target` are `KvCache.storage`, `[num_layers, blocks, block bytes]` uint8: a block's row holds
its K, V and scales, so one copy moves all of them, of any type. All sources are read as they were before
the call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .dispatch import on_triton, require

Pairs = Sequence[tuple[int, int]]


def copy_blocks_reference(storage: torch.Tensor, pairs: Pairs) -> None:
    before = storage.clone()
    for source, target in pairs:
        storage[:, target] = before[:, source]


def copy_blocks_cpu(storage: torch.Tensor, pairs: Pairs) -> None:
    sources, targets = zip(*pairs, strict=True)
    storage[:, list(targets)] = storage[:, list(sources)]


def copy_blocks(storage: torch.Tensor, pairs: Pairs) -> None:
    """Copy blocks within one cache, in place. Raises `ValueError` if two pairs have one target."""
    if not pairs:
        return
    targets = {target for _, target in pairs}
    require(len(targets) == len(pairs), f"Two of these copies write the same block: {list(pairs)}.")
    if on_triton(storage):
        raise NotImplementedError
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
