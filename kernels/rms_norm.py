"""RMS norm, alone or after adding a residual.

    y = x / sqrt(mean(x²) + eps) * weight                     h = x + residual, y = norm(h)

`x` is `[tokens, size]`, or `[tokens, heads, size]` to norm each head (Qwen3), where `weight` may be
`[heads, size]`; rows may be views with any stride between them. The sums are fp32. `h` is rounded to the
type of `x` before it is normed: what the next layer reads as residual is what was normed here.

One program a row, held in registers. Two reads or writes of a row (four with the residual) for a few flops an
element: memory sets the time.
"""

from __future__ import annotations

from typing import no_type_check

import torch

from .dispatch import jit, next_power_of_2, on_triton, require, tl


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()
    return normed.to(x.dtype)


def rms_norm_cpu(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    factor = torch.linalg.vecdot(wide, wide).div_(x.shape[-1]).add_(eps).rsqrt_().unsqueeze(-1)
    y: torch.Tensor = (wide * factor).mul_(weight)
    return y.to(x.dtype)


def add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    h = (x.double() + residual.double()).to(x.dtype)
    return rms_norm_reference(h, weight, eps), h


def add_rms_norm_cpu(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    h = x + residual
    return rms_norm_cpu(h, weight, eps), h


@jit
@no_type_check
def _rms_norm_kernel(
    X,
    RESIDUAL,
    WEIGHT,
    Y,
    SUM,
    stride_x_token: tl.int64,
    stride_x_head: tl.int64,
    stride_r_token: tl.int64,
    stride_r_head: tl.int64,
    stride_w_head,
    num_heads,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    in_row = at < SIZE
    x = tl.load(X + token * stride_x_token + head * stride_x_head + at, mask=in_row, other=0.0).to(tl.float32)
    out = (token * num_heads + head) * SIZE + at
    if HAS_RESIDUAL:
        residual = RESIDUAL + token * stride_r_token + head * stride_r_head + at
        x += tl.load(residual, mask=in_row, other=0.0).to(tl.float32)
        rounded = x.to(SUM.dtype.element_ty)
        tl.store(SUM + out, rounded, mask=in_row)
        x = rounded.to(tl.float32)
    factor = 1.0 / tl.sqrt_rn(tl.sum(x * x, 0) / SIZE + eps)
    weight = tl.load(WEIGHT + head * stride_w_head + at, mask=in_row, other=0.0).to(tl.float32)
    tl.store(Y + out, (x * factor * weight).to(Y.dtype.element_ty), mask=in_row)


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    heads, size = (1, x.shape[1]) if x.dim() == 2 else (x.shape[1], x.shape[2])
    require(size <= 65536, f"Rows of {size} elements are longer than one program holds (65536).")
    require(
        x.stride(-1) == 1 and weight.is_contiguous(), "The elements of a row, and weights, are neighbours."
    )
    require(
        residual is None or residual.stride(-1) == 1, "The elements of a row of the residual are neighbours."
    )
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    added = y if residual is None else torch.empty_like(y)
    other = x if residual is None else residual
    if x.numel():
        _rms_norm_kernel[(len(x), heads)](
            x,
            other,
            weight,
            y,
            added,
            x.stride(0),
            x.stride(1) if x.dim() == 3 else 0,
            other.stride(0),
            other.stride(1) if x.dim() == 3 else 0,
            size if weight.dim() == 2 else 0,
            heads,
            eps,
            SIZE=size,
            BLOCK=next_power_of_2(size),
            HAS_RESIDUAL=residual is not None,
            num_warps=1 if size <= 256 else 4 if size <= 2048 else 8 if size <= 8192 else 16,
        )
    return y, added


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm of each row, in the type of `x`, contiguous. Raises `ValueError` for shapes that don't fit."""
    _check(x, weight)
    if on_triton(x):
        return _launch(x, None, weight, eps)[0]
    return rms_norm_cpu(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(norm(x + residual), x + residual)`, both new. Raises `ValueError` for shapes that don't fit."""
    _check(x, weight)
    require(x.shape == residual.shape, f"x is {tuple(x.shape)} and the residual {tuple(residual.shape)}.")
    if on_triton(x):
        return _launch(x, residual, weight, eps)
    return add_rms_norm_cpu(x, residual, weight, eps)


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    require(
        x.dim() in (2, 3) and weight.shape in (x.shape[-1:], x.shape[1:]),
        f"x is {tuple(x.shape)} and the weight {tuple(weight.shape)}: one weight per element of a row.",
    )
