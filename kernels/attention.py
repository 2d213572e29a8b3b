"""Attention of a flat batch of decodes and prompt chunks over a paged KV cache.

    out[t, h] = softmax(scale * q[t, h] · K[h // G]ᵀ + mask) V[h // G]        G = query heads per KV head

`q` and `out` are `[tokens, heads, head_dim]`; K and V come from the blocks of a `KvLayer`, in the cache's
type, quantised rows times their scales; sums are fp32. Which keys a row sees is in the `AttentionPlan`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .attention_plan import AttentionPlan, Group
from .dispatch import on_triton, require
from .kv_cache import KvLayer
from .paged import launch_paged_attention


def paged_attention_reference(
    q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, scale: float | None = None
) -> torch.Tensor:
    """In fp64, a query at a time."""
    num_heads, group = q.shape[1], q.shape[1] // layer.num_kv_heads
    scale = layer.head_dim**-0.5 if scale is None else scale
    out = torch.zeros(q.shape, dtype=torch.float64)
    for sequence, context in enumerate(plan.context_lens):
        start, end = plan.offsets[sequence], plan.offsets[sequence + 1]
        for row in range(start, end):
            position = context - (end - row)
            first = max(0, position + 1 - plan.window) if plan.window else 0
            keys, values = _read(layer, plan.slots(sequence, first, position + 1))
            for head in range(num_heads):
                scores = keys[:, head // group] @ q[row, head].double() * scale
                out[row, head] = torch.softmax(scores, 0) @ values[:, head // group]
    return out.to(q.dtype)


def _read(layer: KvLayer, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values at these slots in fp64, each `[slots, kv_heads, head_dim]`."""
    size = layer.k.shape[1]
    blocks, offsets = slots // size, slots % size
    k, v = layer.k[blocks, offsets].double(), layer.v[blocks, offsets].double()
    if layer.k_scale is None or layer.v_scale is None:
        return k, v
    return (
        k * layer.k_scale[blocks, offsets].double().unsqueeze(-1),
        v * layer.v_scale[blocks, offsets].double().unsqueeze(-1),
    )


def paged_attention_cpu(
    q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, scale: float | None = None
) -> torch.Tensor:
    """One gather and one call of torch's attention per group of the plan.

    In fp32 a row's bits depend on its own keys only: torch answers each sequence and head by itself, and the
    shape of that work is given by the sequence's length.
    """
    groups = plan.groups
    if len(groups) == 1 and len(groups[0].rows) == len(q):
        return _attend(q, layer, groups[0], scale)
    out = torch.empty_like(q)
    for group in groups:
        out.index_copy_(0, group.rows, _attend(q.index_select(0, group.rows), layer, group, scale))
    return out


def _attend(q: torch.Tensor, layer: KvLayer, group: Group, scale: float | None) -> torch.Tensor:
    """`q` and the result are `[sequences * queries, heads, head_dim]`."""
    num_heads, dim, heads = q.shape[1], q.shape[2], layer.num_kv_heads
    pairs = _gather(layer, group.slots, q.dtype)
    k, v = pairs[:, 0], pairs[:, 1]
    if group.num_queries == 1:
        # The heads that share keys are the rows of one product: nothing is repeated.
        shape = (-1, group.num_keys, heads, dim)
        q, mask = q.reshape(len(group.rows), heads, num_heads // heads, dim), group.mask
        k, v = k.view(shape).transpose(1, 2), v.view(shape).transpose(1, 2)
    else:
        # Sharing by stride 0 instead: the causal form wants one row a query.
        q, mask = q.unflatten(1, (heads, -1)).permute(1, 2, 0, 3), group.mask
        k, v = (part.transpose(0, 1).unsqueeze(1).expand(heads, q.shape[1], -1, dim) for part in (k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=None if mask is None else mask.to(q.dtype), is_causal=mask is None, scale=scale
    )
    if group.num_queries > 1:
        out = out.permute(2, 0, 1, 3)
    return out.reshape(-1, num_heads, dim)


def _gather(layer: KvLayer, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Keys and values at these slots, `[slots, 2, kv_heads, head_dim]` in `dtype`."""
    if layer.rows is None:
        raise ValueError("The CPU form reads caches that keep V untransposed.")
    heads, dim = layer.num_kv_heads, layer.head_dim
    width = 2 * heads * dim
    if layer.k_scale is None:
        return layer.rows.index_select(0, slots)[:, :width].view(-1, 2, heads, dim).to(dtype)
    # fp8 has no index_select; bytes do.
    rows = layer.rows.view(torch.uint8).index_select(0, slots)
    scales = rows[:, width : width + 8 * heads].view(torch.float32).view(-1, 2, heads, 1)
    codes: torch.Tensor = rows[:, :width].view(layer.rows.dtype).unflatten(1, (2, heads, dim))
    return codes.to(torch.float32).mul_(scales).to(dtype)


def paged_attention(
    q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, scale: float | None = None
) -> torch.Tensor:
    """Attention of every row of `q` `[tokens, heads, head_dim]`; the result has its shape and type.

    `scale` is 1/sqrt(head_dim) unless given. The keys and values of the step's own tokens must be in the
    cache. A sequence without query rows is skipped. Raises `ValueError` for shapes that do not fit each
    other.
    """
    require(
        q.dim() == 3 and len(q) == plan.num_tokens and q.shape[2] == layer.head_dim,
        f"q is {tuple(q.shape)}: expected ({plan.num_tokens}, heads, {layer.head_dim}).",
    )
    require(
        q.shape[1] % layer.num_kv_heads == 0,
        f"{q.shape[1]} query heads are no multiple of {layer.num_kv_heads} KV heads.",
    )
    if on_triton(q):
        return launch_paged_attention(q, layer, plan, layer.head_dim**-0.5 if scale is None else scale)
    return paged_attention_cpu(q, layer, plan, scale)
