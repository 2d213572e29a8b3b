"""Catches in the interpreter what a GPU would punish, or worse, not notice.

Within `sanitized(...)`: a load or store outside the tensors that were named or made since is an error;
masked lanes of a load without `other=` hold poison instead of zero; two lanes or programs that store to one
address are an error; so is an int32 that overflows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from triton.runtime import interpreter


class OutOfBounds(Exception):
    """A pointer outside every tensor."""


class WriteRace(Exception):
    """Two stores to one address in one launch."""


class _Made(TorchDispatchMode):
    """Notes every tensor that torch makes: outputs and scratch that a launcher allocates."""

    def __init__(self, allowed: _Allowed) -> None:
        super().__init__()
        self.allowed = allowed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_flatten(result)[0]:
            if isinstance(leaf, torch.Tensor):
                self.allowed.add(leaf)
        return result


class _Allowed:
    """Address ranges, sorted when they are asked for."""

    def __init__(self) -> None:
        self.ranges: dict[int, int] = {}
        self.kept: list[torch.Tensor] = []
        self.starts = self.ends = np.zeros(0, np.uint64)

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        # Kept alive: freed memory that is given to another tensor would look allowed.
        self.kept.append(tensor)
        self.ranges[storage.data_ptr()] = max(
            storage.data_ptr() + storage.nbytes(), self.ranges.get(storage.data_ptr(), 0)
        )
        self.starts = np.zeros(0, np.uint64)

    def check(self, addresses: Any, size: int, what: str) -> None:
        if len(addresses) == 0:
            return
        if len(self.starts) == 0:
            pairs = sorted(self.ranges.items())
            self.starts, self.ends = np.array(pairs, np.uint64).T
        at = np.searchsorted(self.starts, addresses, side="right") - 1
        outside = (at < 0) | (addresses + np.uint64(size) > self.ends[np.maximum(at, 0)])
        if outside.any():
            program = interpreter.interpreter_builder.grid_idx
            raise OutOfBounds(f"{what}: {int(outside.sum())} of {len(addresses)} lanes, program {program}")


@contextmanager
def sanitized(*tensors: torch.Tensor) -> Iterator[None]:
    """Run launches strictly. `tensors` are those that kernels may touch besides what is made within."""
    allowed = _Allowed()
    for tensor in tensors:
        allowed.add(tensor)
    builder = interpreter.InterpreterBuilder
    load_as_shipped, store_as_shipped = builder.create_masked_load, builder.create_masked_store
    launch_as_shipped = interpreter.GridExecutor.__call__
    owners: dict[int, Any] = {}

    def live(pointers: Any, mask: Any) -> Any:
        addresses = np.atleast_1d(pointers.data)
        return addresses[np.broadcast_to(np.atleast_1d(mask.data), addresses.shape)]

    def load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any, **options: Any) -> Any:
        type = pointers.get_element_ty()
        number = interpreter._get_np_dtype(type)
        allowed.check(live(pointers, mask), number.itemsize, "load")
        result = load_as_shipped(self, pointers, mask, other, *rest, **options)
        dead = ~np.broadcast_to(mask.data, result.data.shape)
        if other is None and dead.any():
            poison = np.nan if number.kind == "f" else 0x7FC0 if type == tl.bfloat16 else -86
            result.data = np.where(dead, np.array(poison).astype(number), result.data)
        return result

    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        addresses = live(pointers, mask)
        allowed.check(addresses, interpreter._get_np_dtype(pointers.get_element_ty()).itemsize, "store")
        program = self.grid_idx
        if len(np.unique(addresses)) != len(addresses):
            raise WriteRace(f"program {program} stores twice to one address")
        for address in addresses.tolist():
            if owners.setdefault(address, program) != program:
                raise WriteRace(f"programs {program} and {owners[address]} store to one address")
        return store_as_shipped(self, pointers, value, mask, *rest, **options)

    def launch(self: Any, *arguments: Any, **options: Any) -> Any:
        owners.clear()
        return launch_as_shipped(self, *arguments, **options)

    options = interpreter.interpreter_builder.options
    builder.create_masked_load, builder.create_masked_store = load, store
    interpreter.GridExecutor.__call__ = launch
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        debug=True, sanitize_overflow=True
    )
    try:
        with _Made(allowed):
            yield
    finally:
        builder.create_masked_load, builder.create_masked_store = load_as_shipped, store_as_shipped
        interpreter.GridExecutor.__call__ = launch_as_shipped
        interpreter.interpreter_builder.options = options
