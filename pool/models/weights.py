"""Model weights by the names of the decoder's parts, whatever file they come from; read one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from edgecloud.errors import ModelLoadError

if TYPE_CHECKING:
    import torch

    from edgecloud.kernels.w4a16 import Int4Weight
    from edgecloud.kernels.w8a16 import GroupedInt8Weight

# Parts of one layer, by our name: (GGUF, transformers).
LAYER_PARTS = {
    "attn_norm.weight": ("attn_norm.weight", "input_layernorm.weight"),
    "q.weight": ("attn_q.weight", "self_attn.q_proj.weight"),
    "k.weight": ("attn_k.weight", "self_attn.k_proj.weight"),
    "v.weight": ("attn_v.weight", "self_attn.v_proj.weight"),
    "q.bias": ("attn_q.bias", "self_attn.q_proj.bias"),
    "k.bias": ("attn_k.bias", "self_attn.k_proj.bias"),
    "v.bias": ("attn_v.bias", "self_attn.v_proj.bias"),
    "o.bias": ("attn_output.bias", "self_attn.o_proj.bias"),
    "q_norm.weight": ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    "k_norm.weight": ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    "o.weight": ("attn_output.weight", "self_attn.o_proj.weight"),
    "ffn_norm.weight": ("ffn_norm.weight", "post_attention_layernorm.weight"),
    "gate.weight": ("ffn_gate.weight", "mlp.gate_proj.weight"),
    "up.weight": ("ffn_up.weight", "mlp.up_proj.weight"),
    "down.weight": ("ffn_down.weight", "mlp.down_proj.weight"),
}
MODEL_PARTS = {
    "embedding.weight": ("token_embd.weight", "model.embed_tokens.weight"),
    "norm.weight": ("output_norm.weight", "model.norm.weight"),
    "head.weight": ("output.weight", "lm_head.weight"),
}


def name_in_file(name: str, kind: int, layer_prefix: str) -> str:
    """The name of a part in a GGUF (`kind` 0) or in transformers' files (1); "" for what no file has."""
    if name in MODEL_PARTS:
        return MODEL_PARTS[name][kind]
    layer, _, part = name.partition(".")
    return f"{layer_prefix}{layer}.{LAYER_PARTS[part][kind]}" if part in LAYER_PARTS else ""


class Part(NamedTuple):
    """A weight as it came: `values` float32 [rows, columns] or [columns]; `type` is what the file keeps
    (`Q4_1`, `BF16`), `size` its bytes there."""

    values: torch.Tensor
    type: str
    size: int

    @property
    def is_quantized(self) -> bool:
        return self.type not in ("F64", "F32", "F16", "BF16")


class PackedPart(NamedTuple):
    """A quantized matrix as a kernel takes it. `order` are the inputs that its rows stand for, int64 [k], or
    None where they are in order; `type` and `size` as in `Part`."""

    weight: Int4Weight | GroupedInt8Weight
    order: torch.Tensor | None
    type: str
    size: int


class WeightSource(Protocol):
    """`name` is one of `MODEL_PARTS`, or `3.q.weight` for one of `LAYER_PARTS` of layer 3."""

    def has(self, name: str) -> bool: ...

    def read(self, name: str) -> Part:
        """Raises `ModelLoadError` when it is missing or damaged."""

    def read_packed(self, name: str) -> PackedPart | None:
        """A part whose numbers a kernel takes as they are in the file; None for any other."""

    @property
    def fingerprint(self) -> str:
        """Names the content; changes when it does."""


def read_shaped(source: WeightSource, name: str, *shape: int) -> Part:
    """A part that must have this shape."""
    part = source.read(name)
    if tuple(part.values.shape) != shape:
        raise ModelLoadError(
            f"The model's weight {name} has the shape {tuple(part.values.shape)} where {shape} is due: "
            "it is damaged or of a kind that the pool can't run."
        )
    return part
