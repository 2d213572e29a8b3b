"""One attention result from those of parts of the keys.

    w_s = 2^(lse2_s - max lse2)        out = Σ w_s values_s / Σ w_s        lse2 = max + log2(Σ w_s)

`values` is `[rows, heads, parts, dim]` fp32, each the softmax-weighted mean over its part's keys; `lse2`
`[rows, heads, parts]` fp32 is the base-2 logarithm of the sum that it was divided by, -inf for a part without
keys, whose values are never read. With no key in any part the result is 0, and -inf.

One program a row and head reads its parts once: memory sets the time, and it is little beside the keys'.
"""

from __future__ import annotations

from typing import no_type_check

import torch

from .dispatch import jit, next_power_of_2, on_triton, require, tl

PARTS = 16
"""Parts that a program reads at once."""


def merge_states_reference(values: torch.Tensor, lse2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In fp64, a row and head at a time."""
    out = torch.zeros(*values.shape[:2], values.shape[3], dtype=torch.float64)
    total = torch.full(lse2.shape[:2], float("-inf"), dtype=torch.float64)
    for row in range(values.shape[0]):
        for head in range(values.shape[1]):
            live = lse2[row, head] > float("-inf")
            if live.any():
                parts = lse2[row, head][live].double()
                weights = torch.exp2(parts - parts.max())
                out[row, head] = weights @ values[row, head][live].double() / weights.sum()
                total[row, head] = parts.max() + weights.sum().log2()
    return out.float(), total.float()


def merge_states_cpu(values: torch.Tensor, lse2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    largest = lse2.amax(-1, keepdim=True)
    is_empty = largest == float("-inf")
    weights = torch.exp2(lse2 - largest.masked_fill(is_empty, 0.0))
    total = weights.sum(-1, keepdim=True)
    live = values.masked_fill((weights == 0).unsqueeze(-1), 0.0)
    out = (weights / total.masked_fill(is_empty, 1.0)).unsqueeze(-2) @ live
    return out.squeeze(-2), (largest + total.log2()).squeeze(-1)


@jit
@no_type_check
def _merge_kernel(
    VALUES,
    LSE2,
    ROWS,
    OUT,
    OUT_LSE2,
    num_parts,
    num_heads,
    stride_out: tl.int64,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    PARTS: tl.constexpr,
    WITH_LSE2: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    target = tl.load(ROWS + row).to(tl.int64)
    if target >= 0:
        at = tl.arange(0, DIM_TILE)
        base = (row * num_heads + head) * num_parts
        largest = float("-inf")
        total = 0.0
        sums = tl.zeros([DIM_TILE], tl.float32)
        for first in range(0, num_parts, PARTS):
            part = first + tl.arange(0, PARTS)
            lse2 = tl.load(LSE2 + base + part, mask=part < num_parts, other=float("-inf"))
            now = tl.maximum(largest, tl.max(lse2, 0))
            # All empty so far: no -inf - -inf.
            shift = tl.where(now == float("-inf"), 0.0, now)
            weight = tl.exp2(lse2 - shift)
            # An empty part's values were never written.
            read = (weight > 0.0)[:, None] & (at < DIM)[None, :]
            values = tl.load(VALUES + (base + part)[:, None] * DIM + at[None, :], mask=read, other=0.0)
            faded = tl.exp2(largest - shift)
            sums = sums * faded + tl.sum(values * weight[:, None], 0)
            total = total * faded + tl.sum(weight, 0)
            largest = now
        out = sums / tl.where(total > 0.0, total, 1.0)
        tl.store(OUT + target * stride_out + head * DIM + at, out.to(OUT.dtype.element_ty), mask=at < DIM)
        if WITH_LSE2:
            merged = largest + tl.log2(tl.where(total > 0.0, total, 1.0))
            tl.store(OUT_LSE2 + target * num_heads + head, merged)


def launch_merge(
    values: torch.Tensor,
    lse2: torch.Tensor,
    rows: torch.Tensor,
    out: torch.Tensor,
    out_lse2: torch.Tensor | None = None,
) -> None:
    """Merge row i of `values` into row `rows[i]` of `out` `[…, heads, dim]`, or nowhere where that is -1."""
    num_rows, num_heads, num_parts, dim = values.shape
    _merge_kernel[(num_rows, num_heads)](
        values,
        lse2,
        rows,
        out,
        lse2 if out_lse2 is None else out_lse2,
        num_parts,
        num_heads,
        out.stride(0),
        DIM=dim,
        DIM_TILE=next_power_of_2(dim),
        PARTS=PARTS,
        WITH_LSE2=out_lse2 is not None,
        num_warps=4,
    )


def merge_states(values: torch.Tensor, lse2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The merged `(out, lse2)`, `[rows, heads, dim]` and `[rows, heads]` fp32.

    Raises `ValueError` for shapes that don't fit each other.
    """
    require(
        values.dim() == 4 and values.shape[:3] == lse2.shape,
        f"values are {tuple(values.shape)}, lse2 {tuple(lse2.shape)}.",
    )
    if not on_triton(values):
        return merge_states_cpu(values, lse2)
    out = torch.empty(*values.shape[:2], values.shape[3], dtype=torch.float32, device=values.device)
    out_lse2 = torch.empty(lse2.shape[:2], dtype=torch.float32, device=values.device)
    if out_lse2.numel():
        rows = torch.arange(len(values), dtype=torch.int32, device=values.device)
        launch_merge(values.contiguous(), lse2.contiguous(), rows, out, out_lse2)
    return out, out_lse2
