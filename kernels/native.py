"""The decoder layer in C (`native.c`), compiled for this machine's processor at first use.

What it computes and why it exists stands at the head of the C file. Where there is no compiler, the CPU forms
of the other files do the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import POINTER, Structure, c_float, c_int64, c_void_p
from pathlib import Path

import torch

from .kv_cache import KvLayer

LANES, GROUP, MAX_HEAD_DIM = 16, 64, 256
TOGETHER = 48
"""Query rows that share a pass over the keys."""
PARTS = ("norms", "products", "placing", "attention", "gate")
"""Of a layer's time, as `Model.spent` counts it: float64, one for each, or NULL."""
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fopenmp", "-shared", "-fPIC", "-fno-math-errno", "-w")
_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int8: 3}


class NativeUnavailable(RuntimeError):
    """The C form can't be had here; the message says why, in half a sentence."""


class Linear(Structure):
    """y = w x + bias of `n` outputs and `k` inputs; the tensors behind the pointers must be kept alive."""

    _fields_ = (
        ("type", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("sums", c_void_p),
        ("bias", c_void_p),
    )


class Layer(Structure):
    _fields_ = (
        ("qkv", Linear),
        ("o", Linear),
        ("gate_up", Linear),
        ("down", Linear),
        ("attn_norm", c_void_p),
        ("ffn_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("kv", c_void_p),
        ("window", c_int64),
    )


class Model(Structure):
    _fields_ = (
        ("hidden", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("intermediate", c_int64),
        ("kv_type", c_int64),
        ("slot_bytes", c_int64),
        ("block_shift", c_int64),
        ("threads", c_int64),
        ("eps", c_float),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("spent", c_void_p),
    )


class Step(Structure):
    _fields_ = (
        ("rows", c_int64),
        ("groups", c_int64),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("group_row", c_void_p),
        ("group_len", c_void_p),
        ("group_table", c_void_p),
        ("tables", c_void_p),
        ("x", c_void_p),
        ("wide", c_void_p),
        ("heads_out", c_void_p),
        ("input", c_void_p),
        ("codes", c_void_p),
        ("code_scale", c_void_p),
    )


def load_library(folder: Path) -> ctypes.CDLL:
    """The compiled functions `layer` and `project`. Takes seconds the first time, then `folder` has the file.

    Raises `NativeUnavailable` without a compiler, or when it fails.
    """
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NativeUnavailable("there is no C compiler")
    source = Path(__file__).with_name("native.c")
    key = hashlib.sha256(
        source.read_bytes() + " ".join((compiler, *_FLAGS, _processor())).encode()
    ).hexdigest()
    target = folder / f"native-{key[:16]}.so"
    try:
        if not target.exists():
            _compile(compiler, source, target)
    except OSError as error:
        raise NativeUnavailable(f"what the C compiler makes can't be kept ({error})") from None
    try:
        library = ctypes.CDLL(str(target))
    except OSError as error:
        raise NativeUnavailable(f"what the C compiler made can't be loaded ({error})") from None
    library.layer.argtypes = (POINTER(Model), POINTER(Layer), POINTER(Step))
    library.project.argtypes = (POINTER(Model), c_void_p, POINTER(Linear), POINTER(Step), c_void_p, c_void_p)
    library.layer.restype = library.project.restype = None
    return library


def _compile(compiler: str, source: Path, target: Path) -> None:
    # Code that will run: nobody else may put it there.
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        # torch brings its own OpenMP; a second team of threads would fight it for the cores.
        openmp = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))[:1]
        command = [compiler, *_FLAGS, "-o", str(made), str(source), *map(str, openmp), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().partition("\n")[0] or f"it ended with {done.returncode}"
            raise NativeUnavailable(f"the C compiler failed ({said[:200]!r})")
        made.replace(target)


def _processor() -> str:
    """What `-march=native` looked at: a home folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.platform() + platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def pack_codes(codes: torch.Tensor) -> torch.Tensor:
    """int8 `[n, k]` to tiles `[ceil(n/16), ceil(k/4), 16, 4]`, padded with zeros."""
    n, k = codes.shape
    padded = torch.zeros(-(-n // LANES) * LANES, -(-k // 4) * 4, dtype=torch.int8)
    padded[:n, :k] = codes
    return padded.view(-1, LANES, padded.shape[1] // 4, 4).transpose(1, 2).contiguous()


def group_sums(codes: torch.Tensor) -> torch.Tensor:
    """Sums of each 64 codes of a row, int16 `[ceil(n/16), ceil(k/64), 16]`."""
    n, k = codes.shape
    padded = torch.zeros(-(-n // LANES) * LANES, -(-k // GROUP) * GROUP, dtype=torch.int8)
    padded[:n, :k] = codes
    sums = padded.view(-1, LANES, padded.shape[1] // GROUP, GROUP).sum(3, dtype=torch.int16)
    return sums.transpose(1, 2).contiguous()


def pack_floats(weight: torch.Tensor) -> torch.Tensor:
    """float32 `[n, k]` to tiles `[ceil(n/16), k, 16]`, padded with zeros."""
    n, k = weight.shape
    padded = torch.zeros(-(-n // LANES) * LANES, k)
    padded[:n] = weight
    return padded.view(-1, LANES, k).transpose(1, 2).contiguous()


def linear(
    packed: torch.Tensor,
    n: int,
    k: int,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    sums: torch.Tensor | None = None,
) -> Linear:
    """`scale` float32 [n padded to 16] and `sums` (of `group_sums`) of int8 weights."""
    kind = _TYPES[packed.dtype]
    return Linear(kind, n, k, *(address(part) for part in (packed, scale, sums, bias)))


def address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def kv_layout(layer: KvLayer) -> tuple[int, int, int]:
    """Type, bytes of a slot, address of slot 0. Raises `ValueError` for a cache that only a GPU reads."""
    if layer.rows is None or layer.rows.dtype not in _TYPES:
        raise ValueError("The C form reads caches of fp32, fp16, bf16 or int8 that keep V untransposed.")
    return _TYPES[layer.rows.dtype], layer.rows.stride(0) * layer.rows.element_size(), layer.rows.data_ptr()
