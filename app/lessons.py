"""What the router learns here: the quality it estimates with, and the verdicts that correct it.

    an answer ──> remembered for a while ──> a thumb, a pick, the same question again ──> an outcome

Whatever fails here fails quietly: requests are routed by the sizes of models, and the log says why.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from edgecloud.engine import Embedder
from edgecloud.errors import EdgeCloudError, NotFound, StorageError
from edgecloud.types import Message

from ..router.facts import Facts
from ..router.learned import LearnedQuality, load_shipped
from ..router.learning.features import features
from ..router.outcomes import Answered
from ..router.priors import PriorQuality
from ..router.quality import Quality
from ..router.structure import gist, measure, question
from ..router.world import EngineView

if TYPE_CHECKING:
    from ..router.outcomes import Outcomes

log = logging.getLogger(__name__)

T = TypeVar("T")

KEPT = 512
"""Answers and chats that are remembered in memory for a verdict; older ones are read from history."""

SAME_QUESTION, SAME_AGAIN = 0.85, 0.995
"""Cosines of a chat's next question from which it is the last one in other words, or word for word."""


class Vector(NamedTuple):
    """A question's embedding, and which embedder it is from."""

    values: tuple[float, ...]
    fingerprint: str


class Lessons:
    """`find_embedder` raises `EdgeCloudError` where there is none; `open_outcomes` is None where the user
    wants nothing kept. `begin_vector` has a text's vector made before anybody waits for it.
    """

    def __init__(
        self,
        find_embedder: Callable[[], Awaitable[Embedder]],
        open_outcomes: Callable[[], Outcomes] | None,
        load: Callable[[], LearnedQuality] = load_shipped,
        begin_vector: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._find_embedder = find_embedder
        self._begin_vector = begin_vector
        self._open_outcomes = open_outcomes
        self._load = load
        self._outcomes: Outcomes | None = None
        self._shipped: Quality | None = None
        self._quality: Quality | None = None
        self._stamp: tuple[Any, ...] = ()
        self._answers: OrderedDict[str, Answered] = OrderedDict()
        self._last: OrderedDict[str, str] = OrderedDict()
        self._asides: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()
        self._opening = threading.Lock()

    async def quality(self) -> Quality:
        """What estimates now: outcomes with the user's verdicts, or the prior where they can't be read.
        Another process may have added verdicts, deleted a chat, or trained.
        """
        async with self._lock:
            self._quality = await asyncio.to_thread(self._current)
        return self._quality

    def expect(self, text: str) -> None:
        """Say that `estimating` will be asked about this question, so that its vector is begun now."""
        if text.strip() and isinstance(self._quality, LearnedQuality):
            self._begin_vector(gist(text))

    async def estimating(self, text: str) -> tuple[Quality, Vector | None]:
        """What estimates now, and the embedding of a question: None without an embedder, or where nothing
        would look at it.
        """
        if not text.strip():
            return await self.quality(), None
        # Whether there are new verdicts is looked up meanwhile, once it is known that vectors are of use.
        known = self._quality if isinstance(self._quality, LearnedQuality) else await self.quality()
        if not isinstance(known, LearnedQuality):
            return known, None
        looking = asyncio.create_task(self.quality())
        try:
            vector = await self._embed(text, known.fingerprint)
            return await looking, vector
        finally:
            looking.cancel()

    def answered(self, facts: Facts, view: EngineView, chat_id: str | None) -> None:
        """Remember an answer, so that there can be a verdict on it. The same question again in its chat is a
        verdict on the answer before.
        """
        if facts.vector is None or self._open_outcomes is None:
            return
        now = _answered(facts, view, chat_id)
        before = self._answers.get(self._last.get(chat_id or "", ""))
        _remember(self._answers, facts.request_id, now)
        if chat_id is None:
            return
        _remember(self._last, chat_id, facts.request_id)
        if before is not None:
            alike = float(before.vector @ now.vector)
            if alike >= SAME_QUESTION:
                self._aside(before, "regenerated" if alike >= SAME_AGAIN else "asked_again")

    async def verdict(self, request_id: str, verdict: str, *, tenant: str | None = None) -> None:
        """Keep what a person thought of an answer that is remembered; `none` takes a verdict back. Raises
        `NotFound` for an answer that isn't, or is another key's, `BadRequest` for a verdict that there is
        not, `StorageError`.
        """
        answer = self._answers.get(request_id)
        if verdict != "none" and (answer is None or (tenant is not None and answer.tenant != tenant)):
            raise NotFound(f"There is no answer {request_id[:80]!r} to have a verdict on.")
        if verdict == "none":
            await asyncio.to_thread(lambda: self._store().withdraw(request_id))
        elif answer is not None:
            await asyncio.to_thread(lambda: self._store().record(answer, verdict))

    async def recall(
        self, request_id: str, chat_id: str, messages: tuple[Message, ...], view: EngineView
    ) -> None:
        """Remember an answer of the past: the messages that were answered, and the engine that did."""
        text = question(messages)
        _, vector = await self.estimating(text)
        if vector is not None:
            facts = Facts(
                request_id, 1, structure=measure(text), vector=vector.values, fingerprint=vector.fingerprint
            )
            _remember(self._answers, request_id, _answered(facts, view, chat_id))

    def remembers(self, request_id: str) -> bool:
        return request_id in self._answers

    async def aclose(self) -> None:
        """Write what is being written, and close the file."""
        await asyncio.gather(*self._asides, return_exceptions=True)
        if self._outcomes is not None:
            await asyncio.to_thread(self._outcomes.close)

    # ------------------------------------------------------------------------------------------------- inside

    async def _embed(self, text: str, fingerprint: str) -> Vector | None:
        try:
            embedder = await self._find_embedder()
            if embedder.fingerprint != fingerprint:
                return None
            values = (await embedder.embed([gist(text)])).vectors[0]
        except EdgeCloudError as error:
            log.info("no vector for the router: %s", error.message)
            return None
        return Vector(tuple(values), embedder.fingerprint)

    def _current(self) -> Quality:
        if self._shipped is None:
            try:
                self._shipped = self._load()
            except EdgeCloudError as error:
                log.warning("%s", error.message)
                self._shipped = PriorQuality()
        shipped = self._shipped
        if self._open_outcomes is None or not isinstance(shipped, LearnedQuality):
            return shipped
        try:
            store = self._store()
            stamp = store.stamp()
            if self._quality is None or stamp != self._stamp:
                self._stamp = stamp
                return dataclasses.replace(
                    shipped,
                    evidence=store.evidence(shipped.fingerprint),
                    corrections=store.corrections(shipped.fingerprint),
                )
            return self._quality
        except StorageError as error:
            log.warning("verdicts are not used: %s", error.message)
            return self._quality or shipped

    def _store(self) -> Outcomes:
        if self._open_outcomes is None:
            raise NotFound("History is off, so no verdicts are kept: switch it on with history.enabled.")
        with self._opening:
            if self._outcomes is None:
                self._outcomes = self._open_outcomes()
            return self._outcomes

    def _aside(self, answer: Answered, verdict: str) -> None:
        task = asyncio.create_task(self._record(answer, verdict))
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)

    async def _record(self, answer: Answered, verdict: str) -> None:
        try:
            await asyncio.to_thread(lambda: self._store().record(answer, verdict))
        except StorageError as error:
            log.warning("a verdict is not kept: %s", error.message)


def _answered(facts: Facts, view: EngineView, chat_id: str | None) -> Answered:
    return Answered(
        request_id=facts.request_id,
        engine=view.name,
        model=view.model,
        kind=view.kind,
        parameters=view.parameters,
        vector=np.array(facts.vector, np.float32),
        fingerprint=facts.fingerprint,
        features=features(facts.structure),
        chat_id=chat_id,
        tenant=facts.tenant,
    )


def _remember(table: OrderedDict[str, T], key: str, value: T) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > KEPT:
        table.popitem(last=False)
