"""What a GGUF file holds, read from its header alone: metadata, tensor index, identity.

Nothing here trusts the file. A missing, truncated, damaged or foreign one is a `ModelFileError` with one
sentence, before llama.cpp, which crashes or misreads on some of them, is handed it. The layout is that of
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from edgecloud.errors import ModelFileError

# Far above any real file, and low enough that a flipped bit can cost neither memory nor minutes.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ARRAY = 1 << 24
MAX_STRING = 1 << 26
MAX_DIMENSIONS = 4
MAX_LAYERS = 512

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

# Architectures that only embed, whatever their pooling key says.
_ENCODERS = re.compile(r"(.*-)?bert(-.*)?|t5encoder|gemma-embedding|eurobert")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)

Pooling = Literal["none", "mean", "cls", "last", "rank"]
_POOLINGS: tuple[Pooling, ...] = ("none", "mean", "cls", "last", "rank")


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


@dataclass(frozen=True, slots=True)
class GgufInfo:
    """What a model is. Lengths and counts are in tokens, layers, heads and elements; `kv_width` is the K and
    V elements that one token keeps, all layers together; `pooling` is None where the file does not say."""

    architecture: str
    name: str
    file_type: str
    n_params: int
    vocab_size: int
    context_length: int
    block_count: int
    embedding_length: int
    head_count: int
    head_count_kv: int
    key_length: int
    value_length: int
    kv_width: int
    sliding_window: int | None
    pooling: Pooling | None
    chat_template: str | None
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    tensor_bytes: int
    shards: int

    @property
    def is_embedding(self) -> bool:
        """Whether the model turns texts into vectors rather than answering."""
        return self.pooling in ("mean", "cls", "last") or _ENCODERS.fullmatch(self.architecture) is not None


def read_info(path: Path) -> GgufInfo:
    """The facts about a model, all its shards checked. Raises `ModelFileError` for what cannot be loaded."""
    metadata, tensors, shards = _read_model(path, arrays=False)
    facts = _Facts(path, metadata)
    architecture = facts.text("general.architecture")
    if not architecture:
        raise _damaged(path, "it names no architecture")

    def own(key: str, default: int) -> int:
        return facts.number(f"{architecture}.{key}", default)

    heads, embedding = own("attention.head_count", 0), own("embedding_length", 0)
    head = embedding // heads if heads else 0
    key_length, value_length = own("attention.key_length", head), own("attention.value_length", head)
    layers = own("block_count", 0)
    kv_heads = facts.numbers(f"{architecture}.attention.head_count_kv") or [heads]
    kv_heads_total = sum(kv_heads) if len(kv_heads) > 1 else kv_heads[0] * layers
    pooling = facts.number(f"{architecture}.pooling_type", -1)
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocab_size = tokens.length if isinstance(tokens, Array) else own("vocab_size", 0)
    if layers > MAX_LAYERS:
        raise _damaged(path, f"it claims {layers} layers")
    if any(facts.number(key, 0) >= max(vocab_size, 1) for key in metadata if key.endswith("_token_id")):
        raise _damaged(path, "a special token is none of its vocabulary")
    return GgufInfo(
        architecture=architecture,
        name=facts.text("general.name") or path.stem,
        file_type=_file_type(facts.number("general.file_type", -1), tensors),
        n_params=sum(_elements(tensor.shape) for tensor in tensors),
        vocab_size=vocab_size,
        context_length=own("context_length", 0),
        block_count=layers,
        embedding_length=embedding,
        head_count=heads,
        head_count_kv=max(kv_heads),
        key_length=key_length,
        value_length=value_length,
        kv_width=kv_heads_total * (key_length + value_length),
        sliding_window=own("attention.sliding_window", 0) or None,
        pooling=_POOLINGS[pooling] if 0 <= pooling < len(_POOLINGS) else None,
        chat_template=facts.text("tokenizer.chat_template") or None,
        bos_id=facts.token("tokenizer.ggml.bos_token_id"),
        eos_id=facts.token("tokenizer.ggml.eos_token_id"),
        add_bos=bool(
            metadata.get("tokenizer.ggml.add_bos_token", facts.text("tokenizer.ggml.model") == "llama")
        ),
        tensor_bytes=sum(tensor.size for tensor in tensors),
        shards=shards,
    )


def read_metadata(path: Path) -> dict[str, Any]:
    """Every key of the (first) file, arrays as lists: 0.05 s for a vocabulary of 50,000 tokens."""
    with _opened(path) as data:
        return _Header(path, data, arrays=True).metadata


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensor index, over all shards."""
    return {tensor.name: tensor for tensor in _read_model(path, arrays=False)[1]}


def fingerprint(path: Path) -> str:
    """32 hexadecimal digits that name the content: header, size and a sample of every shard's bytes.

    Takes milliseconds. Files that differ in metadata, shapes, types or (but for a crafted change) weights
    have different ones.
    """
    digest = hashlib.sha256()
    for part in shard_paths(path):
        with _opened(part) as data:
            size, start = len(data), _Header(part, data, arrays=False).data_start
            digest.update(_U64.pack(size))
            digest.update(data[:start])
            step = max(4096, (size - start) // 256)
            for at in range(start, size, step):
                digest.update(data[at : at + 4096])
    return digest.hexdigest()[:32]


def shard_paths(path: Path) -> list[Path]:
    """All files of a model that is split as `name-00001-of-00003.gguf`, in order; else the file itself."""
    found = _SHARD.search(path.name)
    if found is None:
        return [path]
    stem, total = path.name[: found.start()], int(found[2])
    if not 1 <= total <= 1000:
        raise _damaged(path, "its name counts an impossible number of shards")
    return [path.with_name(f"{stem}-{index:05d}-of-{total:05d}.gguf") for index in range(1, total + 1)]


def _read_model(path: Path, *, arrays: bool) -> tuple[dict[str, Any], list[Tensor], int]:
    metadata: dict[str, Any] = {}
    tensors: list[Tensor] = []
    parts = shard_paths(path)
    for part in parts:
        if part != path and not part.exists():
            raise ModelFileError(
                f"{path.name} is one of {len(parts)} shards and {part.name} is missing: pull it again."
            )
        with _opened(part) as data:
            header = _Header(part, data, arrays=arrays)
        metadata = metadata or header.metadata
        tensors += header.tensors
    split_count = metadata.get("split.count", 0)
    if isinstance(split_count, int) and split_count > 1 and split_count != len(parts):
        raise ModelFileError(
            f"{path.name} is one of {split_count} shards but isn't named so "
            f"(name-00001-of-{split_count:05d}.gguf): give the shards their names back."
        )
    if not tensors:
        raise _damaged(path, "it holds no tensors")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise _damaged(path, "a tensor's name appears twice")
    return metadata, tensors, len(parts)


@contextmanager
def _opened(path: Path) -> Iterator[mmap.mmap]:
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


class _Header:
    """One file's header, parsed and checked against the file's size."""

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
            raise _damaged(path, "a name in it isn't text") from None

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
                raise _damaged(self.path, "a key in it is empty or appears twice")
            self._key = key
            self.metadata[key] = self._value(self._scalar(_U32))
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise _damaged(self.path, "its alignment is not a power of two")
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
                raise _damaged(self.path, "a tensor in it is out of place")
            size = _elements(shape) // block * block_bytes
            tensors.append(Tensor(name, kind.name, shape, self.data_start + offset, size, self.path))
        end = max((tensor.offset + tensor.size for tensor in tensors), default=self.data_start)
        if end > len(self._data):
            raise self._truncated(end)
        # llama.cpp wants the tensors back to back, in the order of the index.
        expected = self.data_start
        for tensor in tensors:
            if tensor.offset != expected:
                raise _damaged(self.path, "a tensor in it is out of place")
            expected += -(-tensor.size // alignment) * alignment
        return tensors

    def _tensor_entry(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._string()
        num_dimensions = self._scalar(_U32)
        if len(name.encode()) > 63 or num_dimensions > MAX_DIMENSIONS:
            raise _damaged(self.path, "its tensor index makes no sense")
        shape = tuple(self._scalar(_U64) for _ in range(num_dimensions)) or (1,)
        if not 0 < _elements(shape) < 1 << 48:
            raise _damaged(self.path, "its tensor index makes no sense")
        return name, self._scalar(_U32), shape, self._scalar(_U64)

    def _value(self, code: int) -> Any:
        if code == _STRING:
            return self._string()
        if code == _ARRAY:
            return self._array()
        form = _SCALARS.get(code)
        if form is None:
            raise _damaged(self.path, "a value in it is of unknown type")
        return self._scalar(form)

    def _array(self) -> Array | list[Any]:
        code, length = self._scalar(_U32), self._count(MAX_ARRAY, "elements")
        if code == _STRING:
            return [self._string() for _ in range(length)] if self._arrays else self._skip_strings(length)
        form = _SCALARS.get(code)
        if form is None:
            raise _damaged(self.path, "an array in it is of unknown type")
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
            raise _damaged(self.path, "its vocabulary has a token twice")
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
            raise _damaged(self.path, f"it claims {count} {what}")
        return count

    def _truncated(self, end: int | None = None) -> ModelFileError:
        size = len(self._data)
        detail = (
            "its header runs past its end" if end is None else f"{size:,} of at least {end:,} bytes are there"
        )
        return ModelFileError(f"{self.path.name} is truncated or damaged ({detail}): pull or copy it again.")


class _Facts:
    """Typed access to metadata that may hold anything."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self._path = path
        self._metadata = metadata

    def text(self, key: str) -> str:
        value = self._metadata.get(key, "")
        return value if isinstance(value, str) else ""

    def numbers(self, key: str) -> list[int]:
        """A number or one per layer, as a list; [] when the file does not say."""
        value = self._metadata.get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(each) is int and -1 <= each < 1 << 32 for each in values):
            raise _damaged(self._path, f"{key} is not a number")
        return values

    def number(self, key: str, default: int) -> int:
        return max(self.numbers(key), default=default)

    def token(self, key: str) -> int | None:
        value = self.number(key, -1)
        return value if 0 <= value < 1 << 31 else None


def _file_type(code: int, tensors: list[Tensor]) -> str:
    """`Q4_1` and the like: what the file says of itself, else the type that most of its weights have."""
    from gguf.constants import LlamaFileType

    try:
        return LlamaFileType(code & ~LlamaFileType.GUESSED).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        weights: dict[str, int] = {}
        for tensor in tensors:
            weights[tensor.type] = weights.get(tensor.type, 0) + _elements(tensor.shape)
        return max(weights, key=lambda name: weights[name])


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _damaged(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"{path.name} is damaged ({why}): pull or copy it again.")
