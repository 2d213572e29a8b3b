"""Decode steps as CUDA graphs: on a GPU, launching a layer's kernels one by one takes longer than they run.

A graph is captured for some batch sizes, over tensors that stay where they are; a step copies its numbers
into them, fills up to the next size with rows that are written nowhere, and replays. Steps with a chunk of a
prompt or drafts in them, or more rows than the largest graph, are launched as they come.

Written without a GPU at hand: what a replay computes is tested in Triton's interpreter, the capture is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from edgecloud.kernels.attention_plan import AttentionPlan, plan_attention

from ..plan import StepPlan

Plans = dict[int | None, AttentionPlan]
# A row that is only there to fill a graph writes its KV nowhere.
NO_SLOT = -1


class Compute(Protocol):
    def __call__(
        self, tokens: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, plans: Plans
    ) -> torch.Tensor: ...


Record = Callable[[Callable[[], torch.Tensor]], Callable[[], torch.Tensor]]


class _Graph(NamedTuple):
    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    plans: Plans
    replay: Callable[[], torch.Tensor]


class DecodeGraphs:
    """Graphs of `compute` for batches up to `max_rows` decodes of at most `context` tokens.

    `record` turns a function into its replay; the default captures it, which takes a second or two a size.
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
        self._width = -(-context // block_size)
        self._num_blocks = num_blocks
        record = record or _Capture()
        self._graphs: dict[int, _Graph] = {}
        # The largest first: the others fit into the memory that it takes.
        for size in reversed(sizes_up_to(max_rows)):
            tokens, positions = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(2))
            slots = torch.full((size,), NO_SLOT, dtype=torch.int64, device=device)
            # The longest context there is: how far keys are split is part of what is captured.
            table = (num_blocks,) * self._width
            plans = {
                window: plan_attention(
                    range(size + 1),
                    [context] * size,
                    [table] * size,
                    block_size,
                    window=window,
                    device=device,
                )
                for window in set(windows)
            }

            def run(
                tokens: torch.Tensor = tokens,
                positions: torch.Tensor = positions,
                slots: torch.Tensor = slots,
                plans: Plans = plans,
            ) -> torch.Tensor:
                return compute(tokens, positions, slots, plans)

            self._graphs[size] = _Graph(tokens, positions, slots, plans, record(run))

    def run(self, plan: StepPlan) -> torch.Tensor | None:
        """[rows, hidden] of a step, or None for one that has no graph."""
        num_rows = len(plan.tokens)
        size = next((size for size in sorted(self._graphs) if size >= num_rows), None)
        if size is None or num_rows != len(plan.items):
            return None
        graph, padding = self._graphs[size], size - num_rows
        graph.tokens.copy_(torch.tensor([*plan.tokens, *[0] * padding]), non_blocking=True)
        graph.positions.copy_(torch.tensor([*plan.positions, *[0] * padding]), non_blocking=True)
        graph.slots.copy_(torch.tensor([*plan.slots, *[NO_SLOT] * padding]), non_blocking=True)
        tables = torch.full((size, self._width), self._num_blocks, dtype=torch.int32)
        for row, item in enumerate(plan.items):
            tables[row, : len(item.table)] = torch.tensor(item.table, dtype=torch.int32)
        lengths = [item.start + 1 for item in plan.items] + [1] * padding
        for attention in graph.plans.values():
            attention.tables.block_tables.copy_(tables, non_blocking=True)
            attention.tables.context_lens.copy_(torch.tensor(lengths, dtype=torch.int32), non_blocking=True)
        return graph.replay()[:num_rows]


def sizes_up_to(max_rows: int) -> list[int]:
    """1, 2, 4, 8, then every 8: few enough to capture, near enough that little is computed for nothing."""
    small = [size for size in (1, 2, 4) if size < max_rows]
    return small + list(range(8, max_rows + 8, 8)) if max_rows > 4 else [*small, max_rows]


class _Capture:
    """Records into CUDA graphs that share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        # Twice before: kernels are compiled, and libraries make their plans, outside of the capture.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            out = run()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay
