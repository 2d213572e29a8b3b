"""The pool's engine in this process, behind the `Engine` protocol: prepares, queues, says what is drawn.

The step loop's thread does the work; this side only waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from edgecloud.errors import DeadlineExceeded, EngineFailure, Unavailable
from edgecloud.prompt import tokenize_prompt
from edgecloud.types import Capabilities, ChatRequest, EngineEvent, Health, KvUse, Start
from edgecloud.vocabulary import check_ids

from .answer import Answer, echo_only
from .config import PoolConfig
from .held import HeldPrefixes, held_prefixes, held_tokens
from .loop import StepLoop
from .model_text import ModelText
from .policy import PolicyName
from .prepare import Prepared, namespace, prepare
from .runner import Drawing, Runner
from .scheduler import Scheduler
from .sequence import Job
from .slo import Slo
from .ticket import Ask, Closed, Message, Ticket, Tokens

# The step loop keeps deadlines itself, at step boundaries; this much later they hold even if a step hangs.
GRACE_S = 0.5
# A probe goes before everybody.
PROBE_PRIORITY = 1_000_000


class Probe(NamedTuple):
    """A token decoded to see whether that can be done, with its logprob, and the seconds it took."""

    token: int
    logprob: float
    seconds: float


class PoolEngine:
    """Answers from `runner`, whose model's text side is `text`. `defaults` draw where a request leaves it
    open.
    """

    name = "pool"
    local = True

    def __init__(
        self,
        runner: Runner,
        text: ModelText,
        config: PoolConfig,
        *,
        policy: PolicyName = "priority",
        defaults: Drawing | None = None,
        slo: Slo | None = None,
        watchdog_s: float = 30.0,
    ) -> None:
        self.text = text
        self.config = config
        self.facts = runner.facts
        self._defaults = defaults or Drawing()
        self._probing: asyncio.Task[Probe] | None = None
        self.loop = StepLoop(
            runner,
            lambda costs: Scheduler(config, policy, costs=costs),
            slo=slo,
            watchdog_s=watchdog_s,
        )

    async def capabilities(self) -> Capabilities:
        template = self.text.template
        return Capabilities(
            context=self.config.max_tokens,
            chat=template is not None,
            tools=template is not None and template.supports_tools,
        )

    # ----------------------------------------------------------------------------------------------- generate

    async def generate(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        """As the protocol says. Raises before `Start` also `Overloaded` when the queue is full, and
        `Unavailable` when the engine is stuck or stopping.
        """
        deadline = None if request.deadline_s is None else time.monotonic() + request.deadline_s
        prepared = await asyncio.to_thread(self._prepare, request, deadline)
        job = prepared.ask.job
        start = Start(self.name, self.text.name, len(job.prompt), self.text.variant)
        if job.max_tokens == 0 and not prepared.ask.drawing.score_prompt:
            yield start
            for event in echo_only(self.text, prepared):
                yield event
            return
        ticket = self.loop.submit(prepared.ask)
        try:
            messages = await _receive(ticket)
            for message in messages:
                # The first steps may be in here already: then it is the request that failed, and no stream.
                if isinstance(message, Closed) and message.error is not None:
                    raise message.error
            yield start
            answer = Answer(self.text, request, prepared)
            while True:
                for event in answer.events(messages):
                    yield event
                if answer.is_over:
                    break
                messages = await _receive(ticket)
            yield answer.done()
        finally:
            ticket.cancel()

    async def probe(self) -> Probe:
        """Decode one token and look at its logits; callers at the same time share one probe.

        Raises `EngineFailure` or `Unavailable` when that can't be done within the watchdog's time.
        """
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe(self.loop.watchdog_s))
        return await asyncio.shield(self._probing)

    async def warm_up(self) -> Probe:
        """The first token, however long it takes: kernels may have to be compiled for it."""
        return await self._probe(None)

    async def held_tokens(self, request: ChatRequest) -> tuple[int, int]:
        """Prompt tokens of a request, and how many of them this replica would not have to compute."""
        prompt = await asyncio.to_thread(self._prompt, request)
        space = namespace(self.text, request)
        return len(prompt), await self.loop.ask(lambda scheduler: held_tokens(scheduler, space, prompt))

    async def held_prefixes(self, limit: int) -> HeldPrefixes:
        """Names of the blocks in memory that may serve others, the latest `limit` of them."""
        return await self.loop.ask(lambda scheduler: held_prefixes(scheduler, limit))

    # ------------------------------------------------------------------------------------------------- tokens

    async def count_tokens(self, request: ChatRequest) -> int:
        return len(await self.prompt_ids(request))

    async def prompt_ids(self, request: ChatRequest) -> list[int]:
        return await asyncio.to_thread(self._prompt, request)

    async def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        return await asyncio.to_thread(
            self.text.vocabulary.tokenize, text, add_special=add_special, parse_special=parse_special
        )

    async def detokenize(self, ids: Sequence[int]) -> str:
        check_ids(self.text.vocabulary, ids, "tokens")
        return self.text.vocabulary.detokenize(ids).decode("utf-8", errors="replace")

    async def token_bytes(self, token_id: int) -> bytes:
        check_ids(self.text.vocabulary, (token_id,), "tokens")
        return self.text.vocabulary.token_bytes(token_id, special=True)

    # ------------------------------------------------------------------------------------------------- health

    async def health(self) -> Health:
        loop, stats, size = self.loop, self.loop.stats, self.config.block_size
        kv = KvUse(
            self.text.name,
            self.config.num_slots,
            stats.used_blocks * size,
            stats.cached_blocks * size,
            stats.preemptions,
        )
        if not loop.is_alive:
            detail = "the step loop has stopped"
        elif not loop.has_heartbeat:
            detail = f"the step loop has finished no step for {loop.stalled_s:.0f} s"
        elif loop.is_sick:
            detail = "the last steps have all failed"
        else:
            return Health(True, f"{self.text.name} is ready", stats.running, loop.num_waiting, (kv,))
        return Health(False, f"{self.text.name}: {detail}", stats.running, loop.num_waiting, (kv,))

    async def aclose(self) -> None:
        """End what runs with an error, then free the model."""
        await asyncio.to_thread(self.loop.close)

    # ------------------------------------------------------------------------------------------------- inside

    def _prepare(self, request: ChatRequest, deadline: float | None) -> Prepared:
        return prepare(request, self.text, self.config, self._defaults, deadline)

    def _prompt(self, request: ChatRequest) -> list[int]:
        return tokenize_prompt(self.text.vocabulary, self.text.template, request)[0]

    async def _probe(self, patience_s: float | None) -> Probe:
        vocabulary = self.text.vocabulary
        first = vocabulary.bos if vocabulary.bos >= 0 else 0
        began = time.monotonic()
        deadline = None if patience_s is None else began + patience_s
        job = Job((first,), 1, priority=PROBE_PRIORITY, deadline=deadline, label="probe", read_prefix=False)
        ticket = self.loop.submit(Ask(job, Drawing(logprobs=0), counted=False))
        try:
            while True:
                for message in await _receive(ticket):
                    if isinstance(message, Closed):
                        raise message.error or EngineFailure("The probe ended without a token.")
                    if isinstance(message, Tokens):
                        return self._judged(message, time.monotonic() - began)
        except DeadlineExceeded:
            raise Unavailable(f"No token was decoded within {patience_s:g} s.", code="engine_stuck") from None
        finally:
            ticket.cancel()

    def _judged(self, message: Tokens, seconds: float) -> Probe:
        token, logprob = message.tokens[0], message.scores[0].logprob
        # NaN compares as false.
        if not (-1e9 < logprob <= 1e-3) or not 0 <= token < self.text.vocabulary.n_vocab:
            raise EngineFailure(f"The model drew token {token} with a logprob of {logprob}: it is broken.")
        return Probe(token, logprob, seconds)


async def _receive(ticket: Ticket) -> list[Message]:
    """The next messages of a ticket. Raises `DeadlineExceeded` when its deadline is well over."""
    deadline = ticket.ask.job.deadline
    if deadline is None:
        return await ticket.receive()
    try:
        async with asyncio.timeout(max(deadline - time.monotonic(), 0.0) + GRACE_S):
            return await ticket.receive()
    except TimeoutError:
        raise DeadlineExceeded("The time allowed for this answer is over.") from None
