"""Which prefixes a replica holds, for whoever has to choose between replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .blocks import BlockTable
from .prefix import Namespace
from .scheduler import Scheduler

# Enough of a hash to tell blocks apart: a false match among a million costs a router one wrong guess in
# eighteen trillion.
HEAD_BYTES = 8


class HeldPrefixes(NamedTuple):
    """`heads` are the first bytes of the chained hashes (`prefix.py`) of blocks in memory, as hexadecimal
    digits; a chain is held from its beginning, so the longest held one is the hit. `version` grows when any
    is added.
    """

    block_size: int
    version: int
    num_blocks: int
    heads: list[str]


def held_prefixes(scheduler: Scheduler, limit: int) -> HeldPrefixes:
    """The `limit` names that were added last."""
    index = scheduler.pool.prefix
    nodes = list(index)
    return HeldPrefixes(
        scheduler.config.block_size,
        index.version,
        len(nodes),
        [node.hash[:HEAD_BYTES].hex() for node in nodes[max(len(nodes) - limit, 0) :]],
    )


def held_tokens(scheduler: Scheduler, namespace: Namespace, prompt: Sequence[int]) -> int:
    """How many tokens of a prompt would not have to be computed now."""
    hit = scheduler.pool.match(BlockTable(namespace), prompt)
    return len(hit) * scheduler.config.block_size
