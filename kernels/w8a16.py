"""W8A16: a linear layer on 8-bit weights in groups along the inputs (GGUF Q8_0), activations as they are.

    y = x · w + bias                w[k, n] = code[k, n] * scale[k // g, n]

`x` is `[tokens, inputs]`, `codes` int8 `[inputs, outputs]`, `scale` fp16 `[inputs / g, outputs]`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .dispatch import on_triton, require
from .grouped_matmul import launch_grouped_matmul


class GroupedInt8Weight(NamedTuple):
    """`codes` `[inputs, outputs]` int8, `scale` `[inputs / g, outputs]` fp16."""

    codes: torch.Tensor
    scale: torch.Tensor


def dequantize_grouped_int8(weight: GroupedInt8Weight) -> torch.Tensor:
    """`[inputs, outputs]` fp32."""
    codes = weight.codes.view(len(weight.scale), -1, weight.codes.shape[1]).float()
    return (codes * weight.scale.float().unsqueeze(1)).flatten(0, 1)


def grouped_int8_linear_reference(
    x: torch.Tensor, weight: GroupedInt8Weight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    y = x.double() @ dequantize_grouped_int8(weight).double()
    return (y if bias is None else y + bias.double()).to(x.dtype)


def grouped_int8_linear_cpu(
    x: torch.Tensor, weight: GroupedInt8Weight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Dequantised at each call: it saves memory, not time. On a CPU, `w8a8.py` is the fast one."""
    y = x.float() @ dequantize_grouped_int8(weight)
    return (y if bias is None else y.add_(bias)).to(x.dtype)


def grouped_int8_linear(
    x: torch.Tensor, weight: GroupedInt8Weight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`[tokens, outputs]` in the type of `x`. Raises `ValueError` for shapes that don't fit."""
    require(
        x.dim() == 2 and x.shape[1] == weight.codes.shape[0],
        f"x is {tuple(x.shape)}, and the weight has {weight.codes.shape[0]} inputs.",
    )
    if on_triton(x):
        return launch_grouped_matmul(x, weight.codes, weight.scale, None, bias, 8, False)
    return grouped_int8_linear_cpu(x, weight, bias)
