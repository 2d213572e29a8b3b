"""What attention over a paged cache must know of a step, worked out once and used by every layer.

A step is a flat batch: sequence i owns the query rows `offsets[i]` to `offsets[i + 1]`, which are the last
tokens of its `context_lens[i]` tokens; its keys are in the blocks of `block_tables[i]`. One row is a
decode, more are a chunk of a prompt or drafts to verify. A row at position p sees keys p - window + 1 to p,
or 0 to p without window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch

from .dispatch import cdiv, require


class Group(NamedTuple):
    """Sequences that one call of torch's attention answers on a CPU: decodes of like length, or one chunk.

    `rows` are their query rows `[sequences * queries]`, `slots` `[sequences * keys]` the keys, `mask`
    `[sequences, 1, queries, keys]` is added to the scores; None means causal from the first key on.
    """

    rows: torch.Tensor
    num_queries: int
    num_keys: int
    slots: torch.Tensor
    mask: torch.Tensor | None


class DeviceTables(NamedTuple):
    """The plan on a device, int32: `block_tables` `[sequences, width]`, `context_lens` `[sequences]` and
    `offsets` `[sequences + 1]`. A captured graph is replayed for other numbers by copying them in here."""

    block_tables: torch.Tensor
    context_lens: torch.Tensor
    offsets: torch.Tensor


@dataclass(frozen=True)
class AttentionPlan:
    """Made by `plan_attention`. What a form of the kernels needs is derived at its first use."""

    offsets: Sequence[int]
    context_lens: Sequence[int]
    block_tables: Sequence[Sequence[int]]
    block_size: int
    window: int | None
    device: torch.device
    _tiles: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Query rows of the whole step."""
        return self.offsets[-1]

    @property
    def num_sequences(self) -> int:
        return len(self.context_lens)

    def first_key(self, sequence: int) -> int:
        """Position of the oldest key that any query of this sequence sees."""
        num_queries = self.offsets[sequence + 1] - self.offsets[sequence]
        return max(0, self.context_lens[sequence] - num_queries + 1 - self.window) if self.window else 0

    def slots(self, sequence: int, start: int, end: int) -> torch.Tensor:
        """Where the keys at positions `start` to `end` are, int64: block * block_size + offset."""
        size = self.block_size
        blocks = torch.tensor(self.block_tables[sequence][start // size : cdiv(end, size)], dtype=torch.int64)
        slots = (blocks.unsqueeze(1) * size + torch.arange(size)).flatten()
        return slots[start % size : start % size + end - start]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Decodes whose keys, rounded up, are equally many share a group: a row's result then depends on
        its own length and never on its neighbours."""
        decodes: dict[int, list[int]] = {}
        groups: list[Group] = []
        for sequence, context in enumerate(self.context_lens):
            num_queries = self.offsets[sequence + 1] - self.offsets[sequence]
            if num_queries == 1:
                decodes.setdefault(_round_up(context - self.first_key(sequence)), []).append(sequence)
            elif num_queries > 1:
                groups.append(self._chunk(sequence))
        return (*(self._decodes(num_keys, members) for num_keys, members in decodes.items()), *groups)

    def _decodes(self, num_keys: int, members: list[int]) -> Group:
        mask = torch.zeros(len(members), 1, 1, num_keys)
        slots: list[torch.Tensor] = []
        for i, sequence in enumerate(members):
            own = self.slots(sequence, self.first_key(sequence), self.context_lens[sequence])
            mask[i, :, :, len(own) :] = float("-inf")
            # Padding reads a live slot: stale memory may hold NaN, and 0 * NaN would reach the sum.
            slots += own, own[-1].expand(num_keys - len(own))
        rows = torch.tensor([self.offsets[sequence] for sequence in members])
        return Group(rows, 1, num_keys, torch.cat(slots), mask)

    def _chunk(self, sequence: int) -> Group:
        rows = torch.arange(self.offsets[sequence], self.offsets[sequence + 1])
        first, end = self.first_key(sequence), self.context_lens[sequence]
        slots = self.slots(sequence, first, end)
        mask = None
        if self.window or len(rows) != end:
            keys = torch.arange(first, end)
            queries = torch.arange(end - len(rows), end).unsqueeze(1)
            dead = keys > queries
            if self.window:
                dead |= keys <= queries - self.window
            mask = torch.zeros(dead.shape).masked_fill_(dead, float("-inf"))[None, None]
        return Group(rows, len(rows), end - first, slots, mask)

    @cached_property
    def tables(self) -> DeviceTables:
        """For the Triton kernel. Tables are as wide as the longest; their tails are never read."""
        width = max((len(table) for table in self.block_tables), default=0)
        padded = [[*table, *[0] * (width - len(table))] for table in self.block_tables]
        tables, lens, offsets = (
            torch.tensor(numbers, dtype=torch.int32, device=self.device)
            for numbers in (padded, self.context_lens, self.offsets)
        )
        return DeviceTables(tables.reshape(len(padded), width), lens, offsets)

    @cached_property
    def max_keys(self) -> int:
        """Keys that a decode, or up to 16 drafts, may look at, whole steps of the Triton kernel."""
        longest = max(self.context_lens, default=0)
        return longest if self.window is None else min(longest, self.window + 15 + 63)

    def tiles(self, queries: int, least: int, most: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Work for the Triton kernel: tiles of up to `queries` queries of the sequences that have `least`
        to `most`.

        `[tiles, 2]` int32 (sequence, first query), longest contexts first, and the query row of each place
        in them, `[tiles * queries]` int32, -1 for none.
        """
        key = (queries, least, most)
        if key not in self._tiles:
            tiles = [
                (sequence, first)
                for sequence in sorted(range(self.num_sequences), key=lambda each: -self.context_lens[each])
                if least <= (count := self.offsets[sequence + 1] - self.offsets[sequence]) <= most
                for first in range(0, count, queries)
            ]
            rows = [
                row if row < self.offsets[sequence + 1] else -1
                for sequence, first in tiles
                for row in range(self.offsets[sequence] + first, self.offsets[sequence] + first + queries)
            ]
            self._tiles[key] = (
                torch.tensor(tiles, dtype=torch.int32, device=self.device),
                torch.tensor(rows, dtype=torch.int32, device=self.device),
            )
        return self._tiles[key]


def plan_attention(
    offsets: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
    *,
    window: int | None = None,
    device: torch.device | str = "cpu",
) -> AttentionPlan:
    """The plan of one step; see this module for the meaning of each.

    `context_lens` count the step's own tokens, whose keys must be written before attention is asked. Block
    tables may be longer than needed. Raises `ValueError` where the numbers contradict each other.
    """
    require(len(offsets) == len(context_lens) + 1 == len(block_tables) + 1, "One offset more than sequences.")
    require(window is None or window >= 1, f"A window holds at least one token, not {window}.")
    for i, (context, table) in enumerate(zip(context_lens, block_tables, strict=True)):
        num_queries = offsets[i + 1] - offsets[i]
        require(
            0 <= num_queries <= context and cdiv(context, block_size) <= len(table),
            f"Sequence {i} has {num_queries} queries, {context} tokens, {len(table)} blocks of {block_size}.",
        )
    return AttentionPlan(offsets, context_lens, block_tables, block_size, window, torch.device(device))


def _round_up(num_keys: int) -> int:
    """In steps that grow with the length, so that lengths near each other share a group and few keys are
    idle."""
    step = 32
    while num_keys > 8 * step:
        step *= 2
    return cdiv(num_keys, step) * step
