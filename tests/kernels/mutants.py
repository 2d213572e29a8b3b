"""Faults of the kind that such kernels have had, each as a change of our source, for `test_mutants.py`.

Every one must make the tests fail. The bugs are those of the field: off-by-one windows, masks that are
missing, strides of K used for V, a merge that forgets a part.
"""

from __future__ import annotations

PAGED, MERGE, PLAN, WRITE, ROTARY = "paged.py", "merge.py", "attention_plan.py", "kv_write.py", "rotary.py"
GROUPED, INT8, SAMPLING, NORM = "grouped_matmul.py", "w8a8.py", "sampling_kernel.py", "rms_norm.py"
BLOCKS, VERIFY = "blocks.py", "verify.py"

# The files of tests that a fault in a file is shown to.
TESTS = {
    PAGED: ("attention",),
    PLAN: ("attention",),
    MERGE: ("merge", "attention"),
    WRITE: ("kv_write",),
    ROTARY: ("kv_write",),
    GROUPED: ("linear",),
    INT8: ("linear",),
    SAMPLING: ("sampling",),
    NORM: ("norms_and_gates",),
    BLOCKS: ("blocks",),
    VERIFY: ("verify",),
}

# Name: file, what stands there, what is put in its place.
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
    "sine where the cosine is": (ROTARY, "x = (a * cos - b * sin)", "x = (a * sin - b * cos)"),
    "pairs of GPT-J for NeoX": (
        ROTARY,
        "a_at, b_at = pair, pair + HALF",
        "a_at, b_at = 2 * pair, 2 * pair + 1",
    ),
    "sine rows by the padded width": (
        ROTARY,
        "tl.load(SIN + token * HALF +",
        "tl.load(SIN + token * HALF_TILE +",
    ),
    "what is not rotated is lost": (ROTARY, "tl.load(row + at, mask=beyond", "tl.load(row, mask=beyond"),
    "the scale of K forgets the tail": (
        ROTARY,
        "largest = tl.maximum(largest, tl.max(tl.abs(tail), 1))",
        "largest = largest * 1.0",
    ),
    "V of the wrong heads": (ROTARY, "row + num_kv_heads * DIM + at", "row + num_heads * DIM + at"),
    "one scale for all groups": (GROUPED, "scale_at = group * num_outputs", "scale_at = 0 * num_outputs"),
    "halves of a group swapped": (GROUPED, "(codes & 15)", "((codes >> 4) & 15)"),
    "groups as long as their bytes": (GROUPED, "(group * GROUP + at)", "(group * BYTES + at)"),
    "outputs not masked": (GROUPED, "column < num_outputs\n    # A byte", "column >= 0\n    # A byte"),
    "the offset of one half only": (
        GROUPED,
        "x_sum = tl.sum(x.to(tl.float32), 1) + tl.sum(x_high.to(tl.float32), 1)",
        "x_sum = tl.sum(x.to(tl.float32), 1)",
    ),
    "the bias in every split": (
        GROUPED,
        "HAS_BIAS=bias is not None and num_splits == 1",
        "HAS_BIAS=bias is not None",
    ),
    "the last split forgotten": (
        GROUPED,
        "for split in range(0, num_splits)",
        "for split in range(0, num_splits - 1)",
    ),
    "inputs not masked": (INT8, "is_column[None, :] & is_input[:, None]", "is_column[None, :]"),
    "scale of the row for that of the column": (INT8, "* w_scale[None, :]", "* x_scale[:, None]"),
    "activations cut, not rounded": (
        INT8,
        "codes = (codes + 12582912.0) - 12582912.0",
        "codes = codes * 1.0",
    ),
    "eps outside of the root": (
        NORM,
        "tl.sqrt_rn(tl.sum(x * x, 0) / SIZE + eps)",
        "(tl.sqrt_rn(tl.sum(x * x, 0) / SIZE) + eps)",
    ),
    "the sum normed before it is rounded": (NORM, "        x = rounded.to(tl.float32)\n", ""),
    "the mean over the padded width": (NORM, "/ SIZE + eps", "/ BLOCK + eps"),
    "top-k one too many": (SAMPLING, "num_equal = top_k - above", "num_equal = 1 + top_k - above"),
    "the token that crosses top-p is dropped": (
        SAMPLING,
        "_mass(p_edge, largest, temperature)), 1.0)",
        "_mass(p_edge, largest, temperature)) - 1.0, 0.0)",
    ),
    "top-p of the whole distribution after top-k": (
        SAMPLING,
        "if (top_k > 0) & (top_k < size):",
        "if top_k > size:",
    ),
    "all equals kept": (SAMPLING, "<= num_equal)", "<= count)"),
    "min-p of the temperature-free logits": (SAMPLING, "& (z >= min_z)", "& (z * temperature >= min_z)"),
    "the noise of the place, not of the token": (
        SAMPLING,
        "position.to(tl.uint32), token)",
        "position.to(tl.uint32), few)",
    ),
    "half of the seed": (
        SAMPLING,
        "seed_high = seed.to(tl.uint32), (seed >> 32)",
        "seed_high = seed.to(tl.uint32), (seed >> 63)",
    ),
    "a NaN is not seen": (
        SAMPLING,
        "has_nan |= (x != x).to(tl.int32)",
        "has_nan |= (x != x).to(tl.int32) * 0",
    ),
    "the last of equals": (SAMPLING, "is_better = x > best", "is_better = x >= best"),
    "half of a block copied": (
        BLOCKS,
        "words.shape[2], BLOCK=BLOCK",
        "words.shape[2] // 2, BLOCK=BLOCK",
    ),
    "one layer copied": (BLOCKS, "(len(pairs), words.shape[0],", "(len(pairs), 1,"),
    "chains copied in any order": (
        BLOCKS,
        "if on_triton(storage) and targets.isdisjoint(source for source, _ in pairs)",
        "if on_triton(storage)",
    ),
    "the last draft not looked at": (
        VERIFY,
        "is_draft = first + at < num_drafts",
        "is_draft = first + at < num_drafts - 1",
    ),
    "the last mismatch counts": (
        VERIFY,
        "tl.minimum(accepted, tl.min(tl.where",
        "tl.minimum(accepted, tl.max(tl.where",
    ),
}
