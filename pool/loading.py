"""A model from its files to a runner: which device, which form of weights and KV, how large a block."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import platformdirs

# How often GNU OpenMP's threads look before they sleep at a barrier, of which a step has hundreds. By default
# they spin for milliseconds, which on a busy machine keeps the very thread they wait for from running
# (bench/threads.py). Read when torch loads it.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import torch

from edgecloud.errors import ConfigError
from edgecloud.kernels.kv_cache import row_bytes
from edgecloud.kernels.native import NativeUnavailable

from .config import PoolConfig
from .models.config import DecoderConfig
from .models.files import open_weights, read_config
from .models.matrices import MatrixReader, WeightForm, came_quantized
from .models.native_decoder import NativeDecoder
from .models.torch_decoder import TorchDecoder
from .runner import RunnerFacts
from .torch_runner import TorchRunner

if TYPE_CHECKING:
    from .models.decoder import Decoder

log = logging.getLogger("edgecloud.pool")

Device = Literal["auto", "cuda", "cpu"]
KvType = Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8"]
_KV_TYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What a model will be loaded as, decided from its header alone."""

    path: Path
    decoder: DecoderConfig
    device: Literal["cuda", "cpu"]
    weights: WeightForm
    kv_type: KvType
    block_size: int

    @property
    def block_bytes(self) -> int:
        """Of one KV block, all layers together."""
        decoder = self.decoder
        row = row_bytes(decoder.kv_heads, decoder.head_dim, _KV_TYPES[self.kv_type])
        return decoder.layers * self.block_size * row


def plan_model(
    path: Path,
    *,
    device: Device = "auto",
    weights: WeightForm | Literal["auto"] = "auto",
    kv_type: KvType = "auto",
    block_size: int = 16,
) -> ModelPlan:
    """A GGUF file or a folder of safetensors. `auto` weights stay quantized where the file's are.

    Raises `NotSupported` for a family or device that can't be, `ModelLoadError` for damaged files.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("This machine has no CUDA device that torch can use: choose --device cpu.")
    found: Literal["cuda", "cpu"] = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    config = read_config(path)
    if weights == "auto":
        quantized = came_quantized(open_weights(path, config))
        if found == "cuda":
            weights = "packed" if quantized else "bfloat16"
        else:
            weights = "int8" if quantized else "float32"
    if kv_type == "auto":
        # Half the bytes where the weights are approximate anyway; float16 is the finer half on a CPU.
        kv_type = "bfloat16" if found == "cuda" else "float32" if weights == "float32" else "float16"
    if block_size not in (1, 2, 4, 8, 16, 32, 64):
        raise ConfigError(f"A block holds 1, 2, 4, 8, 16, 32 or 64 tokens, not {block_size}.")
    return ModelPlan(path, config, found, weights, kv_type, block_size)


def load_runner(plan: ModelPlan, config: PoolConfig, *, name: str = "", threads: int = 0) -> TorchRunner:
    """Takes seconds. `threads` are CPU threads, 0 for as many as torch would take.

    Raises `ModelLoadError` for weights that are missing, damaged or of the wrong shape.
    """
    started = time.monotonic()
    if threads:
        torch.set_num_threads(threads)
    source = open_weights(plan.path, plan.decoder)
    reader = MatrixReader(source, plan.decoder, plan.weights)
    weights = reader.read_all()
    kv_type = _KV_TYPES[plan.kv_type]
    decoder: Decoder | None = None
    if plan.device == "cpu" and plan.weights in ("int8", "float32"):
        try:
            decoder = NativeDecoder(
                plan.decoder,
                weights,
                num_blocks=config.num_blocks,
                block_size=config.block_size,
                kv_type=kv_type,
                context=config.context,
                max_rows=config.token_budget,
                threads=torch.get_num_threads(),
                library_folder=library_folder(),
            )
        except NativeUnavailable as reason:
            log.warning("%s: the pool computes with torch's operations, several times slower", reason)
    if decoder is None:
        decoder = TorchDecoder(
            plan.decoder,
            weights,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            kv_type=kv_type,
            context=config.context,
            device=torch.device(plan.device),
            max_running=config.max_running,
        )
    facts = RunnerFacts(
        model=name or plan.path.stem,
        device=torch.cuda.get_device_name() if plan.device == "cuda" else "cpu",
        vocab_size=plan.decoder.vocab_size,
        context=plan.decoder.context,
        block_size=config.block_size,
        block_bytes=plan.block_bytes,
        kv_type=plan.kv_type,
        kept=dict(reader.kept.kept),
        converted=dict(reader.kept.converted),
        fingerprint=f"{source.fingerprint}/{plan.weights}/{plan.kv_type}",
        num_parameters=plan.decoder.num_parameters,
    )
    log.info("loaded %s in %.1f s: %s", facts.model, time.monotonic() - started, facts)
    return TorchRunner(decoder, facts, config.num_host_blocks)


def library_folder() -> Path:
    """Where compiled code is kept between runs."""
    return Path(platformdirs.user_cache_dir("edgecloud")) / "native"
