"""Does a model fit this machine's memory, and with how much context: asked before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from edgecloud.errors import ModelLoadError
from edgecloud.gguf import GgufInfo
from edgecloud.settings import LocalSettings
from edgecloud.units import MB, megabytes

# Bytes of one K or V element; q8_0 keeps a half-precision scale for 32 of them.
KV_BYTES = {"f16": 2.0, "q8_0": 34 / 32, "f32": 4.0}
# Tokens of a chat, when the memory is shared out without being told how.
CHAT_TOKENS = 3072
# Below this a model is not worth loading.
LEAST_CELLS = 512
# Cells come in steps of this many, as llama.cpp pads them.
CELL_STEP = 256
UBATCH = 512
# llama.cpp's code, tokenizer tables and small buffers.
OVERHEAD = 48 << 20


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a model will take, in bytes; `cells` of KV memory (tokens) shared by all, `n_ctx` for one
    request.
    """

    cells: int
    n_ctx: int
    weights: int
    kv: int
    compute: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute + OVERHEAD

    def __str__(self) -> str:
        # The sum is of the numbers shown, or a reader's would not come out.
        shown = [round(part / MB) for part in (self.weights, self.kv, self.compute, OVERHEAD)]
        weights, kv, compute, overhead = (f"{part:,} MB" for part in shown)
        return (
            f"{sum(shown):,} MB ({weights} of weights, {kv} of KV memory for {self.cells:,} tokens, "
            f"{compute} to compute in and {overhead} for llama.cpp itself)"
        )


def plan_memory(info: GgufInfo, settings: LocalSettings, available: int, *, name: str) -> MemoryPlan:
    """The context that fits into `available` bytes. Raises `ModelLoadError` with the numbers when none does.

    An asked `ctx_size` is kept or refused, never cut. Otherwise: room for `parallel` chats, at most a quarter
    of what the weights leave, at least one short chat.
    """
    if settings.ctx_size:
        plan = _plan(info, settings, _rounded(settings.ctx_size))
        if plan.total > available:
            most = _cells_in(info, settings, available)
            fits = f"local.ctx_size = {most} would fit" if most >= LEAST_CELLS else "no context would fit"
            raise ModelLoadError(
                f"{name} does not fit in memory: it takes {plan}, and {room(settings, available)}; {fits}."
            )
        return plan
    least = minimum(info, settings)
    if least.total > available:
        raise ModelLoadError(
            f"{name} does not fit in memory: it takes {least}, and {room(settings, available)}."
        )
    trained = info.context_length or 4096
    wanted = max(min(trained, 16384), CHAT_TOKENS * settings.parallel)
    left = available - least.weights - least.compute - OVERHEAD
    affordable = int(left / 4 / max(1.0, kv_bytes_per_token(info, settings)))
    return _plan(info, settings, _rounded(max(min(wanted, affordable), least.cells)))


def minimum(info: GgufInfo, settings: LocalSettings) -> MemoryPlan:
    """The least that loading this model takes."""
    return _plan(info, settings, _rounded(settings.ctx_size or LEAST_CELLS))


def room(settings: LocalSettings, available: int) -> str:
    """What may be taken and who says so: a clause for a sentence."""
    if settings.memory_budget_mb:
        return f"local.memory_budget_mb leaves {megabytes(available)}"
    return f"{megabytes(available)} are free"


def kv_bytes_per_token(info: GgufInfo, settings: LocalSettings) -> float:
    return info.kv_width * KV_BYTES[settings.kv_type]


def available_memory() -> int:
    """Bytes that can be had without swapping, within this process's cgroup."""
    available = psutil.virtual_memory().available
    limit = cgroup_available()
    return available if limit is None else min(available, limit)


def cgroup_available(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the cgroup's memory limit leaves (v2, then v1), page cache being free; None without a limit."""
    for limit_file, usage_file, stat_file, cache_key in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            limit = (root / limit_file).read_text().strip()
            if limit == "max" or int(limit) >= 1 << 60:
                return None
            usage = int((root / usage_file).read_text())
            stats = dict(line.split() for line in (root / stat_file).read_text().splitlines())
        except (OSError, ValueError):
            continue
        return max(0, int(limit) - usage + int(stats.get(cache_key, 0)))
    return None


def _plan(info: GgufInfo, settings: LocalSettings, cells: int) -> MemoryPlan:
    # Activations of one physical batch (a dozen rows of the hidden size are alive at once), its attention
    # mask, and the logits of every sequence.
    outputs = settings.parallel + 32
    compute = UBATCH * info.embedding_length * 4 * 12 + UBATCH * cells * 4 + outputs * info.vocab_size * 8
    return MemoryPlan(
        cells=cells,
        n_ctx=min(cells, info.context_length or cells),
        weights=info.tensor_bytes,
        kv=int(cells * kv_bytes_per_token(info, settings)),
        compute=compute,
    )


def _cells_in(info: GgufInfo, settings: LocalSettings, available: int) -> int:
    fixed = _plan(info, settings, 0).total
    per_cell = kv_bytes_per_token(info, settings) + UBATCH * 4
    return max(0, int((available - fixed) / per_cell)) // CELL_STEP * CELL_STEP


def _rounded(cells: int) -> int:
    return -(-cells // CELL_STEP) * CELL_STEP
