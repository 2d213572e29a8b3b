"""A decoder whose logits are a row of a table: the next token depends on the last one only."""

from __future__ import annotations

import torch

from edgecloud.kernels.kv_cache import allocate_kv_cache
from edgecloud.pool.plan import StepPlan
from edgecloud.pool.runner import RunnerFacts
from edgecloud.pool.torch_runner import TorchRunner


class TableDecoder:
    """Implements `Decoder`; `table` is float32 [vocabulary, vocabulary]."""

    def __init__(self, table: torch.Tensor, num_blocks: int, block_size: int) -> None:
        self.kv = allocate_kv_cache(1, num_blocks, block_size, 1, 16)
        self.table = table

    def forward(self, plan: StepPlan) -> torch.Tensor:
        return torch.tensor(plan.tokens, dtype=torch.float32).unsqueeze(1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.table[hidden.squeeze(1).long()].clone()


def table_runner(table: torch.Tensor, num_blocks: int = 64, block_size: int = 16) -> TorchRunner:
    facts = RunnerFacts("table", "cpu", len(table), 1024, block_size, 1, "float32")
    return TorchRunner(TableDecoder(table, num_blocks, block_size), facts)
