"""Weights from a folder of safetensors files, one or many under an index, plain or packed; never from a
pickle.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from edgecloud.errors import ModelLoadError, NotSupported
from edgecloud.kernels.repack import Unpacked, dequantize_unpacked, repack_unpacked

from ..vocabulary import read_json
from .packing import Packing
from .weights import PackedPart, Part, name_in_file

_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


class SafetensorsWeights:
    """Implements `WeightSource`. Raises `ModelLoadError` for a folder without whole safetensors files.

    With `packing`, a matrix that has no tensor of its own is unpacked from the several that it has instead.
    """

    def __init__(self, folder: Path, packing: Packing | None = None) -> None:
        self._folder = folder
        self._packing = packing
        digest = hashlib.sha256()
        self._files: dict[str, Any] = {}
        for name in self._file_names():
            path = folder / name
            try:
                file = safe_open(path, framework="pt")
                size = path.stat().st_size
                with path.open("rb") as raw:
                    digest.update(b"%d:" % size)
                    # The header names every tensor; samples tell apart what differs in values only.
                    digest.update(raw.read(1 << 16))
                    for at in range(1 << 16, size, max(4096, size // 256)):
                        raw.seek(at)
                        digest.update(raw.read(4096))
            except (OSError, SafetensorError) as error:
                raise ModelLoadError(
                    f"{folder.name}/{name} is missing or damaged ({error!s:.80}): pull the model again."
                ) from None
            self._files |= dict.fromkeys(file.keys(), file)  # type: ignore[no-untyped-call]
        self.fingerprint = digest.hexdigest()[:32]

    def has(self, name: str) -> bool:
        return name_in_file(name, 1, "model.layers.") in self._files

    def read(self, name: str) -> Part:
        theirs = name_in_file(name, 1, "model.layers.")
        if (packed := self._unpacked(theirs)) is not None:
            unpacked, type, size = packed
            return Part(dequantize_unpacked(unpacked).T.contiguous(), type, size)
        values = self._tensor(theirs)
        if values.dtype not in _TYPES:
            raise NotSupported(
                f"The pool can't read safetensors of type {values.dtype}: take the BF16 model."
            )
        return Part(values.float(), _TYPES[values.dtype], values.nbytes)

    def read_packed(self, name: str) -> PackedPart | None:
        theirs = name_in_file(name, 1, "model.layers.")
        if (packed := self._unpacked(theirs)) is None:
            return None
        unpacked, type, size = packed
        try:
            weight, order = repack_unpacked(unpacked)
        except ValueError as error:
            raise NotSupported(
                f"The pool can't run the packed weight {theirs} ({error!s:.80}): take a GGUF file."
            ) from None
        return PackedPart(weight, order, type, size)

    def _unpacked(self, theirs: str) -> tuple[Unpacked, str, int] | None:
        """A packed matrix with its type and its bytes in the file; None for one that is not packed."""
        module = theirs.removesuffix("weight")
        if self._packing is None or theirs in self._files or f"{module}qweight" not in self._files:
            return None
        tensors = [self._tensor(module + part) for part in self._packing.tensors]
        try:
            unpacked = self._packing.unpack(*tensors)
        except (ValueError, RuntimeError) as error:
            raise ModelLoadError(
                f"The model's packed weight {theirs} is damaged ({error!s:.80}): pull it again."
            ) from None
        return unpacked, self._packing.type, sum(tensor.nbytes for tensor in tensors)

    def _tensor(self, theirs: str) -> torch.Tensor:
        file = self._files.get(theirs)
        if file is None:
            raise ModelLoadError(f"The model has no weight {theirs}: it is damaged or incomplete.")
        values: torch.Tensor = file.get_tensor(theirs)
        return values

    def _file_names(self) -> list[str]:
        index = read_json(self._folder / "model.safetensors.index.json").get("weight_map")
        if isinstance(index, dict):
            names = sorted({str(name) for name in index.values()})
            # An index is data from elsewhere: it must not lead out of the folder.
            if any(Path(name).name != name for name in names):
                raise ModelLoadError(f"The index of {self._folder.name} names files outside of it.")
            return names
        return ["model.safetensors"]
