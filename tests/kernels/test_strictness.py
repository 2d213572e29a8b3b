"""The interpreter as our tests use it: its arithmetic is a GPU's, and it does not let faults pass."""

from __future__ import annotations

import pytest
import torch

from .conftest import INTERPRETED

if not INTERPRETED:
    pytest.skip("of the interpreter", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

FP8 = torch.float8_e4m3fn


@triton.jit
def cast(X, Y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(Y + at, tl.load(X + at).to(Y.dtype.element_ty))


@triton.jit
def multiply(A, B, C, N: tl.constexpr):
    at = tl.arange(0, N)
    place = at[:, None] * N + at[None, :]
    tl.store(C + place, tl.dot(tl.load(A + place), tl.load(B + place)))


@triton.jit
def copy(X, Y, size, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(Y + at, tl.load(X + at), mask=at < size)


@triton.jit
def total(X, Y, size, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(Y, tl.sum(tl.load(X + at, mask=at < size), 0))


@triton.jit
def all_to_one_place(Y, N: tl.constexpr):
    tl.store(Y + tl.arange(0, N), tl.program_id(0) * 1.0)


@triton.jit
def both_lanes_to_one_place(Y):
    tl.store(Y + tl.arange(0, 2) // 2, 1.0)


@triton.jit
def offset(X, Y, stride):
    tl.store(Y, tl.load(X) * stride)


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8, torch.float8_e5m2, torch.float16], ids=str)
def test_casts_round_as_torch_does(dtype: torch.dtype) -> None:
    top = float(torch.finfo(dtype).max)
    x = torch.cat((torch.randn(1016) * 30, torch.tensor([0.0, -0.0, top, -top, 1e-9, 447.9, 0.1, -3.3])))
    y = torch.empty(1024, dtype=dtype)

    cast[(1,)](x, y, N=1024)

    assert torch.equal(y.float(), x.to(dtype).float())


def test_fp8_saturates_and_keeps_nan() -> None:
    x, y = torch.tensor([1000.0, -1000.0, float("inf"), float("nan")]), torch.empty(4, dtype=FP8)
    back = torch.empty(4)

    cast[(1,)](x, y, N=4)
    cast[(1,)](y, back, N=4)

    assert back[:3].tolist() == [448.0, -448.0, 448.0]
    assert back[3].isnan()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, FP8], ids=str)
def test_products_of_small_floats_are_products_of_their_values(dtype: torch.dtype) -> None:
    a, b, c = torch.randn(16, 16).to(dtype), torch.randn(16, 16).to(dtype), torch.empty(16, 16)

    multiply[(1,)](a, b, c, N=16)

    assert torch.allclose(c, a.float() @ b.float(), atol=1e-5)


def test_a_load_beyond_a_tensor_is_an_error() -> None:
    x, y = torch.randn(20), torch.empty(32)

    with pytest.raises(InterpreterError, match=r"OutOfBounds.*load: 12 of 16 lanes"):
        copy[(2,)](x, y, 20, N=16)


def test_a_store_beyond_a_tensor_is_an_error() -> None:
    x, y = torch.randn(32), torch.empty(20)

    with pytest.raises(InterpreterError, match=r"OutOfBounds.*store"):
        copy[(2,)](x, y, 32, N=16)


def test_what_a_mask_leaves_open_is_poison() -> None:
    y = torch.empty(1)

    total[(1,)](torch.randn(16), y, 5, N=16)

    assert y.isnan()


def test_two_writers_of_one_place_are_an_error() -> None:
    with pytest.raises(InterpreterError, match=r"WriteRace.*programs"):
        all_to_one_place[(2,)](torch.empty(16), N=16)
    with pytest.raises(InterpreterError, match=r"WriteRace.*twice"):
        both_lanes_to_one_place[(1,)](torch.empty(16))


def test_an_int32_that_overflows_is_an_error_and_an_int64_is_not() -> None:
    with pytest.raises(InterpreterError, match="int32 overflow"):
        offset[(1,)](torch.tensor([70_000], dtype=torch.int32), torch.empty(1, dtype=torch.int64), 65_536)

    y = torch.empty(1, dtype=torch.int64)
    offset[(1,)](torch.tensor([70_000]), y, 65_536)
    assert y.item() == 70_000 * 65_536
