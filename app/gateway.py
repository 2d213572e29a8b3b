"""The one way through the house: a request in, a stream of events out, ending in one `Finish` or one raised
error.

    journal the prompt -> find the engine -> generate -> journal the deltas -> receipt

There is one candidate so far: the model asked for, or the default one for `auto`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from edgecloud.engine import Embedder, Engine
from edgecloud.errors import BadRequest, DeadlineExceeded, EdgeCloudError, InternalError, NoPermittedRoute
from edgecloud.settings import Settings
from edgecloud.types import (
    Attempt,
    CacheInfo,
    ChatRequest,
    ChoiceDone,
    Done,
    EmbedRequest,
    EmbedResult,
    EngineEvent,
    Event,
    Finish,
    Health,
    ModelCard,
    Notice,
    Receipt,
    Start,
    Timings,
    Usage,
)

from .journal import Journal, OpenTurn, Status

log = logging.getLogger(__name__)


class Models(Protocol):
    """What the gateway needs of a catalog; `app.catalog.Catalog` in the product, a scripted one in tests."""

    async def engine(self, name: str, *, listed_only: bool) -> Engine: ...
    async def embedder(self, name: str, *, listed_only: bool) -> Embedder: ...
    async def cards(self) -> list[ModelCard]: ...
    def loaded(self) -> list[Engine]: ...
    async def aclose(self) -> None: ...


class Gateway:
    """Everything the doors may ask for. `journal` is None where history is switched off."""

    def __init__(self, settings: Settings, catalog: Models, journal: Journal | None = None) -> None:
        self.settings = settings
        self.catalog = catalog
        self.journal = journal

    async def chat(self, request: ChatRequest) -> AsyncGenerator[Event, None]:
        """Answer one request.

        The first event is `Start`, after every check; the last is `Finish`. Raises one `EdgeCloudError`
        otherwise. Closing the generator cancels the engine's work and journals the partial answer as
        interrupted.
        """
        run = _Run(request)
        turn, notice = None, None
        try:
            if request.door != "http":
                # What a person typed is kept whatever becomes of it, a wrong model name included.
                turn, notice = await self._begin(request)
            engine = run.engine = await self._route(request)
            if request.door == "http":
                turn, notice = await self._begin(request)
            async with aclosing(_within_deadline(engine.generate(request), request.deadline_s)) as events:
                async for event in events:
                    run.see(event)
                    if isinstance(event, Done):
                        continue
                    if turn is not None:
                        turn.add(event)
                    yield event
                    if notice is not None and isinstance(event, Start):
                        yield Notice("history", f"This answer is not kept: {notice}")
            receipt = run.receipt(engine)
            notice = await self._end(turn, receipt, "complete")
            if notice is not None:
                yield Notice("history", f"The end of this answer is not kept yet: {notice}")
            chat_id, message_id = (turn.turn.chat_id, turn.turn.message_ids[0]) if turn else (None, None)
            yield Finish(run.usage, receipt, chat_id, message_id)
        except EdgeCloudError as error:
            await self._end(turn, run.partial_receipt(error.code or "failed"), "failed", error.message)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            if not run.finished:
                await self._end(turn, run.partial_receipt("interrupted"), "interrupted", wait_s=0)
            raise
        except Exception as error:
            log.exception("request %s failed", request.id)
            failure = InternalError()
            await self._end(turn, run.partial_receipt("failed"), "failed", failure.message)
            raise failure from error

    async def embed(self, request: EmbedRequest, *, listed_only: bool = False) -> EmbedResult:
        """One vector per input. Raises `BadRequest` for a width the embedder does not have."""
        embedder = await self.catalog.embedder(request.model, listed_only=listed_only)
        if request.dimensions is not None and request.dimensions != embedder.dimensions:
            raise BadRequest(
                f"{embedder.name} gives {embedder.dimensions} dimensions and no other number.",
                param="dimensions",
            )
        return await embedder.embed(request.inputs)

    async def models(self) -> list[ModelCard]:
        """`auto` first, then chat models, then embedding models."""
        return await self.catalog.cards()

    async def engine_of(self, model: str) -> Engine:
        """The engine behind a name that is listed. Raises `ModelNotFound`."""
        return await self.catalog.engine(model, listed_only=True)

    async def count_tokens(self, request: ChatRequest) -> int:
        """Prompt tokens, as `chat` would count them."""
        engine = await self.catalog.engine(request.model, listed_only=request.door == "http")
        return await engine.count_tokens(request)

    async def tokenize(
        self, model: str, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        engine = await self.catalog.engine(model, listed_only=True)
        return await engine.tokenize(text, add_special=add_special, parse_special=parse_special)

    async def detokenize(self, model: str, ids: Sequence[int]) -> str:
        engine = await self.catalog.engine(model, listed_only=True)
        return await engine.detokenize(ids)

    async def token_bytes(self, model: str, token_id: int) -> bytes:
        engine = await self.catalog.engine(model, listed_only=True)
        return await engine.token_bytes(token_id)

    async def health(self) -> Health:
        """Whether every loaded engine can decode now; nothing loaded is healthy."""
        states = await asyncio.gather(*(engine.health() for engine in self.catalog.loaded() if engine.local))
        sick = next((state for state in states if not state.ok), None)
        return Health(
            ok=sick is None,
            detail=sick.detail if sick else "ok",
            running=sum(state.running for state in states),
            waiting=sum(state.waiting for state in states),
            kv=tuple(use for state in states for use in state.kv),
        )

    async def aclose(self) -> None:
        """Close engines, then write what history still has queued."""
        await self.catalog.aclose()
        if self.journal is not None:
            await self.journal.aclose()

    # ------------------------------------------------------------------------------------------------- inside

    async def _route(self, request: ChatRequest) -> Engine:
        engine = await self.catalog.engine(request.model, listed_only=request.door == "http")
        if (request.offline or self.settings.offline) and not engine.local:
            raise NoPermittedRoute(
                f"{engine.name} is not on this machine and offline mode is on: ask for a local one.",
                param="model",
            )
        return engine

    async def _begin(self, request: ChatRequest) -> tuple[OpenTurn | None, str | None]:
        if self.journal is None or not request.journal:
            return None, None
        return await self.journal.begin(request)

    async def _end(
        self,
        turn: OpenTurn | None,
        receipt: Receipt | None,
        status: Status,
        error: str | None = None,
        *,
        wait_s: float = 1.0,
    ) -> str | None:
        if turn is None or self.journal is None:
            return None
        return await self.journal.finish(turn, receipt, status, error, wait_s=wait_s)


class _Run:
    """What one request has seen so far: enough for its receipt."""

    def __init__(self, request: ChatRequest) -> None:
        self.request = request
        self.began = time.monotonic()
        self.engine: Engine | None = None
        self.start: Start | None = None
        self.first_delta_s: float | None = None
        self.usage = Usage()
        self.timings = Timings()
        self.finished = False

    def see(self, event: EngineEvent) -> None:
        match event:
            case Start():
                self.start = event
                self.usage = Usage(prompt_tokens=event.prompt_tokens)
            case Done():
                self.usage, self.timings, self.finished = event.usage, event.timings, True
            case Notice() | ChoiceDone():
                pass
            case _:
                if self.first_delta_s is None:
                    self.first_delta_s = time.monotonic() - self.began

    def partial_receipt(self, outcome: str) -> Receipt | None:
        """The receipt of an answer that did not come to its end; None if no engine was found for it."""
        return self.receipt(self.engine, outcome) if self.engine else None

    def receipt(self, engine: Engine, outcome: str = "ok") -> Receipt:
        total_s = time.monotonic() - self.began
        decode_s = self.timings.decode_s
        asked = self.request.model
        return Receipt(
            id=self.request.id,
            engine=self.start.engine if self.start else engine.name,
            model=self.start.model if self.start else engine.name,
            variant=self.start.variant if self.start else "",
            mode=self.request.mode,
            reason="the default model" if asked == "auto" else "asked for by name",
            attempts=(Attempt(engine.name, outcome, total_s),),
            cache=CacheInfo(),
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=self.usage.cached_tokens,
            completion_tokens=self.usage.completion_tokens,
            queue_s=self.timings.queue_s,
            ttft_s=self.first_delta_s or 0.0,
            total_s=total_s,
            tokens_per_s=self.usage.completion_tokens / decode_s if decode_s > 0 else 0.0,
        )


async def _within_deadline(
    events: AsyncGenerator[EngineEvent, None], deadline_s: float | None
) -> AsyncGenerator[EngineEvent, None]:
    """The engine's events, and `DeadlineExceeded` if the next one is not there in time.

    Engines keep deadlines themselves at step boundaries; this holds when one hangs.
    """
    async with aclosing(events):
        if deadline_s is None:
            async for event in events:
                yield event
            return
        ends = time.monotonic() + deadline_s
        while True:
            try:
                event = await asyncio.wait_for(anext(events), max(0.0, ends - time.monotonic()))
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise DeadlineExceeded(
                    f"No complete answer within {deadline_s:g} s: allow more time or ask for fewer tokens."
                ) from None
            yield event
