"""From a model's path to what it is and to its weights, be it a GGUF file or a folder of safetensors."""

from __future__ import annotations

from pathlib import Path

from ..vocabulary import read_json
from .config import DecoderConfig, config_from_gguf, config_from_json
from .weights import WeightSource
from .weights_gguf import GgufWeights
from .weights_safetensors import SafetensorsWeights


def read_config(path: Path) -> DecoderConfig:
    """Raises `NotSupported` for another family, `ModelLoadError` for damaged files."""
    return config_from_json(read_json(path / "config.json")) if path.is_dir() else config_from_gguf(path)


def open_weights(path: Path, config: DecoderConfig) -> WeightSource:
    """Raises `ModelLoadError` for files that are missing or damaged."""
    if path.is_dir():
        return SafetensorsWeights(path, config.packing)
    return GgufWeights(path, turned_head_dim=config.head_dim if config.family == "llama" else None)
