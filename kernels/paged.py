"""The Triton kernel of paged attention; `attention.py` is what to call.

One program computes a tile of queries of one sequence for one KV head, over all keys they see or one split
of them:

    rows of the tile    BQ queries x G heads that share the KV head: row r is query r // G, head r % G
    columns             BN = 64 keys a step, of 64 / block_size blocks whose ids are loaded once

    keys     0 ···· window ┌──────────── no mask ────────────┐ diagonal ····
                    masked │  seen by every query of the tile │ masked

A decode is a tile of one query. Its keys are cut into splits of 512, always at the same places, and the
parts merged (`merge.py`): however many sequences there are, a sequence's sum is made the same way.

Softmax is in base 2 and online, sums are fp32. The scale of a quantised K row multiplies its column of
scores, that of a V row its column of weights, so codes go to the tensor core as they are (int8 as the type
of q, fp8 as fp16).

Decodes read the keys once for a few flops a byte: memory sets their time. Prompt chunks do 4 * D flops for
every pair of query and key: the tensor cores set theirs.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import torch

from .attention_plan import AttentionPlan
from .dispatch import jit, next_power_of_2, require, tl
from .kv_cache import QUANTIZED, KvLayer
from .merge import launch_merge

BN = 64
SPLIT = 512
SHORT = 16
"""Up to so many queries (drafts to verify) are cut into splits as decodes are."""


@jit
@no_type_check
def _attention_kernel(
    Q,
    K,
    V,
    K_SCALE,
    V_SCALE,
    BLOCK_TABLES,
    CONTEXT_LENS,
    OFFSETS,
    TILES,
    OUT,
    VALUES,
    LSE2,
    scale_log2,
    window,
    num_splits,
    num_heads,
    stride_q: tl.int64,
    stride_kb: tl.int64,
    stride_kp: tl.int64,
    stride_kh: tl.int64,
    stride_vb: tl.int64,
    stride_vp: tl.int64,
    stride_vh: tl.int64,
    stride_vd: tl.int64,
    stride_sb: tl.int64,
    stride_sp: tl.int64,
    stride_table: tl.int64,
    G: tl.constexpr,
    BQ: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    QUANTIZED: tl.constexpr,
    V_TRANSPOSED: tl.constexpr,
    ALIGNED: tl.constexpr,
    DOT: tl.constexpr,
):
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence = tl.load(TILES + 2 * tile).to(tl.int64)
    first_query = tl.load(TILES + 2 * tile + 1)
    context = tl.load(CONTEXT_LENS + sequence)
    first_row = tl.load(OFFSETS + sequence).to(tl.int64)
    num_queries = (tl.load(OFFSETS + sequence + 1) - first_row).to(tl.int32)
    row = tl.arange(0, BM)
    query = first_query + row // G
    head = kv_head * G + row % G
    is_row = (row < BQ * G) & (query < num_queries)
    position = context - num_queries + query

    # The keys that the tile's queries see, then this program's split of them.
    oldest = context - num_queries + first_query
    newest = tl.minimum(oldest + BQ, context) - 1
    start = 0
    if WINDOW:
        start = tl.maximum(oldest - window + 1, 0) // BN * BN
    end = newest + 1
    if SPLIT:
        start += split * SPLIT
        end = tl.minimum(end, start + SPLIT)
    # Keys from full_start to full_end are seen by every query of the tile.
    full_start = start
    if WINDOW:
        inside = tl.cdiv(tl.maximum(newest - window + 1, 0), BN) * BN
        full_start = tl.minimum(tl.maximum(inside, start), end)
    full_end = tl.maximum(tl.minimum((oldest + 1) // BN * BN, end), full_start)

    at = tl.arange(0, DIM_TILE)
    in_dim = at < DIM
    q_at = Q + (first_row + query)[:, None] * stride_q + head[:, None] * DIM + at[None, :]
    q = tl.load(q_at, mask=is_row[:, None] & in_dim[None, :], other=0.0).to(DOT)
    largest = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    sums = tl.zeros([BM, DIM_TILE], tl.float32)
    table = BLOCK_TABLES + sequence * stride_table
    num_pages = tl.cdiv(context, PAGE)
    in_page = tl.arange(0, PAGE)

    for phase in tl.static_range(3):
        if phase == 0:
            phase_start, phase_end = start, full_start
        elif phase == 1:
            phase_start, phase_end = full_start, full_end
        else:
            phase_start, phase_end = full_end, end
        if WINDOW or phase > 0:
            for first_key in range(phase_start, phase_end, BN):
                key = first_key + tl.arange(0, BN)
                exists = key < context
                page = first_key // PAGE + tl.arange(0, BN // PAGE)
                if phase == 1:
                    block = tl.load(table + page).to(tl.int64)
                else:
                    block = tl.load(table + page, mask=page < num_pages, other=0).to(tl.int64)
                k_place = tl.reshape(block[:, None] * stride_kb + in_page[None, :] * stride_kp, [BN])
                v_place = tl.reshape(block[:, None] * stride_vb + in_page[None, :] * stride_vp, [BN])
                k_place += kv_head * stride_kh
                v_place += kv_head * stride_vh
                if ALIGNED:
                    # What a reshape forgets: without it the loads are 2 bytes wide.
                    k_place = tl.multiple_of(k_place, 16)
                    v_place = tl.multiple_of(v_place, 16)
                    if V_TRANSPOSED:
                        v_place = tl.max_contiguous(v_place, 16)

                # A dead key's V may be NaN, and 0 * NaN would reach the sum; K is masked to save reading
                # it. Codes are never NaN: dead ones are read, to keep loads wide; their scales are masked.
                k_mask = in_dim[:, None]
                if not QUANTIZED and phase != 1:
                    k_mask = k_mask & exists[None, :]
                k = tl.load(K + k_place[None, :] + at[:, None], mask=k_mask, other=0.0)
                scores = tl.dot(q, k.to(DOT), input_precision="ieee") * scale_log2
                if QUANTIZED:
                    s_place = tl.reshape(block[:, None] * stride_sb + in_page[None, :] * stride_sp, [BN])
                    s_place += kv_head
                    k_scale = tl.load(K_SCALE + s_place, mask=exists, other=0.0)
                    v_scale = tl.load(V_SCALE + s_place, mask=exists, other=0.0)
                    scores *= k_scale[None, :]
                if phase != 1:
                    seen = key[None, :] <= position[:, None]
                    if WINDOW:
                        seen = seen & (key[None, :] > position[:, None] - window)
                    scores = tl.where(seen, scores, float("-inf"))

                now = tl.maximum(largest, tl.max(scores, 1))
                # No key seen so far: no -inf - -inf.
                shift = tl.where(now == float("-inf"), 0.0, now)
                weights = tl.exp2(scores - shift[:, None])
                faded = tl.exp2(largest - shift)
                total = total * faded + tl.sum(weights, 1)
                if QUANTIZED:
                    weights *= v_scale[None, :]
                if V_TRANSPOSED:
                    v_at = V + v_place[None, :] + (at * stride_vd)[:, None]
                    v = tl.trans(tl.load(v_at, mask=in_dim[:, None], other=0.0).to(DOT))
                else:
                    v_mask = in_dim[None, :]
                    if not QUANTIZED and phase != 1:
                        v_mask = v_mask & exists[:, None]
                    v = tl.load(V + v_place[:, None] + at[None, :], mask=v_mask, other=0.0).to(DOT)
                sums = sums * faded[:, None] + tl.dot(weights.to(DOT), v, input_precision="ieee")
                largest = now

    has_keys = total > 0.0
    # NaN for a row without keys: of a split, whose values the merge does not read then.
    out = sums / total[:, None]
    out_mask = is_row[:, None] & in_dim[None, :]
    if SPLIT:
        compact = (tile * BQ + row // G).to(tl.int64) * num_heads + head
        compact = compact * num_splits + split
        lse2 = tl.where(has_keys, largest + tl.log2(tl.where(has_keys, total, 1.0)), float("-inf"))
        tl.store(LSE2 + compact, lse2, mask=is_row)
        tl.store(VALUES + compact[:, None] * DIM + at[None, :], out, mask=out_mask)
    else:
        out_at = OUT + ((first_row + query) * num_heads + head)[:, None] * DIM + at[None, :]
        tl.store(out_at, out.to(OUT.dtype.element_ty), mask=out_mask)


class Tiling(NamedTuple):
    """How sequences with `least` to `most` queries are cut: rows of a tile, keys of a split (0: not split),
    warps and pipeline stages."""

    least: int
    most: int
    rows: int
    split: int
    num_warps: int
    num_stages: int


def tilings(group: int, dim: int, num_decodes: int) -> tuple[Tiling, Tiling, Tiling]:
    """Decodes, drafts to verify, chunks. Each row's sum depends on its own sequence's kind only."""
    # A program waits for a block's id, then for its keys: 3 stages are one pair of buffers, 5 are two, for
    # when there are too few programs to hide the wait behind each other.
    stages = 3 if num_decodes >= 64 else 5
    wide = dim > 128
    short = max(32, next_power_of_2(group))
    long = max(64 if wide else 128, next_power_of_2(group))
    return (
        Tiling(1, 1, next_power_of_2(group), SPLIT, 8 if wide else 4, 3 if wide else stages),
        Tiling(2, SHORT, short, SPLIT, 8 if wide else 4, 3),
        Tiling(SHORT + 1, 1 << 30, long, 0, 8, 3),
    )


def launch_paged_attention(
    q: torch.Tensor, layer: KvLayer, plan: AttentionPlan, scale: float
) -> torch.Tensor:
    """At most three launches: for decodes, for drafts, for chunks; and a merge for each of the first two."""
    _, num_heads, dim = q.shape
    require(dim <= 256, f"Heads of {dim} elements are larger than a tile holds (256).")
    require(q.stride()[1:] == (dim, 1), "The heads of a query are neighbours.")
    # Every row belongs to a sequence, and is written: by a chunk's tile, or by a merge.
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tables, group = plan.tables, num_heads // layer.num_kv_heads
    for tiling in tilings(group, dim, plan.num_sequences):
        queries = tiling.rows // group
        tiles, rows = plan.tiles(queries, tiling.least, tiling.most)
        if len(tiles) == 0:
            continue
        num_splits = max(-(-plan.max_keys // tiling.split), 1) if tiling.split else 1
        values = lse2 = out
        if tiling.split:
            shape = (len(rows), num_heads, num_splits)
            lse2 = torch.empty(shape, dtype=torch.float32, device=q.device)
            values = torch.empty(*shape, dim, dtype=torch.float32, device=q.device)
        _attention_kernel[(len(tiles), layer.num_kv_heads, num_splits)](
            q,
            layer.k,
            layer.v,
            *layer.scales,
            tables.block_tables,
            tables.context_lens,
            tables.offsets,
            tiles,
            out,
            values,
            lse2,
            scale * 1.4426950408889634,
            plan.window or 0,
            num_splits,
            num_heads,
            q.stride(0),
            *layer.k.stride()[:3],
            *layer.v.stride(),
            *layer.scales[0].stride()[:2],
            tables.block_tables.stride(0),
            G=group,
            BQ=queries,
            BM=tiling.rows,
            **_shape(layer, q.dtype),
            SPLIT=tiling.split,
            WINDOW=plan.window is not None,
            num_warps=tiling.num_warps,
            num_stages=tiling.num_stages,
        )
        if tiling.split:
            launch_merge(values, lse2, rows, out)
    return out


def _shape(layer: KvLayer, dtype: torch.dtype) -> dict[str, Any]:
    """What the cache's form compiles into the kernel."""
    cache = layer.k.dtype
    if dtype == torch.float32:
        dot = tl.float32
    elif dtype == torch.bfloat16 and cache != torch.float8_e4m3fn:
        dot = tl.bfloat16
    else:
        # fp8 becomes fp16 two values at a time, bf16 one by one.
        dot = tl.float16
    return {
        "BN": BN,
        "DIM": layer.head_dim,
        "DIM_TILE": max(16, next_power_of_2(layer.head_dim)),
        "PAGE": layer.k.shape[1],
        "QUANTIZED": cache in QUANTIZED,
        "V_TRANSPOSED": layer.rows is None,
        "ALIGNED": all(each % 16 == 0 for each in (*layer.k.stride()[:3], layer.v.stride(2))),
        "DOT": dot,
    }
