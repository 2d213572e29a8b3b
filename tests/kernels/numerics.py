"""Mends the arithmetic of Triton's interpreter, which is silently wrong for the small floats.

As of 3.9: `tl.dot` multiplies the bit patterns of bf16; fp32 to bf16 truncates, where a GPU rounds; fp32 to
fp8 loses a carry (off by 2x for one value in thirty) and does not saturate; fp8's NaN is read as 480.
Arithmetic on bf16 operands stays wrong: kernels widen to fp32 right after a load, which a GPU does anyway.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

TORCH = {
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
    tl.bfloat16: torch.bfloat16,
    tl.float16: torch.float16,
    tl.float32: torch.float32,
    tl.float64: torch.float64,
}
AS_BITS = {tl.float8e4nv: np.uint8, tl.float8e5: np.uint8, tl.bfloat16: np.uint16}
LARGEST = {tl.float8e4nv: 448.0, tl.float8e5: 57344.0}


def convert(data: Any, source: Any, target: Any) -> Any:
    """An array of `source` numbers as `target`: to the nearest, halves to even; fp8 saturates and keeps
    NaN."""
    array = np.ascontiguousarray(data)
    if source in AS_BITS:
        array = array.view(np.int8 if array.itemsize == 1 else np.int16)
    numbers = torch.from_numpy(array.reshape(-1))
    if source in AS_BITS:
        numbers = numbers.view(TORCH[source])
    numbers = numbers.float() if target != tl.float64 else numbers.double()
    if (top := LARGEST.get(target)) is not None:
        numbers = torch.where(numbers.isnan(), numbers, numbers.clamp(-top, top))
    numbers = numbers.to(TORCH[target])
    if target in AS_BITS:
        bits = numbers.view(torch.uint8 if numbers.element_size() == 1 else torch.int16).numpy()
        return bits.view(AS_BITS[target]).reshape(np.shape(data))
    return numbers.numpy().reshape(np.shape(data))


def mend() -> None:
    """Replace the builder's casts and its dot. Once a process, before any kernel runs."""
    builder = interpreter.InterpreterBuilder
    cast_as_shipped, dot_as_shipped = builder.cast_impl, builder.create_dot

    def cast(self: Any, source: Any, type: Any) -> Any:
        have, want = source.dtype.scalar, type.scalar
        if have in TORCH and want in TORCH and (have in AS_BITS or want in AS_BITS):
            return interpreter.TensorHandle(convert(source.data, have, want), want)
        if want == tl.bfloat16 and not have.is_floating():
            wide = source.data.astype(np.float32)
            return interpreter.TensorHandle(convert(wide, tl.float32, want), want)
        if have == tl.bfloat16 and not want.is_floating():
            wide = convert(source.data, have, tl.float32)
            return interpreter.TensorHandle(wide.astype(interpreter._get_np_dtype(want)), want)
        return cast_as_shipped(self, source, type)

    def widen(handle: Any) -> Any:
        if handle.dtype.scalar not in AS_BITS:
            return handle
        wide = convert(handle.data, handle.dtype.scalar, tl.float32)
        return interpreter.TensorHandle(wide, tl.float32)

    def dot(self: Any, a: Any, b: Any, sums: Any, *rest: Any) -> Any:
        return dot_as_shipped(self, widen(a), widen(b), sums, *rest)

    builder.cast_impl = cast
    builder.create_fp_to_fp = lambda self, source, type, rounding: cast(self, source, type)
    builder.create_dot = dot
    for name in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc"):
        setattr(builder, f"create_{name}", lambda self, source, type: cast(self, source, type))
