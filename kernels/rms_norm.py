"""RMS norm, alone or after adding a residual.

    y = x / sqrt(mean(x²) + eps) * weight                     h = x + residual, y = norm(h)

`x` is `[tokens, size]`, or `[tokens, heads, size]` to norm each head (Qwen3), where `weight` may be
`[heads, size]`; rows may be views with any stride between them. The sums are fp32. `h` is rounded to the
type of `x` before it is normed: what the next layer reads as residual is what was normed here.
"""

from __future__ import annotations

import torch

from .dispatch import on_triton, require


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return (wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()).to(x.dtype)


def rms_norm_cpu(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    factor = torch.linalg.vecdot(wide, wide).div_(x.shape[-1]).add_(eps).rsqrt_().unsqueeze(-1)
    return (wide * factor).mul_(weight).to(x.dtype)


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


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm of each row, in the type of `x`, contiguous. Raises `ValueError` for shapes that don't fit."""
    _check(x, weight)
    if on_triton(x):
        raise NotImplementedError
    return rms_norm_cpu(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(norm(x + residual), x + residual)`, both new. Raises `ValueError` for shapes that don't fit."""
    _check(x, weight)
    require(x.shape == residual.shape, f"x is {tuple(x.shape)} and the residual {tuple(residual.shape)}.")
    if on_triton(x):
        raise NotImplementedError
    return add_rms_norm_cpu(x, residual, weight, eps)


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    require(
        x.dim() in (2, 3) and weight.shape in (x.shape[-1:], x.shape[1:]),
        f"x is {tuple(x.shape)} and the weight {tuple(weight.shape)}: one weight per element of a row.",
    )
