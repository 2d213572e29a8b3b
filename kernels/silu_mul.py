"""The gate of a Llama MLP.

    out = silu(gate) * up                silu(g) = g / (1 + exp(-g))

`gate_up` is `[tokens, 2 * size]`, gate then up, the output of the fused projection; `out` is `[tokens,
size]`.

One program a row and 1,024 columns: three reads or writes an element, so memory sets the time.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import torch.nn.functional as F

from .dispatch import cdiv, jit, on_triton, require, tl

BLOCK = 1024


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.double().chunk(2, -1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)


def silu_mul_cpu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


@jit
@no_type_check
def _silu_mul_kernel(GATE_UP, OUT, stride_token: tl.int64, size, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_row = at < size
    gate = tl.load(GATE_UP + token * stride_token + at, mask=in_row, other=0.0).to(tl.float32)
    up = tl.load(GATE_UP + token * stride_token + size + at, mask=in_row, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(OUT + token * size + at, y.to(OUT.dtype.element_ty), mask=in_row)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of each row. Raises `ValueError` for an odd width."""
    require(
        gate_up.dim() == 2 and gate_up.shape[1] % 2 == 0, f"gate_up is {tuple(gate_up.shape)}: an even width."
    )
    if on_triton(gate_up):
        require(gate_up.stride(1) == 1, "The elements of a row are neighbours.")
        size = gate_up.shape[1] // 2
        out = torch.empty(len(gate_up), size, dtype=gate_up.dtype, device=gate_up.device)
        if out.numel():
            grid = (len(gate_up), cdiv(size, BLOCK))
            _silu_mul_kernel[grid](gate_up, out, gate_up.stride(0), size, BLOCK=BLOCK)
        return out
    return silu_mul_cpu(gate_up)
