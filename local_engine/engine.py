"""One local chat model behind the `Engine` protocol: renders, checks, batches, turns tokens into events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgecloud import gguf
from edgecloud.errors import BadRequest, ConfigError, ContextLengthExceeded, Unavailable
from edgecloud.models import ModelFile
from edgecloud.output import ChoiceOutput, OutputParser
from edgecloud.settings import LocalSettings
from edgecloud.templates import ChatTemplate
from edgecloud.toolcalls import join_grammars
from edgecloud.types import (
    Capabilities,
    ChatRequest,
    ChoiceDone,
    Constraint,
    Delta,
    Done,
    EngineEvent,
    Health,
    KvUse,
    ReasoningDelta,
    Start,
    TextDelta,
    Timings,
    TokenLogprob,
    Tool,
    TopLogprob,
    Usage,
)

from .fit import UBATCH, MemoryPlan, available_memory, plan_memory
from .threads import ThreadChoice, ThreadGovernor, choose_threads

if TYPE_CHECKING:
    from .batcher import Batcher, BatcherStats
    from .llama import Grammar, Model
    from .sampler import RawLogprob
    from .sequence import Drawn, Job, Message, Ticket

log = logging.getLogger("edgecloud.local")

N_BATCH = 512

# Reserves memory before a model is loaded: entering it gives the bytes that may be taken.
Room = Callable[["LocalEngine"], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def all_free_memory(_engine: LocalEngine) -> AsyncIterator[int]:
    """The room of an engine on its own."""
    yield available_memory()


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: Model
    batcher: Batcher
    template: ChatTemplate | None
    # Control tokens that the template uses as markup: they are part of what a parser reads.
    markup_ids: frozenset[int]
    plan: MemoryPlan


@dataclass(frozen=True, slots=True)
class _Prepared:
    job: Job
    prompt_tail: str


class LocalEngine:
    """Answers from one GGUF file. The model is loaded by the first request and unloaded by `unload`.

    `room` reserves memory before loading (a `ModelHost`'s, or all that is free).
    """

    name = "local"
    local = True

    def __init__(self, file: ModelFile, settings: LocalSettings, *, room: Room = all_free_memory) -> None:
        self.file = file
        self.threads: ThreadChoice = choose_threads(settings.threads)
        self.last_used = time.monotonic()
        self.on_idle: Callable[[], None] = lambda: None
        self._settings = settings
        self._room = room
        self._info = gguf.read_info(file.path)
        self._loaded: _Loaded | None = None
        self._loading = asyncio.Lock()
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
            template = await asyncio.to_thread(self._header_template)
        return Capabilities(
            context=context, chat=template is not None, tools=template is not None and template.supports_tools
        )

    async def health(self) -> Health:
        loaded = self._loaded
        if loaded is None:
            return Health(True, f"{self.file.name} is loaded when it is first asked")
        stats = loaded.batcher.stats()
        kv = (KvUse(self.file.name, stats.cells, stats.used_cells, stats.recent_cells, stats.preemptions),)
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
            await asyncio.to_thread(_close, loaded)
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
    async def _in_use(self) -> AsyncIterator[_Loaded]:
        """The loaded model, kept for as long as the block runs."""
        self._num_users += 1
        self._unused.clear()
        try:
            async with self._loading:
                if self._loaded is not None and self._loaded.batcher.has_died:
                    await self._bury()
                if self._loaded is None:
                    async with self._room(self) as available:
                        self._loaded = await asyncio.to_thread(self._load, available)
            yield self._loaded
        finally:
            self._num_users -= 1
            self.last_used = time.monotonic()
            if not self._num_users:
                self._unused.set()
                self.on_idle()

    async def _bury(self) -> None:
        """Let go of a model whose batcher has died, so that it is loaded afresh."""
        if self._num_users > 1:
            raise Unavailable(f"{self.file.name} has failed and is being loaded again.", retry_after=1)
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            await asyncio.to_thread(_close, loaded)

    def _load(self, available: int) -> _Loaded:
        from .batcher import SCORED_PER_STEP, Batcher
        from .llama import MAX_SEQUENCES, Context, Model

        settings = self._settings
        plan = plan_memory(self._info, settings, available, name=self.file.name)
        started = time.monotonic()
        model = Model(self.file.path, gpu_layers=settings.gpu_layers)
        # Finished sequences keep their prefix under an id of their own.
        num_sequences = (
            min(MAX_SEQUENCES, 2 * settings.parallel + 8) if model.can_share_prefixes else settings.parallel
        )

        def make_context() -> Context:
            return Context(
                model,
                n_ctx=plan.cells,
                num_sequences=num_sequences,
                n_batch=N_BATCH,
                n_ubatch=UBATCH,
                num_outputs=settings.parallel + SCORED_PER_STEP,
                threads=self.threads.count,
                kv_type=settings.kv_type,
            )

        try:
            template = self._make_template(
                model.token_text(model.bos), model.token_text(model.eos), model.control_tokens()
            )
            markup = template.markup_tokens if template else frozenset()
            batcher = Batcher(
                model,
                make_context(),
                make_context,
                n_ctx=plan.n_ctx,
                parallel=settings.parallel,
                queue_limit=settings.queue_limit,
                step_s=settings.step_ms / 1000,
                watchdog_s=settings.watchdog_s,
                governor=ThreadGovernor(self.threads),
            )
        except BaseException:
            model.close()
            raise
        markup_ids = frozenset(
            token for text in markup for token in model.tokenize(text, parse_special=True)[:1]
        )
        log.info(
            "loaded %s in %.1f s: %s; threads: %s",
            self.file.name,
            time.monotonic() - started,
            plan,
            self.threads.reason,
        )
        return _Loaded(model, batcher, template, markup_ids, plan)

    def _header_template(self) -> ChatTemplate | None:
        return self._make_template("", "", frozenset())

    def _make_template(self, bos: str, eos: str, control_tokens: frozenset[str]) -> ChatTemplate | None:
        source = self._info.chat_template
        if self._settings.chat_template:
            try:
                source = Path(self._settings.chat_template).expanduser().read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"local.chat_template can't be read: {error}. Name a text file, or remove the setting."
                ) from None
        return ChatTemplate(source, bos=bos, eos=eos, control_tokens=control_tokens) if source else None

    # ----------------------------------------------------------------------------------------------- generate

    async def generate(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        deadline = None if request.deadline_s is None else time.monotonic() + request.deadline_s
        async with self._in_use() as loaded:
            prepared = await asyncio.to_thread(self._prepare, loaded, request, deadline)
            job = prepared.job
            start = Start(self.name, self.file.name, len(job.prompt), self.file.variant)
            if job.max_tokens == 0 and not job.score_prompt:
                yield start
                for event in _echo_only(loaded.model, job):
                    yield event
                return
            ticket = loaded.batcher.submit(job)
            try:
                yield start
                answer = _Answer(loaded, request, prepared, ticket)
                while not answer.is_over:
                    for event in answer.events(await ticket.receive()):
                        yield event
                yield answer.done()
            finally:
                ticket.cancel()

    async def count_tokens(self, request: ChatRequest) -> int:
        async with self._in_use() as loaded:
            return len(await asyncio.to_thread(lambda: _tokenize_prompt(loaded, request)[0]))

    async def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        async with self._in_use() as loaded:
            return await asyncio.to_thread(
                loaded.model.tokenize, text, add_special=add_special, parse_special=parse_special
            )

    async def detokenize(self, ids: Sequence[int]) -> str:
        async with self._in_use() as loaded:
            _check_ids(loaded.model, ids, "tokens")
            return loaded.model.detokenize(ids).decode("utf-8", errors="replace")

    async def token_bytes(self, token_id: int) -> bytes:
        async with self._in_use() as loaded:
            _check_ids(loaded.model, (token_id,), "tokens")
            return loaded.model.token_bytes(token_id, special=True)

    def _prepare(self, loaded: _Loaded, request: ChatRequest, deadline: float | None) -> _Prepared:
        """Everything that can be wrong with a request is found here."""
        from .sampler import plan_sampling
        from .sequence import Job

        model, n_ctx = loaded.model, loaded.batcher.n_ctx
        prompt, prompt_tail = _tokenize_prompt(loaded, request)
        if len(prompt) >= n_ctx:
            raise ContextLengthExceeded(len(prompt), n_ctx, param="messages" if request.is_chat else "prompt")
        if request.max_tokens is not None and (
            request.max_tokens < 0 or (request.max_tokens == 0 and not request.echo)
        ):
            raise BadRequest("max_tokens must be at least 1 (0 only with echo).", param="max_tokens")
        _check_ids(model, request.stop_token_ids, "stop_token_ids")
        room = n_ctx - len(prompt)
        job = Job(
            prompt=prompt,
            max_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
            n=request.n,
            plan=plan_sampling(request.sampling, self._settings, model, ignore_eos=request.ignore_eos),
            grammar=_make_grammar(loaded, request),
            stop_ids=frozenset(request.stop_token_ids)
            | (frozenset() if request.ignore_eos else model.eog_ids),
            logprobs=request.logprobs,
            score_prompt=request.echo and request.logprobs is not None,
            deadline=deadline,
        )
        return _Prepared(job, prompt_tail)


def _close(loaded: _Loaded) -> None:
    loaded.batcher.close()
    loaded.model.close()


# ------------------------------------------------------------------------------------------------- the prompt


def _tokenize_prompt(loaded: _Loaded, request: ChatRequest) -> tuple[list[int], str]:
    """The prompt's token ids, and for a chat the end of its text."""
    model = loaded.model
    if isinstance(request.prompt, tuple):
        _check_ids(model, request.prompt, "prompt")
        ids, tail = list(request.prompt), ""
    elif request.prompt is not None:
        ids, tail = model.tokenize(request.prompt, parse_special=True), ""
        if ids and model.adds_bos and ids[0] != model.bos:
            ids.insert(0, model.bos)
    else:
        ids, tail = _render(loaded, request)
    if not ids:
        raise BadRequest("The prompt is empty.", param="messages" if request.is_chat else "prompt")
    return ids, tail


def _render(loaded: _Loaded, request: ChatRequest) -> tuple[list[int], str]:
    model, template = loaded.model, loaded.template
    if template is None:
        raise BadRequest(
            "This model has no chat template: use completions, or name a file in local.chat_template.",
            param="messages",
        )
    if any(message.images for message in request.messages):
        raise BadRequest("Image input is not supported by this model.", param="messages")
    tools = _tools(loaded, request)
    segments = template.render(
        request.messages, tools=tools, continue_final=request.continue_final, extra=request.template_kwargs
    )
    ids = [model.bos] if model.adds_bos and not template.has_bos(segments) else []
    for segment in segments:
        ids += model.tokenize(segment.text, parse_special=segment.special)
    return ids, segments[-1].text[-256:] if segments else ""


def _tools(loaded: _Loaded, request: ChatRequest) -> tuple[Tool, ...]:
    """The tools that the template is to tell of."""
    if not request.tools or request.tool_choice == "none":
        return ()
    if loaded.template is None or not loaded.template.supports_tools:
        raise BadRequest(
            "This model's chat template knows no tools: send none, or tool_choice 'none'.", param="tools"
        )
    return request.tools


def _make_grammar(loaded: _Loaded, request: ChatRequest) -> Grammar | None:
    from .llama import Grammar

    constraint, param = request.constraint, "response_format"
    tools = _tools(loaded, request) if request.is_chat else ()
    if tools and loaded.template is not None:
        forced = loaded.template.tool_constraint(tools, request.tool_choice, request.parallel_tool_calls)
        if forced is not None:
            constraint, param = forced, "tools"
    if constraint is None:
        return None
    return Grammar(loaded.model, _grammar_source(constraint, param), param=param)


def _grammar_source(constraint: Constraint, param: str) -> str:
    from .llama import JSON_OBJECT_GBNF, schema_grammar

    match constraint.kind:
        case "json":
            return JSON_OBJECT_GBNF
        case "schema":
            return schema_grammar(constraint.source, param=param)
        case "grammar" if constraint.schema:
            return join_grammars(constraint.source, schema_grammar(constraint.schema, param=param))
        case "grammar":
            return constraint.source


def _check_ids(model: Model, ids: Sequence[int], param: str) -> None:
    for token in ids:
        if not 0 <= token < model.n_vocab:
            raise BadRequest(
                f"{param} holds token {token}, but the vocabulary of this model has {model.n_vocab} tokens.",
                param=param,
            )


# ------------------------------------------------------------------------------------------------- the answer


class _Answer:
    """Turns the messages of one ticket into events: text, stops, echo, logprobs, usage."""

    def __init__(self, loaded: _Loaded, request: ChatRequest, prepared: _Prepared, ticket: Ticket) -> None:
        self._model = loaded.model
        self._markup_ids = loaded.markup_ids
        self._ticket = ticket
        self._job = prepared.job
        self._outputs = [
            ChoiceOutput(index, stops=request.stop, parser=_parser(loaded, request, prepared))
            for index in range(request.n)
        ]
        self._open = set(range(request.n))
        self._scores: list[RawLogprob] = []
        self._echo_due = request.echo
        self._completion_tokens = 0
        self._reasoning_tokens = 0

    @property
    def is_over(self) -> bool:
        return not self._open

    def events(self, messages: Sequence[Message]) -> Iterator[Delta]:
        """The events of some messages. Raises the error that a ticket closed with."""
        from .sequence import Closed, Drawn, Ended, Scored

        for message in messages:
            if isinstance(message, Drawn):
                if message.choice in self._open:
                    yield from self._prompt_echo()
                    yield from self._token(message)
            elif isinstance(message, Ended):
                yield from self._prompt_echo()
                yield from self._finish(message.choice, message.reason)
            elif isinstance(message, Scored):
                self._scores += message.logprobs
            elif isinstance(message, Closed):
                if message.error is not None and self._open:
                    raise message.error
                self._open.clear()

    def done(self) -> Done:
        ticket, now = self._ticket, time.monotonic()
        started = ticket.started_at or now
        prefilled = ticket.prefilled_at or now
        return Done(
            Usage(
                prompt_tokens=len(self._job.prompt),
                completion_tokens=self._completion_tokens,
                cached_tokens=ticket.cached_tokens,
                reasoning_tokens=self._reasoning_tokens,
            ),
            Timings(
                queue_s=started - ticket.submitted_at,
                prefill_s=prefilled - started,
                ttft_s=prefilled - ticket.submitted_at,
                decode_s=now - prefilled,
            ),
        )

    def _token(self, drawn: Drawn) -> Iterator[Delta]:
        self._completion_tokens += 1
        output = self._outputs[drawn.choice]
        piece = self._model.token_bytes(drawn.token, special=drawn.token in self._markup_ids)
        logprob = None if drawn.logprob is None else _logprob(self._model, drawn.logprob)
        yield from self._counted(output.push(piece, logprob))
        if output.stopped is not None:
            # The batcher may be a token ahead already: what it drew is not ours any more.
            self._ticket.stop(drawn.choice)
            yield from self._finish(drawn.choice, "stop")

    def _finish(self, choice: int, reason: Literal["stop", "length"]) -> Iterator[Delta]:
        if choice in self._open:
            self._open.discard(choice)
            yield from self._counted(self._outputs[choice].finish(reason))

    def _counted(self, deltas: list[Delta]) -> list[Delta]:
        for delta in deltas:
            if isinstance(delta, ReasoningDelta):
                self._reasoning_tokens += delta.num_tokens
        return deltas

    def _prompt_echo(self) -> Iterator[Delta]:
        """The prompt as text of every choice, once, with its logprobs if they were asked for."""
        if not self._echo_due:
            return
        self._echo_due = False
        for choice in sorted(self._open):
            yield from _echo(self._model, self._job, choice, self._scores)


def _parser(loaded: _Loaded, request: ChatRequest, prepared: _Prepared) -> OutputParser | None:
    if not request.is_chat or loaded.template is None:
        return None
    return loaded.template.parser(bool(_tools(loaded, request)), prepared.prompt_tail)


def _echo_only(model: Model, job: Job) -> Iterator[EngineEvent]:
    for choice in range(job.n):
        yield from _echo(model, job, choice, [])
        yield ChoiceDone(choice, "length")
    yield Done(Usage(prompt_tokens=len(job.prompt)))


def _echo(model: Model, job: Job, choice: int, scores: Sequence[RawLogprob]) -> Iterator[TextDelta]:
    text = model.detokenize(job.prompt).decode("utf-8", errors="replace")
    logprobs: tuple[TokenLogprob, ...] = ()
    if job.score_prompt:
        # Nothing comes before the first token, so it has no probability.
        first = _text_and_bytes(model, job.prompt[0])
        logprobs = (
            TokenLogprob(first[0], math.nan, first[1], job.prompt[0]),
            *(_logprob(model, score) for score in scores),
        )
    if text:
        yield TextDelta(text, choice, logprobs, num_tokens=0)


def _logprob(model: Model, raw: RawLogprob) -> TokenLogprob:
    text, data = _text_and_bytes(model, raw.token_id)
    top = []
    for token, logprob in raw.top:
        top_text, top_data = _text_and_bytes(model, token)
        top.append(TopLogprob(top_text, logprob, top_data, token))
    return TokenLogprob(text, raw.logprob, data, raw.token_id, tuple(top))


def _text_and_bytes(model: Model, token: int) -> tuple[str, bytes]:
    data = model.token_bytes(token, special=True)
    return data.decode("utf-8", errors="replace"), data
