"""Which form of a kernel runs: Triton for tensors on a GPU, torch operations elsewhere.

Triton comes with torch where there are wheels of it. Where there are none (macOS, CPU builds), `jit` and
`tl` are stand-ins, so that every file of this folder still imports and its CPU form runs.
`TRITON_INTERPRET=1`, set before the first import, sends CPU tensors through the Triton kernels too: that is
how they are tested.

Kernels carry `@no_type_check`: their bodies are Triton's language, not Python, and only Triton can check
them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch

triton: Any = None
tl: Any = None
with suppress(ImportError):
    triton = import_module("triton")
    tl = import_module("triton.language")

INTERPRETED = triton is not None and os.environ.get("TRITON_INTERPRET") == "1"


def jit(function: Any) -> Any:
    """`triton.jit`, or where triton is missing, the function itself, which then nobody launches."""
    return function if triton is None else triton.jit(function)


def on_triton(tensor: torch.Tensor) -> bool:
    """Whether the Triton form must run for this tensor. Raises `RuntimeError` for a GPU without triton."""
    if INTERPRETED or tensor.is_cuda:
        if triton is None:
            raise RuntimeError(
                "A kernel was asked for on a GPU, and triton is not installed: pip install triton."
            )
        return True
    return False


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n; tiles have such sizes."""
    return 1 << max(n - 1, 0).bit_length()


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def require(condition: bool, message: str) -> None:
    """Raise `ValueError`: a shape, dtype or stride that a kernel cannot take."""
    if not condition:
        raise ValueError(message)
