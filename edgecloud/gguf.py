"""What a GGUF model is, read from the headers of its files alone: facts, tensor index, identity."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgecloud.errors import ModelFileError
from edgecloud.gguf_header import Array, Header, Tensor, damaged, num_elements, opened

MAX_LAYERS = 512

# Architectures that only embed, whatever their pooling key says.
_ENCODERS = re.compile(r"(.*-)?bert(-.*)?|t5encoder|gemma-embedding|eurobert")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)

Pooling = Literal["none", "mean", "cls", "last", "rank"]
_POOLINGS: tuple[Pooling, ...] = ("none", "mean", "cls", "last", "rank")


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
        raise damaged(path, "it names no architecture")

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
        raise damaged(path, f"it claims {layers} layers")
    if any(facts.number(key, 0) >= max(vocab_size, 1) for key in metadata if key.endswith("_token_id")):
        raise damaged(path, "a special token is none of its vocabulary")
    return GgufInfo(
        architecture=architecture,
        name=facts.text("general.name") or path.stem,
        file_type=_file_type(facts.number("general.file_type", -1), tensors),
        n_params=sum(num_elements(tensor.shape) for tensor in tensors),
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
        add_bos=bool(
            metadata.get("tokenizer.ggml.add_bos_token", facts.text("tokenizer.ggml.model") == "llama")
        ),
        tensor_bytes=sum(tensor.size for tensor in tensors),
        shards=shards,
    )


def read_metadata(path: Path) -> dict[str, Any]:
    """Every key of the (first) file, arrays as lists: 0.05 s for a vocabulary of 50,000 tokens."""
    with opened(path) as data:
        return Header(path, data, arrays=True).metadata


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
        with opened(part) as data:
            size, start = len(data), Header(part, data, arrays=False).data_start
            digest.update(size.to_bytes(8, "little"))
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
        raise damaged(path, "its name counts an impossible number of shards")
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
        with opened(part) as data:
            header = Header(part, data, arrays=arrays)
        metadata = metadata or header.metadata
        tensors += header.tensors
    split_count = metadata.get("split.count", 0)
    if isinstance(split_count, int) and split_count > 1 and split_count != len(parts):
        raise ModelFileError(
            f"{path.name} is one of {split_count} shards but isn't named so "
            f"(name-00001-of-{split_count:05d}.gguf): give the shards their names back."
        )
    if not tensors:
        raise damaged(path, "it holds no tensors")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise damaged(path, "a tensor's name appears twice")
    return metadata, tensors, len(parts)


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
            raise damaged(self._path, f"{key} is not a number")
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
            weights[tensor.type] = weights.get(tensor.type, 0) + num_elements(tensor.shape)
        return max(weights, key=lambda name: weights[name])
