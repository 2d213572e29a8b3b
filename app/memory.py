"""The gateway's memory: kept answers given again, and new ones kept, behind one thread of their own.

    recall the very request -> a vector, if there is anything to compare -> similar -> replay
                                                              else generate -> keep and learn, aside

Whatever fails here fails quietly: the request goes on as if there were no cache, and the user is told once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from edgecloud.engine import Embedder, Engine
from edgecloud.errors import EdgeCloudError, NotKept, StorageError
from edgecloud.models import STARTER_EMBEDDER
from edgecloud.settings import Settings
from edgecloud.types import CacheInfo, ChatRequest, Done, EngineEvent, Notice, Start
from edgecloud.units import age

from .flights import Flights
from .run import Run

if TYPE_CHECKING:
    from ..cache.answers import AnswerCache
    from ..cache.records import Embedded, Found, Hit, Key, Near, Recalled

log = logging.getLogger(__name__)

WAIT_S = 0.5
"""How long an answer is kept waiting for the disk; a miss after that."""

REST_S = 30.0
"""How long a cache that could not be used is left alone."""

CLOSE_WAIT_S = 10.0

T = TypeVar("T")
Source = Callable[[], Awaitable[AsyncGenerator[EngineEvent, None]]]


class Memory:
    """Kept answers for one gateway. `open_cache` runs in the thread at the first use; `embedder` gives the
    configured embedder, or raises `EdgeCloudError` where there is none; `has_vector` tells whether a text's
    is there already, `expects_vector` whether it is or will be without being asked for here.
    """

    def __init__(
        self,
        settings: Settings,
        open_cache: Callable[[], AnswerCache],
        embedder: Callable[[], Awaitable[Embedder]],
        has_vector: Callable[[str], bool] = lambda text: False,
        expects_vector: Callable[[str], bool] = lambda text: False,
    ) -> None:
        self._settings = settings
        self._open_cache = open_cache
        self._embedder = embedder
        self._has_vector = has_vector
        self._expects_vector = expects_vector
        self._cache: AnswerCache | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="edgecloud-cache")
        self._asides: set[asyncio.Task[None]] = set()
        self._flights = Flights()
        self._rests_until = 0.0
        self._told = False

    def serves(self, request: ChatRequest) -> bool:
        """Whether answers may be kept for the request and given to it, by its door and what it says."""
        if request.cache is not None:
            return request.cache
        cache = self._settings.cache
        return cache.http if request.door in ("http", "api") else cache.enabled

    async def through(
        self, run: Run, source: Source, answerers: Collection[str]
    ) -> AsyncGenerator[EngineEvent, None]:
        """The events of a kept answer of one of the `answerers`, or those of `source`, kept when complete.

        `run` learns the verdict. After `Start` comes a `Notice` with what a user should know.
        """
        request = run.request
        key = self._key(request)
        if not self.serves(request) or not key.is_cached:
            if request.only_kept:
                raise nothing_kept(key.reason)
            async with aclosing(await source()) as events:
                async for event in events:
                    yield event
            return
        run.cache = CacheInfo("miss")
        with await self._flights.join(_flight(key, request, answerers)) as flight:
            looked = await self._look(key, request, answerers)
            if looked.hit is not None:
                flight.land()
                run.cache = looked.hit.info
                run.reason = "answered before"
                for event in looked.hit.events:
                    yield event
                    if isinstance(event, Start):
                        yield Notice("cached", _told(looked.hit))
                return
            if request.only_kept:
                raise nothing_kept(looked.trouble)
            seen: list[EngineEvent] = []
            async with aclosing(await source()) as events:
                async for event in events:
                    seen.append(event)
                    yield event
                    if isinstance(event, Start) and request.fresh and not looked.trouble:
                        self._aside(self._refuse(key, answerers))
                    if isinstance(event, Start) and looked.trouble and not self._told:
                        self._told = True
                        yield Notice("storage", f"Kept answers are not used: {looked.trouble}")
                    if isinstance(event, Done) and request.journal:
                        flight.hold(self._aside(self._keep(key, looked, run, tuple(seen))))

    async def foresee(self, request: ChatRequest, answerers: Collection[str]) -> tuple[CacheInfo, str]:
        """What a request would get of a kept answer, and where none are looked for, why. Nothing is counted,
        learnt or kept; a vector is made only where there is something to compare it with.
        """
        if not self.serves(request):
            return CacheInfo("off"), "they are switched off for it"
        if request.fresh:
            return CacheInfo("off"), "it asks for a fresh answer"
        key = self._key(request)
        if not key.is_cached:
            return CacheInfo("off"), key.reason
        try:
            embedded = await self._embed(key) if self._has_vector(key.text) else None
            seen = await self._soon(lambda cache: cache.foresee(key, answerers, embedded))
            if seen.is_near and (embedded := await self._embed(key)) is not None:
                seen = await self._soon(lambda cache: cache.foresee(key, answerers, embedded))
        except StorageError as error:
            return CacheInfo("off"), error.message
        return seen.info or CacheInfo("miss"), ""

    async def blame(self, entry_id: str) -> bool:
        """A person says that a kept answer was wrong: it is not given again, and the bound learns of it."""
        return await self._do(lambda cache: cache.blame(entry_id))

    async def retract(self, request_id: str) -> bool:
        """A person says that the answer to this request was wrong: what was kept of it is deleted."""
        return bool(await self._do(lambda cache: cache.retract(request_id)))

    async def aclose(self) -> None:
        """Finish what is being kept, and close the file."""
        if self._asides:
            await asyncio.wait(self._asides, timeout=CLOSE_WAIT_S)
        if self._cache is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._cache.close)
        self._thread.shutdown(wait=False)

    # ------------------------------------------------------------------------------------------------- inside

    def _key(self, request: ChatRequest) -> Key:
        from ..cache.key import key_of

        cache = self._settings.cache
        # No answer outlives the chats of its time, also where a server runs on and on.
        days = min(cache.lifetime_days, self._settings.history.retention_days or cache.lifetime_days)
        languages = cache.languages
        if self._settings.embedder == STARTER_EMBEDDER:
            # Whatever was set: to it, questions in other languages are all alike.
            languages = tuple(language for language in languages if language == "en")
        return key_of(request, languages=languages, lifetime_s=86_400 * days)

    async def _look(self, key: Key, request: ChatRequest, answerers: Collection[str]) -> _Looked:
        """Look the request up; trouble is a miss."""
        embedded: Embedded | None = None
        # Somebody else has it made: nothing is read to find out whether that is worth while.
        is_coming = self._expects_vector(key.text)

        def similar(cache: AnswerCache) -> Found:
            assert embedded is not None
            return cache.similar(
                key, embedded, answerers, fresh=request.fresh, may_audit=not request.only_kept
            )

        def look(cache: AnswerCache) -> tuple[Recalled, Found | None]:
            there = embedded is not None
            recalled = cache.recall(key, answerers, fresh=request.fresh, is_embedded=there or is_coming)
            return recalled, similar(cache) if there and recalled.is_near else None

        try:
            if self._has_vector(key.text):
                # The router had it made: one visit to the thread instead of two.
                embedded = await self._embed(key)
            recalled, found = await self._soon(look)
            if recalled.hit is not None or not recalled.is_near:
                # Nothing to compare it with, but the next prompt will be compared with this one.
                vector = asyncio.create_task(self._embed(key)) if recalled.hit is None else None
                return _Looked(hit=recalled.hit, vector=vector)
            if found is None:
                embedded = await self._embed(key)
                if embedded is None:
                    return _Looked()
                found = await self._soon(similar)
            return _Looked(found.hit, found.near, embedded)
        except StorageError as error:
            return _Looked(trouble=error.message)
        except Exception:
            log.exception("kept answers could not be looked up")
            return _Looked()

    async def _keep(self, key: Key, looked: _Looked, run: Run, events: tuple[EngineEvent, ...]) -> None:
        from ..cache.records import Answer, text_of

        start = events[0]
        if not isinstance(start, Start):
            return
        embedded = looked.embedded
        if looked.vector is not None:
            embedded = await looked.vector
        near = looked.near
        cosine = await self._alike(near.answer, text_of(events)) if near is not None else None
        answer = Answer(
            events,
            answerer(self._settings, start.engine, start.model, start.variant),
            seconds=time.monotonic() - run.began,
            cost=run.nano / 1e9,
            chat_id=run.chat_id,
            request_id=run.request.id,
        )
        await self._do(lambda cache: cache.store(key, embedded, answer, near=near, cosine=cosine))

    async def _refuse(self, key: Key, answerers: Collection[str]) -> None:
        await self._do(lambda cache: cache.refuse(key, answerers))

    async def _embed(self, key: Key) -> Embedded | None:
        """The prompt's vector; None where no embedder can give one, and then there is no semantic tier."""
        if not key.is_compared:
            return None
        import numpy as np

        from ..cache.records import Embedded

        try:
            embedder = await self._embedder()
            result = await embedder.embed([key.text])
        except EdgeCloudError as error:
            log.info("no vector for the cache: %s", error.message)
            return None
        return Embedded(np.array(result.vectors[0], np.float32), embedder.fingerprint)

    async def _alike(self, one: str, other: str) -> float | None:
        """The cosine of two answers."""
        try:
            embedder = await self._embedder()
            left, right = (await embedder.embed([one, other])).vectors
        except EdgeCloudError:
            return None
        return sum(a * b for a, b in zip(left, right, strict=True))

    def _aside(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work
            except StorageError as error:
                log.warning("cache: %s", error.message)
            except Exception:
                log.exception("an answer could not be kept")

        task = asyncio.create_task(guarded())
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)
        return task

    async def _soon(self, work: Callable[[AnswerCache], T]) -> T:
        """What the thread gives within `WAIT_S`. Raises `StorageError`."""
        doing = self._begin(work)
        await asyncio.wait([doing], timeout=WAIT_S)
        if doing.done():
            return doing.result()
        doing.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise StorageError("cache.db is busy.")

    async def _do(self, work: Callable[[AnswerCache], T]) -> T:
        """Do it in the thread. Raises `StorageError`."""
        return await self._begin(work)

    def _begin(self, work: Callable[[AnswerCache], T]) -> asyncio.Future[T]:
        """Have it done in the thread."""
        if time.monotonic() < self._rests_until:
            raise StorageError("cache.db could not be used a moment ago.")
        return asyncio.get_running_loop().run_in_executor(self._thread, self._with_cache, work)

    def _with_cache(self, work: Callable[[AnswerCache], T]) -> T:
        try:
            if self._cache is None:
                self._cache = self._open_cache()
            return work(self._cache)
        except StorageError:
            if self._cache is not None:
                # Opened again the next time: a damaged file is then made anew.
                self._cache.close()
                self._cache = None
            self._rests_until = time.monotonic() + REST_S
            raise


class _Looked:
    """What a lookup left: a hit, or what the fresh answer is compared and kept with."""

    def __init__(
        self,
        hit: Hit | None = None,
        near: Near | None = None,
        embedded: Embedded | None = None,
        vector: asyncio.Task[Embedded | None] | None = None,
        trouble: str = "",
    ) -> None:
        self.hit = hit
        self.near = near
        self.embedded = embedded
        self.vector = vector
        self.trouble = trouble


def nothing_kept(why: str) -> NotKept:
    """The refusal of a request that wanted a kept answer and no other."""
    return NotKept(f"There is no kept answer{f': {why}' if why else ''}; ask without `only-if-cached`.")


def _flight(key: Key, request: ChatRequest, answerers: Collection[str]) -> Hashable | None:
    """What makes two requests at once the same; None where the first one's answer is not for the second."""
    if key.exact is None or request.fresh or request.only_kept or not request.journal:
        return None
    return key.exact, key.streamed, tuple(answerers)


def answerer_of(settings: Settings, engine: Engine) -> str:
    """Who would answer if this engine were asked; equal to that of an answer which it gave."""
    file = getattr(engine, "file", None)
    if file is None:
        return answerer(settings, engine.name, engine.name, "")
    return answerer(settings, engine.name, file.name, file.variant)


def answerer(settings: Settings, engine: str, model: str, variant: str) -> str:
    """Who answered: a pool by its name and the model that it serves now, a local model by its file."""
    entry = next((entry for entry in settings.pool if entry.name == engine), None)
    if entry is not None:
        return f"{engine}:{entry.model}"
    return ":".join(part for part in (engine, model, variant) if part)


def _told(hit: Hit) -> str:
    ago = f"{age(hit.age_s)} ago"
    if hit.similarity >= 1.0:
        return f"Answered {ago}; --fresh asks again."
    return f"Answered {ago} to a similar question (similarity {hit.similarity:.2f}); --fresh asks anew."
