"""A decoder's weights in the form they are computed with: int8 rows, or floats as they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch

from edgecloud.errors import ModelLoadError
from edgecloud.kernels.w4a16 import Int4Weight
from edgecloud.kernels.w8a8 import quantize_weight

from .config import DecoderConfig
from .weights import PackedPart, WeightSource, read_shaped

WeightForm = Literal["int8", "packed", "float32", "bfloat16", "float16"]
FORMS: dict[WeightForm, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class Matrix:
    """`weight` [n, k]: floats, or int8 codes of which row r is worth `weight[r] * scale[r]`; `scale` float32
    [n] or None; `bias` [n] or None. With `packed`, the file's own groups as the kernels take them, one part
    under the other, `weight` is empty."""

    weight: torch.Tensor
    scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    packed: tuple[PackedPart, ...] | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """`qkv` gives queries, keys and values one after the other, `gate_up` the two halves of the gated unit;
    norms are float32. `q_norm` and `k_norm` [head_dim] are None where the family has none."""

    attn_norm: torch.Tensor
    qkv: Matrix
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: Matrix
    ffn_norm: torch.Tensor
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """`head` is `embedding` itself where the two are tied. `layers` are read as they are asked for, once."""

    embedding: Matrix
    layers: Iterable[LayerWeights]
    norm: torch.Tensor
    head: Matrix


@dataclass(slots=True)
class Kept:
    """Bytes of weights by the form they are kept in, and of those that came quantized and no longer are, by
    the type they had in the file."""

    kept: Counter[str] = field(default_factory=Counter)
    converted: Counter[str] = field(default_factory=Counter)


class MatrixReader:
    """Reads a decoder's parts in one form, and counts what becomes of their bytes."""

    def __init__(self, source: WeightSource, config: DecoderConfig, form: WeightForm) -> None:
        self.kept = Kept()
        self._source = source
        self._config = config
        self._form: WeightForm = form

    def read_all(self) -> DecoderWeights:
        """Raises `ModelLoadError` for a part that is missing, damaged or of the wrong shape."""
        config = self._config
        embedding = self.matrix([("embedding", config.vocab_size)], config.hidden)
        head = embedding if config.tied else self.matrix([("head", config.vocab_size)], config.hidden)
        layers = (self.layer(index) for index in range(config.layers))
        return DecoderWeights(embedding, layers, self.vector("norm.weight", config.hidden), head)

    def layer(self, index: int) -> LayerWeights:
        config, at = self._config, f"{index}."
        has_head_norms = self._source.has(at + "q_norm.weight")
        qkv = [(at + "q", config.q_width), (at + "k", config.kv_width), (at + "v", config.kv_width)]
        wide = [(at + "gate", config.intermediate), (at + "up", config.intermediate)]
        return LayerWeights(
            self.vector(at + "attn_norm.weight", config.hidden),
            self.matrix(qkv, config.hidden),
            self.vector(at + "q_norm.weight", config.head_dim) if has_head_norms else None,
            self.vector(at + "k_norm.weight", config.head_dim) if has_head_norms else None,
            self.matrix([(at + "o", config.hidden)], config.q_width),
            self.vector(at + "ffn_norm.weight", config.hidden),
            self.matrix(wide, config.hidden),
            self.matrix([(at + "down", config.hidden)], config.intermediate),
        )

    def vector(self, name: str, length: int) -> torch.Tensor:
        part = read_shaped(self._source, name, length)
        self.kept.kept["float32"] += part.values.nbytes
        return part.values

    def matrix(self, names: list[tuple[str, int]], k: int) -> Matrix:
        """Parts of (name, rows) stacked into one."""
        if self._form == "packed" and (packed := self._packed(names, k)) is not None:
            return packed
        pieces: list[torch.Tensor] = []
        scales: list[torch.Tensor] = []
        for name, n in names:
            part = read_shaped(self._source, f"{name}.weight", n, k)
            if self._form == "int8":
                codes, scale = quantize_weight(part.values)
                pieces.append(codes)
                scales.append(scale)
            else:
                pieces.append(part.values.to(FORMS.get(self._form, torch.bfloat16)))
                if part.is_quantized:
                    self.kept.converted[part.type] += part.size
        matrix = Matrix(torch.cat(pieces), torch.cat(scales) if scales else None, self._bias(names))
        form = "bfloat16" if self._form == "packed" else self._form
        self.kept.kept[form] += matrix.weight.nbytes + sum(scale.nbytes for scale in scales)
        return matrix

    def _packed(self, names: list[tuple[str, int]], k: int) -> Matrix | None:
        """As the file has it, or None where a part is not quantized, or in a way that no kernel reads."""
        if names[0][0] in ("embedding", "head"):
            return None  # rows are looked up in the one, and the other is often the same
        parts: list[PackedPart] = []
        for name, n in names:
            part = self._source.read_packed(f"{name}.weight")
            if part is None:
                return None
            if shape_of(part) != (n, k):
                raise ModelLoadError(f"The model's weight {name} has the wrong shape: pull it again.")
            parts.append(part)
        for part in parts:
            self.kept.kept[part.type] += part.size
        return Matrix(torch.empty(0, k), None, self._bias(names), tuple(parts))

    def _bias(self, names: list[tuple[str, int]]) -> torch.Tensor | None:
        """Parts of one matrix have a bias all or none."""
        biases = [
            read_shaped(self._source, f"{name}.bias", n).values
            for name, n in names
            if self._source.has(f"{name}.bias")
        ]
        return torch.cat(biases) if biases else None


def shape_of(part: PackedPart) -> tuple[int, int]:
    """(n, k), outputs and inputs."""
    rows, n = part.weight.codes.shape
    return n, 2 * rows if isinstance(part.weight, Int4Weight) else rows


def came_quantized(source: WeightSource) -> bool:
    """Whether the file keeps its matrices in fewer than 16 bits."""
    return source.read("0.o.weight").is_quantized
