"""Paged attention: every shape that models have, every edge of pages, tiles, windows and splits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edgecloud.kernels import paged
from edgecloud.kernels.attention import paged_attention, paged_attention_reference
from edgecloud.kernels.attention_plan import plan_attention
from edgecloud.kernels.kv_cache import allocate_kv_cache
from edgecloud.kernels.kv_write import write_kv

from .builders import NAN, TOLERANCE, Step, fill, make_step, row_error
from .conftest import INTERPRETED

FP8 = torch.float8_e4m3fn
F32, F16, BF16, I8 = torch.float32, torch.float16, torch.bfloat16, torch.int8


def error_of(step: Step) -> float:
    out = paged_attention(step.q, step.layer, step.plan)
    return row_error(out, paged_attention_reference(step.q, step.layer, step.plan))


def edges(page: int) -> list[tuple[int, int]]:
    """Contexts at and around the edges of pages and tiles of 64, decodes and chunks."""
    decodes = [(length, 1) for length in sorted({1, max(page - 1, 1), page, page + 1, 63, 64, 65, 128, 150})]
    return [*decodes, (2, 2), (page + 1, 2), (40, 17), (0, 0), (66, 5), (128, 65), (100, 0), (131, 20)]


def test_decodes_and_chunks_in_one_batch_over_shuffled_blocks() -> None:
    step = make_step([(1, 1), (65, 1), (70, 20), (33, 0), (18, 18), (20, 3)], kv_heads=2, group=3)

    assert error_of(step) < 1e-5


def test_every_row_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(*shape: Any, **options: Any) -> torch.Tensor:
        return torch.full(shape[0] if isinstance(shape[0], tuple) else shape, NAN, **options)

    step = make_step([(1, 1), (65, 1), (70, 20), (33, 0), (20, 3)], group=3)
    monkeypatch.setattr(torch, "empty", poisoned)

    assert paged_attention(step.q, step.layer, step.plan).isfinite().all()


def test_zeros_would_not_pass() -> None:
    step = make_step([(300, 1)])
    expected = paged_attention_reference(step.q, step.layer, step.plan)

    assert row_error(torch.zeros_like(expected), expected) == 1.0


# cases: E25
@pytest.mark.parametrize("window", [1, 16, 50, 64, 1000])
def test_a_window_counts_the_token_itself(window: int) -> None:
    step = make_step([(1, 1), (150, 1), (64, 1), (65, 1), (100, 40), (20, 20), (70, 3)], window=window)

    assert error_of(step) < 1e-5


# cases: E76
@pytest.mark.parametrize("cache_dtype", [I8, FP8], ids=str)
@pytest.mark.parametrize("transpose_v", [False, True])
def test_quantised_rows_count_with_their_scales(cache_dtype: torch.dtype, transpose_v: bool) -> None:
    if transpose_v and not INTERPRETED:
        pytest.skip("only GPUs turn V")
    step = make_step(
        [(1, 1), (65, 1), (40, 20)], kv_heads=2, cache_dtype=cache_dtype, transpose_v=transpose_v
    )

    # The codes of fp8 are multiplied as fp16 only where q is not fp32.
    assert error_of(step) < 1e-5


@pytest.mark.parametrize(("cache_dtype", "tolerance"), [(I8, 3e-2), (FP8, 8e-2)], ids=str)
def test_quantising_keys_and_values_costs_little(cache_dtype: torch.dtype, tolerance: float) -> None:
    k, v, q = torch.randn(100, 2, 64), torch.randn(100, 2, 64) * 4, torch.randn(1, 6, 64)
    plan = plan_attention([0, 1], [100], [[3, 1, 4, 0, 5, 9, 2]], 16)
    slots = plan.slots(0, 0, 100)
    results = []
    for dtype in (F32, cache_dtype):
        layer = allocate_kv_cache(1, 10, 16, 2, 64, dtype).layers[0]
        write_kv(k, v, layer, slots)
        results.append(paged_attention(q, layer, plan))

    assert 1e-3 < row_error(results[1], results[0]) < tolerance


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("cache_dtype", [None, I8, FP8], ids=str)
def test_half_precision(dtype: torch.dtype, cache_dtype: torch.dtype | None) -> None:
    step = make_step([(70, 1), (40, 20)], dtype=dtype, cache_dtype=cache_dtype)

    assert error_of(step) < TOLERANCE[dtype] * (3 if cache_dtype and dtype == F16 else 1)


@pytest.mark.parametrize("dim", [8, 24, 40])
def test_heads_of_any_size(dim: int) -> None:
    step = make_step([(1, 1), (65, 1), (40, 20)], kv_heads=2, dim=dim)

    assert error_of(step) < 1e-5


def test_a_row_of_padding_is_zero() -> None:
    """A captured graph is replayed with fewer sequences: the others then have no tokens."""
    step = make_step([(70, 1), (90, 1)])
    if not INTERPRETED:
        pytest.skip("only GPUs capture graphs")
    step.plan.tables.context_lens[1] = 0

    out = paged_attention(step.q, step.layer, step.plan)

    assert row_error(out[:1], paged_attention_reference(step.q, step.layer, step.plan)[:1]) < 1e-5
    assert out[1].abs().sum() == 0


def test_splits_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "SPLIT", 64)
    step = make_step([(1, 1), (64, 1), (65, 1), (250, 1), (250, 16), (129, 2)], group=3)

    assert error_of(step) < 1e-5


def test_a_window_smaller_than_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "SPLIT", 64)
    step = make_step([(64, 1), (130, 1), (250, 1), (250, 16)], window=20)

    assert error_of(step) < 1e-5


def test_where_the_splits_lie_changes_almost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step([(250, 1)])
    whole = paged_attention(step.q, step.layer, step.plan)
    monkeypatch.setattr(paged, "SPLIT", 64)

    assert row_error(paged_attention(step.q, step.layer, step.plan), whole) < 1e-6


def test_a_row_has_the_same_bits_alone_and_among_neighbours() -> None:
    step = make_step([(65, 1), (33, 1), (70, 20), (90, 1)], kv_heads=2)
    together = paged_attention(step.q, step.layer, step.plan)

    for sequence in range(4):
        start, end = step.plan.offsets[sequence : sequence + 2]
        alone = plan_attention(
            [0, end - start],
            [step.plan.context_lens[sequence]],
            [step.plan.block_tables[sequence]],
            step.plan.block_size,
        )
        assert torch.equal(paged_attention(step.q[start:end], step.layer, alone), together[start:end])


def test_where_blocks_lie_changes_no_bit() -> None:
    step = make_step([(90, 1), (70, 20)])
    before = paged_attention(step.q, step.layer, step.plan)
    other = step.cache.storage.roll(5, 1)
    step.cache.storage.copy_(other)
    num_rows = step.cache.storage.shape[1]
    tables = [[(block + 5) % num_rows for block in table] for table in step.plan.block_tables]
    moved = plan_attention(step.plan.offsets, step.plan.context_lens, tables, step.plan.block_size)

    assert torch.equal(paged_attention(step.q, step.layer, moved), before)


def test_a_chunk_gives_what_decodes_would() -> None:
    step = make_step([(40, 20)], group=3)
    chunk = paged_attention(step.q, step.layer, step.plan)
    table = step.plan.block_tables[0]
    decodes = plan_attention(list(range(21)), [21 + i for i in range(20)], [table] * 20, 16)

    assert row_error(paged_attention(step.q, step.layer, decodes), chunk) < 1e-6


def test_a_window_that_holds_everything_is_none() -> None:
    step = make_step([(90, 1), (70, 20)])
    windowed = plan_attention(
        step.plan.offsets, step.plan.context_lens, step.plan.block_tables, 16, window=90
    )

    expected = paged_attention(step.q, step.layer, step.plan)
    assert row_error(paged_attention(step.q, step.layer, windowed), expected) < 1e-6


def test_the_scale_is_the_callers() -> None:
    step = make_step([(30, 1), (40, 20)])

    out = paged_attention(step.q, step.layer, step.plan, 0.5)

    assert row_error(out, paged_attention_reference(step.q, step.layer, step.plan, 0.5)) < 1e-5


@pytest.mark.slow
def test_blocks_beyond_two_billion_elements_are_found() -> None:
    # Memory that is never touched is never given: this takes a few pages of 2.2 GB.
    cache = allocate_kv_cache(1, 750_000, 64, 1, 16, I8)
    layer = cache.layers[0]
    plan = plan_attention([0, 1], [70], [[749_999, 749_998]], 64)
    fill(layer, plan.slots(0, 0, 70))
    q = torch.randn(1, 2, 16)
    assert layer.k.stride(0) * 749_999 > 2**31

    assert row_error(paged_attention(q, layer, plan), paged_attention_reference(q, layer, plan)) < 1e-5


def test_shapes_that_do_not_fit_are_refused() -> None:
    step = make_step([(30, 1)], kv_heads=2, group=2)

    with pytest.raises(ValueError, match="expected \\(1, heads, 16\\)"):
        paged_attention(step.q.repeat(2, 1, 1), step.layer, step.plan)
    with pytest.raises(ValueError, match="3 query heads are no multiple of 2"):
        paged_attention(step.q[:, :3], step.layer, step.plan)
    with pytest.raises(ValueError, match="Sequence 0 has 1 queries, 40 tokens, 2 blocks of 16"):
        plan_attention([0, 1], [40], [[1, 2]], 16)
    with pytest.raises(ValueError, match="at least one token"):
        plan_attention([0, 1], [4], [[1]], 16, window=0)


# group, dim, KV heads, page, window, types of q and cache, V turned: each value beside many of the others.
MATRIX = [
    (1, 64, 2, 1, None, F32, F32, False),
    (3, 80, 1, 32, None, BF16, BF16, False),
    (4, 128, 2, 16, None, BF16, I8, True),
    (5, 96, 1, 16, 50, F32, F32, False),
    (7, 128, 1, 64, None, F16, F16, False),
    (8, 64, 1, 16, 16, BF16, FP8, True),
    (16, 32, 1, 8, None, F32, I8, False),
    (24, 64, 2, 16, None, F32, F32, False),
    (2, 256, 1, 16, 1, F32, F32, False),
    (3, 192, 1, 4, 33, BF16, BF16, False),
    (5, 80, 2, 2, None, F32, FP8, False),
    (4, 96, 1, 64, 64, F16, I8, True),
    (1, 16, 1, 32, 1, F32, I8, True),
    (24, 128, 1, 1, 50, BF16, BF16, False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("group", "dim", "kv_heads", "page", "window", "dtype", "cache", "turned"), MATRIX)
def test_every_shape(
    group: int,
    dim: int,
    kv_heads: int,
    page: int,
    window: int | None,
    dtype: torch.dtype,
    cache: torch.dtype,
    turned: bool,
) -> None:
    step = make_step(
        edges(page),
        kv_heads=kv_heads,
        group=group,
        dim=dim,
        block_size=page,
        window=window,
        dtype=dtype,
        cache_dtype=cache,
        transpose_v=turned and INTERPRETED,
    )

    assert error_of(step) < TOLERANCE[dtype]
