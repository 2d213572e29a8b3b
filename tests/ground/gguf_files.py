"""Small GGUF files for tests, written with the gguf package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write_gguf(path: Path, *, embedding: bool = False, seed: int = 0, **metadata: Any) -> Path:
    """A file of the right form with 2 tensors of noise: enough for everything but loading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    architecture = "bert" if embedding else "llama"
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_context_length(512)
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    if embedding:
        writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_list([f"token{index}" for index in range(5000)])
    writer.add_token_scores([0.0] * 5000)
    for key, value in metadata.items():
        if isinstance(value, str):
            writer.add_string(key.replace("__", "."), value)
        else:
            writer.add_uint32(key.replace("__", "."), value)
    noise = np.random.default_rng(seed)
    writer.add_tensor("token_embd.weight", noise.normal(size=(50, 64)).astype(np.float32))
    writer.add_tensor("output_norm.weight", noise.normal(size=64).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_bert(path: Path, *, seed: int = 0) -> Path:
    """A two-layer BERT with random weights and a 40-word WordPiece vocabulary that llama.cpp can load."""
    width, layers, hidden, context = 32, 2, 64, 64
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += ["▁" + chr(ord("a") + index) for index in range(26)] + ["▁cat", "▁dog", "▁the"] + list("abcdef")
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("Tiny BERT")
    writer.add_context_length(context)
    writer.add_block_count(layers)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(words)
    writer.add_token_types([3 if word.startswith("[") else 1 for word in words])
    writer.add_token_type_count(2)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    writer.add_unk_token_id(1)
    writer.add_sep_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_mask_token_id(4)
    noise = np.random.default_rng(seed)

    def add(name: str, *shape: int) -> None:
        values = np.ones(shape) if name.endswith("norm.weight") else noise.normal(size=shape) * 0.3
        writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", len(words), width)
    add("position_embd.weight", context, width)
    add("token_types.weight", 2, width)
    add("token_embd_norm.weight", width)
    add("token_embd_norm.bias", width)
    for layer in range(layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{part}.weight", width, width)
            add(f"blk.{layer}.{part}.bias", width)
        for part in ("attn_output_norm", "layer_output_norm"):
            add(f"blk.{layer}.{part}.weight", width)
            add(f"blk.{layer}.{part}.bias", width)
        add(f"blk.{layer}.ffn_up.weight", hidden, width)
        add(f"blk.{layer}.ffn_up.bias", hidden)
        add(f"blk.{layer}.ffn_down.weight", width, hidden)
        add(f"blk.{layer}.ffn_down.bias", width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
