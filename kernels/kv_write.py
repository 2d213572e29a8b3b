"""Writing a step's keys and values into a paged cache, quantised on the way where the cache is.

    cache[slot[t]] = k[t], v[t]             or, with 8-bit codes, per token and head:
    scale = max(|row|) / top                code = round(row / scale)           top = 127 (int8), 448 (fp8)

`k` and `v` are `[tokens, kv_heads, head_dim]` and may be views of a fused QKV tensor; `slots` `[tokens]`
int64 is block * block_size + offset, -1 for a row that goes nowhere. Slots of one call differ.

One program a token and 8 heads. Every element is read and written once: memory sets the time.
"""

from __future__ import annotations

from typing import no_type_check

import torch

from .dispatch import cdiv, jit, next_power_of_2, on_triton, require, tl
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


HEADS = 8
"""KV heads that one program writes."""


@jit
@no_type_check
def quantized_rows(x, scale, TOP: tl.constexpr, DTYPE: tl.constexpr):
    """Rows of `x` divided by `scale` `[rows, 1]`, as codes."""
    codes = tl.minimum(tl.maximum(x / scale, -TOP), TOP)
    if DTYPE.is_int():
        # To the nearest, halves to even: adding 1.5 * 2^23 leaves no bit for a fraction.
        codes = (codes + 12582912.0) - 12582912.0
    return codes.to(DTYPE)


@jit
@no_type_check
def _write_kv_kernel(
    K,
    V,
    SLOTS,
    K_CACHE,
    V_CACHE,
    K_SCALE,
    V_SCALE,
    stride_k: tl.int64,
    stride_v: tl.int64,
    stride_kb: tl.int64,
    stride_kp: tl.int64,
    stride_vb: tl.int64,
    stride_vp: tl.int64,
    stride_vh: tl.int64,
    stride_vd: tl.int64,
    stride_sb: tl.int64,
    stride_sp: tl.int64,
    num_heads,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    HEADS: tl.constexpr,
    TOP: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(SLOTS + token).to(tl.int64)
    if slot >= 0:
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        at = tl.arange(0, DIM_TILE)
        exists = (head < num_heads)[:, None] & (at < DIM)[None, :]
        place = head[:, None] * DIM + at[None, :]
        k = tl.load(K + token * stride_k + place, mask=exists, other=0.0)
        v = tl.load(V + token * stride_v + place, mask=exists, other=0.0)
        k_place = K_CACHE + block * stride_kb + offset * stride_kp + place
        v_place = (
            V_CACHE
            + block * stride_vb
            + offset * stride_vp
            + head[:, None] * stride_vh
            + at[None, :] * stride_vd
        )
        if TOP > 0:
            scale_place = block * stride_sb + offset * stride_sp + head
            k, v = k.to(tl.float32), v.to(tl.float32)
            k_scale = tl.maximum(tl.max(tl.abs(k), 1), 1e-20) / TOP
            v_scale = tl.maximum(tl.max(tl.abs(v), 1), 1e-20) / TOP
            tl.store(K_SCALE + scale_place, k_scale, mask=head < num_heads)
            tl.store(V_SCALE + scale_place, v_scale, mask=head < num_heads)
            tl.store(k_place, quantized_rows(k, k_scale[:, None], TOP, K_CACHE.dtype.element_ty), mask=exists)
            tl.store(v_place, quantized_rows(v, v_scale[:, None], TOP, K_CACHE.dtype.element_ty), mask=exists)
        else:
            tl.store(k_place, k.to(tl.float32).to(K_CACHE.dtype.element_ty), mask=exists)
            tl.store(v_place, v.to(tl.float32).to(K_CACHE.dtype.element_ty), mask=exists)


def _launch(k: torch.Tensor, v: torch.Tensor, layer: KvLayer, slots: torch.Tensor) -> None:
    k_scale, v_scale = layer.scales
    _write_kv_kernel[(len(k), cdiv(layer.num_kv_heads, HEADS))](
        k,
        v,
        slots,
        layer.k,
        layer.v,
        k_scale,
        v_scale,
        k.stride(0),
        v.stride(0),
        *layer.k.stride()[:2],
        *layer.v.stride(),
        *k_scale.stride()[:2],
        layer.num_kv_heads,
        BLOCK_SIZE=layer.k.shape[1],
        DIM=layer.head_dim,
        DIM_TILE=next_power_of_2(layer.head_dim),
        HEADS=HEADS,
        TOP=QUANTIZED.get(layer.k.dtype, 0.0),
        num_warps=2,
    )


def write_kv(k: torch.Tensor, v: torch.Tensor, layer: KvLayer, slots: torch.Tensor) -> None:
    """Write keys and values of a step to their slots, in place. Raises `ValueError` for shapes that don't
    fit."""
    expected = (len(slots), layer.num_kv_heads, layer.head_dim)
    require(
        k.shape == v.shape == expected, f"k is {tuple(k.shape)}, v {tuple(v.shape)}: expected {expected}."
    )
    if on_triton(k):
        require(
            k.stride()[1:] == v.stride()[1:] == (layer.head_dim, 1), "The heads of a token are neighbours."
        )
        if len(k):
            _launch(k, v, layer, slots)
        return
    write_kv_cpu(k, v, layer, slots)
