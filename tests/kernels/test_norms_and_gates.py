"""RMS norm and SiLU gate."""

from __future__ import annotations

import pytest
import torch

from edgecloud.kernels.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from edgecloud.kernels.silu_mul import silu_mul, silu_mul_reference

from .builders import TOLERANCE, row_error

TYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("size", [1, 64, 576, 2049])
def test_rows_are_normed(dtype: torch.dtype, size: int) -> None:
    x, weight = (torch.randn(5, size) * 3).to(dtype), torch.rand(size).to(dtype)

    assert row_error(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5)) < TOLERANCE[dtype]


def test_heads_are_normed_where_they_lie_each_with_its_own_weight() -> None:
    qkv, weight = torch.randn(4, 9, 64), torch.rand(7, 64)

    y = rms_norm(qkv[:, :7], weight, 1e-5)

    assert row_error(y, rms_norm_reference(qkv[:, :7], weight, 1e-5)) < 1e-6
    assert y.is_contiguous()


def test_eps_keeps_a_row_of_zeros_finite() -> None:
    assert rms_norm(torch.zeros(2, 64), torch.ones(64), 1e-5).abs().sum() == 0


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_sum_that_is_returned_is_the_one_that_was_normed(dtype: torch.dtype) -> None:
    x, residual = torch.randn(3, 576).to(dtype), (torch.randn(3, 576) * 100).to(dtype)
    weight = torch.rand(576).to(dtype)

    y, h = add_rms_norm(x, residual, weight, 1e-5)

    expected, h_expected = add_rms_norm_reference(x, residual, weight, 1e-5)
    assert torch.equal(h, h_expected)
    assert row_error(y, expected) < TOLERANCE[dtype]
    # Element by element: normed before it was rounded, half of them would be the neighbouring number.
    assert dtype == torch.float32 or (y == expected).float().mean() > 0.98


def test_inputs_stay_as_they_were() -> None:
    x, residual = torch.randn(3, 64), torch.randn(3, 64)
    before = x.clone(), residual.clone()

    add_rms_norm(x, residual, torch.ones(64), 1e-5)

    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("size", [3, 1024, 1536])
def test_the_gate(dtype: torch.dtype, size: int) -> None:
    gate_up = (torch.randn(3, 2 * size) * 4).to(dtype)

    assert row_error(silu_mul(gate_up), silu_mul_reference(gate_up)) < TOLERANCE[dtype]


def test_large_gates_do_not_overflow() -> None:
    gate_up = torch.tensor([[-200.0, 200.0, 0.0, 1.0, 2.0, 3.0]])

    assert silu_mul(gate_up).tolist() == [[-0.0, 400.0, 0.0]]


def test_no_rows_are_no_rows() -> None:
    assert silu_mul(torch.empty(0, 8)).shape == (0, 4)
    assert rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5).shape == (0, 8)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="an even width"):
        silu_mul(torch.randn(2, 7))
    with pytest.raises(ValueError, match="one weight per element"):
        rms_norm(torch.randn(2, 8), torch.ones(7), 1e-5)
    with pytest.raises(ValueError, match="the residual \\(3, 8\\)"):
        add_rms_norm(torch.randn(2, 8), torch.randn(3, 8), torch.ones(8), 1e-5)
