"""Rotary position embedding, fused with the write of keys and values to the cache.

    x[..., :r] seen as r/2 pairs (a, b):   (a, b) -> (a cos - b sin, a sin + b cos)      r = rotary dim

Pairs are (x[i], x[i + r/2]) (NeoX: Llama, Qwen, Mistral), or (x[2i], x[2i + 1]) where `interleaved` (GPT-J,
and Llama weights as GGUF stores them). What is beyond r passes unchanged.

`qkv` is `[tokens, heads + 2 * kv_heads, head_dim]`, the output of the fused projection; `cos` and `sin` are
`[tokens, r/2]` fp32, each token's own rows. Q is rotated, K rotated and written, V written.

One program a token and 8 heads, either of Q or of K with their V. Every element is read and written once:
memory sets the time.
"""

from __future__ import annotations

from typing import no_type_check

import torch

from .dispatch import cdiv, jit, next_power_of_2, on_triton, require, tl
from .kv_cache import QUANTIZED, KvLayer
from .kv_write import quantized_rows, write_kv_cpu, write_kv_reference

HEADS = 8
"""Heads that one program rotates."""


def rotary_reference(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False
) -> torch.Tensor:
    """`x` `[tokens, heads, head_dim]` rotated in fp64, a pair at a time."""
    half = cos.shape[1]
    out = x.double().clone()
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        c, s = cos[:, i, None].double(), sin[:, i, None].double()
        out[..., a] = x[..., a].double() * c - x[..., b].double() * s
        out[..., b] = x[..., a].double() * s + x[..., b].double() * c
    return out.to(x.dtype)


def rotary_cpu(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False
) -> torch.Tensor:
    """Complex multiplication where pairs are neighbours, else the two halves swapped and added."""
    half = cos.shape[1]
    part = x[..., : 2 * half].float()
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if interleaved:
        a, b = part[..., 0::2], part[..., 1::2]
        rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    else:
        swapped = part.unflatten(-1, (2, half)).flip(-2).flatten(-2)
        rotated = torch.addcmul(part * torch.cat((cos, cos), -1), swapped, torch.cat((-sin, sin), -1))
    rotated = rotated.to(x.dtype)
    return rotated if 2 * half == x.shape[-1] else torch.cat((rotated, x[..., 2 * half :]), -1)


def rotary_write_kv_reference(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layer: KvLayer,
    slots: torch.Tensor,
    interleaved: bool = False,
) -> torch.Tensor:
    q, k, v = _split(qkv, layer)
    write_kv_reference(rotary_reference(k, cos, sin, interleaved), v, layer, slots)
    return rotary_reference(q, cos, sin, interleaved)


def rotary_write_kv_cpu(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layer: KvLayer,
    slots: torch.Tensor,
    interleaved: bool = False,
) -> torch.Tensor:
    """Q and K are rotated together: they are neighbours in `qkv`."""
    num_rotated = qkv.shape[1] - layer.num_kv_heads
    rotated = rotary_cpu(qkv[:, :num_rotated], cos, sin, interleaved)
    num_heads = num_rotated - layer.num_kv_heads
    write_kv_cpu(rotated[:, num_heads:], qkv[:, num_rotated:], layer, slots)
    return rotated[:, :num_heads]


@jit
@no_type_check
def _rotary_kernel(
    QKV,
    COS,
    SIN,
    SLOTS,
    Q_OUT,
    K_CACHE,
    V_CACHE,
    K_SCALE,
    V_SCALE,
    stride_qkv: tl.int64,
    stride_kb: tl.int64,
    stride_kp: tl.int64,
    stride_vb: tl.int64,
    stride_vp: tl.int64,
    stride_vh: tl.int64,
    stride_vd: tl.int64,
    stride_sb: tl.int64,
    stride_sp: tl.int64,
    num_heads,
    num_kv_heads,
    q_programs,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    HALF: tl.constexpr,
    HALF_TILE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr,
    TOP: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    is_q = part < q_programs
    # Queries first, then keys with their values: a program has heads of one kind.
    head = tl.where(is_q, part, part - q_programs) * HEADS + tl.arange(0, HEADS)
    head_exists = head < tl.where(is_q, num_heads, num_kv_heads)
    row = QKV + token * stride_qkv + (head + tl.where(is_q, 0, num_heads))[:, None] * DIM

    pair = tl.arange(0, HALF_TILE)
    if INTERLEAVED:
        a_at, b_at = 2 * pair, 2 * pair + 1
    else:
        a_at, b_at = pair, pair + HALF
    pair_exists = head_exists[:, None] & (pair < HALF)[None, :]
    a = tl.load(row + a_at[None, :], mask=pair_exists, other=0.0).to(tl.float32)
    b = tl.load(row + b_at[None, :], mask=pair_exists, other=0.0).to(tl.float32)
    cos = tl.load(COS + token * HALF + pair, mask=pair < HALF, other=0.0)[None, :]
    sin = tl.load(SIN + token * HALF + pair, mask=pair < HALF, other=0.0)[None, :]
    # In the type of the activations, as the caller of an unfused rotation would have got it.
    x = (a * cos - b * sin).to(Q_OUT.dtype.element_ty)
    y = (a * sin + b * cos).to(Q_OUT.dtype.element_ty)
    at = tl.arange(0, DIM_TILE)[None, :]
    beyond = head_exists[:, None] & (at >= 2 * HALF) & (at < DIM)

    if is_q:
        out = Q_OUT + (token * num_heads + head)[:, None] * DIM
        tl.store(out + a_at[None, :], x, mask=pair_exists)
        tl.store(out + b_at[None, :], y, mask=pair_exists)
        if 2 * HALF < DIM:
            tl.store(out + at, tl.load(row + at, mask=beyond, other=0.0), mask=beyond)
    else:
        slot = tl.load(SLOTS + token).to(tl.int64)
        if slot >= 0:
            block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
            k_out = K_CACHE + block * stride_kb + offset * stride_kp + head[:, None] * DIM
            v_out = (
                V_CACHE + block * stride_vb + offset * stride_vp + head[:, None] * stride_vh + at * stride_vd
            )
            in_head = head_exists[:, None] & (at < DIM)
            v = tl.load(row + num_kv_heads * DIM + at, mask=in_head, other=0.0).to(tl.float32)
            key_a, key_b = x.to(tl.float32), y.to(tl.float32)
            tail = tl.zeros([HEADS, DIM_TILE], tl.float32)
            if 2 * HALF < DIM:
                tail = tl.load(row + at, mask=beyond, other=0.0).to(tl.float32)
            if TOP > 0:
                scale_place = block * stride_sb + offset * stride_sp + head
                largest = tl.maximum(tl.max(tl.abs(key_a), 1), tl.max(tl.abs(key_b), 1))
                largest = tl.maximum(largest, tl.max(tl.abs(tail), 1))
                k_scale = (tl.maximum(largest, 1e-20) / TOP)[:, None]
                v_scale = (tl.maximum(tl.max(tl.abs(v), 1), 1e-20) / TOP)[:, None]
                tl.store(K_SCALE + scale_place[:, None], k_scale, mask=head_exists[:, None])
                tl.store(V_SCALE + scale_place[:, None], v_scale, mask=head_exists[:, None])
                code_a = quantized_rows(key_a, k_scale, TOP, K_CACHE.dtype.element_ty)
                code_b = quantized_rows(key_b, k_scale, TOP, K_CACHE.dtype.element_ty)
                code_tail = quantized_rows(tail, k_scale, TOP, K_CACHE.dtype.element_ty)
                code_v = quantized_rows(v, v_scale, TOP, K_CACHE.dtype.element_ty)
            else:
                code_a, code_b = key_a.to(K_CACHE.dtype.element_ty), key_b.to(K_CACHE.dtype.element_ty)
                code_tail, code_v = tail.to(K_CACHE.dtype.element_ty), v.to(K_CACHE.dtype.element_ty)
            tl.store(k_out + a_at[None, :], code_a, mask=pair_exists)
            tl.store(k_out + b_at[None, :], code_b, mask=pair_exists)
            if 2 * HALF < DIM:
                tl.store(k_out + at, code_tail, mask=beyond)
            tl.store(v_out, code_v, mask=in_head)


def _launch(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layer: KvLayer,
    slots: torch.Tensor,
    interleaved: bool,
) -> torch.Tensor:
    num_kv_heads, dim, half = layer.num_kv_heads, layer.head_dim, cos.shape[1]
    num_heads = qkv.shape[1] - 2 * num_kv_heads
    q = torch.empty(len(qkv), num_heads, dim, dtype=qkv.dtype, device=qkv.device)
    k_scale, v_scale = layer.scales
    q_programs = cdiv(num_heads, HEADS)
    if len(qkv):
        _rotary_kernel[(len(qkv), q_programs + cdiv(num_kv_heads, HEADS))](
            qkv,
            cos,
            sin,
            slots,
            q,
            layer.k,
            layer.v,
            k_scale,
            v_scale,
            qkv.stride(0),
            *layer.k.stride()[:2],
            *layer.v.stride(),
            *k_scale.stride()[:2],
            num_heads,
            num_kv_heads,
            q_programs,
            BLOCK_SIZE=layer.k.shape[1],
            DIM=dim,
            DIM_TILE=next_power_of_2(dim),
            HALF=half,
            HALF_TILE=next_power_of_2(half),
            INTERLEAVED=interleaved,
            HEADS=HEADS,
            TOP=QUANTIZED.get(layer.k.dtype, 0.0),
            num_warps=2,
        )
    return q


def rotary_write_kv(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layer: KvLayer,
    slots: torch.Tensor,
    *,
    interleaved: bool = False,
) -> torch.Tensor:
    """The rotated Q `[tokens, heads, head_dim]`; rotated K, and V, are in the cache afterwards.

    `slots` `[tokens]` int64; a row with slot -1 is rotated and not written. Raises `ValueError` for shapes
    that don't fit each other.
    """
    require(
        qkv.dim() == 3 and qkv.shape[2] == layer.head_dim and qkv.shape[1] > 2 * layer.num_kv_heads,
        f"qkv is {tuple(qkv.shape)}: expected (tokens, heads + {2 * layer.num_kv_heads}, {layer.head_dim}).",
    )
    require(
        cos.shape == sin.shape
        and cos.shape[0] == len(qkv) == len(slots)
        and 2 * cos.shape[1] <= layer.head_dim,
        f"cos {tuple(cos.shape)}, sin {tuple(sin.shape)}, slots {tuple(slots.shape)} for {len(qkv)} rows.",
    )
    if on_triton(qkv):
        require(qkv.stride()[1:] == (layer.head_dim, 1), "The heads of a token are neighbours.")
        require(cos.dtype == sin.dtype == torch.float32, f"cos and sin are fp32, not {cos.dtype}.")
        return _launch(qkv, cos.contiguous(), sin.contiguous(), layer, slots, interleaved)
    return rotary_write_kv_cpu(qkv, cos, sin, layer, slots, interleaved)


def _split(qkv: torch.Tensor, layer: KvLayer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads = layer.num_kv_heads
    return qkv[:, : -2 * heads], qkv[:, -2 * heads : -heads], qkv[:, -heads:]
