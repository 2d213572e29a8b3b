"""Faults of the kind that attention kernels have had, each as a change of our source, for
`test_mutants.py`.

Every one must make the tests fail. The bugs are those of the field: off-by-one windows, masks that are
missing, strides of K used for V, a merge that forgets a part.
"""

from __future__ import annotations

PAGED, MERGE, PLAN, WRITE = (
    f"kernels/{name}.py" for name in ("paged", "merge", "attention_plan", "kv_write")
)

MUTANTS: dict[str, tuple[str, str, str]] = {
    "softmax without a safe maximum": (
        PAGED,
        'shift = tl.where(now == float("-inf"), 0.0, now)',
        "shift = now",
    ),
    "a key sees its successor": (PAGED, "key[None, :] <= position", "key[None, :] <= 1 + position"),
    "a key is not seen by its own token": (PAGED, "key[None, :] <= position", "key[None, :] < position"),
    "window one too long": (PAGED, "> position[:, None] - window)", ">= position[:, None] - window)"),
    "window one too short": (PAGED, "> position[:, None] - window)", "> position[:, None] - window + 1)"),
    "window's first tile not aligned": (PAGED, "+ 1, 0) // BN * BN\n    end", "+ 1, 0)\n    end"),
    "window's first tile rounded up": (
        PAGED,
        "tl.maximum(oldest - window + 1, 0) // BN * BN",
        "tl.cdiv(tl.maximum(oldest - window + 1, 0), BN) * BN",
    ),
    "unmasked tiles begin too early under a window": (
        PAGED,
        "inside = tl.cdiv(tl.maximum(newest - window + 1, 0), BN) * BN",
        "inside = tl.maximum(newest - window + 1, 0) // BN * BN",
    ),
    "unmasked tiles end too late": (
        PAGED,
        "tl.minimum((oldest + 1) // BN * BN, end)",
        "tl.minimum(tl.cdiv(oldest + 1, BN) * BN, end)",
    ),
    "the newest query of a tile decides what is unmasked": (
        PAGED,
        "tl.minimum((oldest + 1) // BN",
        "tl.minimum((newest + 1) // BN",
    ),
    "block table read past its end": (
        PAGED,
        "tl.load(table + page, mask=page < num_pages, other=0)",
        "tl.load(table + page)",
    ),
    "pages rounded down": (PAGED, "num_pages = tl.cdiv(context, PAGE)", "num_pages = context // PAGE"),
    "block ids of 32 bits": (
        PAGED,
        "mask=page < num_pages, other=0).to(tl.int64)",
        "mask=page < num_pages, other=0)",
    ),
    "dead values read": (PAGED, "v_mask = v_mask & exists[:, None]", "v_mask = v_mask"),
    "dead scales read": (
        PAGED,
        "v_scale = tl.load(V_SCALE + s_place, mask=exists, other=0.0)",
        "v_scale = tl.load(V_SCALE + s_place)",
    ),
    "head dimension not masked": (PAGED, "in_dim = at < DIM", "in_dim = at >= 0"),
    "rows of the next KV head taken along": (PAGED, "(row < BQ * G) &", "(row < BM) &"),
    "rows of the next sequence taken along": (PAGED, "& (query < num_queries)", "& (query < BM)"),
    "causality aligned at the top left": (
        PAGED,
        "position = context - num_queries + query",
        "position = query",
    ),
    "KV head by tile rows": (PAGED, "head = kv_head * G + row % G", "head = kv_head * BM + row % G"),
    "heads and queries of a tile swapped": (
        PAGED,
        "query = first_query + row // G\n    head = kv_head * G + row % G",
        "query = first_query + row % BQ\n    head = kv_head * G + row // BQ",
    ),
    "sums not faded": (PAGED, "sums = sums * faded[:, None] +", "sums = sums +"),
    "total not faded": (PAGED, "total = total * faded +", "total = total +"),
    "V with K's strides": (PAGED, "* stride_vp, [BN])", "* stride_kp, [BN])"),
    "V with K's head stride": (PAGED, "v_place += kv_head * stride_vh", "v_place += kv_head * stride_kh"),
    "scales of the first head": (PAGED, "s_place += kv_head\n", "s_place += 0\n"),
    "K's scale for V": (PAGED, "weights *= v_scale[None, :]", "weights *= k_scale[None, :]"),
    "V's scale in the total": (
        PAGED,
        "total = total * faded + tl.sum(weights, 1)",
        "total = total * faded + tl.sum(weights * v_scale[None, :] if QUANTIZED else weights, 1)",
    ),
    "natural exponent": (PAGED, "scale * 1.4426950408889634", "scale"),
    "the log-sum without the sum": (
        PAGED,
        "largest + tl.log2(tl.where(has_keys, total, 1.0))",
        "largest",
    ),
    "splits overlap by a tile": (
        PAGED,
        "tl.minimum(end, start + SPLIT)",
        "tl.minimum(end, start + SPLIT + BN)",
    ),
    "a split too few": (
        PAGED,
        "max(-(-plan.max_keys // tiling.split), 1)",
        "max(plan.max_keys // tiling.split, 1)",
    ),
    "merge with the wrong base": (MERGE, "weight = tl.exp2(lse2 - shift)", "weight = tl.exp(lse2 - shift)"),
    "merge does not fade": (MERGE, "sums = sums * faded +", "sums = sums +"),
    "merge reads empty parts": (MERGE, "read = (weight > 0.0)[:, None]", "read = (weight >= 0.0)[:, None]"),
    "merge forgets the last part": (
        MERGE,
        "mask=part < num_parts, other",
        "mask=part < num_parts - 1, other",
    ),
    "merge writes rows in the order of tiles": (
        MERGE,
        "target = tl.load(ROWS + row).to(tl.int64)",
        "target = row",
    ),
    "tiles skip the last query": (
        PLAN,
        "for first in range(0, count, queries)",
        "for first in range(0, count - 1, queries)",
    ),
    "codes are cut, not rounded": (
        WRITE,
        "codes = (codes + 12582912.0) - 12582912.0",
        "codes = codes * 1.0",
    ),
    "scales of K and V swapped": (
        WRITE,
        "tl.store(K_SCALE + scale_place, k_scale",
        "tl.store(K_SCALE + scale_place, v_scale",
    ),
    "padding written to the first slot": (
        WRITE,
        "    if slot >= 0:\n        block, offset",
        "    if slot >= -1:\n        slot = tl.maximum(slot, 0)\n        block, offset",
    ),
}
