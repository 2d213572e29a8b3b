"""Keys and values reach their slots, quantised as promised, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from edgecloud.kernels.kv_cache import QUANTIZED, KvCache, allocate_kv_cache
from edgecloud.kernels.kv_write import write_kv, write_kv_reference
from edgecloud.kernels.rotary import rotary_write_kv, rotary_write_kv_reference

from .builders import TOLERANCE, poisoned_cache, row_error
from .conftest import INTERPRETED

I8, FP8 = torch.int8, torch.float8_e4m3fn
TYPES = [torch.float32, torch.float16, torch.bfloat16, I8, FP8]
SLOTS = torch.tensor([17, 3, -1, 40, 0, 63, -1, 33])


def twins(*arguments: int, dtype: torch.dtype, transpose_v: bool = False) -> tuple[KvCache, KvCache]:
    """Two caches of one content, one for a form and one for the reference; the null block may differ."""
    return poisoned_cache(*arguments, dtype, transpose_v), poisoned_cache(*arguments, dtype, transpose_v)


def content(cache: KvCache) -> torch.Tensor:
    return cache.storage[:, :-1]


def turned(dtype: torch.dtype) -> list[bool]:
    return [False, True] if dtype in QUANTIZED and INTERPRETED else [False]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("block_size", "heads", "dim"), [(16, 2, 64), (1, 1, 80), (32, 9, 16)])
def test_every_slot_gets_its_row_and_no_other_changes(
    dtype: torch.dtype, block_size: int, heads: int, dim: int
) -> None:
    # Views into a fused projection, and rows that go nowhere.
    qkv = torch.randn(len(SLOTS), 3 * heads, dim)
    k, v = qkv[:, heads : 2 * heads], qkv[:, 2 * heads :]
    for transpose_v in turned(dtype):
        ours, theirs = twins(64 // block_size, block_size, heads, dim, dtype=dtype, transpose_v=transpose_v)

        write_kv(k, v, ours.layers[1], SLOTS)

        write_kv_reference(k, v, theirs.layers[1], SLOTS)
        assert torch.equal(content(ours), content(theirs))


@pytest.mark.parametrize(
    ("dtype", "interleaved", "heads", "kv_heads", "dim", "rotary"),
    [
        (torch.float32, False, 3, 1, 64, 64),
        (torch.float32, True, 9, 9, 16, 8),
        (torch.bfloat16, False, 10, 2, 80, 80),
        (torch.float16, True, 3, 1, 64, 64),
        (I8, False, 9, 9, 16, 8),
        (I8, True, 10, 2, 80, 80),
        (FP8, False, 3, 1, 64, 64),
        (FP8, False, 10, 2, 80, 24),
    ],
    ids=str,
)
def test_keys_are_rotated_before_they_are_written(
    dtype: torch.dtype, interleaved: bool, heads: int, kv_heads: int, dim: int, rotary: int
) -> None:
    qkv = torch.randn(len(SLOTS), heads + 2 * kv_heads, dim)
    angles = torch.randn(len(SLOTS), rotary // 2) * 10
    for transpose_v in turned(dtype):
        ours, theirs = twins(4, 16, kv_heads, dim, dtype=dtype, transpose_v=transpose_v)

        q = rotary_write_kv(qkv, angles.cos(), angles.sin(), ours.layers[1], SLOTS, interleaved=interleaved)

        layers = ours.layers[1], theirs.layers[1]
        expected = rotary_write_kv_reference(qkv, angles.cos(), angles.sin(), layers[1], SLOTS, interleaved)
        assert row_error(q, expected) < 1e-6
        live = SLOTS[SLOTS >= 0]
        for mine, other in zip(*layers, strict=True):
            if mine is not None and other is not None and mine is not layers[0].rows:
                place = live // 16, live % 16
                step = 1.0 if dtype == I8 else 64.0 if dtype == FP8 else 0.0
                difference = (mine[place].double() - other[place].double()).abs()
                assert (difference <= step + other[place].double().abs() * 0.01).all()
        untouched = torch.ones(64, dtype=torch.bool).index_fill_(0, live, False)
        for mine, other in ((layers[0].k, layers[1].k), (layers[0].v, layers[1].v)):
            rows = mine[:-1].flatten(0, 1)[untouched], other[:-1].flatten(0, 1)[untouched]
            assert torch.equal(rows[0].contiguous().view(torch.uint8), rows[1].contiguous().view(torch.uint8))


def test_half_precision_is_rotated_in_fp32() -> None:
    qkv = torch.randn(8, 6, 64).bfloat16()
    angles = torch.randn(8, 32)
    ours, theirs = twins(4, 16, 1, 64, dtype=torch.bfloat16)

    q = rotary_write_kv(qkv, angles.cos(), angles.sin(), ours.layers[0], SLOTS)

    expected = rotary_write_kv_reference(qkv, angles.cos(), angles.sin(), theirs.layers[0], SLOTS)
    assert row_error(q, expected) < TOLERANCE[torch.bfloat16]


def test_codes_are_rounded_not_cut() -> None:
    row = torch.tensor([127.0, 1.5, 2.5, -0.6, -1.49, 100.51, -127.0, 0.0]).repeat(2)
    ours, _ = twins(1, 16, 1, 16, dtype=I8)

    write_kv(row.view(1, 1, 16), row.view(1, 1, 16), ours.layers[0], torch.tensor([0]))

    assert ours.layers[0].k[0, 0, 0, :8].tolist() == [127, 2, 2, -1, -1, 101, -127, 0]


@pytest.mark.parametrize("dtype", [I8, FP8], ids=str)
def test_a_row_of_zeros_stays_one(dtype: torch.dtype) -> None:
    ours, _ = twins(1, 16, 1, 16, dtype=dtype)

    write_kv(torch.zeros(1, 1, 16), torch.zeros(1, 1, 16), ours.layers[0], torch.tensor([5]))

    scale = ours.layers[0].k_scale
    assert scale is not None
    assert (ours.layers[0].k[0, 5].float() * scale[0, 5]).tolist() == [[0.0] * 16]
    assert scale[0, 5].item() > 0


@pytest.mark.slow
def test_slots_beyond_two_billion_elements_are_found() -> None:
    cache = allocate_kv_cache(1, 750_000, 64, 1, 16, I8)
    k = torch.randn(1, 1, 16)

    write_kv(k, k, cache.layers[0], torch.tensor([749_999 * 64 + 63]))

    scale = cache.layers[0].k_scale
    assert scale is not None
    assert row_error(cache.layers[0].k[749_999, 63] * scale[749_999, 63], k[0]) < 0.02


def test_shapes_that_do_not_fit_are_refused() -> None:
    cache = allocate_kv_cache(1, 4, 16, 2, 64)
    rows = torch.randn(3, 2, 64)

    with pytest.raises(ValueError, match=r"expected \(2, 2, 64\)"):
        write_kv(rows, rows, cache.layers[0], torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"heads \+ 4, 64"):
        rotary_write_kv(rows, rows[:, 0], rows[:, 0], cache.layers[0], torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match="must be 1, 2, 4"):
        allocate_kv_cache(1, 4, 24, 2, 64)
    with pytest.raises(ValueError, match=r"not torch\.int16"):
        allocate_kv_cache(1, 4, 16, 2, 64, torch.int16)
