"""Linear layers on quantised weights: codes and scales first, then products."""

from __future__ import annotations

import pytest
import torch

from edgecloud.kernels.w4a16 import (
    Int4Weight,
    dequantize_int4,
    int4_linear,
    int4_linear_reference,
    pack_int4,
    unpack_int4,
)
from edgecloud.kernels.w8a8 import (
    int8_linear,
    int8_linear_cpu,
    int8_linear_reference,
    quantize_weight,
)
from edgecloud.kernels.w8a16 import (
    GroupedInt8Weight,
    dequantize_grouped_int8,
    grouped_int8_linear,
    grouped_int8_linear_reference,
)

from .builders import TOLERANCE, row_error

TYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(1, 32, 8), (2, 256, 72), (16, 128, 64), (17, 384, 130), (65, 256, 40)]


def wild_scales(groups: int, outputs: int) -> torch.Tensor:
    """Over a factor of 100, so that a wrong group or column shows."""
    return (10 ** (torch.rand(groups, outputs) * 2 - 3)).half()


def random_int4(inputs: int, outputs: int, group: int, has_offset: bool) -> Int4Weight:
    scale = wild_scales(inputs // group, outputs)
    offset = -torch.randint(0, 16, scale.shape) * scale if has_offset else None
    return pack_int4(torch.randint(0, 16, (inputs, outputs)), scale, offset)


def random_int8(inputs: int, outputs: int, group: int) -> GroupedInt8Weight:
    codes = torch.randint(-127, 128, (inputs, outputs), dtype=torch.int8)
    return GroupedInt8Weight(codes, wild_scales(inputs // group, outputs))


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("has_offset", [False, True])
def test_the_identity_gives_back_every_weight(group: int, has_offset: bool) -> None:
    weight = random_int4(128, 24, group, has_offset)

    assert row_error(int4_linear(torch.eye(128), weight), dequantize_int4(weight)) < 1e-6


def test_packing_keeps_every_code_where_the_layout_says() -> None:
    codes = torch.randint(0, 16, (64, 8))

    weight = pack_int4(codes, torch.ones(2, 8), None)

    assert torch.equal(unpack_int4(weight), codes.to(torch.uint8))
    # Packed row 17 is the second of the second group: elements 33 and 49.
    assert torch.equal(weight.codes[17], (codes[33] | codes[49] << 4).to(torch.uint8))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("has_offset", [False, True])
def test_four_bits(dtype: torch.dtype, rows: int, inputs: int, outputs: int, has_offset: bool) -> None:
    weight = random_int4(inputs, outputs, 128 if inputs == 384 else 32, has_offset)
    x, bias = torch.randn(rows, inputs).to(dtype), torch.randn(outputs).to(dtype)

    y = int4_linear(x, weight, bias)

    assert row_error(y, int4_linear_reference(x, weight, bias)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_eight_bits_in_groups(dtype: torch.dtype, rows: int, inputs: int, outputs: int) -> None:
    weight = random_int8(inputs, outputs, 32)
    x, bias = torch.randn(rows, inputs).to(dtype), torch.randn(outputs).to(dtype)

    y = grouped_int8_linear(x, weight, bias)

    assert row_error(y, grouped_int8_linear_reference(x, weight, bias)) < TOLERANCE[dtype]


def test_eight_bits_in_groups_by_the_identity() -> None:
    weight = random_int8(64, 24, 32)

    assert row_error(grouped_int8_linear(torch.eye(64), weight), dequantize_grouped_int8(weight)) < 1e-6


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [*SHAPES, (3, 300, 50)])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_int8_by_int8(dtype: torch.dtype, rows: int, inputs: int, outputs: int) -> None:
    weight = quantize_weight(torch.randn(outputs, inputs) * torch.rand(outputs, 1))
    x, bias = (torch.randn(rows, inputs) * 10).to(dtype), torch.randn(outputs)

    assert row_error(int8_linear(x, weight, bias), int8_linear_reference(x, weight, bias)) < TOLERANCE[dtype]


def test_int8_by_int8_is_exact_and_its_rows_know_nothing_of_each_other() -> None:
    weight, x = quantize_weight(torch.randn(40, 256)), torch.randn(20, 256)

    together = int8_linear(x, weight)

    assert torch.equal(together, int8_linear_cpu(x, weight))
    for row in range(20):
        assert torch.equal(int8_linear(x[row : row + 1], weight), together[row : row + 1])


def test_a_row_of_zeros_and_a_weight_of_zeros() -> None:
    weight = quantize_weight(torch.zeros(4, 32))

    assert int8_linear(torch.zeros(1, 32), weight, torch.ones(4)).tolist() == [[1.0] * 4]


def test_quantised_weights_are_near_what_they_were() -> None:
    weight = torch.randn(40, 256) * torch.rand(40, 1)
    codes, scale = quantize_weight(weight)

    assert row_error(codes * scale.unsqueeze(1), weight) < 0.01


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="has 64 inputs"):
        int4_linear(torch.randn(1, 32), random_int4(64, 8, 32, False))
    with pytest.raises(ValueError, match="has 64 inputs"):
        grouped_int8_linear(torch.randn(1, 32), random_int8(64, 8, 32))
    with pytest.raises(ValueError, match="the weight \\(8, 64\\)"):
        int8_linear(torch.randn(1, 32), quantize_weight(torch.randn(8, 64)))
