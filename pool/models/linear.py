"""Multiplying by a weight in whatever form it is kept, over the kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from edgecloud.kernels.w4a16 import Int4Weight, int4_linear
from edgecloud.kernels.w8a8 import Int8Weight, int8_linear
from edgecloud.kernels.w8a16 import GroupedInt8Weight, grouped_int8_linear

from .matrices import Matrix
from .weights import PackedPart

Linear = Callable[[torch.Tensor], torch.Tensor]
"""[rows, k] to [rows, n], in the type of the input."""


def linear_of(matrix: Matrix, device: torch.device) -> Linear:
    """The multiplication y = w x + bias, with the weight on `device`."""
    bias = None if matrix.bias is None else matrix.bias.to(device)
    if matrix.packed is not None:
        return _packed([_moved(weight, device) for weight in matrix.packed], bias)
    weight = matrix.weight.to(device)
    if matrix.scale is not None:
        codes = Int8Weight(weight, matrix.scale.to(device))
        return lambda x: int8_linear(x, codes, bias)
    bias = None if bias is None else bias.to(weight.dtype)
    return lambda x: F.linear(x, weight, bias)


def _packed(parts: list[PackedPart], bias: torch.Tensor | None) -> Linear:
    """Parts that were stacked keep their own packing: a file may mix types within one matrix of ours."""

    def multiply(x: torch.Tensor, part: PackedPart) -> torch.Tensor:
        x = x if part.order is None else x.index_select(1, part.order)
        if isinstance(part.weight, Int4Weight):
            return int4_linear(x, part.weight)
        return grouped_int8_linear(x, part.weight)

    def stacked(x: torch.Tensor) -> torch.Tensor:
        y = multiply(x, parts[0]) if len(parts) == 1 else torch.cat([multiply(x, part) for part in parts], 1)
        return y if bias is None else y + bias.to(y.dtype)

    return stacked


def _moved(part: PackedPart, device: torch.device) -> PackedPart:
    codes, scale = part.weight.codes.to(device), part.weight.scale.to(device)
    weight: Int4Weight | GroupedInt8Weight
    if isinstance(part.weight, GroupedInt8Weight):
        weight = GroupedInt8Weight(codes, scale)
    else:
        offset = part.weight.offset
        weight = Int4Weight(codes, scale, None if offset is None else offset.to(device))
    return part._replace(weight=weight, order=None if part.order is None else part.order.to(device))
