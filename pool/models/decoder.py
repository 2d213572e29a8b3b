"""The contract of a decoder: a step's tokens in, hidden states out, keys and values kept on the way."""

from __future__ import annotations

from typing import Protocol

import torch

from edgecloud.kernels.kv_cache import KvCache

from ..plan import StepPlan


class Decoder(Protocol):
    """One model with its KV memory, used by one thread."""

    kv: KvCache

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Compute a step: float [tokens, hidden], valid until the next call. KV goes to the plan's slots."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [rows, vocabulary] of some rows of what `forward` gave."""


def rotary_tables(frequencies: tuple[float, ...], context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of every position's angles, float32 [context, head_dim / 2]."""
    # In float32 as the models were trained: an exact angle is another angle at position 8,000.
    angles = torch.outer(torch.arange(context, dtype=torch.float32), torch.tensor(frequencies))
    return angles.cos(), angles.sin()
