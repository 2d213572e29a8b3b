"""The router's world as this process has it: the engines of the config with what was learnt of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from edgecloud.engine import Engine
from edgecloud.errors import ConfigError, EdgeCloudError, StorageError
from edgecloud.settings import PoolEntry, Settings

from ..router.learning.speakers import signature, size_of
from ..router.ledger import AnswerEntry, Ledger
from .books import Books
from .probing import Prober
from .upstreams import IN_PROCESS, Deployment, Upstream, remote_upstream

log = logging.getLogger(__name__)

LOOK_BACK = 16
"""Answers that are looked up in the ledger: enough to be no guess, and few enough to be outweighed soon."""

KEEP_EVERY_S = 30.0
"""How often what was learnt is written down while requests come."""

ASK_EVERY_S = 30.0
"""How often an engine is asked what it did not tell."""


class Models(Protocol):
    """What is needed of a catalog."""

    async def engine(self, name: str, *, listed_only: bool) -> Engine: ...
    def pool(self, name: str) -> PoolEntry | None: ...
    def replicas(self, entry: PoolEntry) -> list[Engine]: ...


@runtime_checkable
class Sized(Protocol):
    """An engine that may learn how many weights its model has."""

    num_parameters: int


class Engines:
    """Every engine that `auto` may mean: the pools, and the local default model. Made at the first request,
    with what earlier processes learnt.
    """

    def __init__(
        self,
        settings: Settings,
        models: Models,
        books: Books | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._models = models
        self._books = books
        self._clock = clock
        self._upstreams: dict[str, Upstream] | None = None
        self._lock = asyncio.Lock()
        self._kept_at = clock()
        self._prober = Prober()
        self._asides: set[asyncio.Task[None]] = set()
        self._ask_at: dict[str, float] = {}

    async def all(self) -> dict[str, Upstream]:
        """The engines by name, the local one first."""
        async with self._lock:
            if self._upstreams is None:
                upstreams = {each.name: each for each in await self._build()}
                await self._restore(upstreams)
                self._upstreams = upstreams
        return self._upstreams

    def of_pool(self, entry: PoolEntry) -> Upstream:
        """The engine of a `[[pool]]` entry, a deployment for each of its addresses."""
        engines = self._models.replicas(entry)
        urls = [(entry.url, entry.weight), *((each.url, each.weight) for each in entry.replicas)]
        deployments = [
            Deployment(urlsplit(url).netloc, engine, weight, url)
            for engine, (url, weight) in zip(engines, urls, strict=True)
        ]
        return remote_upstream(entry, deployments, self._settings.budget, self._clock)

    def resting(self) -> list[tuple[str, str, bool]]:
        """Engine, address and whether it rests, for all that are known by now."""
        return [
            (upstream.name, deployment.name, upstream.rests(deployment))
            for upstream in (self._upstreams or {}).values()
            for deployment in upstream.deployments
        ]

    def watch(self, name: str) -> None:
        """Find out when an engine that failed is back."""
        upstream = (self._upstreams or {}).get(name)
        if upstream is not None:
            self._prober.watch(upstream)

    def ask_about(self, name: str) -> None:
        """Ask an engine that has just answered, aside, how much context it has and how large it is: what its
        entry and the model's name don't say. One that does not tell is not asked with every answer.
        """
        upstream = (self._upstreams or {}).get(name)
        if upstream is None or upstream.deployments[0].name == IN_PROCESS or self._asides:
            return
        now = self._clock()
        if now < self._ask_at.get(name, now):
            return
        self._ask_at[name] = now + ASK_EVERY_S
        if upstream.context_known and (upstream.parameters or size_of(upstream.model)):
            return
        task = asyncio.create_task(self._ask_about(upstream))
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)

    def keep(self, *, now: bool = False) -> None:
        """Write down what was learnt, at most every half minute unless `now`."""
        moment = self._clock()
        if self._upstreams is None or self._books is None:
            return
        if now or moment - self._kept_at >= KEEP_EVERY_S:
            self._kept_at = moment
            self._books.keep_engines({name: each.state() for name, each in self._upstreams.items()})

    async def aclose(self) -> None:
        """Keep what was learnt; end what is still being asked aside."""
        for task in self._asides:
            task.cancel()
        await asyncio.gather(*self._asides, return_exceptions=True)
        await self._prober.aclose()
        self.keep(now=True)

    # ------------------------------------------------------------------------------------------------- inside

    async def _ask_about(self, upstream: Upstream) -> None:
        for deployment in upstream.deployments:
            try:
                upstream.learn_context((await deployment.engine.capabilities()).context)
            except EdgeCloudError as error:
                log.debug("%s did not tell its context: %s", upstream.name, error.message)
                continue
            if isinstance(deployment.engine, Sized):
                upstream.learn_size(deployment.engine.num_parameters)
                _share_sizes(list((self._upstreams or {}).values()))
            if upstream.context_known:
                return

    async def _build(self) -> list[Upstream]:
        settings = self._settings
        found = []
        if self._models.pool("auto") is None:
            try:
                found.append(await self._local(settings.model))
            except EdgeCloudError as error:
                # Who has pools can do without a model here.
                log.warning("%s is left out: %s", settings.model, error.message)
        found += [self.of_pool(entry) for entry in settings.pool]
        names = [upstream.name for upstream in found]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"Two engines are called {twice!r}: give the pool of that name another.")
        _share_sizes(found)
        return found

    async def _local(self, name: str) -> Upstream:
        """The model of this machine. Its header is read, its weights are not loaded."""
        engine = await self._models.engine(name, listed_only=False)
        info = getattr(engine, "info", None)
        parameters = info.n_params / 1e9 if info is not None and info.n_params else None
        return Upstream(
            engine.name,
            name,
            "local",
            [Deployment(IN_PROCESS, engine)],
            local=engine.local,
            parameters=parameters,
            capabilities=await engine.capabilities(),
            clock=self._clock,
        )

    async def _restore(self, upstreams: dict[str, Upstream]) -> None:
        if self._books is None:
            return
        try:
            kept: dict[str, tuple[float, Any]] = await self._books.do(lambda ledger: ledger.engines())
        except StorageError:
            return  # logged by the books; what was learnt is learnt again
        for name, (updated, state) in kept.items():
            if name in upstreams:
                upstreams[name].restore(state, time.time() - updated)
        await self._learn_from_ledger(upstreams.values())

    async def _learn_from_ledger(self, upstreams: Iterable[Upstream]) -> None:
        """Of an engine that no router has measured, the ledger may tell: where the first pool is new, the
        model of this machine has answered for long, and is no guess beside it.
        """
        if self._books is None:
            return
        unknown = [
            each
            for each in upstreams
            if not each.estimates.num_seen and each.deployments[0].name == IN_PROCESS
        ]
        if not unknown:
            return

        def look_up(ledger: Ledger) -> list[list[AnswerEntry]]:
            return [ledger.last_answers(each.name, LOOK_BACK) for each in unknown]

        with suppress(StorageError):
            for upstream, answers in zip(unknown, await self._books.do(look_up), strict=True):
                upstream.learn_from(answers[::-1])


def _share_sizes(upstreams: Sequence[Upstream]) -> None:
    """A model whose size one engine knows has it on every other: the same model is as good there."""
    sizes = {signature(each.model): each.parameters for each in upstreams if each.parameters}
    for upstream in upstreams:
        upstream.parameters = upstream.parameters or sizes.get(signature(upstream.model))
