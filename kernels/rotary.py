"""Rotary position embedding, fused with the write of keys and values to the cache.

    x[..., :r] seen as r/2 pairs (a, b):   (a, b) -> (a cos - b sin, a sin + b cos)      r = rotary dim

Pairs are (x[i], x[i + r/2]) (NeoX: Llama, Qwen, Mistral), or (x[2i], x[2i + 1]) where `interleaved` (GPT-J,
and Llama weights as GGUF stores them). What is beyond r passes unchanged.

`qkv` is `[tokens, heads + 2 * kv_heads, head_dim]`, the output of the fused projection; `cos` and `sin` are
`[tokens, r/2]` fp32, each token's own rows. Q is rotated, K rotated and written, V written.
"""

from __future__ import annotations

import torch

from .dispatch import on_triton, require
from .kv_cache import KvLayer
from .kv_write import write_kv_cpu, write_kv_reference


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
        raise NotImplementedError
    return rotary_write_kv_cpu(qkv, cos, sin, layer, slots, interleaved)


def _split(qkv: torch.Tensor, layer: KvLayer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads = layer.num_kv_heads
    return qkv[:, : -2 * heads], qkv[:, -2 * heads : -heads], qkv[:, -heads:]
