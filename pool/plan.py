"""What one step of the engine does, as plain numbers: the scheduler writes it, a runner carries it out.

A runner executes, in this order and before anything of the next plan:

    1 swap_outs   device block -> host block     (their device blocks may be written again in this very step)
    2 swap_ins    host block -> device block
    3 copies      device block -> device block   (copy-on-write; all sources are read as they were)
    4 the forward pass over `tokens`, whose KV goes to `slots`
    5 one draw per sample

and answers with `Scheduler.commit`, or `Scheduler.fail` if any of it went wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .blocks import BlockPool, Copy
from .sequence import Ended, Sequence


class Item(NamedTuple):
    """One sequence's part of the batch: positions `start` to `start + num_tokens`.

    The last `num_drafts` tokens are proposals to verify. `num_samples` draws are wanted after the last token:
    0 for a chunk that does not reach the end, n for the step that completes the prompt of a request with n
    choices, else 1; draw k is for choice `choice + k`. `table` lists the device blocks from position 0 on.
    """

    sequence_id: int
    request_id: int
    choice: int
    start: int
    num_tokens: int
    num_drafts: int
    num_samples: int
    table: tuple[int, ...]


class StepPlan(NamedTuple):
    """A flat batch of varying lengths. `tokens`, `positions` and `slots` (block * block_size + offset) have
    one entry per token, items one after the other; item i owns `offsets[i]` to `offsets[i + 1]`.

    `ended` are the requests whose deadline passed at this boundary; `preempted` the sequences that gave way.
    """

    id: int
    items: tuple[Item, ...]
    tokens: list[int]
    positions: list[int]
    slots: list[int]
    offsets: list[int]
    swap_outs: tuple[Copy, ...]
    swap_ins: tuple[Copy, ...]
    copies: tuple[Copy, ...]
    preempted: tuple[int, ...]
    ended: tuple[Ended, ...]

    @property
    def is_empty(self) -> bool:
        """Nothing to execute; such a plan needs no commit."""
        return not self.items and not self.swap_outs


class Drawn(NamedTuple):
    """What one draw gave: the tokens up to and including the one that ends the choice, if one does.

    More than one only when drafts were accepted.
    """

    tokens: tuple[int, ...]
    stop: bool = False


class StepBuilder:
    """A plan in the making: what was planned for a sequence can be taken back until the step is launched."""

    def __init__(self, id: int, budget: int) -> None:
        self.id = id
        self.budget = budget
        self.planned: dict[Sequence, int] = {}
        self.preempted: list[Sequence] = []
        self._copies: dict[int, int] = {}
        self._swap_outs: list[Copy] = []
        self._swap_ins: list[Copy] = []

    def add(self, sequence: Sequence, num_tokens: int, copy: Copy | None) -> None:
        self.planned[sequence] = num_tokens
        self.budget -= num_tokens
        if copy is not None:
            self._copies[copy.target] = copy.source

    def swap_in(self, copies: list[Copy]) -> None:
        self._swap_ins.extend(copies)

    def take_back(self, sequence: Sequence) -> Callable[[int], int]:
        """Undo a sequence's place in the step before it is pre-empted, and give its budget back.

        Returns where the content of each of its blocks is at the start of the step: a block that was to be
        filled by a copy is still empty, so a swap must read the copy's source.
        """
        self.budget += self.planned.pop(sequence, 0)
        undone = {block: self._copies.pop(block) for block in sequence.table.blocks if block in self._copies}
        return lambda block: undone.get(block, block)

    def preempt(self, sequence: Sequence, swap_outs: list[Copy]) -> None:
        self.preempted.append(sequence)
        self._swap_outs.extend(swap_outs)

    def build(self, pool: BlockPool, ended: list[Ended]) -> StepPlan:
        """The plan as runners read it: one flat batch, a position and a slot for each token."""
        items: list[Item] = []
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        offsets = [0]
        for sequence, num_tokens in self.planned.items():
            start = sequence.num_computed
            end = start + num_tokens
            num_known = len(sequence.tokens)
            num_drafts = 0
            if num_tokens == 1:
                # The common case, a decode, spelt out: this loop is most of what a step costs.
                block, offset = divmod(start, pool.block_size)
                tokens.append(sequence.tokens[start])
                positions.append(start)
                slots.append(sequence.table.blocks[block] * pool.block_size + offset)
            else:
                num_drafts = max(end - num_known, 0)
                tokens.extend(sequence.tokens[start:end])
                tokens.extend(sequence.drafts[:num_drafts])
                positions.extend(range(start, end))
                slots.extend(pool.slots(sequence.table, start, end))
            offsets.append(len(tokens))
            items.append(
                Item(
                    sequence.id,
                    sequence.request.id,
                    sequence.choice,
                    start,
                    num_tokens,
                    num_drafts,
                    sequence.width if end >= num_known and sequence.num_left else 0,
                    tuple(sequence.table.blocks),
                )
            )
        return StepPlan(
            self.id,
            tuple(items),
            tokens,
            positions,
            slots,
            offsets,
            tuple(self._swap_outs),
            tuple(self._swap_ins),
            tuple(Copy(source, target) for target, source in self._copies.items()),
            tuple(sequence.id for sequence in self.preempted),
            tuple(ended),
        )
