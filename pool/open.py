"""From settings to a running engine: which model, in how much memory, behind which scheduler."""

from __future__ import annotations

import logging
from pathlib import Path

import psutil

from edgecloud.errors import ModelLoadError
from edgecloud.folders import expanded
from edgecloud.models import resolve
from edgecloud.settings import PoolServerSettings, Settings
from edgecloud.templates import read_source
from edgecloud.units import MB, size

from .config import PoolConfig
from .engine import PoolEngine
from .loading import ModelPlan, load_runner, plan_model
from .model_text import read_model_text
from .runner import Drawing
from .slo import Slo
from .vocabulary import from_folder, from_gguf

log = logging.getLogger("edgecloud.pool")

# A GPU is there for the pool alone; main memory is not, and prefixes are kept until all of it is used.
GPU_SHARE = 0.9
CPU_SHARE = 0.25
# For activations, CUDA graphs and what the allocator can't use.
GPU_RESERVE = 1_000 * MB
# Bytes of one weight by the form it is kept in, scales included.
WEIGHT_BYTES = {"int8": 1.1, "packed": 1.1, "float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
# Prompt tokens that a step may compute beside the decodes: enough to be bound by arithmetic on a GPU, few
# enough on a CPU not to stall the answers that run.
TOKEN_BUDGET = {"cuda": 2048, "cpu": 256}


def open_engine(settings: Settings) -> PoolEngine:
    """Load the model that the settings name and start its engine. Takes seconds to minutes.

    Raises `ModelNotFound`, `ModelLoadError` when it is damaged or does not fit, `NotSupported` for a family
    that the pool can't compute, `ConfigError` for settings that can't be.
    """
    wanted = settings.pool_server
    file = wanted.chat_template
    template = read_source(file, "pool_server.chat_template") if file else ""
    path, name, variant = _find(wanted.model or settings.model, settings)
    plan = plan_model(path, device=wanted.device, kv_type=wanted.kv_type, block_size=wanted.block_size)
    config = pool_config(plan, wanted, _free_bytes(plan))
    vocabulary = from_folder(path) if path.is_dir() else from_gguf(path)
    runner = load_runner(plan, config, name=wanted.served_name or name, threads=wanted.threads)
    text = read_model_text(
        vocabulary,
        runner.facts.model,
        variant=variant,
        fingerprint=runner.facts.fingerprint,
        chat_template=template,
    )
    return PoolEngine(
        runner,
        text,
        config,
        policy=wanted.policy,
        defaults=Drawing(
            temperature=settings.local.temperature,
            top_k=settings.local.top_k,
            top_p=settings.local.top_p,
            min_p=settings.local.min_p,
        ),
        slo=Slo(wanted.slo_ttft_s, wanted.slo_tpot_s),
        watchdog_s=wanted.watchdog_s,
    )


def pool_config(plan: ModelPlan, wanted: PoolServerSettings, free: int) -> PoolConfig:
    """The sizes of a pool, `free` being the bytes that KV may take where the settings leave it open.

    Raises `ModelLoadError` when not even one request of a hundred tokens would fit.
    """
    context = min(wanted.context or plan.decoder.context, plan.decoder.context)
    room = wanted.kv_mb * MB if wanted.kv_mb else free
    # More than every answer at its longest could use is only memory lost to others.
    useful = wanted.max_running * -(-context // wanted.block_size)
    num_blocks = min(room // plan.block_bytes, useful)
    if num_blocks * wanted.block_size < 100:
        raise ModelLoadError(
            f"{size(max(room, 0))} are left for computed context, of which a token takes "
            f"{size(plan.block_bytes // wanted.block_size)}: free memory, or take a smaller model."
        )
    budget = wanted.token_budget or max(TOKEN_BUDGET[plan.device], wanted.max_running)
    return PoolConfig(
        num_blocks=num_blocks,
        block_size=wanted.block_size,
        num_host_blocks=wanted.host_mb * MB // plan.block_bytes,
        context=context,
        token_budget=budget,
        max_chunk=budget,
        max_running=wanted.max_running,
        max_waiting=wanted.max_waiting,
    )


def weight_bytes(plan: ModelPlan) -> int:
    """What the weights will take, from the model's sizes."""
    return int(plan.decoder.num_parameters * WEIGHT_BYTES[plan.weights])


def _find(model: str, settings: Settings) -> tuple[Path, str, str]:
    """Where a model is, its name, and which variant of it."""
    folder = expanded(model)
    if folder.is_dir():
        return folder, folder.resolve().name, ""
    file = resolve(model, settings, tuned=False)
    return file.path, file.name, file.variant


def _free_bytes(plan: ModelPlan) -> int:
    """What is left for KV once the weights are in memory."""
    if plan.device == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info()
        return int(free * GPU_SHARE) - weight_bytes(plan) - GPU_RESERVE
    return int((psutil.virtual_memory().available - weight_bytes(plan)) * CPU_SHARE)
