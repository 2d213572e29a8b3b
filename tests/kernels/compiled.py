"""Compiles for sm_90, without a GPU, what our launchers would launch, and reads what came out of it.

The launchers run on tensors that have shapes and no memory; in place of each kernel stands a recorder that
specialises the arguments as Triton's launcher does and hands them to its compiler. `python -m
tests.kernels.compiled` prints the table that `test_compiled.py` compares.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from edgecloud.kernels import (
    blocks,
    dispatch,
    grouped_matmul,
    kv_write,
    merge,
    paged,
    rms_norm,
    rotary,
    sampling,
    sampling_kernel,
    silu_mul,
    verify,
    w4a16,
    w8a8,
    w8a16,
)
from edgecloud.kernels.attention_plan import plan_attention
from edgecloud.kernels.kv_cache import KvLayer, allocate_kv_cache

TABLE = Path(__file__).with_name("compiled.txt")
TARGET = GPUTarget("cuda", 90, 32)
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
MODULES = (
    blocks, grouped_matmul, kv_write, merge, paged, rms_norm, rotary, sampling_kernel, silu_mul, verify, w8a8
)  # fmt: skip


class Compiled(NamedTuple):
    """One kernel of one launch: registers of a thread, bytes of stack (spills) and of shared memory of a
    program, and the machine code's instructions of interest."""

    kernel: str
    registers: int
    stack: int
    shared: int
    wgmma: int
    mma: int
    wide_loads: int
    narrow_loads: int

    def __str__(self) -> str:
        return (
            f"{self.kernel} registers={self.registers} stack={self.stack} shared={self.shared} "
            f"wgmma={self.wgmma} mma={self.mma} loads128={self.wide_loads} loads8_16={self.narrow_loads}"
        )


class Recorder:
    """Stands in for a kernel: compiles it for the arguments of each launch."""

    def __init__(self, kernel: Any, compiled: list[Compiled]) -> None:
        self.kernel, self.compiled = kernel, compiled

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.launch

    def launch(self, *arguments: Any, num_warps: int = 4, num_stages: int = 3, **named: Any) -> None:
        names = self.kernel.arg_names
        values = {**dict(zip(names, arguments, strict=False)), **named}
        signature: dict[str, str] = {}
        constants: dict[str, Any] = {}
        attributes: dict[tuple[int], Any] = {}
        for place, parameter in enumerate(self.kernel.params):
            value = values[parameter.name]
            if parameter.is_constexpr or (isinstance(value, int) and value == 1):
                signature[parameter.name], constants[parameter.name] = "constexpr", value
                continue
            signature[parameter.name] = kind_of(value, "int64" in str(parameter.annotation))
            if is_divisible(value):
                attributes[(place,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constants, attributes)
        options = {"num_warps": num_warps, "num_stages": num_stages}
        binary = triton.compile(source, target=TARGET, options=options)
        self.compiled.append(read(self.kernel.__name__.strip("_"), binary))


def kind_of(value: Any, is_long: bool) -> str:
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i64" if is_long or not -(2**31) <= value < 2**31 else "i32"


def is_divisible(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.storage_offset() * value.element_size() % 16 == 0
    return isinstance(value, int) and value % 16 == 0


def read(name: str, binary: Any) -> Compiled:
    """From the cubin, with the tools that Triton's wheel brings."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage, code = (
            subprocess.run(
                [TOOLS / "cuobjdump", option, file.name], capture_output=True, text=True, check=True
            ).stdout
            for option in ("-res-usage", "-sass")
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage

    def count(pattern: str) -> int:
        return len(re.findall(rf"\b(?:{pattern})\b", code))

    return Compiled(
        name,
        int(found[1]),
        int(found[2]),
        binary.metadata.shared,
        count(r"[HIQ]GMMA[.\w]*"),
        count(r"[HIQ]MMA[.\w]*"),
        count(r"(?:LDG|LDGSTS)[.\w]*\.128[.\w]*"),
        count(r"LD(?:G|GSTS|S)[.\w]*\.[US](?:8|16)[.\w]*"),
    )


@contextmanager
def recorded() -> Iterator[list[Compiled]]:
    """Within, launches of our kernels are compiled instead."""
    compiled: list[Compiled] = []
    replaced = [
        (module, name, getattr(module, name))
        for module in MODULES
        for name in vars(module)
        if name.endswith("_kernel")
    ]
    was = dispatch.INTERPRETED
    try:
        dispatch.INTERPRETED = True
        for module, name, kernel in replaced:
            setattr(module, name, Recorder(kernel, compiled))
        yield compiled
    finally:
        dispatch.INTERPRETED = was
        for module, name, kernel in replaced:
            setattr(module, name, kernel)


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def layer_of(heads: int, dim: int, page: int, dtype: torch.dtype, turned: bool = False) -> KvLayer:
    return allocate_kv_cache(1, 64, page, heads, dim, dtype, "meta", transpose_v=turned).layers[0]


def attend(
    queries: int,
    sequences: int,
    group: int = 4,
    dim: int = 128,
    page: int = 16,
    window: int | None = None,
    cache: torch.dtype = torch.bfloat16,
    turned: bool = False,
) -> None:
    plan = plan_attention(
        [i * queries for i in range(sequences + 1)],
        [1024] * sequences,
        [list(range(1024 // page))] * sequences,
        page,
        window=window,
        device="meta",
    )
    layer = layer_of(8, dim, page, cache, turned)
    paged.launch_paged_attention(empty(queries * sequences, 8 * group, dim), layer, plan, dim**-0.5)


def rotate(cache: torch.dtype, turned: bool, interleaved: bool = False) -> None:
    cos = empty(64, 64, dtype=torch.float32)
    slots = empty(64, dtype=torch.int64)
    rotary.rotary_write_kv(
        empty(64, 48, 128), cos, cos, layer_of(8, 128, 16, cache, turned), slots, interleaved=interleaved
    )


def write(cache: torch.dtype, turned: bool) -> None:
    k = empty(64, 8, 128)
    kv_write.write_kv(k, k, layer_of(8, 128, 16, cache, turned), empty(64, dtype=torch.int64))


def int4(rows: int, group: int, has_offset: bool) -> None:
    scale = empty(4096 // group, 14336, dtype=torch.float16)
    codes = empty(2048, 14336, dtype=torch.uint8)
    weight = w4a16.Int4Weight(codes, scale, scale if has_offset else None)
    w4a16.int4_linear(empty(rows, 4096), weight)


def grouped_int8(rows: int) -> None:
    scale = empty(128, 14336, dtype=torch.float16)
    weight = w8a16.GroupedInt8Weight(empty(4096, 14336, dtype=torch.int8), scale)
    w8a16.grouped_int8_linear(empty(rows, 4096), weight)


def int8(rows: int) -> None:
    weight = w8a8.Int8Weight(empty(14336, 4096, dtype=torch.int8), empty(14336, dtype=torch.float32))
    w8a8.int8_linear(empty(rows, 4096), weight)


def draw() -> None:
    floats, ints = empty(64, dtype=torch.float32), empty(64, dtype=torch.int64)
    how = sampling.Sampling(floats, empty(64, dtype=torch.int32), floats, floats, ints, ints)
    sampling.sample(empty(64, 128256, dtype=torch.float32), how)


def check_drafts() -> None:
    rows = empty(320, dtype=torch.int64)
    verify.verify_drafts(rows, rows, empty(65, dtype=torch.int32))


I8, FP8 = torch.int8, torch.float8_e4m3fn
CASES: dict[str, Callable[[], Any]] = {
    "decode bf16 g4 d128 page16, 64 sequences": lambda: attend(1, 64),
    "decode bf16 g4 d128 page16, 1 sequence": lambda: attend(1, 1),
    "decode bf16 g4 d128 page16 window": lambda: attend(1, 64, window=512),
    "decode bf16 g1 d64 page1": lambda: attend(1, 64, group=1, dim=64, page=1),
    "decode bf16 g3 d64 page16": lambda: attend(1, 64, group=3, dim=64),
    "decode bf16 g7 d128 page64": lambda: attend(1, 64, group=7, page=64),
    "decode bf16 g3 d80 page32": lambda: attend(1, 64, group=3, dim=80, page=32),
    "decode bf16 g24 d128 page16": lambda: attend(1, 64, group=24),
    "decode bf16 g2 d256 page16": lambda: attend(1, 64, group=2, dim=256),
    "decode int8 g4 d128 page16": lambda: attend(1, 64, cache=I8),
    "decode int8 turned g4 d128 page16": lambda: attend(1, 64, cache=I8, turned=True),
    "decode fp8 turned g4 d128 page16": lambda: attend(1, 64, cache=FP8, turned=True),
    "verify bf16 g4 d128 page16": lambda: attend(5, 64),
    "chunk bf16 g4 d128 page16": lambda: attend(512, 1),
    "chunk bf16 g4 d128 page16 window": lambda: attend(512, 1, window=512),
    "chunk bf16 g3 d64 page16": lambda: attend(512, 1, group=3, dim=64),
    "chunk bf16 g7 d96 page16": lambda: attend(512, 1, group=7, dim=96),
    "chunk bf16 g2 d256 page16": lambda: attend(512, 1, group=2, dim=256),
    "chunk int8 turned g4 d128 page16": lambda: attend(512, 1, cache=I8, turned=True),
    "chunk fp8 turned g4 d128 page16": lambda: attend(512, 1, cache=FP8, turned=True),
    "rotary bf16": lambda: rotate(torch.bfloat16, False),
    "rotary int8 turned": lambda: rotate(I8, True),
    "rotary bf16 interleaved": lambda: rotate(torch.bfloat16, False, interleaved=True),
    "write bf16": lambda: write(torch.bfloat16, False),
    "write fp8 turned": lambda: write(FP8, True),
    "rms_norm 4096": lambda: rms_norm.rms_norm(empty(64, 4096), empty(4096), 1e-5),
    "add_rms_norm 8192": lambda: rms_norm.add_rms_norm(
        empty(64, 8192), empty(64, 8192), empty(8192), 1e-5
    ),
    "silu_mul 14336": lambda: silu_mul.silu_mul(empty(64, 28672)),
    "w4a16 g128, 1 row": lambda: int4(1, 128, True),
    "w4a16 g32 symmetric, 1 row": lambda: int4(1, 32, False),
    "w4a16 g128, 64 rows": lambda: int4(64, 128, True),
    "w4a16 g32, 512 rows": lambda: int4(512, 32, True),
    "w8a16 g32, 1 row": lambda: grouped_int8(1),
    "w8a16 g32, 512 rows": lambda: grouped_int8(512),
    "w8a8, 1 row": lambda: int8(1),
    "w8a8, 512 rows": lambda: int8(512),
    "sampling": draw,
    "verify drafts": check_drafts,
    "copy blocks": lambda: blocks.copy_blocks(empty(4, 64, 65536, dtype=torch.uint8), [(0, 1), (2, 3)]),
}  # fmt: skip


def compile_case(name: str) -> list[Compiled]:
    with recorded() as compiled:
        CASES[name]()
    return compiled


def main(names: list[str]) -> None:
    print(f"triton {triton.__version__}, sm_90")
    for name in names or CASES:
        for each in compile_case(name):
            print(f"{name}: {each}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
