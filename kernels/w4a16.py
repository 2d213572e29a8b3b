"""W4A16: a linear layer on 4-bit weights in groups along the inputs, activations as they are.

    y = x · w + bias        w[k, n] = code[k, n] * scale[k // g, n] + offset[k // g, n]        code in 0 … 15

`x` is `[tokens, inputs]`. `codes` is uint8 `[inputs / 2, outputs]`: packed row r belongs to group r //
(g/2), its low nibble is element r % (g/2) of the group's first half, its high nibble the same of the second
half, so that a tile of bytes becomes two tiles of weights without moving anything between threads. `scale`
and `offset` are fp16 `[inputs / g, outputs]`; offset None means -8 * scale (symmetric). `repack.py` makes
this of GGUF, AWQ and GPTQ.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .dispatch import on_triton, require
from .grouped_matmul import launch_grouped_matmul


class Int4Weight(NamedTuple):
    """`codes` `[inputs / 2, outputs]` uint8, `scale` and `offset` `[inputs / g, outputs]` fp16; see above."""

    codes: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor | None


def pack_int4(codes: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None) -> Int4Weight:
    """From codes `[inputs, outputs]`, one a byte."""
    groups = len(scale)
    low, high = codes.to(torch.uint8).view(groups, 2, -1, codes.shape[1]).unbind(1)
    packed = (low | high << 4).flatten(0, 1)
    scale = scale.to(torch.float16).contiguous()
    return Int4Weight(packed, scale, None if offset is None else offset.to(torch.float16).contiguous())


def unpack_int4(weight: Int4Weight) -> torch.Tensor:
    """The codes, uint8 `[inputs, outputs]`."""
    packed = weight.codes.view(len(weight.scale), 1, -1, weight.codes.shape[1])
    return torch.cat((packed & 15, packed >> 4), 1).view(-1, weight.codes.shape[1])


def dequantize_int4(weight: Int4Weight) -> torch.Tensor:
    """`[inputs, outputs]` fp32."""
    groups = len(weight.scale)
    codes = unpack_int4(weight).view(groups, -1, weight.codes.shape[1]).float()
    scale = weight.scale.float().unsqueeze(1)
    offset = -8 * scale if weight.offset is None else weight.offset.float().unsqueeze(1)
    return (codes * scale + offset).flatten(0, 1)


def int4_linear_reference(
    x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    y = x.double() @ dequantize_int4(weight).double()
    return (y if bias is None else y + bias.double()).to(x.dtype)


def int4_linear_cpu(x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Dequantised at each call: it saves memory, not time. On a CPU, `w8a8.py` is the fast one."""
    y = x.float() @ dequantize_int4(weight)
    return (y if bias is None else y.add_(bias)).to(x.dtype)


def int4_linear(x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`[tokens, outputs]` in the type of `x`. Raises `ValueError` for shapes that don't fit."""
    require(
        x.dim() == 2 and x.shape[1] == 2 * weight.codes.shape[0],
        f"x is {tuple(x.shape)}, and the weight has {2 * weight.codes.shape[0]} inputs.",
    )
    if on_triton(x):
        symmetric = weight.offset is None
        return launch_grouped_matmul(x, weight.codes, weight.scale, weight.offset, bias, 4, symmetric)
    return int4_linear_cpu(x, weight, bias)
