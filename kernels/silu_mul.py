"""The gate of a Llama MLP.

    out = silu(gate) * up                silu(g) = g / (1 + exp(-g))

`gate_up` is `[tokens, 2 * size]`, gate then up, the output of the fused projection; `out` is `[tokens,
size]`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .dispatch import on_triton, require


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.double().chunk(2, -1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)


def silu_mul_cpu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of each row. Raises `ValueError` for an odd width."""
    require(
        gate_up.dim() == 2 and gate_up.shape[1] % 2 == 0, f"gate_up is {tuple(gate_up.shape)}: an even width."
    )
    if on_triton(gate_up):
        raise NotImplementedError
    return silu_mul_cpu(gate_up)
