"""One local chat model behind the `Engine` protocol: renders, checks, batches, turns tokens into events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from edgecloud import gguf
from edgecloud.errors import BadRequest, ContextLengthExceeded, Unavailable
from edgecloud.models import ModelFile
from edgecloud.prompt import tokenize_prompt
from edgecloud.settings import LocalSettings
from edgecloud.types import Capabilities, ChatRequest, EngineEvent, Health, KvUse, Loading, Notice, Start
from edgecloud.vocabulary import check_ids

from .answer import Answer, echo_only
from .constraint import check_constraint, make_grammar
from .fit import MemoryPlan, available_memory
from .loaded import LoadedModel, load_model, make_template
from .progress import Progress
from .threads import ThreadChoice, choose_threads

if TYPE_CHECKING:
    from .saved import SavedPrefixes
    from .sequence import Job
    from .stepping import BatcherStats

log = logging.getLogger("edgecloud.local")

# Reserves memory before a model is loaded: entering it gives the bytes that may be taken.
Room = Callable[["LocalEngine"], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def all_free_memory(_engine: LocalEngine) -> AsyncIterator[int]:
    """The room of an engine on its own."""
    yield available_memory()


class LocalEngine:
    """Answers from one GGUF file. The model is loaded by the first request and unloaded by `unload`.

    `room` reserves memory before loading (a `ModelHost`'s, or all that is free). With `saved`, what is
    computed for chats that the history keeps outlives the process.
    """

    name = "local"
    local = True

    def __init__(
        self,
        file: ModelFile,
        settings: LocalSettings,
        *,
        room: Room = all_free_memory,
        saved: SavedPrefixes | None = None,
    ) -> None:
        self.file = file
        self.threads: ThreadChoice = choose_threads(settings.threads)
        self.last_used = time.monotonic()
        self.on_idle: Callable[[], None] = lambda: None
        self._settings = settings
        self._room = room
        self._saved = saved
        self._info = gguf.read_info(file.path)
        self._loaded: LoadedModel | None = None
        self._loading = asyncio.Lock()
        self._progress: Progress | None = None
        self._num_users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    # ------------------------------------------------------------------------------------------ what it is

    @property
    def info(self) -> gguf.GgufInfo:
        return self._info

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    @property
    def loading(self) -> Loading | None:
        """How far the load is that is going on; None while none is."""
        return self._progress.loading if self._progress is not None else None

    @property
    def is_busy(self) -> bool:
        """Somebody is using it: it must not be unloaded."""
        return self._num_users > 0

    @property
    def footprint(self) -> int:
        """Bytes planned for the loaded model; 0 when it is not loaded."""
        return self._loaded.plan.total if self._loaded else 0

    @property
    def plan(self) -> MemoryPlan | None:
        return self._loaded.plan if self._loaded else None

    def stats(self) -> BatcherStats | None:
        """The batcher's counters; None while the model is not loaded."""
        return self._loaded.batcher.stats() if self._loaded else None

    async def capabilities(self) -> Capabilities:
        if self._loaded is not None:
            context, template = self._loaded.batcher.n_ctx, self._loaded.template
        else:
            context = min(self._info.context_length or 4096, self._settings.ctx_size or 1 << 30)
            template = await asyncio.to_thread(make_template, self._info, self._settings)
        return Capabilities(
            context=context, chat=template is not None, tools=template is not None and template.supports_tools
        )

    async def health(self) -> Health:
        loaded = self._loaded
        if loaded is None:
            return Health(True, f"{self.file.name} is loaded when it is first asked")
        stats = loaded.batcher.stats()
        kv = (
            KvUse(
                self.file.name,
                cells=stats.cells,
                used=stats.used_cells,
                preemptions=stats.preemptions,
                parked_bytes=stats.parked_bytes,
                saved=stats.saved,
                saved_bytes=stats.saved_bytes,
                restored=stats.restored,
                restored_bytes=stats.restored_bytes,
            ),
        )
        if loaded.batcher.is_healthy:
            return Health(True, f"{self.file.name} is ready", stats.running, stats.waiting, kv)
        seconds = loaded.batcher.stalled_s
        detail = (
            f"{self.file.name} has finished no step for {seconds:.0f} s"
            if seconds
            else f"{self.file.name} has stopped"
        )
        return Health(False, detail, stats.running, stats.waiting, kv)

    # ------------------------------------------------------------------------------------- loading, unloading

    async def load(self) -> None:
        """Load now rather than with the first request. Raises `ModelLoadError`."""
        async with self._in_use():
            pass

    async def unload(self) -> bool:
        """Free the model's memory if nobody is using it; whether it did."""
        async with self._loading:
            if self._loaded is None or self.is_busy:
                return False
            loaded, self._loaded = self._loaded, None
            await asyncio.to_thread(loaded.close)
            log.info("unloaded %s", self.file.name)
            return True

    async def aclose(self) -> None:
        """Unload, ending what still runs with an error."""
        loaded = self._loaded
        if loaded is None:
            return
        await asyncio.to_thread(loaded.batcher.close)
        # Those who wait for tokens have been told, and let go when they next run. Who never does keeps the
        # model: memory that is freed under somebody's hands ends the process.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._unused.wait(), timeout=5)
        await self.unload()

    @asynccontextmanager
    async def _in_use(self) -> AsyncIterator[LoadedModel]:
        """The loaded model, kept for as long as the block runs."""
        self._num_users += 1
        self._unused.clear()
        try:
            async with self._loading:
                if self._loaded is not None and self._loaded.batcher.has_died:
                    await self._bury()
                if self._loaded is None:
                    self._loaded = await self._load()
            yield self._loaded
        finally:
            self._num_users -= 1
            self.last_used = time.monotonic()
            if not self._num_users:
                self._unused.set()
                self.on_idle()

    async def _load(self) -> LoadedModel:
        """The model, once there is room for it. A load that nobody waits for any more is called off."""
        progress = self._progress = Progress(self.file.name, self._info.tensor_bytes)
        try:
            async with self._room(self) as available:
                load = asyncio.ensure_future(
                    asyncio.to_thread(
                        load_model,
                        self.file,
                        self._info,
                        self._settings,
                        self.threads,
                        available,
                        self._saved,
                        progress,
                    )
                )
                try:
                    return await asyncio.shield(load)
                except asyncio.CancelledError:
                    # The thread goes on by itself: what it takes must be somebody's before others get room.
                    if self._num_users == 1:
                        progress.call_off()
                    await asyncio.wait([load])
                    if load.exception() is None:
                        self._loaded = load.result()
                    raise
        finally:
            self._progress = None

    async def _bury(self) -> None:
        """Let go of a model whose batcher has died, so that it is loaded afresh."""
        if self._num_users > 1:
            raise Unavailable(f"{self.file.name} has failed and is being loaded again.", retry_after=1)
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await asyncio.to_thread(loaded.close)

    # ----------------------------------------------------------------------------------------------- generate

    async def generate(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        deadline = None if request.deadline_s is None else time.monotonic() + request.deadline_s
        if request.constraint is not None and not self.is_loaded:
            # What can't be enforced is told at once, not after a model has been loaded for it.
            await asyncio.to_thread(check_constraint, request.constraint)
        async with self._in_use() as loaded:
            job, prompt_tail = await asyncio.to_thread(self._prepare, loaded, request, deadline)
            start = Start(self.name, self.file.name, len(job.prompt), self.file.variant)
            if job.max_tokens == 0 and not job.score_prompt:
                yield start
                for event in echo_only(loaded.model, job):
                    yield event
                return
            ticket = loaded.batcher.submit(job)
            try:
                yield start
                if self._saved is not None and (complaint := self._saved.complaint()):
                    yield Notice("storage", complaint)
                answer = Answer(loaded, request, ticket, prompt_tail)
                while not answer.is_over:
                    for event in answer.events(await ticket.receive()):
                        yield event
                yield answer.done()
            finally:
                ticket.cancel()

    async def count_tokens(self, request: ChatRequest) -> int:
        return len(await self.prompt_ids(request))

    async def prompt_ids(self, request: ChatRequest) -> list[int]:
        async with self._in_use() as loaded:
            return await asyncio.to_thread(lambda: tokenize_prompt(loaded.model, loaded.template, request)[0])

    async def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        async with self._in_use() as loaded:
            return await asyncio.to_thread(
                loaded.model.tokenize, text, add_special=add_special, parse_special=parse_special
            )

    async def detokenize(self, ids: Sequence[int]) -> str:
        async with self._in_use() as loaded:
            check_ids(loaded.model, ids, "tokens")
            return loaded.model.detokenize(ids).decode("utf-8", errors="replace")

    async def token_bytes(self, token_id: int) -> bytes:
        async with self._in_use() as loaded:
            check_ids(loaded.model, (token_id,), "tokens")
            return loaded.model.token_bytes(token_id, special=True)

    def _prepare(self, loaded: LoadedModel, request: ChatRequest, deadline: float | None) -> tuple[Job, str]:
        """The job and the end of the prompt's text. All that can be wrong with a request is found here."""
        from .sampler import plan_sampling
        from .sequence import Job

        model, n_ctx = loaded.model, loaded.batcher.n_ctx
        prompt, prompt_tail = tokenize_prompt(loaded.model, loaded.template, request)
        if len(prompt) >= n_ctx:
            param = "messages" if request.is_chat else "prompt"
            raise ContextLengthExceeded(len(prompt), n_ctx, param=param, setting="local.ctx_size")
        if request.max_tokens is not None and (
            request.max_tokens < 0 or (request.max_tokens == 0 and not request.echo)
        ):
            raise BadRequest("max_tokens must be at least 1 (0 only with echo).", param="max_tokens")
        check_ids(model, request.stop_token_ids, "stop_token_ids")
        if request.min_tokens and not request.ignore_eos:
            raise BadRequest(
                "A model on this machine knows no min_tokens: send ignore_eos instead.", param="min_tokens"
            )
        room = n_ctx - len(prompt)
        job = Job(
            prompt=prompt,
            max_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
            n=request.n,
            plan=plan_sampling(request.sampling, self._settings, model, ignore_eos=request.ignore_eos),
            grammar=make_grammar(loaded, request),
            stop_ids=frozenset(request.stop_token_ids)
            | (frozenset() if request.ignore_eos else model.eog_ids),
            logprobs=request.logprobs,
            score_prompt=request.echo and request.logprobs is not None,
            deadline=deadline,
            # What no history keeps leaves no trace on disk either.
            chat_id=request.chat_id if request.journal else None,
        )
        return job, prompt_tail
