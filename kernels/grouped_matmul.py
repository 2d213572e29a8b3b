"""The Triton kernel of linear layers on 4- and 8-bit weights in groups; `w4a16.py` and `w8a16.py` are what
to call.

    y[m, n] = Σ_groups (Σ_k x[m, k] code[k, n]) * scale[group, n] + (Σ_k x[m, k]) * offset[group, n]

Codes go to the tensor core as they are (they are exact in fp16 and bf16), and a group's sum is scaled
afterwards, in fp32: that is a multiplication per output and group where dequantising would be several
operations per weight. One program computes BM x BN outputs over all groups or, where there are few rows,
over one split of them; splits are summed by a second kernel in fixed order.

Up to some 32 rows the bytes of the codes set the time (half a byte or one a weight); beyond, the tensor
cores do.
"""

from __future__ import annotations

from typing import no_type_check

import torch

from .dispatch import cdiv, jit, next_power_of_2, require, tl

PROGRAMS = 264
"""Two for each multiprocessor of the GPUs this is meant for: below that, the groups are split."""


@jit
@no_type_check
def _grouped_matmul_kernel(
    X,
    CODES,
    SCALE,
    OFFSET,
    BIAS,
    Y,
    num_rows,
    num_outputs,
    num_groups,
    groups_per_split,
    stride_x: tl.int64,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DOT: tl.constexpr,
):
    first_row, first_column, split = tl.program_id(0) * BM, tl.program_id(1) * BN, tl.program_id(2)
    row = (first_row + tl.arange(0, BM)).to(tl.int64)
    column = (first_column + tl.arange(0, BN)).to(tl.int64)
    is_row, is_column = row < num_rows, column < num_outputs
    # A byte of codes holds one weight, or two that lie half a group apart.
    BYTES: tl.constexpr = GROUP * BITS // 8
    at = tl.arange(0, BYTES)
    sums = tl.zeros([BM, BN], tl.float32)
    start = split * groups_per_split
    end = tl.minimum(start + groups_per_split, num_groups)
    for group in range(start, end):
        x_at = X + row[:, None] * stride_x + (group * GROUP + at)[None, :]
        x = tl.load(x_at, mask=is_row[:, None], other=0.0).to(DOT)
        code_at = CODES + (group * BYTES + at).to(tl.int64)[:, None] * num_outputs + column[None, :]
        codes = tl.load(code_at, mask=is_column[None, :], other=0)
        scale_at = group * num_outputs + column
        scale = tl.load(SCALE + scale_at, mask=is_column, other=0.0).to(tl.float32)
        if BITS == 8:
            part = tl.dot(x, codes.to(DOT), input_precision="ieee")
            x_sum = tl.sum(x.to(tl.float32), 1)
        else:
            # As int8: their way to the floats is short, that of uint8 is not.
            low = (codes & 15).to(tl.int8, bitcast=True).to(DOT)
            high = (codes >> 4).to(tl.int8, bitcast=True).to(DOT)
            x_high = tl.load(x_at + BYTES, mask=is_row[:, None], other=0.0).to(DOT)
            part = tl.dot(x, low, input_precision="ieee")
            part = tl.dot(x_high, high, part, input_precision="ieee")
            x_sum = tl.sum(x.to(tl.float32), 1) + tl.sum(x_high.to(tl.float32), 1)
        sums += part * scale[None, :]
        if SYMMETRIC:
            sums += x_sum[:, None] * (-8.0 * scale)[None, :]
        if HAS_OFFSET:
            offset = tl.load(OFFSET + scale_at, mask=is_column, other=0.0).to(tl.float32)
            sums += x_sum[:, None] * offset[None, :]
    if HAS_BIAS:
        sums += tl.load(BIAS + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    y_at = Y + (split * num_rows + row)[:, None] * num_outputs + column[None, :]
    tl.store(y_at, sums.to(Y.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@jit
@no_type_check
def _sum_splits_kernel(
    PARTS, BIAS, Y, num_rows, num_outputs, num_splits, BN: tl.constexpr, HAS_BIAS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    is_column = column < num_outputs
    sums = tl.zeros([BN], tl.float32)
    for split in range(0, num_splits):
        part_at = PARTS + (split * num_rows + row) * num_outputs + column
        sums += tl.load(part_at, mask=is_column, other=0.0)
    if HAS_BIAS:
        sums += tl.load(BIAS + column, mask=is_column, other=0.0).to(tl.float32)
    tl.store(Y + row * num_outputs + column, sums.to(Y.dtype.element_ty), mask=is_column)


def launch_grouped_matmul(
    x: torch.Tensor,
    codes: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    bits: int,
    symmetric: bool,
) -> torch.Tensor:
    """`x` `[rows, inputs]`; `codes` `[inputs * bits / 8, outputs]`, `scale`, `offset` `[groups, outputs]`."""
    num_rows, num_inputs = x.shape
    num_groups, num_outputs = scale.shape
    group = num_inputs // num_groups
    require(
        group in (32, 64, 128, 256) and group * num_groups == num_inputs,
        f"{num_inputs} inputs in {num_groups} groups: groups of 32, 64, 128 or 256 are read.",
    )
    require(
        x.stride(1) == 1 and codes.is_contiguous() and scale.is_contiguous(),
        "The elements of a row of x are neighbours, and weights are contiguous.",
    )
    y = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    rows = min(max(next_power_of_2(num_rows), 16), 128)
    # Of small groups there is little to read at once: more columns, then.
    columns = 64 if rows == 16 and group * bits >= 512 else 128
    grid = cdiv(num_rows, rows), cdiv(num_outputs, columns)
    # Few rows only: with more, the partial sums would cost what the split gains.
    wanted = cdiv(PROGRAMS, grid[0] * grid[1]) if num_rows <= 16 else 1
    groups_per_split = cdiv(num_groups, min(wanted, num_groups))
    num_splits = cdiv(num_groups, groups_per_split)
    parts = y if num_splits == 1 else torch.empty(num_splits, num_rows, num_outputs, device=x.device)
    _grouped_matmul_kernel[(*grid, num_splits)](
        x,
        codes,
        scale,
        scale if offset is None else offset,
        scale if bias is None else bias,
        parts,
        num_rows,
        num_outputs,
        num_groups,
        groups_per_split,
        x.stride(0),
        BITS=bits,
        GROUP=group,
        BM=rows,
        BN=columns,
        SYMMETRIC=symmetric,
        HAS_OFFSET=offset is not None,
        HAS_BIAS=bias is not None and num_splits == 1,
        DOT={torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}[x.dtype],
        num_warps=4 if rows <= 32 else 8,
        num_stages=6 if group * bits <= 256 else 4,
    )
    if num_splits > 1:
        _sum_splits_kernel[(num_rows, cdiv(num_outputs, 256))](
            parts,
            scale if bias is None else bias,
            y,
            num_rows,
            num_outputs,
            num_splits,
            BN=256,
            HAS_BIAS=bias is not None,
            num_warps=2,
        )
    return y
