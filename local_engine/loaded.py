"""A chat model in memory, with all that one load makes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgecloud import gguf
from edgecloud.models import ModelFile
from edgecloud.settings import LocalSettings
from edgecloud.templates import ChatTemplate, read_source
from edgecloud.units import MB

from .fit import UBATCH, MemoryPlan, plan_memory
from .threads import ThreadChoice, ThreadGovernor

if TYPE_CHECKING:
    from .batcher import Batcher
    from .llama import Context, Model
    from .saved import SavedPrefixes
    from .schemas import SchemaCompiler

log = logging.getLogger("edgecloud.local")

N_BATCH = 512


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """`markup_ids` are control tokens that the template uses as markup: they are part of what a parser
    reads.
    """

    model: Model
    batcher: Batcher
    template: ChatTemplate | None
    markup_ids: frozenset[int]
    schemas: SchemaCompiler
    plan: MemoryPlan

    def close(self) -> None:
        """End what runs and free the memory. Blocks for at most a step."""
        self.batcher.close()
        self.model.close()


def load_model(
    file: ModelFile,
    info: gguf.GgufInfo,
    settings: LocalSettings,
    threads: ThreadChoice,
    available: int,
    saved: SavedPrefixes | None = None,
    progress: Callable[[float], bool] | None = None,
) -> LoadedModel:
    """Load a file into `available` bytes of memory. Takes seconds; `progress` is `Model`'s.

    Raises `ModelLoadError` when it can't be loaded or does not fit.
    """
    from .batcher import Batcher
    from .filling import SCORED_PER_STEP
    from .llama import Context, Model
    from .schemas import SchemaCompiler

    plan = plan_memory(info, settings, available, name=file.name)
    started = time.monotonic()
    states = saved.of_model(file.name, file.path, settings.kv_type) if saved is not None else None
    if states is not None:
        states.prepare()
    model = Model(file.path, gpu_layers=settings.gpu_layers, progress=progress)

    def make_context() -> Context:
        return Context(
            model,
            n_ctx=plan.cells,
            num_sequences=settings.parallel,
            n_batch=N_BATCH,
            n_ubatch=UBATCH,
            num_outputs=settings.parallel + SCORED_PER_STEP,
            threads=threads.count,
            kv_type=settings.kv_type,
        )

    try:
        template = make_template(
            info, settings, model.token_text(model.bos), model.token_text(model.eos), model.control_tokens()
        )
        batcher = Batcher(
            model,
            make_context(),
            make_context,
            n_ctx=plan.n_ctx,
            parallel=settings.parallel,
            queue_limit=settings.queue_limit,
            step_s=settings.step_ms / 1000,
            watchdog_s=settings.watchdog_s,
            prefix_bytes=settings.prefix_mb * MB,
            governor=ThreadGovernor(threads),
            saved=states,
        )
    except BaseException:
        model.close()
        raise
    markup = template.markup_tokens if template else frozenset()
    markup_ids = frozenset(token for text in markup for token in model.tokenize(text, parse_special=True)[:1])
    log.info(
        "loaded %s in %.1f s: %s; threads: %s", file.name, time.monotonic() - started, plan, threads.reason
    )
    return LoadedModel(model, batcher, template, markup_ids, SchemaCompiler(model, markup_ids), plan)


def make_template(
    info: gguf.GgufInfo,
    settings: LocalSettings,
    bos: str = "",
    eos: str = "",
    control_tokens: frozenset[str] = frozenset(),
) -> ChatTemplate | None:
    """The template of the settings or else of the file; None if there is neither.

    Raises `ConfigError` when the file that the settings name can't be read.
    """
    source = info.chat_template
    if settings.chat_template:
        source = read_source(settings.chat_template, "local.chat_template")
    return ChatTemplate(source, bos=bos, eos=eos, control_tokens=control_tokens) if source else None
