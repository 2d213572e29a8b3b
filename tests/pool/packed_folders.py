"""Folders as AutoAWQ and GPTQModel write them, packed here by hand, beside the model that they mean."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import save_file

SIZES = {
    "vocab_size": 199,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
}
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Way:
    """One way to pack; `group` -1 is one group for all inputs."""

    method: str
    group: int
    symmetric: bool = False
    ordered: bool = False
    checkpoint_format: str = "gptq"

    @property
    def config(self) -> dict[str, Any]:
        common = {"quant_method": self.method, "bits": 4, "group_size": self.group}
        if self.method == "awq":
            return {**common, "version": "gemm", "zero_point": True, "modules_to_not_convert": None}
        return {
            **common,
            "sym": self.symmetric,
            "desc_act": self.ordered,
            "checkpoint_format": self.checkpoint_format,
        }


def make_folder(folder: Path, way: Way) -> transformers.LlamaForCausalLM:
    """Writes the folder; returns the model with the weights that it holds, in float32."""
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=0.0 if weight.dim() > 1 else 0.4, std=0.1)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in model.state_dict().items():
        if "proj" not in name:
            tensors[name] = weight.clone()
            continue
        parts, values = pack(weight.T.double().numpy(), way)
        weight.copy_(torch.from_numpy(values.T.copy()).float())
        tensors |= {name.removesuffix("weight") + part: tensor for part, tensor in parts.items()}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    facts = json.loads(model.config.to_json_string())
    facts |= {"architectures": ["LlamaForCausalLM"], "quantization_config": way.config}
    (folder / "config.json").write_text(json.dumps(facts))
    return model


def pack(weight: NDArray[np.float64], way: Way) -> tuple[dict[str, torch.Tensor], NDArray[np.float64]]:
    """The tensors of one weight [inputs, outputs], and the values that they mean."""
    inputs, outputs = weight.shape
    size = inputs if way.group == -1 else way.group
    order = np.random.default_rng(inputs).permutation(inputs) if way.ordered else np.arange(inputs)
    group_of = np.empty(inputs, np.int64)
    group_of[order] = np.arange(inputs) // size
    codes = np.empty((inputs, outputs), np.int64)
    zeros = np.empty((inputs // size, outputs), np.int64)
    scales = np.empty((inputs // size, outputs), np.float16)
    for group in range(inputs // size):
        rows = weight[group_of == group]
        if way.symmetric:
            scales[group] = np.abs(rows).max(0) / 7
            zeros[group] = 8
        else:
            scales[group] = (rows.max(0) - rows.min(0)) / 15
            zeros[group] = np.clip(np.round(-rows.min(0) / scales[group]), 1, 15)
        codes[group_of == group] = np.clip(np.round(rows / scales[group]) + zeros[group], 0, 15)
    values = (codes - zeros[group_of]) * scales.astype(np.float64)[group_of]
    if way.method == "awq":
        packed, packed_zeros = pack_columns(codes, AWQ_PLACES), pack_columns(zeros, AWQ_PLACES)
    else:
        packed = pack_columns(codes.T, range(8)).T
        stored = zeros - 1 if way.checkpoint_format == "gptq" else zeros
        packed_zeros = pack_columns(stored, range(8))
    parts = {
        "qweight": as_int32(packed),
        "qzeros": as_int32(packed_zeros),
        "scales": torch.from_numpy(scales),
    }
    if way.method == "gptq":
        parts["g_idx"] = torch.from_numpy(group_of.astype(np.int32))
    return parts, values


def pack_columns(codes: Ints, places: Any) -> Ints:
    """Eight neighbours of a row to a word: nibble i is the one at `places[i]`."""
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.int64)
    for nibble, place in enumerate(places):
        words |= codes[:, place::8] << 4 * nibble
    return words


def as_int32(words: Ints) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(words.astype(np.uint32).view(np.int32)))
