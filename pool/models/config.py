"""What a decoder is, in numbers, from a GGUF's metadata or a model folder's `config.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecloud import gguf
from edgecloud.errors import ModelLoadError, NotSupported

from .packing import Packing, packing_of

FOLDER_FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
GGUF_FAMILIES = frozenset({"llama", "qwen2", "qwen3"})


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes in elements, heads and layers; `context` in tokens.

    `windows` has one entry per layer: how many tokens back it sees, itself included, or None for all.
    `frequencies` are the rotary angles per position, radians, one per pair of a head's dimensions. `packing`
    is how a folder's weights are quantized, None if they are not; a GGUF says it tensor by tensor.
    """

    family: str
    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    context: int
    norm_eps: float
    frequencies: tuple[float, ...]
    windows: tuple[int | None, ...]
    tied: bool
    packing: Packing | None = None

    def __post_init__(self) -> None:
        sizes = (self.vocab_size, self.hidden, self.layers, self.heads, self.kv_heads, self.intermediate)
        if min(*sizes, self.context, self.head_dim) < 1 or self.heads % self.kv_heads or self.head_dim % 2:
            raise ModelLoadError("The model's sizes make no sense: pull it again.")

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Weights of the embedding, the layers and the head; biases are left out, a thousandth of them."""
        layer = 2 * self.hidden * (self.q_width + self.kv_width) + 3 * self.hidden * self.intermediate
        return (1 if self.tied else 2) * self.vocab_size * self.hidden + self.layers * layer

    @property
    def kv_width(self) -> int:
        """Elements of one token's keys, or of its values, in one layer."""
        return self.kv_heads * self.head_dim


def config_from_gguf(path: Path) -> DecoderConfig:
    """Raises `NotSupported` for another family, `ModelLoadError` for a damaged file."""
    info = gguf.read_info(path)
    if info.architecture not in GGUF_FAMILIES:
        raise _unknown(info.architecture, GGUF_FAMILIES)
    metadata = gguf.read_metadata(path)

    def own(key: str, default: Any) -> Any:
        value = metadata.get(f"{info.architecture}.{key}", default)
        if not isinstance(value, int | float):
            raise ModelLoadError(f"{path.name} is damaged ({key} is not a number): pull it again.")
        return value

    if own("expert_count", 0):
        raise NotSupported("Mixture-of-experts models can't run in the pool yet: use the local engine.")
    if (
        own("rope.dimension_count", info.key_length) != info.key_length
        or info.key_length != info.value_length
    ):
        raise NotSupported(
            "Models that rotate a part of each head can't run in the pool: use the local engine."
        )
    tensors = gguf.read_tensors(path)
    scaling = str(metadata.get(f"{info.architecture}.rope.scaling.type", "none"))
    if scaling not in ("none", "linear"):
        raise _unknown_rope(scaling)
    frequencies = _frequencies(info.key_length, float(own("rope.freq_base", 10000.0)))
    if scaling == "linear":
        factor = float(own("rope.scaling.factor", 1.0))
        frequencies = tuple(frequency / factor for frequency in frequencies)
    # Llama 3's scaling comes as a divisor per pair of dimensions.
    if "rope_freqs.weight" in tensors:
        from .weights_gguf import read_dense

        divisors = read_dense(tensors["rope_freqs.weight"]).flatten().tolist()
        if len(divisors) != len(frequencies):
            raise ModelLoadError(f"{path.name} is damaged (rope_freqs has another length): pull it again.")
        frequencies = tuple(f / divisor for f, divisor in zip(frequencies, divisors, strict=True))
    return DecoderConfig(
        family=info.architecture,
        vocab_size=info.vocab_size,
        hidden=info.embedding_length,
        layers=info.block_count,
        heads=info.head_count,
        kv_heads=info.head_count_kv,
        head_dim=info.key_length,
        intermediate=int(own("feed_forward_length", 0)),
        context=info.context_length,
        norm_eps=float(own("attention.layer_norm_rms_epsilon", 1e-5)),
        frequencies=frequencies,
        windows=(info.sliding_window,) * info.block_count,
        tied="output.weight" not in tensors,
    )


def config_from_json(facts: Mapping[str, Any]) -> DecoderConfig:
    """From the object in `config.json`, as transformers writes it. Raises as `config_from_gguf` does."""
    names = facts.get("architectures") or ["none"]
    family = FOLDER_FAMILIES.get(str(names[0]))
    if family is None:
        raise _unknown(str(names[0]), FOLDER_FAMILIES)
    if facts.get("mlp_bias"):
        raise NotSupported("Models with biases in their feed-forward layers can't run in the pool.")
    packing = packing_of(facts)
    try:
        hidden, heads, layers = (
            int(facts[key]) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")
        )
        head_dim = int(facts.get("head_dim") or hidden // heads)
        return DecoderConfig(
            family=family,
            vocab_size=int(facts["vocab_size"]),
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=int(facts.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            intermediate=int(facts["intermediate_size"]),
            context=int(facts.get("max_position_embeddings", 2048)),
            norm_eps=float(facts.get("rms_norm_eps", 1e-6)),
            frequencies=_json_frequencies(facts, head_dim),
            windows=_windows(facts, family, layers),
            tied=bool(facts.get("tie_word_embeddings", False)),
            packing=packing,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelLoadError(f"config.json is damaged ({error!r:.80}): pull the model again.") from None


def _windows(facts: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    window = facts.get("sliding_window")
    if not window or (family.startswith("qwen") and not facts.get("use_sliding_window")):
        return (None,) * layers
    kinds = facts.get("layer_types") or ["sliding_attention"] * layers
    if len(kinds) != layers:
        raise ValueError("layer_types has another length")
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def _json_frequencies(facts: Mapping[str, Any], head_dim: int) -> tuple[float, ...]:
    # transformers 5 writes `rope_parameters`; before, theta stood alone beside `rope_scaling`.
    rope = facts.get("rope_parameters") or facts.get("rope_scaling") or {}
    theta = rope.get("rope_theta") or facts.get("rope_theta") or 10000.0
    frequencies = _frequencies(head_dim, float(theta))
    match rope.get("rope_type") or rope.get("type") or "default":
        case "default":
            return frequencies
        case "linear":
            return tuple(frequency / float(rope["factor"]) for frequency in frequencies)
        case "llama3":
            return tuple(_llama3(frequency, rope) for frequency in frequencies)
        case other:
            raise _unknown_rope(str(other))


def _frequencies(head_dim: int, theta: float) -> tuple[float, ...]:
    return tuple(theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2))


def _llama3(frequency: float, rope: Mapping[str, Any]) -> float:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    factor, low, high = (float(rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(rope["original_max_position_embeddings"]) * frequency / (2 * math.pi)
    share = min(max((turns - low) / (high - low), 0.0), 1.0)
    return frequency * (share + (1 - share) / factor)


def _unknown(name: str, known: Any) -> NotSupported:
    return NotSupported(f"The pool can't run {name[:60]!r} models: it knows {', '.join(sorted(known))}.")


def _unknown_rope(name: str) -> NotSupported:
    return NotSupported(f"The pool can't run models with rotary scaling of type {name[:40]!r}.")
