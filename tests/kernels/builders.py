"""Caches with known content, poison in everything that no kernel may read, and the metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from edgecloud.kernels.attention_plan import AttentionPlan, plan_attention
from edgecloud.kernels.kv_cache import QUANTIZED, KvCache, KvLayer, allocate_kv_cache
from edgecloud.kernels.kv_write import quantize_kv

NAN = float("nan")


class Step(NamedTuple):
    """A cache of two layers, the second one in use, and a batch over it."""

    cache: KvCache
    layer: KvLayer
    plan: AttentionPlan
    q: torch.Tensor


def poisoned_cache(
    num_blocks: int,
    block_size: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype = torch.float32,
    transpose_v: bool = False,
) -> KvCache:
    """NaN in every number of every slot; quantised caches have NaN scales and large codes."""
    cache = allocate_kv_cache(
        2, num_blocks, block_size, kv_heads, dim, dtype, transpose_v=transpose_v and dtype in QUANTIZED
    )
    for layer in cache.layers:
        if layer.k_scale is None or layer.v_scale is None:
            layer.k.fill_(NAN)
            layer.v.fill_(NAN)
        else:
            for codes, scales in ((layer.k, layer.k_scale), (layer.v, layer.v_scale)):
                codes.copy_(torch.full_like(codes, 100, dtype=torch.float32).to(dtype))
                scales.fill_(NAN)
    return cache


def fill(layer: KvLayer, slots: torch.Tensor) -> None:
    """Random keys and values, values four times as large so that an average of many is not near zero."""
    size = layer.k.shape[1]
    place = slots // size, slots % size
    for codes, scales, factor in ((layer.k, layer.k_scale, 1.0), (layer.v, layer.v_scale, 4.0)):
        x = torch.randn(len(slots), *codes.shape[2:]) * factor
        if scales is None:
            codes[place] = x.to(codes.dtype)
        else:
            quantized, scale = quantize_kv(x, codes.dtype)
            codes[place] = quantized
            scales[place] = scale.squeeze(-1)


def make_step(
    lengths: Sequence[tuple[int, int]],
    *,
    kv_heads: int = 1,
    group: int = 2,
    dim: int = 16,
    block_size: int = 16,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    transpose_v: bool = False,
) -> Step:
    """`lengths` are (context, queries) of each sequence. Blocks are shuffled, tables as wide as needed and
    no wider."""
    counts = [-(-context // block_size) for context, _ in lengths]
    cache = poisoned_cache(
        sum(counts) + 3, block_size, kv_heads, dim, cache_dtype or dtype, transpose_v=transpose_v
    )
    layer = cache.layers[1]
    order = iter((torch.randperm(cache.num_blocks - 1) + 1).tolist())
    tables = [[next(order) for _ in range(count)] for count in counts]
    offsets = [0]
    for _, queries in lengths:
        offsets.append(offsets[-1] + queries)
    plan = plan_attention(offsets, [context for context, _ in lengths], tables, block_size, window=window)
    for sequence, (context, _) in enumerate(lengths):
        fill(layer, plan.slots(sequence, 0, context))
    q = torch.randn(offsets[-1], kv_heads * group, dim).to(dtype)
    return Step(cache, layer, plan, q)


def row_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest relative error of a row, |a - e| / |e|. (A bound on single elements passes zeros at long
    contexts, where attention averages everything away.) NaN anywhere is an infinite error."""
    actual, expected = actual.double().flatten(0, -2), expected.double().flatten(0, -2)
    errors = (actual - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)
    errors[(expected == 0).all(-1) & (actual == 0).all(-1)] = 0.0
    return float(errors.nan_to_num(float("inf")).max())


TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
