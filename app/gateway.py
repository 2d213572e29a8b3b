"""The one way through the house: a request in, a stream of events out, ending in one `Finish` or one raised
error.

    journal the prompt -> who may answer -> a kept answer, or choose and ask -> journal the deltas -> receipt

What a person typed is written first. A program's question is, at the latest, before anything of its answer
is shown: a pool that is free, or that no budget counts, is asked meanwhile. Where only one engine is meant
and nobody has to be paid, it is asked directly and no router is loaded.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from edgecloud.engine import Embedder, Engine
from edgecloud.errors import BadRequest, EdgeCloudError, InternalError, NotFound, StorageError
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import (
    CacheInfo,
    ChatRequest,
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
)

from .books import Books
from .circles import cutting_circles
from .deadline import within_deadline
from .direct import ask_alone, permit
from .journal import Journal, Status
from .loading import telling_loads
from .memory import Memory, answerer_of, nothing_kept
from .recording import Recording
from .run import Closing, Run

if TYPE_CHECKING:
    from ..router.decision import Allowed
    from .keys import KeyDesk
    from .lessons import Lessons
    from .privacy import PrivacyDesk
    from .routing import Estimated, Routing

log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """Who may answer: `ask` gives the events; so may a kept answer of one of the `answerers`. `early` is what
    `ask` will need, begun where it takes a while. `needs_chat` where whom to ask, or what may be spent,
    depends on the chat that the question is kept in, or the engine keeps what it computes under its name.
    """

    ask: Callable[[], Awaitable[AsyncGenerator[EngineEvent, None]]]
    answerers: tuple[str, ...]
    early: asyncio.Task[Estimated] | None = None
    needs_chat: bool = True


class Models(Protocol):
    """What the gateway needs of a catalog; `app.catalog.Catalog` in the product, a scripted one in tests."""

    async def engine(self, name: str, *, listed_only: bool) -> Engine: ...
    async def embedder(self, name: str, *, listed_only: bool) -> Embedder: ...
    async def cards(self) -> list[ModelCard]: ...
    def pool(self, name: str) -> PoolEntry | None: ...
    def replicas(self, entry: PoolEntry) -> list[Engine]: ...
    def loaded(self) -> list[Engine]: ...
    def embedders(self) -> list[Embedder]: ...
    async def aclose(self) -> None: ...


class Gateway:
    """Everything the doors may ask for. `journal` is None where history is switched off, `books` where no
    ledger is kept, `memory` where answers are not kept.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Models,
        journal: Journal | None = None,
        books: Books | None = None,
        memory: Memory | None = None,
        make_lessons: Callable[[], Lessons] | None = None,
    ) -> None:
        self.settings = settings
        self.catalog = catalog
        self.journal = journal
        self.books = books
        self.memory = memory
        self.watchers: list[Callable[[Closing], None]] = []
        """Told of every request that is over."""
        self.aside = ""
        """What to tell the person who opened it, once."""
        self._make_lessons = make_lessons
        self._lessons: Lessons | None = None
        self._routing: Routing | None = None
        self._keys: KeyDesk | None = None
        self._asides: set[asyncio.Task[str | None]] = set()
        self._privacy: PrivacyDesk | None = None

    @property
    def lessons(self) -> Lessons | None:
        """What the router learns, made when it is first needed; None where nothing is learnt."""
        if self._lessons is None and self._make_lessons is not None:
            self._lessons = self._make_lessons()
        return self._lessons

    @property
    def routing(self) -> Routing:
        """The router, made when it is first needed."""
        if self._routing is None:
            from .routing import Routing

            self._routing = Routing(
                self.settings,
                self.catalog,
                self.books,
                lessons=self.lessons,
                keys=self.keys,
                privacy=self.privacy,
            )
        return self._routing

    @property
    def privacy(self) -> PrivacyDesk:
        """What binds conversations to this machine."""
        if self._privacy is None:
            from .privacy import PrivacyDesk

            self._privacy = PrivacyDesk(self.settings, self.books)
        return self._privacy

    @property
    def keys(self) -> KeyDesk | None:
        """The limits of API keys; None where no key has any."""
        if self._keys is None and self.settings.server.keys:
            from .keys import KeyDesk

            self._keys = KeyDesk(self.settings, self.books)
        return self._keys

    async def chat(self, request: ChatRequest) -> AsyncGenerator[Event, None]:
        """Answer one request.

        The first event is `Start`, after every check; a person is told before it of a model that is being
        loaded. The last is `Finish`. Raises one `EdgeCloudError` otherwise. Closing the generator cancels the
        engine's work and journals the partial answer as interrupted.
        """
        if request.door == "http" and not self.settings.server.journal:
            request = dataclasses.replace(request, journal=False)
        run = Run(request)
        recording, early = Recording(run, self.journal), None
        try:
            if request.door != "http":
                # What a person typed is kept whatever becomes of it, a wrong model name included.
                await recording.begin(request)
                if recording.chat_id is not None:
                    run.request = dataclasses.replace(request, chat_id=recording.chat_id)
            answer = await self._decide(run)
            early = answer.early
            if request.door == "http":
                recording.start(request)
                if answer.needs_chat:
                    await recording.begun()
            source = within_deadline(await self._source(run, answer), run)
            if request.door in ("ask", "chat"):
                source = telling_loads(source, run)
                if request.max_tokens is None and request.n == 1 and request.constraint is None:
                    source = cutting_circles(source)
            async with aclosing(source) as events:
                async for event in events:
                    if recording.is_beginning:
                        # Nothing is shown of an answer whose question could still be lost.
                        await recording.begun()
                    run.see(event)
                    if isinstance(event, Done):
                        continue
                    recording.add(event)
                    if not isinstance(event, Start):
                        yield event
                        continue
                    if self.books is not None:
                        self.books.prepare()
                    yield dataclasses.replace(event, id=request.id, reason=run.reason, cache=run.cache)
                    if recording.notice is not None:
                        yield Notice("history", f"This answer is not kept: {recording.notice}")
            receipt = run.receipt()
            ending = self._end(run, recording, receipt, "complete")
            if request.door == "http":
                # Nobody there waits for the books: they come when the answer is out.
                self._aside(ending)
                run.closed = True
            elif (notice := await ending) is not None:
                # No loss so far: it is tried again, and whoever closes the gateway is told what is lost.
                yield Notice("storage", f"The end of this answer is not kept yet: {notice}")
            yield Finish(run.usage, receipt, recording.chat_id, recording.message_id)
        except EdgeCloudError as error:
            await self._fail(run, recording, error)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            await recording.begun()
            if not run.closed:
                await self._end(run, recording, run.receipt(), "interrupted", wait_s=0)
            raise
        except Exception as error:
            log.exception("request %s failed", request.id)
            failure = InternalError()
            await self._fail(run, recording, failure)
            raise failure from error
        finally:
            if early is not None:
                early.cancel()

    async def embed(self, request: EmbedRequest, *, listed_only: bool = False) -> EmbedResult:
        """One vector per input. Raises `BadRequest` for a width the embedder does not have."""
        embedder = await self.catalog.embedder(request.model, listed_only=listed_only)
        if request.dimensions is not None and request.dimensions != embedder.dimensions:
            raise BadRequest(
                f"{embedder.name} gives {embedder.dimensions} dimensions and no other number.",
                param="dimensions",
            )
        return await embedder.embed(request.inputs)

    async def models(self, tenant: str | None = None) -> list[ModelCard]:
        """`auto` first, then chat models, then embedding models; those that the key may ask for."""
        cards = await self.catalog.cards()
        return cards if self.keys is None else [card for card in cards if self.keys.offers(tenant, card)]

    async def engine_of(self, request: ChatRequest) -> Engine:
        """The engine that a request names, for its tokenizer. Raises `ModelNotFound`, and `NoPermittedRoute`
        where it may not be told the text: elsewhere to count is to be told.
        """
        engine = await self.catalog.engine(request.model, listed_only=request.door == "http")
        if not engine.local:
            await self.routing.permit(request, engine.name)
        return engine

    async def count_tokens(self, request: ChatRequest) -> int:
        """Prompt tokens, as `chat` would count them. Raises as `engine_of` does."""
        return await (await self.engine_of(request)).count_tokens(request)

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

    async def explain(self, request: ChatRequest) -> dict[str, Any]:
        """What would be decided for a request, and whether a kept answer would be given, without asking
        anybody. Raises the refusal if nobody may answer.
        """
        from .explaining import named_story, plan_story, with_cache

        if request.model != "auto" and not self._is_routed(request):
            engine = await self._named(request)
            story = named_story(request, engine)
            answerers: tuple[str, ...] = (answerer_of(self.settings, engine),)
        else:
            chat_id = await self._chat_that_pays(request)
            plan = await self.routing.plan(request, dry=True, chat_id=chat_id)
            story, answerers = plan_story(plan), await self._answerers(plan.allowed)
        if self.memory is None:
            return with_cache(story, CacheInfo("off"), "no answers are kept here")
        return with_cache(story, *await self.memory.foresee(request, answerers))

    async def why(self, request_id: str, *, tenant: str | None = None) -> dict[str, Any]:
        """What was decided for a request of the past and what came of it; with a `tenant` only that key's
        own. Raises `NotFound`.
        """
        from .explaining import request_story

        if self.books is None:
            raise NotFound("No ledger is kept here.")
        story: dict[str, Any] = await self.books.do(
            lambda ledger: request_story(ledger, request_id, tenant=tenant)
        )
        return story

    def resting(self) -> list[tuple[str, str, bool]]:
        """Every address that requests were routed to so far: engine, address, whether it rests."""
        return self._routing.engines.resting() if self._routing is not None else []

    async def blame(self, entry_id: str) -> bool:
        """A person says that a kept answer was wrong: it is given no more, and the bound on wrong ones learns
        of it. False where there is no such answer. Raises `StorageError`.
        """
        return self.memory is not None and await self.memory.blame(entry_id)

    async def feedback(
        self, answer: str, verdict: str, *, over: Sequence[str] = (), tenant: str | None = None
    ) -> None:
        """A person's verdict on an answer (`up`, `down`, `picked`, `regenerated`, `edited`, `none`), for the
        router to learn from; one that is disliked is not given again. `answer` is the id of its request or
        message; `over` are answers that it was preferred to. Raises `NotFound`, `BadRequest` for a verdict
        that there is not, `StorageError`.
        """
        from .feedback import give, retract

        kept = await retract(self.memory, self.books, self.journal, answer, verdict, tenant=tenant)
        if self.lessons is None:
            raise NotFound("Nothing is learnt from verdicts here.")
        routing = self.routing if self.settings.pool else None
        await give(self.lessons, self.journal, routing, answer, verdict, over=over, tenant=tenant, kept=kept)

    async def router_states(self) -> list[dict[str, Any]]:
        """Every engine of the router with the state of its addresses; none without pools."""
        return await self.routing.states() if self.settings.pool else []

    async def aclose(self) -> str:
        """Keep what is being kept, close engines, then write what history and ledger still have queued.

        Returns what to tell the user of what could not be written; empty if nothing is lost.
        """
        await asyncio.gather(*self._asides, return_exceptions=True)
        if self.memory is not None:
            await self.memory.aclose()
        if self._routing is not None:
            await self._routing.aclose()
        if self._lessons is not None:
            await self._lessons.aclose()
        await self.catalog.aclose()
        closing = []
        if self.books is not None:
            # Who waits for the history waits for both: what happened to an answer is asked about too.
            patient = self.journal is not None and self.journal.is_behind
            closing.append(self.books.aclose(patient=patient))
        if self.journal is not None:
            closing.append(self.journal.aclose())
        lost = await asyncio.gather(*closing)
        return " ".join(filter(None, lost))

    # ------------------------------------------------------------------------------------------------- inside

    async def _decide(self, run: Run) -> Answer:
        """Who is to answer. Raises the refusal where nobody may."""
        run.currency = self.settings.budget.currency
        return await (self._chosen(run) if self._is_routed(run.request) else self._meant(run))

    async def _chosen(self, run: Run) -> Answer:
        """Who is allowed to answer; who of them does is chosen once no kept answer was found."""
        request, routing = run.request, self.routing
        # Also where a kept answer is given or nobody may answer.
        run.mode = self.settings.router.mode if request.mode == "auto" else request.mode
        await routing.expect(request)
        chat_id = await self._chat_that_pays(request)
        admitted = await routing.admit(request, left_s=run.left_s, chat_id=chat_id)
        if self.keys is not None:
            await self.keys.hold(request.id, request.tenant, admitted.tokens)
        answerers = await self._answerers(admitted.allowed)
        early = None
        if admitted.is_choice and not request.only_kept:
            # A vector is computed in a thread, while the prompt is journalled and looked for. Ranking waits
            # for the search for a kept answer: two threads take the interpreter from each other at every
            # product and every query, and both need twice as long.
            early = asyncio.create_task(routing.estimate(request, admitted))
            early.add_done_callback(lambda task: task.cancelled() or task.exception())

        async def ask() -> AsyncGenerator[EngineEvent, None]:
            estimated = await early if early is not None else None
            plan = await routing.choose(request, admitted, estimated)
            return (await routing.execution(run, plan, run.chat_id)).events()

        return Answer(ask, answerers, early, routing.needs_chat(admitted))

    async def _meant(self, run: Run) -> Answer:
        """The one engine that can be meant, where nobody has to be paid."""
        request = run.request
        may_lift = self._privacy is not None and request.door != "http"
        if request.private or request.files or may_lift:
            # Nobody is chosen here, but the next turn of this chat may be anybody's.
            await self.privacy.look_at(request)
        engine = await self._named(request)
        if self.keys is not None and self.keys.counts(request.tenant):
            from .facts import tokens_of_answer

            needed = await engine.count_tokens(request) + tokens_of_answer(request)
            await self.keys.hold(request.id, request.tenant, needed)

        async def ask() -> AsyncGenerator[EngineEvent, None]:
            return ask_alone(engine, run)

        return Answer(ask, (answerer_of(self.settings, engine),))

    async def _answerers(self, allowed: Allowed) -> tuple[str, ...]:
        """Whose kept answers may be given."""
        upstreams = await self.routing.engines.all()
        engines = (upstreams[name].deployments[0].engine for name in allowed.engines)
        return tuple(answerer_of(self.settings, each) for each in engines)

    async def _named(self, request: ChatRequest) -> Engine:
        """The one engine that is meant. Raises the refusal where it may not answer."""
        engine = await self.catalog.engine(request.model, listed_only=request.door == "http")
        permit(engine, request, self.settings)
        if self.keys is not None:
            await self.keys.permit(request.tenant, engine.name)
        return engine

    async def _source(self, run: Run, answer: Answer) -> AsyncGenerator[EngineEvent, None]:
        """The events of a kept answer, or those of who is asked."""
        if self.memory is None or not self.memory.serves(run.request):
            if run.request.only_kept:
                raise nothing_kept("none are kept here")
            return await answer.ask()
        return self.memory.through(run, answer.ask, answer.answerers)

    def _is_routed(self, request: ChatRequest) -> bool:
        """Whether there is a choice, or somebody to be paid."""
        if not self.settings.pool:
            return False
        return request.model == "auto" or self.catalog.pool(request.model) is not None

    async def _chat_that_pays(self, request: ChatRequest) -> str | None:
        """The chat whose budget holds where the request doesn't name one; "" for one that it begins."""
        if self.settings.budget.per_chat is None or self.journal is None or not request.journal:
            return None
        try:
            return await self.journal.read(lambda history: history.chat_of(request)) or ""
        except StorageError:
            return None  # without history nobody knows what is one chat

    def _aside(self, ending: Coroutine[None, None, str | None]) -> None:
        """Write an end once the loop comes round."""

        def over(task: asyncio.Task[str | None]) -> None:
            self._asides.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("the end of a request could not be written", exc_info=error)

        task = asyncio.create_task(ending)
        self._asides.add(task)
        task.add_done_callback(over)

    async def _fail(self, run: Run, recording: Recording, error: EdgeCloudError) -> None:
        await recording.begun()
        run.ended(error.code or "failed")
        if not run.tried:
            run.decision = error.message
        await self._end(run, recording, run.receipt(), "failed", error)

    async def _end(
        self,
        run: Run,
        recording: Recording,
        receipt: Receipt,
        status: Status,
        error: EdgeCloudError | None = None,
        *,
        wait_s: float = 1.0,
    ) -> str | None:
        """Write how the request ended; a sentence for the user where history could not."""
        run.closed = True
        if run.request.door == "http":
            # Nobody there reads that sentence, so nobody waits for the disk; aclose does.
            wait_s = 0.0
        outcome = "ok" if status == "complete" else "interrupted" if error is None else error.code or "failed"
        closing = run.closing(receipt, outcome, recording.chat_id or run.request.chat_id)
        for watch in self.watchers:
            watch(closing)
        if self._routing is not None:
            self._routing.learned(run)
        try:
            return await recording.finish(receipt, status, error, wait_s=wait_s)
        finally:
            # After history, which the caller waits for: two threads at once would make that take longer.
            if self.books is not None:
                self.books.settle(closing)
            if self._keys is not None:
                self._keys.release(run.request.id)
