"""Decode graphs: which sizes there are, which steps they take, and that a replay computes the step."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from edgecloud.pool.models.graphs import DecodeGraphs, Plans, Shape, shapes, sizes_up_to
from edgecloud.pool.plan import Item, StepPlan
from tests.packaging.conftest import ROOT

NUM_BLOCKS, BLOCK = 5000, 16


class Recorder:
    """Stands in for the layers and for the capture: keeps what every replay was given."""

    def __init__(self, most_rows: int = 1000) -> None:
        self.most_rows = most_rows
        self.given: list[tuple[list[int], list[int], list[list[int]], list[int]]] = []

    def compute(
        self, tokens: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, plans: Plans
    ) -> torch.Tensor:
        tables = plans[None].tables
        if len(tokens) > self.most_rows:
            raise RuntimeError("out of memory")
        self.given.append(
            (tokens.tolist(), slots.tolist(), tables.block_tables.tolist(), tables.context_lens.tolist())
        )
        return positions.unsqueeze(1).float()

    def graphs(self, max_rows: int, context: int) -> DecodeGraphs:
        def record(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
            run()
            return run

        graphs = DecodeGraphs(
            self.compute,
            (None,),
            max_rows=max_rows,
            context=context,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK,
            device=torch.device("cpu"),
            record=record,
        )
        self.given.clear()
        return graphs


def decodes(*starts: int, extra_blocks: int = 0) -> StepPlan:
    """One token for each sequence, of which so many are computed already."""
    items = tuple(
        Item(
            row,
            row,
            0,
            start,
            1,
            0,
            1,
            tuple(range(100 * row, 100 * row + start // BLOCK + 1 + extra_blocks)),
        )
        for row, start in enumerate(starts)
    )
    slots = [item.table[item.start // BLOCK] * BLOCK + item.start % BLOCK for item in items]
    tokens = [7 + row for row in range(len(starts))]
    return StepPlan(0, items, tokens, list(starts), slots, list(range(len(starts) + 1)), (), (), (), (), ())


def test_the_sizes_reach_every_batch_and_waste_little() -> None:
    assert sizes_up_to(1) == [1]
    assert sizes_up_to(3) == [1, 2, 3]
    assert sizes_up_to(20) == [1, 2, 4, 8, 16, 24]


def test_large_batches_have_graphs_for_short_contexts_and_small_ones_for_all() -> None:
    assert shapes(20, 4096) == [Shape(rows, 4096) for rows in (1, 2, 4, 8, 16, 24)]
    long = [Shape(rows, 131072) for rows in (1, 2, 4, 8)]
    assert shapes(20, 131072) == [*(Shape(rows, 8192) for rows in (1, 2, 4, 8, 16, 24)), *long]


def test_a_step_fills_the_smallest_graph_that_holds_it() -> None:
    recorder = Recorder()
    graphs = recorder.graphs(8, 256)
    hidden = graphs.run(decodes(40, 3, 17))
    assert hidden is not None
    assert hidden.flatten().tolist() == [40, 3, 17]
    tokens, slots, tables, lens = recorder.given[0]
    assert tokens == [7, 8, 9, 0]
    assert slots == [2 * BLOCK + 8, 100 * BLOCK + 3, 201 * BLOCK + 1, -1]
    assert lens == [41, 4, 18, 1]
    assert [table[:3] for table in tables[:3]] == [
        [0, 1, 2],
        [100, NUM_BLOCKS, NUM_BLOCKS],
        [200, 201, NUM_BLOCKS],
    ]


def test_every_replay_reads_the_tables_of_its_own_step() -> None:
    recorder = Recorder()
    graphs = recorder.graphs(2, 256)
    for starts in ((15, 30), (16, 31), (17, 32), (90, 2)):
        plan = decodes(*starts)
        graphs.run(plan)
        for item, table in zip(plan.items, recorder.given[-1][2], strict=True):
            assert tuple(table[: len(item.table)]) == item.table


def test_blocks_beyond_what_a_graph_reads_are_left_out() -> None:
    recorder = Recorder()
    graphs = recorder.graphs(1, 64)
    assert graphs.run(decodes(63, extra_blocks=2)) is not None
    assert recorder.given[0][2] == [[0, 1, 2, 3]]


def test_long_contexts_have_graphs_in_small_batches_only() -> None:
    recorder = Recorder()
    graphs = recorder.graphs(16, 20000)
    assert graphs.run(decodes(9000, 3)) is not None
    assert len(recorder.given[0][2][0]) == 20000 // BLOCK
    assert graphs.run(decodes(*[3] * 9)) is not None
    assert len(recorder.given[1][2][0]) == 8192 // BLOCK
    assert graphs.run(decodes(9000, *[3] * 8)) is None
    assert graphs.run(decodes(*[3] * 17)) is None


def test_chunks_and_drafts_are_launched_as_they_come() -> None:
    plan = decodes(3, 4)
    chunk = plan.items[1]._replace(num_tokens=2)
    plan = plan._replace(
        items=(plan.items[0], chunk),
        tokens=[1, 2, 3],
        positions=[3, 4, 5],
        slots=[1, 2, 3],
        offsets=[0, 1, 3],
    )
    assert Recorder().graphs(8, 256).run(plan) is None


def test_what_can_not_be_captured_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(most_rows=4)
    graphs = recorder.graphs(16, 256)
    assert graphs.num_graphs == 3
    assert "no CUDA graph for 16 decodes of 256 tokens: out of memory" in caplog.text
    assert graphs.run(decodes(1, 2, 3)) is not None
    assert graphs.run(decodes(*[1] * 5)) is None


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no triton here")
def test_a_replay_gives_what_a_plain_step_gives() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.pool.interpreted_graphs"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.strip() == "same", result.stderr[-3000:]
