"""One engine's try at one request: counted while it runs, timed, priced, and judged when it ends."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing

from edgecloud.errors import EdgeCloudError
from edgecloud.types import (
    ChatRequest,
    Done,
    EngineEvent,
    ReasoningDelta,
    Start,
    TextDelta,
    Timings,
    ToolCallDelta,
    Usage,
)

from ..router.money import most_usage
from .facts import estimated_tokens
from .faults import fault_of
from .run import Tried, num_tokens
from .upstreams import Turn, Upstream


def is_blank(event: EngineEvent) -> bool:
    """Whether it is a piece of an answer with nothing to read in it. Some upstreams send such for ever."""
    return isinstance(event, TextDelta | ReasoningDelta) and event.text.isspace()


def bare(event: EngineEvent) -> EngineEvent:
    """The event without logprobs."""
    if isinstance(event, TextDelta) and event.logprobs:
        return dataclasses.replace(event, logprobs=())
    return event


class Attempt:
    """Takes a turn at a deployment. It counts as outstanding there from the moment that it is made, so that
    many at once don't all choose the same. However it ends, the turn is given back, nothing stays
    outstanding, and `book` is told what it took, None if it never began.

    `tokens` are what it is expected to take in all; `most` is the usage that money was set aside for, None
    where none was. What an upstream claims beyond what can be is not believed, by anybody.
    """

    def __init__(
        self,
        upstream: Upstream,
        turn: Turn,
        request: ChatRequest,
        tokens: int,
        book: Callable[[Tried | None], None],
        *,
        most: Usage | None = None,
    ) -> None:
        self.upstream = upstream
        self.turn = turn
        self.request = request
        self.tokens = tokens
        self.verdict: str | None = None
        """Set by who ends it early, to say why: 'late', 'outrun', 'rejected'."""
        self.hides_logprobs = False
        """Set by who asked for them, once they are read: the caller did not."""
        self._book = book
        self._most = most
        self._prompt_tokens = 0
        self._counted = 0
        self._began = 0.0
        self._begun_s: float | None = None
        self._done: Done | None = None
        self._held = ExitStack()
        self._held.enter_context(upstream.outstanding.held(turn.deployment.name, tokens))

    async def events(self) -> AsyncGenerator[EngineEvent, None]:
        """The engine's events. Raises what the engine raises."""
        deployment = self.turn.deployment
        started, self._began = time.time(), time.monotonic()
        outcome = "failed"
        try:
            with self._held:
                async with aclosing(deployment.engine.generate(self.request)) as events:
                    async for event in events:
                        yield self._see(event)
            outcome = "ok"
        except EdgeCloudError as error:
            outcome = error.code or "failed"
            self._blame(error)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "ok" if self._done else self.verdict or "interrupted"
            if self._done is None:
                self._left_alone()
            raise
        except Exception as error:
            self.upstream.failed(self.turn, f"it broke down ({type(error).__name__})")
            raise
        finally:
            if outcome == "ok":
                self.upstream.succeeded(self.turn, *self._measured())
            usage = self._usage()
            self._book(
                Tried(
                    self.upstream.name,
                    deployment.name,
                    started,
                    time.monotonic() - self._began,
                    outcome,
                    usage,
                    self.upstream.billed.cost(usage),
                    at_least=self._done is None and self._prompt_tokens > 0,
                )
            )

    def drop(self) -> None:
        """Give the turn back if it was not used: closing a generator that has not begun runs none of it."""
        if not self._began:
            self._began = time.monotonic()
            self._held.close()
            self.upstream.released(self.turn)
            self._book(None)

    # ------------------------------------------------------------------------------------------------- inside

    def _see(self, event: EngineEvent) -> EngineEvent:
        match event:
            case Start():
                self._prompt_tokens = event.prompt_tokens
            case Done():
                event = self._done = Done(self._believed(event.usage), event.timings)
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                if not is_blank(event):
                    self._begin()
                self._counted += num_tokens(event)
        return bare(event) if self.hides_logprobs else event

    def _begin(self) -> None:
        if self._begun_s is None:
            self._begun_s = time.monotonic() - self._began

    def _measured(self) -> tuple[Usage, Timings]:
        return (self._done.usage, self._done.timings) if self._done else (Usage(), Timings())

    def _usage(self) -> Usage:
        """What it used: as the engine said, else as far as could be seen."""
        return self._done.usage if self._done else self._believed(Usage(self._prompt_tokens, self._counted))

    def _believed(self, usage: Usage) -> Usage:
        """The usage, as far as it can be."""
        most = self._most
        if most is None:
            context = self.upstream.capabilities.context
            if usage.prompt_tokens <= context and usage.completion_tokens <= context * self.request.n:
                return usage
            most = most_usage(self.request, self.request.max_tokens or context)
        prompt = min(usage.prompt_tokens, most.prompt_tokens)
        completion = min(usage.completion_tokens, most.completion_tokens)
        cached, reasoning = min(usage.cached_tokens, prompt), min(usage.reasoning_tokens, completion)
        return Usage(prompt, completion, cached, reasoning)

    def _blame(self, error: EdgeCloudError) -> None:
        fault = fault_of(error)
        if fault.kind == "deadline":
            self._left_alone()
        elif fault.cools:
            everywhere = fault.kind == "credential"
            self.upstream.failed(self.turn, error.message, fault.pause_s, all_of_it=everywhere)
        else:
            self.upstream.released(self.turn)

    def _left_alone(self) -> None:
        """The caller did not wait any longer: bad only if nobody would have."""
        waited_s = time.monotonic() - self._began
        late = self.verdict == "late" or self.upstream.is_late(waited_s, self._prompt_tokens)
        if self._begun_s is None and late:
            self.upstream.failed(self.turn, f"it did not begin to answer for {waited_s:.0f} s")
        else:
            self.upstream.released(self.turn)
        if not self._prompt_tokens and not self.upstream.billed.is_free:
            # It has the prompt: who is paid may bill for it, though nobody waited for a sign of life.
            self._prompt_tokens = estimated_tokens(self.request)
