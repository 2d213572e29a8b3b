"""W8A8: a linear layer on int8 weights and int8 activations, both quantised by row.

    y = (x8 · w8ᵀ) * x_scale * w_scale + bias          x8 = round(x / x_scale), x_scale = max(|x row|) / 127

`x` is `[tokens, inputs]`, `w8` `[outputs, inputs]` int8, `w_scale` `[outputs]` fp32. The integer sums are
exact, so a row's result has the same bits in any batch. On a CPU with VNNI this is several times faster
than fp32, and the rows of `w8` are read as they lie.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .dispatch import on_triton, require

TINY = 1e-20


class Int8Weight(NamedTuple):
    """`codes` `[outputs, inputs]` int8, `scale` `[outputs]` fp32: weight = codes * scale."""

    codes: torch.Tensor
    scale: torch.Tensor


class Int8Rows(NamedTuple):
    """Activations: `codes` `[tokens, inputs]` int8, `scale` `[tokens, 1]` fp32."""

    codes: torch.Tensor
    scale: torch.Tensor


def quantize_weight(weight: torch.Tensor) -> Int8Weight:
    """`weight` `[outputs, inputs]` of any float type, rounded to int8 by row."""
    codes, scale = quantize_rows_cpu(weight)
    return Int8Weight(codes, scale.squeeze(1))


def dequantize_weight(weight: Int8Weight) -> torch.Tensor:
    """`[outputs, inputs]` fp32."""
    return weight.codes.float() * weight.scale.unsqueeze(1)


def quantize_rows_cpu(x: torch.Tensor) -> Int8Rows:
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).clamp_min_(TINY).div_(127.0)
    return Int8Rows(x.div(scale).round_().to(torch.int8), scale)


def int8_linear_reference(
    x: torch.Tensor, weight: Int8Weight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The quantised activations multiplied in fp64."""
    codes, scale = quantize_rows_cpu(x)
    y = (codes.double() @ weight.codes.double().T) * scale.double() * weight.scale.double()
    return (y if bias is None else y + bias.double()).to(x.dtype)


def int8_matmul_cpu(rows: Int8Rows, weight: Int8Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The product for activations that are quantised already, in fp32."""
    y = torch._int_mm(rows.codes, weight.codes.T).to(torch.float32).mul_(rows.scale).mul_(weight.scale)
    return y if bias is None else y.add_(bias)


def int8_linear_cpu(x: torch.Tensor, weight: Int8Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    return int8_matmul_cpu(quantize_rows_cpu(x), weight, bias).to(x.dtype)


def int8_linear(x: torch.Tensor, weight: Int8Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`[tokens, outputs]` in the type of `x`. Raises `ValueError` for shapes that don't fit."""
    require(
        x.dim() == 2 and x.shape[1] == weight.codes.shape[1],
        f"x is {tuple(x.shape)} and the weight {tuple(weight.codes.shape)}.",
    )
    if on_triton(x):
        raise NotImplementedError
    return int8_linear_cpu(x, weight, bias)
