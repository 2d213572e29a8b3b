"""W8A8: a linear layer on int8 weights and int8 activations, both quantised by row.

    y = (x8 · w8ᵀ) * x_scale * w_scale + bias          x8 = round(x / x_scale), x_scale = max(|x row|) / 127

`x` is `[tokens, inputs]`, `w8` `[outputs, inputs]` int8, `w_scale` `[outputs]` fp32. The integer sums are
exact, so a row's result has the same bits in any batch. On a CPU with VNNI this is several times faster
than fp32, and the rows of `w8` are read as they lie.

In Triton, one kernel quantises (a program a row), one multiplies (a program a tile of outputs). Up to some
200 rows the bytes of the weights set the time, beyond that the tensor cores.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch

from .dispatch import cdiv, jit, next_power_of_2, on_triton, require, tl

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


@jit
@no_type_check
def _quantize_rows_kernel(X, CODES, SCALE, stride_x: tl.int64, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    x = tl.load(X + row * stride_x + at, mask=at < SIZE, other=0.0).to(tl.float32)
    # Rounded divisions, so that codes and scales are those of the CPU form.
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(x), 0), 1e-20), 127.0)
    codes = tl.div_rn(x, scale)
    # To the nearest, halves to even: adding 1.5 * 2^23 leaves no bit for a fraction.
    codes = (codes + 12582912.0) - 12582912.0
    tl.store(CODES + row * SIZE + at, codes.to(tl.int8), mask=at < SIZE)
    tl.store(SCALE + row, scale)


@jit
@no_type_check
def _int8_matmul_kernel(
    X,
    X_SCALE,
    W,
    W_SCALE,
    BIAS,
    Y,
    num_rows,
    num_outputs,
    num_inputs,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    row = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    column = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    is_row, is_column = row < num_rows, column < num_outputs
    sums = tl.zeros([BM, BN], tl.int32)
    for first in range(0, num_inputs, BK):
        at = first + tl.arange(0, BK)
        is_input = at < num_inputs
        x_at, w_at = (
            X + row[:, None] * num_inputs + at[None, :],
            W + column[None, :] * num_inputs + at[:, None],
        )
        x = tl.load(x_at, mask=is_row[:, None] & is_input[None, :], other=0)
        w = tl.load(w_at, mask=is_column[None, :] & is_input[:, None], other=0)
        sums = tl.dot(x, w, sums, out_dtype=tl.int32)
    x_scale = tl.load(X_SCALE + row, mask=is_row, other=0.0)
    w_scale = tl.load(W_SCALE + column, mask=is_column, other=0.0)
    y = sums.to(tl.float32) * x_scale[:, None] * w_scale[None, :]
    if HAS_BIAS:
        y += tl.load(BIAS + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    y_at = Y + row[:, None] * num_outputs + column[None, :]
    tl.store(y_at, y.to(Y.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def _launch(x: torch.Tensor, weight: Int8Weight, bias: torch.Tensor | None) -> torch.Tensor:
    (num_rows, num_inputs), num_outputs = x.shape, len(weight.codes)
    require(num_inputs <= 65536, f"Rows of {num_inputs} elements are longer than one program holds (65536).")
    require(x.stride(1) == 1 and weight.codes.is_contiguous(), "The elements of a row are neighbours.")
    codes = torch.empty(num_rows, num_inputs, dtype=torch.int8, device=x.device)
    scale = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    y = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    _quantize_rows_kernel[(num_rows,)](
        x,
        codes,
        scale,
        x.stride(0),
        SIZE=num_inputs,
        BLOCK=next_power_of_2(num_inputs),
        num_warps=4 if num_inputs <= 4096 else 8,
    )
    is_small = num_rows <= 16
    tile = {"BM": 16, "BN": 32, "BK": 256} if is_small else {"BM": 128, "BN": 128, "BK": 128}
    _int8_matmul_kernel[(cdiv(num_rows, tile["BM"]), cdiv(num_outputs, tile["BN"]))](
        codes,
        scale,
        weight.codes,
        weight.scale,
        weight.scale if bias is None else bias,
        y,
        num_rows,
        num_outputs,
        num_inputs,
        **tile,
        HAS_BIAS=bias is not None,
        num_warps=4 if is_small else 8,
        num_stages=4 if is_small else 3,
    )
    return y


def int8_linear(x: torch.Tensor, weight: Int8Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`[tokens, outputs]` in the type of `x`. Raises `ValueError` for shapes that don't fit."""
    require(
        x.dim() == 2 and x.shape[1] == weight.codes.shape[1],
        f"x is {tuple(x.shape)} and the weight {tuple(weight.codes.shape)}.",
    )
    if on_triton(x):
        return _launch(x, weight, bias)
    return int8_linear_cpu(x, weight, bias)
