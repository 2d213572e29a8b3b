"""What `bench/kernels.py` runs: each kernel at the sizes of an 8B model, its floor, and its peers.

A case is made twice: small, with a reference in fp64, and large, to be timed. Inputs are made on the CPU
and then moved, so that the reference sees the same numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from edgecloud.kernels import (
    attention,
    merge,
    rms_norm,
    rotary,
    sampling,
    silu_mul,
    verify,
    w4a16,
    w8a8,
    w8a16,
)
from edgecloud.kernels.attention_plan import plan_attention
from edgecloud.kernels.kv_cache import QUANTIZED, KvCache, allocate_kv_cache
from edgecloud.kernels.kv_write import write_kv, write_kv_reference

BF16, I8, FP8 = torch.bfloat16, torch.int8, torch.float8_e4m3fn
HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16
Call = Callable[[], Any]


@dataclass
class Work:
    """One kernel on one set of inputs. `run` gives tensors that are compared with those of `reference`;
    `peers` do the same work another way, or the nearest to it that there is. `buffers` is how many bytes a
    run reads: what fits the L2 cache is timed over copies. Limits: bytes moved and flops."""

    run: Call
    reference: Call | None = None
    peers: dict[str, Call] = field(default_factory=dict)
    moved: float = 0.0
    flops: float = 0.0


@dataclass(frozen=True)
class Case:
    """`make(device, is_small)`; `tolerance` is of a row's relative error, 0 for equality."""

    name: str
    make: Callable[[torch.device, bool], Work]
    tolerance: float = 1e-2


def cases() -> Iterator[Case]:
    for batch, context, cache in (
        (64, 4096, BF16), (64, 4096, I8), (64, 4096, FP8), (64, 32768, BF16), (8, 8192, BF16),
        (1, 4096, BF16), (1, 32768, BF16), (1, 32768, I8),
    ):  # fmt: skip
        yield attend(f"decode {batch} x {context} {name_of(cache)}", batch, context, 1, cache)
    for batch, context, queries in ((4, 2048, 2048), (1, 8192, 8192), (1, 8704, 512), (16, 512, 512)):
        yield attend(f"chunk {batch} x {queries} of {context} bf16", batch, context, queries, BF16)
    yield attend("chunk 1 x 512 of 8704 int8", 1, 8704, 512, I8)
    yield attend("verify 64 x 5 of 4096 bf16", 64, 4096, 5, BF16)
    yield Case("merge 64 x 16 parts", merge_parts, 1e-5)
    for tokens in (64, 8192):
        yield Case(f"rms_norm {tokens} x 4096", lambda d, s, t=tokens: norm(d, s, t, False))
        yield Case(f"add_rms_norm {tokens} x 4096", lambda d, s, t=tokens: norm(d, s, t, True))
        yield Case(f"silu_mul {tokens} x 14336", lambda d, s, t=tokens: gate(d, s, t))
        yield Case(f"rotary and write {tokens} bf16", lambda d, s, t=tokens: rotate(d, s, t, BF16))
    yield Case("rotary and write 8192 int8", lambda d, s: rotate(d, s, 8192, I8))
    yield Case("write 8192 bf16", lambda d, s: write(d, s, BF16), 0.0)
    for rows in (1, 16, 64, 512):
        yield Case(f"w4a16 g128 {rows} rows", lambda d, s, r=rows: int4(d, s, r, 128))
    yield Case("w4a16 g32 1 row", lambda d, s: int4(d, s, 1, 32))
    for rows in (1, 64, 512):
        yield Case(f"w8a16 g32 {rows} rows", lambda d, s, r=rows: grouped_int8(d, s, r))
        yield Case(f"w8a8 {rows} rows", lambda d, s, r=rows: int8(d, s, r))
    yield Case("sampling 64 rows", lambda d, s: draw(d, s, 0, 1.0), 0.0)
    yield Case("sampling 64 rows top_k top_p", lambda d, s: draw(d, s, 50, 0.9), 0.0)
    yield Case("verify drafts 64 x 4", check_drafts, 0.0)


def name_of(dtype: torch.dtype) -> str:
    return {BF16: "bf16", I8: "int8", FP8: "fp8"}[dtype]


def filled_cache(blocks: int, cache: torch.dtype, device: torch.device, turn: bool) -> KvCache:
    """With random content: K around 1, V around 4."""
    made = allocate_kv_cache(1, blocks, PAGE, KV_HEADS, DIM, cache, device, transpose_v=turn)
    layer = made.layers[0]
    for start in range(0, blocks, 4096):
        part = slice(start, start + 4096)
        for codes, scale, factor in ((layer.k, layer.k_scale, 1.0), (layer.v, layer.v_scale, 4.0)):
            x = torch.randn(codes[part].shape, device=device) * (30.0 if scale is not None else factor)
            codes[part] = x.round().clamp(-127, 127).to(cache) if scale is not None else x.to(cache)
            if scale is not None:
                scale[part] = factor / 30.0
    return made


def attend(name: str, batch: int, context: int, queries: int, cache: torch.dtype) -> Case:
    def make(device: torch.device, is_small: bool) -> Work:
        n, length, count = (2, 150, min(queries, 40)) if is_small else (batch, context, queries)
        pages = -(-length // PAGE)
        turn = cache in QUANTIZED and device.type == "cuda"
        made = filled_cache(n * pages, cache, torch.device("cpu") if is_small else device, turn)
        order = list(range(n * pages))
        random.Random(0).shuffle(order)
        tables = [order[i * pages : (i + 1) * pages] for i in range(n)]
        numbers = [count * i for i in range(n + 1)], [length] * n, tables, PAGE
        q = torch.randn(count * n, HEADS, DIM).to(BF16)
        layer = made.layers[0]
        if is_small:
            moved = allocate_kv_cache(1, n * pages, PAGE, KV_HEADS, DIM, cache, device, transpose_v=turn)
            moved.storage.copy_(made.storage)
            layer = moved.layers[0]
        plan, q_there = plan_attention(*numbers, device=device), q.to(device)
        pairs = n * (count * length - count * (count - 1) / 2)
        row = 2 * KV_HEADS * (DIM * cache.itemsize + (4 if cache in QUANTIZED else 0))
        return Work(
            run=lambda: attention.paged_attention(q_there, layer, plan),
            reference=lambda: attention.paged_attention_reference(
                q, made.layers[0], plan_attention(*numbers)
            ),
            peers={} if is_small else peers_of(n, length, count, cache, device),
            moved=n * length * row + 4 * count * n * HEADS * DIM,
            flops=4 * HEADS * DIM * pairs,
        )

    return Case(name, make)


def peers_of(
    batch: int, context: int, queries: int, cache: torch.dtype, device: torch.device
) -> dict[str, Call]:
    peers = dense_peers(batch, context, queries, device)
    # Compiling it takes most of a minute: at the two ends only.
    if queries == 1 and cache == BF16 and (batch, context) in ((64, 4096), (1, 32768)):
        made: dict[str, Call] = {}

        def flex() -> torch.Tensor:
            # Made when it is run: if that fails here, it is told as the peer's failure.
            if "call" not in made:
                made["call"] = flex_paged(batch, context, device)
            return made["call"]()

        peers["flex paged"] = flex
    return peers


def flex_paged(batch: int, context: int, device: torch.device) -> Call:
    """Decodes by torch's FlexAttention over its own pages, of 128 tokens."""
    page = 128
    pages = batch * context // page
    paged = PagedAttention(pages, page, batch, device=device.type)
    pools = [torch.zeros(1, KV_HEADS, pages * page, DIM, device=device, dtype=BF16) for _ in range(2)]
    k, v = (torch.randn(batch, KV_HEADS, context, DIM, device=device, dtype=BF16) for _ in range(2))
    for sequence in range(batch):
        paged.reserve(torch.tensor(sequence, device=device), torch.tensor(context, device=device))
    positions = torch.arange(context, device=device).expand(batch, context)
    paged.assign(torch.arange(batch, device=device), positions, k, v, *pools)
    seen = create_block_mask(
        lambda b, h, query, key: key < context, batch, 1, 1, context, device=device.type, BLOCK_SIZE=page
    )
    mask = paged.convert_logical_block_mask(seen)
    q = torch.randn(batch, HEADS, 1, DIM, device=device, dtype=BF16)
    compiled = torch.compile(flex_attention)
    return lambda: compiled(q, *pools, block_mask=mask, enable_gqa=True)


def dense_peers(batch: int, context: int, queries: int, device: torch.device) -> dict[str, Call]:
    """Attention without pages, over bf16: what paging costs is what they are faster by."""
    q = torch.randn(batch, HEADS, queries, DIM, device=device, dtype=BF16)
    k, v = (torch.randn(batch, KV_HEADS, context, DIM, device=device, dtype=BF16) for _ in range(2))
    mask = None if queries == 1 else causal_lower_right(queries, context)
    is_square = queries == context

    def run(backend: SDPBackend) -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=None if is_square else mask, is_causal=is_square, enable_gqa=True
            )

    return {
        "sdpa flash, dense": lambda: run(SDPBackend.FLASH_ATTENTION),
        "sdpa cudnn, dense": lambda: run(SDPBackend.CUDNN_ATTENTION),
    }


def merge_parts(device: torch.device, is_small: bool) -> Work:
    rows, parts = (3, 5) if is_small else (64, 16)
    values, lse2 = torch.randn(rows, HEADS, parts, DIM), torch.randn(rows, HEADS, parts) * 10
    there = values.to(device), lse2.to(device)
    return Work(
        run=lambda: merge.merge_states(*there)[0],
        reference=lambda: merge.merge_states_reference(values, lse2)[0],
        moved=values.nbytes + lse2.nbytes + rows * HEADS * DIM * 4,
    )


def norm(device: torch.device, is_small: bool, tokens: int, has_residual: bool) -> Work:
    tokens = 5 if is_small else tokens
    x, residual, weight = (
        torch.randn(tokens, 4096).to(BF16),
        torch.randn(tokens, 4096).to(BF16),
        torch.rand(4096),
    )
    weight = weight.to(BF16)
    xs, rs, ws = x.to(device), residual.to(device), weight.to(device)
    if has_residual:
        compiled = torch.compile(rms_norm.add_rms_norm_cpu)
        return Work(
            run=lambda: rms_norm.add_rms_norm(xs, rs, ws, 1e-5),
            reference=lambda: rms_norm.add_rms_norm_reference(x, residual, weight, 1e-5),
            peers={"torch.compile": lambda: compiled(xs, rs, ws, 1e-5)},
            moved=4 * x.nbytes,
        )
    return Work(
        run=lambda: rms_norm.rms_norm(xs, ws, 1e-5),
        reference=lambda: rms_norm.rms_norm_reference(x, weight, 1e-5),
        peers={"F.rms_norm": lambda: F.rms_norm(xs, (4096,), ws, 1e-5)},
        moved=2 * x.nbytes,
    )


def gate(device: torch.device, is_small: bool, tokens: int) -> Work:
    x = torch.randn(5 if is_small else tokens, 2 * 14336).to(BF16)
    there, compiled = x.to(device), torch.compile(silu_mul.silu_mul_cpu)
    return Work(
        run=lambda: silu_mul.silu_mul(there),
        reference=lambda: silu_mul.silu_mul_reference(x),
        peers={"torch.compile": lambda: compiled(there)},
        moved=1.5 * x.nbytes,
    )


def rotate(device: torch.device, is_small: bool, tokens: int, cache: torch.dtype) -> Work:
    tokens = 5 if is_small else tokens
    qkv = torch.randn(tokens, HEADS + 2 * KV_HEADS, DIM).to(BF16)
    angles = torch.rand(tokens, DIM // 2) * 100
    here = allocate_kv_cache(1, tokens // PAGE + 1, PAGE, KV_HEADS, DIM, cache)
    there = allocate_kv_cache(1, tokens // PAGE + 1, PAGE, KV_HEADS, DIM, cache, device)
    slots = torch.randperm(tokens)
    inputs = qkv, angles.cos(), angles.sin()
    moved = [each.to(device) for each in (*inputs, slots)]
    row = 2 * KV_HEADS * (DIM * cache.itemsize + (4 if cache in QUANTIZED else 0))

    def run() -> list[torch.Tensor]:
        return [rotary.rotary_write_kv(*moved[:3], there.layers[0], moved[3])]

    def run_and_read() -> list[torch.Tensor]:
        return [*run(), *stored(there)]

    def reference() -> list[torch.Tensor]:
        return [rotary.rotary_write_kv_reference(*inputs, here.layers[0], slots), *stored(here)]

    return Work(
        run_and_read if is_small else run, reference, moved=qkv.nbytes + tokens * (2 * HEADS * DIM + row)
    )


def stored(cache: KvCache) -> list[torch.Tensor]:
    """All keys and values, as the numbers that they mean."""
    layer = cache.layers[0]
    if layer.k_scale is None or layer.v_scale is None:
        return [layer.k.float(), layer.v.float()]
    return [layer.k.float() * layer.k_scale.unsqueeze(-1), layer.v.float() * layer.v_scale.unsqueeze(-1)]


def write(device: torch.device, is_small: bool, cache: torch.dtype) -> Work:
    tokens = 5 if is_small else 8192
    k, v, slots = (
        torch.randn(tokens, KV_HEADS, DIM).to(BF16),
        torch.randn(tokens, KV_HEADS, DIM).to(BF16),
        torch.randperm(tokens),
    )
    here, there = (
        allocate_kv_cache(1, tokens // PAGE + 1, PAGE, KV_HEADS, DIM, cache, each) for each in ("cpu", device)
    )
    moved = [each.to(device) for each in (k, v, slots)]

    def run() -> torch.Tensor:
        write_kv(moved[0], moved[1], there.layers[0], moved[2])
        return there.layers[0].k

    def reference() -> torch.Tensor:
        write_kv_reference(k, v, here.layers[0], slots)
        return here.layers[0].k

    return Work(run, reference, moved=4 * k.nbytes)


def linear_sizes(is_small: bool) -> tuple[int, int]:
    return (512, 192) if is_small else (4096, 14336)


def dense_linear(x: torch.Tensor, inputs: int, outputs: int) -> Call:
    weight = torch.randn(outputs, inputs, device=x.device, dtype=BF16)
    return lambda: F.linear(x, weight)


def int4(device: torch.device, is_small: bool, rows: int, group: int) -> Work:
    inputs, outputs = linear_sizes(is_small)
    scale = torch.rand(inputs // group, outputs).half() * 0.02
    weight = w4a16.pack_int4(torch.randint(0, 16, (inputs, outputs)), scale, -7.5 * scale)
    x = torch.randn(rows, inputs).to(BF16)
    there = w4a16.Int4Weight(*(each.to(device) for each in weight if each is not None))
    xs = x.to(device)
    peers: dict[str, Call] = {}
    if not is_small:
        peers["bf16 linear"] = dense_linear(xs, inputs, outputs)
        packed = torch.randint(0, 256, (outputs, inputs // 2), device=device, dtype=torch.uint8)
        scales = torch.rand(inputs // group, outputs, 2, device=device, dtype=BF16)

        def tinygemm() -> torch.Tensor:
            if "tiles" not in made:
                made["tiles"] = torch._convert_weight_to_int4pack(packed, 8)
            return torch._weight_int4pack_mm(xs, made["tiles"], group, scales)

        made: dict[str, torch.Tensor] = {}
        peers["_weight_int4pack_mm"] = tinygemm
    return Work(
        run=lambda: w4a16.int4_linear(xs, there),
        reference=lambda: w4a16.int4_linear_reference(x, weight),
        peers=peers,
        moved=weight.codes.nbytes + 2 * weight.scale.nbytes + 2 * rows * (inputs + outputs),
        flops=2.0 * rows * inputs * outputs,
    )


def grouped_int8(device: torch.device, is_small: bool, rows: int) -> Work:
    inputs, outputs = linear_sizes(is_small)
    codes = torch.randint(-127, 128, (inputs, outputs), dtype=torch.int8)
    weight = w8a16.GroupedInt8Weight(codes, torch.rand(inputs // 32, outputs).half() * 0.001)
    x = torch.randn(rows, inputs).to(BF16)
    xs, there = x.to(device), w8a16.GroupedInt8Weight(*(each.to(device) for each in weight))
    return Work(
        run=lambda: w8a16.grouped_int8_linear(xs, there),
        reference=lambda: w8a16.grouped_int8_linear_reference(x, weight),
        peers={} if is_small else {"bf16 linear": dense_linear(xs, inputs, outputs)},
        moved=codes.nbytes + weight.scale.nbytes + 2 * rows * (inputs + outputs),
        flops=2.0 * rows * inputs * outputs,
    )


def int8(device: torch.device, is_small: bool, rows: int) -> Work:
    inputs, outputs = linear_sizes(is_small)
    codes = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    weight = w8a8.Int8Weight(codes, torch.rand(outputs) * 0.001)
    x = torch.randn(rows, inputs).to(BF16)
    xs, there = x.to(device), w8a8.Int8Weight(*(each.to(device) for each in weight))
    x8 = torch.randint(-127, 128, (rows, inputs), dtype=torch.int8, device=device)
    peers = {} if is_small else {"bf16 linear": dense_linear(xs, inputs, outputs)}
    if rows > 16:
        peers["_int_mm, product only"] = lambda: torch._int_mm(x8, there.codes.T)
    return Work(
        run=lambda: w8a8.int8_linear(xs, there),
        reference=lambda: w8a8.int8_linear_reference(x, weight),
        peers=peers,
        moved=codes.nbytes + rows * (3 * inputs + 2 * outputs),
        flops=2.0 * rows * inputs * outputs,
    )


def draw(device: torch.device, is_small: bool, top_k: int, top_p: float) -> Work:
    rows, size = (3, 1000) if is_small else (64, 128256)
    logits = torch.randn(rows, size) * 3
    how = sampling.Sampling(
        torch.ones(rows),
        torch.full((rows,), top_k, dtype=torch.int32),
        torch.full((rows,), top_p),
        torch.zeros(rows),
        torch.zeros(rows, dtype=torch.int64),
        torch.arange(rows),
    )
    there, how_there = logits.to(device), sampling.Sampling(*(each.to(device) for each in how))

    def by_sorting() -> torch.Tensor:
        values, ids = there.sort(dim=1, descending=True)
        if top_k:
            values[:, top_k:] = float("-inf")
        p = values.softmax(1)
        p = torch.where(p.cumsum(1) - p < top_p, p, 0.0)
        return ids.gather(1, torch.multinomial(p, 1)).squeeze(1)

    return Work(
        run=lambda: sampling.sample(there, how_there),
        reference=lambda: sampling.sample_reference(logits, how),
        peers={"torch sort, multinomial": by_sorting},
        moved=2 * logits.nbytes,
    )


def check_drafts(device: torch.device, is_small: bool) -> Work:
    drawn = torch.randint(0, 2, (320,))
    drafts, offsets = torch.randint(0, 2, (320,)), torch.arange(0, 321, 5, dtype=torch.int32)
    there = [each.to(device) for each in (drawn, drafts, offsets)]
    return Work(
        run=lambda: verify.verify_drafts(*there),
        reference=lambda: verify.verify_drafts_reference(drawn, drafts, offsets),
        moved=2 * drawn.nbytes,
    )
