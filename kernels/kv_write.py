"""Writing a step's keys and values into a paged cache, quantised on the way where the cache is.

    cache[slot[t]] = k[t], v[t]             or, with 8-bit codes, per token and head:
    scale = max(|row|) / top                code = round(row / scale)           top = 127 (int8), 448 (fp8)

`k` and `v` are `[tokens, kv_heads, head_dim]` and may be views of a fused QKV tensor; `slots` `[tokens]`
int64 is block * block_size + offset, -1 for a row that goes nowhere. Slots of one call differ.
"""

from __future__ import annotations

import torch

from .dispatch import on_triton, require
from .kv_cache import QUANTIZED, KvLayer

TINY = 1e-20
"""Keeps the scale of a row of zeros a number that can be divided by."""


def quantize_kv(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of `dtype` and fp32 scales `[..., 1]` of rows `[..., head_dim]`. Halves go to the even code."""
    top = QUANTIZED[dtype]
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).clamp_min_(TINY).div_(top)
    codes = x.div(scale)
    if dtype == torch.int8:
        codes.round_()
    return codes.clamp_(-top, top).to(dtype), scale


def write_kv_reference(k: torch.Tensor, v: torch.Tensor, layer: KvLayer, slots: torch.Tensor) -> None:
    """A token at a time."""
    size = layer.k.shape[1]
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        place = slot // size, slot % size
        for x, codes, scales in ((k, layer.k, layer.k_scale), (v, layer.v, layer.v_scale)):
            if scales is None:
                codes[place] = x[token].to(codes.dtype)
            else:
                quantized, scale = quantize_kv(x[token], codes.dtype)
                codes[place] = quantized
                scales[place] = scale.squeeze(-1)


def write_kv_cpu(k: torch.Tensor, v: torch.Tensor, layer: KvLayer, slots: torch.Tensor) -> None:
    """One indexed write of whole rows; slot -1 is the last of the null block."""
    if layer.rows is None:
        raise ValueError("The CPU form writes caches that keep V untransposed.")
    pairs = torch.stack((k, v), 1)
    if layer.k_scale is None:
        layer.rows[slots] = pad_row(pairs.flatten(1).to(layer.rows.dtype), layer.rows.shape[1])
        return
    codes, scales = quantize_kv(pairs, layer.rows.dtype)
    row = torch.cat((codes.flatten(1).view(torch.uint8), scales.flatten(1).view(torch.uint8)), 1)
    layer.rows.view(torch.uint8)[slots] = pad_row(row, layer.rows.shape[1])


def pad_row(row: torch.Tensor, width: int) -> torch.Tensor:
    """Rows of the cache end at 16 bytes: the rest is zeros."""
    missing = width - row.shape[1]
    return row if missing == 0 else torch.nn.functional.pad(row, (0, missing))


def write_kv(k: torch.Tensor, v: torch.Tensor, layer: KvLayer, slots: torch.Tensor) -> None:
    """Write keys and values of a step to their slots, in place. Raises `ValueError` for shapes that don't
    fit."""
    expected = (len(slots), layer.num_kv_heads, layer.head_dim)
    require(
        k.shape == v.shape == expected, f"k is {tuple(k.shape)}, v {tuple(v.shape)}: expected {expected}."
    )
    if on_triton(k):
        raise NotImplementedError
    write_kv_cpu(k, v, layer, slots)
