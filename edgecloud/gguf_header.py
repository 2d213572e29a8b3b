"""The header of one GGUF file, parsed and held against the file's size.

Nothing here trusts the file. A missing, truncated, damaged or foreign one is a `ModelFileError` with one
sentence, before llama.cpp, which crashes or misreads on some of them, is handed it. The layout is that of
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from edgecloud.errors import ModelFileError

# Far above any real file, and low enough that a flipped bit can cost neither memory nor minutes.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ARRAY = 1 << 24
MAX_STRING = 1 << 26
MAX_DIMENSIONS = 4

_SCALARS: dict[int, struct.Struct] = {
    code: struct.Struct("<" + form)
    for code, form in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class Tensor(NamedTuple):
    """One tensor's place: `type` is ggml's name (`Q4_1`), `shape` in ggml's order (fastest first), `offset`
    and `size` in bytes of `path`, from its beginning."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    size: int
    path: Path


class Array(NamedTuple):
    """An array that was skipped: its length only."""

    length: int


@contextmanager
def opened(path: Path) -> Iterator[mmap.mmap]:
    """The bytes of a file, without reading them. Raises `ModelFileError` for what is none."""
    try:
        if path.is_dir():
            raise ModelFileError(
                f"{path.name or path} is a folder, not a model file: name the .gguf file in it."
            )
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            raise ModelFileError(f"{path.name} is not a file.")
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise ModelFileError(f"{path.name} is empty: pull or copy it again.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except FileNotFoundError:
        raise ModelFileError(f"There is no file {path.name}: check the path.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"{path.name} cannot be read: {reason}.") from None


class Header:
    """`metadata`, `tensors` and `data_start` of one file. Without `arrays` long ones are an `Array`."""

    def __init__(self, path: Path, data: mmap.mmap, *, arrays: bool) -> None:
        self.path = path
        self._data = data
        self._arrays = arrays
        self._at = 0
        self._key = ""
        try:
            self._parse()
        except struct.error:
            raise self._truncated() from None
        except UnicodeDecodeError:
            raise damaged(path, "a name in it isn't text") from None

    def _parse(self) -> None:
        data = self._data
        if data[:4] != b"GGUF":
            raise ModelFileError(f"{self.path.name} is not a GGUF file: only GGUF models can be loaded.")
        self._at = 4
        version = self._scalar(_U32)
        if version & 0xFFFF == 0:
            raise ModelFileError(f"{self.path.name} is a big-endian GGUF file: get the little-endian one.")
        if version not in (2, 3):
            raise ModelFileError(
                f"{self.path.name} is GGUF version {version}: versions 2 and 3 can be loaded."
            )
        num_tensors, num_keys = self._count(MAX_TENSORS, "tensors"), self._count(MAX_KEYS, "keys")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            if not key or key in self.metadata:
                raise damaged(self.path, "a key in it is empty or appears twice")
            self._key = key
            self.metadata[key] = self._value(self._scalar(_U32))
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise damaged(self.path, "its alignment is not a power of two")
        entries = [self._tensor_entry() for _ in range(num_tensors)]
        self.data_start = -(-self._at // alignment) * alignment
        self.tensors = self._place(entries, alignment)

    def _place(self, entries: list[tuple[str, int, tuple[int, ...], int]], alignment: int) -> list[Tensor]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        tensors = []
        for name, code, shape, offset in entries:
            try:
                kind = GGMLQuantizationType(code)
                block, block_bytes = GGML_QUANT_SIZES[kind]
            except (ValueError, KeyError):
                raise ModelFileError(
                    f"{self.path.name} holds a tensor of unknown type {code}: it is damaged or too new."
                ) from None
            if shape[0] % block or offset % alignment:
                raise damaged(self.path, "a tensor in it is out of place")
            size = num_elements(shape) // block * block_bytes
            tensors.append(Tensor(name, kind.name, shape, self.data_start + offset, size, self.path))
        end = max((tensor.offset + tensor.size for tensor in tensors), default=self.data_start)
        if end > len(self._data):
            raise self._truncated(end)
        # llama.cpp wants the tensors back to back, in the order of the index.
        expected = self.data_start
        for tensor in tensors:
            if tensor.offset != expected:
                raise damaged(self.path, "a tensor in it is out of place")
            expected += -(-tensor.size // alignment) * alignment
        return tensors

    def _tensor_entry(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._string()
        num_dimensions = self._scalar(_U32)
        if len(name.encode()) > 63 or num_dimensions > MAX_DIMENSIONS:
            raise damaged(self.path, "its tensor index makes no sense")
        shape = tuple(self._scalar(_U64) for _ in range(num_dimensions)) or (1,)
        if not 0 < num_elements(shape) < 1 << 48:
            raise damaged(self.path, "its tensor index makes no sense")
        return name, self._scalar(_U32), shape, self._scalar(_U64)

    def _value(self, code: int) -> Any:
        if code == _STRING:
            return self._string()
        if code == _ARRAY:
            return self._array()
        form = _SCALARS.get(code)
        if form is None:
            raise damaged(self.path, "a value in it is of unknown type")
        return self._scalar(form)

    def _array(self) -> Array | list[Any]:
        code, length = self._scalar(_U32), self._count(MAX_ARRAY, "elements")
        if code == _STRING:
            return [self._string() for _ in range(length)] if self._arrays else self._skip_strings(length)
        form = _SCALARS.get(code)
        if form is None:
            raise damaged(self.path, "an array in it is of unknown type")
        start, self._at = self._at, self._at + length * form.size
        if self._at > len(self._data):
            raise self._truncated()
        # Per-layer facts are short and always wanted; scores and token types are as long as the vocabulary.
        if self._arrays or length <= 4096:
            return [value for (value,) in form.iter_unpack(self._data[start : self._at])]
        return Array(length)

    def _skip_strings(self, length: int) -> Array:
        data, at, unpack = self._data, self._at, _U64.unpack_from
        end = len(data)
        # llama.cpp ends the process for a vocabulary in which a token appears twice.
        seen: set[bytes] | None = set() if self._key == "tokenizer.ggml.tokens" else None
        for _ in range(length):
            start = at + 8
            at = start + unpack(data, at)[0]
            if at > end:
                raise self._truncated()
            if seen is not None:
                seen.add(data[start:at])
        if seen is not None and len(seen) != length:
            raise damaged(self.path, "its vocabulary has a token twice")
        self._at = at
        return Array(length)

    def _string(self) -> str:
        length = self._scalar(_U64)
        start, self._at = self._at, self._at + length
        if length > MAX_STRING or self._at > len(self._data):
            raise self._truncated()
        return self._data[start : self._at].decode()

    def _scalar(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return value

    def _count(self, limit: int, what: str) -> int:
        count: int = self._scalar(_U64)
        if count > limit:
            raise damaged(self.path, f"it claims {count} {what}")
        return count

    def _truncated(self, end: int | None = None) -> ModelFileError:
        size = len(self._data)
        detail = (
            "its header runs past its end" if end is None else f"{size:,} of at least {end:,} bytes are there"
        )
        return ModelFileError(f"{self.path.name} is truncated or damaged ({detail}): pull or copy it again.")


def num_elements(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def damaged(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"{path.name} is damaged ({why}): pull or copy it again.")
