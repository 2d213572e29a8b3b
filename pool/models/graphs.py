"""Decode steps as CUDA graphs: on a GPU, launching a layer's kernels one by one takes longer than they run.

A graph is captured for some batch sizes, over tensors that stay where they are; a step copies its numbers
into them, fills up to the next size with rows that are written nowhere, and replays. Steps with a chunk of a
prompt or drafts in them, and those that no graph is large enough for, are launched as they come.

Written without a GPU at hand: what a replay computes is tested in Triton's interpreter, the capture is not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from edgecloud.kernels.attention_plan import AttentionPlan, plan_attention

from ..plan import Item, StepPlan

log = logging.getLogger("edgecloud.pool")

Plans = dict[int | None, AttentionPlan]
# A row that is only there to fill a graph writes its KV nowhere.
NO_SLOT = -1
# How far keys are split is part of what is captured: a graph for a context of 131,072 launches 256 splits a
# row and head, and holds their sums, however short the answers are. So large batches have graphs for short
# contexts only; with long ones their attention outweighs its launches.
SHORT_CONTEXT = 8192
LONG_ROWS = 8


class Compute(Protocol):
    def __call__(
        self, tokens: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, plans: Plans
    ) -> torch.Tensor: ...


Record = Callable[[Callable[[], torch.Tensor]], Callable[[], torch.Tensor]]


class Shape(NamedTuple):
    """What a graph is captured for: `rows` decodes of at most `context` tokens."""

    rows: int
    context: int


@dataclass
class _Graph:
    """Standing tensors, and the replay that reads them: `numbers` int64 [3, rows] are tokens, positions and
    slots. `tables` int32 [rows, width] is the host's copy of the block tables, `held` what is in it."""

    numbers: torch.Tensor
    plans: Plans
    tables: torch.Tensor
    held: list[tuple[int, ...]]
    replay: Callable[[], torch.Tensor]


class DecodeGraphs:
    """Graphs of `compute` for batches up to `max_rows` decodes of at most `context` tokens.

    `record` turns a function into its replay; the default captures it, which takes a second or two a shape.
    What can't be captured, for want of memory say, is left out, and said in the log.
    """

    def __init__(
        self,
        compute: Compute,
        windows: Sequence[int | None],
        *,
        max_rows: int,
        context: int,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        record: Record | None = None,
    ) -> None:
        self._compute = compute
        self._windows = set(windows)
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._device = device
        self._graphs: dict[Shape, _Graph] = {}
        record = record or _Capture()
        # The largest first: the others fit into the memory that it takes.
        for shape in sorted(shapes(max_rows, context), key=lambda each: -each.rows * each.context):
            try:
                self._graphs[shape] = self._record(shape, record)
            except RuntimeError as error:
                log.warning("no CUDA graph for %d decodes of %d tokens: %s", *shape, error)
        self._shapes = sorted(self._graphs)

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def run(self, plan: StepPlan) -> torch.Tensor | None:
        """[rows, hidden] of a step, or None for one that has no graph."""
        num_rows = len(plan.tokens)
        if num_rows != len(plan.items):
            return None
        longest = max(plan.positions) + 1
        shape = next(
            (each for each in self._shapes if each.rows >= num_rows and each.context >= longest), None
        )
        if shape is None:
            return None
        graph, padding = self._graphs[shape], shape.rows - num_rows
        numbers = [
            [*plan.tokens, *[0] * padding],
            [*plan.positions, *[0] * padding],
            [*plan.slots, *[NO_SLOT] * padding],
        ]
        # From memory that is not pinned, a copy has left it before the call returns.
        graph.numbers.copy_(torch.tensor(numbers), non_blocking=True)
        lengths = torch.tensor(
            [*(position + 1 for position in plan.positions), *[1] * padding], dtype=torch.int32
        )
        has_moved = self._update_tables(graph, plan.items)
        for attention in graph.plans.values():
            if has_moved:
                attention.tables.block_tables.copy_(graph.tables, non_blocking=True)
            attention.tables.context_lens.copy_(lengths, non_blocking=True)
        return graph.replay()[:num_rows]

    def _update_tables(self, graph: _Graph, items: Sequence[Item]) -> bool:
        """Bring the host's copy up to date; False when it was. A sequence gets a block once in many steps, so
        most rows are as they were.

        Rows that fill up have a context of one token, and what they read of an old table concerns nobody.
        """
        width = graph.tables.shape[1]
        has_moved = False
        for row, item in enumerate(items):
            # Drafts that fell may have left it blocks beyond what the graph reads.
            table = item.table[:width]
            if graph.held[row] != table:
                graph.tables[row, : len(table)] = torch.tensor(table, dtype=torch.int32)
                graph.held[row] = table
                has_moved = True
        return has_moved

    def _record(self, shape: Shape, record: Record) -> _Graph:
        rows, context = shape
        width = -(-context // self._block_size)
        numbers = torch.zeros(3, rows, dtype=torch.int64, device=self._device)
        tokens, positions, slots = numbers
        slots.fill_(NO_SLOT)
        # The longest context there is, in the null block.
        table = (self._num_blocks,) * width
        plans = {
            window: plan_attention(
                range(rows + 1),
                [context] * rows,
                [table] * rows,
                self._block_size,
                window=window,
                device=self._device,
            )
            for window in self._windows
        }
        replay = record(lambda: self._compute(tokens, positions, slots, plans))
        tables = torch.full((rows, width), self._num_blocks, dtype=torch.int32)
        return _Graph(numbers, plans, tables, [()] * rows, replay)


def shapes(max_rows: int, context: int) -> list[Shape]:
    """What to capture, so that every batch up to `max_rows` has a graph, and few long ones do."""
    short = min(context, SHORT_CONTEXT)
    sizes = sizes_up_to(max_rows)
    long = [Shape(size, context) for size in sizes if size <= LONG_ROWS and context > short]
    return [*(Shape(size, short) for size in sizes), *long]


def sizes_up_to(max_rows: int) -> list[int]:
    """1, 2, 4, 8, then every 8: few enough to capture, near enough that little is computed for nothing."""
    small = [size for size in (1, 2, 4) if size < max_rows]
    return small + list(range(8, max_rows + 8, 8)) if max_rows > 4 else [*small, max_rows]


class _Capture:
    """Records into CUDA graphs that share one pool of memory: they are replayed one at a time, and what one
    gives is read before the next."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        # Twice before: kernels are compiled, libraries make their plans, and the attention plan its tables,
        # outside of the capture.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # What other threads do meanwhile is none of its business.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay
