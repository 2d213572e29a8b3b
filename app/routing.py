"""Deciding where a request goes, and handing the decision over to be carried out.

facts -> filter -> (wait for one that only rests)      admit: who may answer
a vector, where there is a choice                      estimate: what to choose by
rank                                                   choose: in which order, once no kept answer serves
Execution
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

from edgecloud.errors import StorageError
from edgecloud.settings import Settings
from edgecloud.types import ChatRequest

from ..router.budgets import limits_of
from ..router.decision import Allowed, Decision
from ..router.facts import Facts
from ..router.filter import filter as permit
from ..router.filter import reserved_tokens
from ..router.priors import PriorQuality
from ..router.quality import Quality
from ..router.rank import Ranking, order
from ..router.refusal import PERMISSIONS, refusal, wait_s
from ..router.structure import question
from ..router.world import Budget, World
from .affinity import overlaps
from .books import Books
from .candidates import Candidates
from .continuing import ask_who_continues
from .drafting import Drafting
from .execute import Execution
from .facts import facts_of, measured
from .hedging import HedgeBudget
from .keys import KeyDesk
from .lessons import Lessons
from .precedents import PrecedentDesk
from .privacy import PrivacyDesk
from .run import Run
from .till import Till
from .upstreams import Upstream
from .warmth import KeepsChats, Warmth, session_of
from .world import Engines, Models

log = logging.getLogger(__name__)


class Admitted(NamedTuple):
    """Who may answer a request, and what that was found from."""

    facts: Facts
    world: World
    allowed: Allowed

    @property
    def tokens(self) -> int:
        """What the request is expected to take at most, as the filter for keys counts it."""
        prompt = max(self.facts.prompt_tokens(engine) for engine in self.allowed.engines)
        return prompt + reserved_tokens(self.facts) * self.facts.num_choices

    @property
    def is_choice(self) -> bool:
        return len(self.allowed.engines) > 1


class Estimated(NamedTuple):
    """What estimates quality, and the facts with a vector, where there is one."""

    quality: Quality
    facts: Facts


@dataclasses.dataclass(frozen=True)
class Plan:
    """What was decided, and what it was decided from. Where one engine alone may answer, how good it is, is
    for who keeps or tells the decision: they `weigh` it, and no request waits for that.
    """

    facts: Facts
    world: World
    allowed: Allowed
    weigh: Callable[[], Ranking]

    @cached_property
    def ranking(self) -> Ranking:
        return self.weigh()

    @property
    def decision(self) -> Decision:
        return self.ranking.decision

    def explained(self) -> Decision:
        """The decision with all that is only told of it."""
        return self.ranking.explained()

    @property
    def engines(self) -> tuple[str, ...]:
        """In the order of trial."""
        if len(self.allowed.engines) == 1:
            return self.allowed.engines
        return tuple(candidate.engine for candidate in self.decision.candidates)


class Routing:
    """The router of one gateway, and what it remembers between requests."""

    def __init__(
        self,
        settings: Settings,
        models: Models,
        books: Books | None,
        *,
        quality: Quality | None = None,
        lessons: Lessons | None = None,
        random: Random | None = None,
        keys: KeyDesk | None = None,
        privacy: PrivacyDesk | None = None,
    ) -> None:
        self._settings = settings
        self._models = models
        self._books = books
        self._quality = quality or (None if lessons else PriorQuality())
        self._lessons = lessons
        self._asked: dict[str, tuple[Facts, World]] = {}
        self._random = random or Random()
        self._hedges = HedgeBudget(settings.router.hedge)
        self._warmth = Warmth()
        self._precedents = PrecedentDesk(settings, books)
        self._knows_disk = False
        self._privacy = privacy or PrivacyDesk(settings, books)
        self._keys = keys or KeyDesk(settings, books)
        self.engines = Engines(settings, models, books)

    async def plan(
        self,
        request: ChatRequest,
        *,
        dry: bool = False,
        left_s: float | None = None,
        chat_id: str | None = None,
    ) -> Plan:
        """Decide: `admit`, then `choose`."""
        admitted = await self.admit(request, dry=dry, left_s=left_s, chat_id=chat_id)
        return await self.choose(request, admitted)

    async def expect(self, request: ChatRequest) -> None:
        """Have the vector that a choice will need begun in its thread, where there is likely to be one."""
        if self._lessons is None or request.model != "auto" or not request.is_chat:
            return
        if not _stays(request):
            self._lessons.expect(question(request.messages))
            # It begins when the loop comes round.
            await asyncio.sleep(0)

    async def admit(
        self,
        request: ChatRequest,
        *,
        dry: bool = False,
        left_s: float | None = None,
        chat_id: str | None = None,
    ) -> Admitted:
        """Find out who may answer. Waits for an engine that comes back in time where all that is left only
        rest. A `dry` run waits for nobody and leaves no trace. `chat_id` is whose budget pays, "" a new
        chat's, where the request doesn't say. Raises the refusal of an empty set.
        """
        upstreams = await self.engines.all()
        if not self._knows_disk:
            self._knows_disk = True
            await self._look_at_disk(upstreams)
        privacy = await self._privacy.look_at(request, remember=not dry)
        covers = self._covers(request.model)
        if request.continue_final and not dry and not _stays(request) and not privacy.local_only:
            await ask_who_continues(
                each for each in upstreams.values() if covers is None or each.name in covers
            )
        began = time.monotonic()
        while True:
            spent_s = time.monotonic() - began
            facts = facts_of(
                request,
                upstreams.values(),
                privacy,
                covers=covers,
                left_s=None if left_s is None else max(0.0, left_s - spent_s),
            )
            world = await self._world(request, upstreams, facts, chat_id)
            allowed = permit(facts, world, self._settings)
            if allowed.engines:
                return Admitted(facts, world, allowed)
            rest_s = None if dry else wait_s(facts, allowed, world, self._settings)
            if rest_s is None or (left_s is None and spent_s + rest_s > self._settings.router.wait_s):
                raise refusal(facts, allowed, world)
            await asyncio.sleep(rest_s)

    def needs_chat(self, admitted: Admitted) -> bool:
        """Whether the chat must be known before anybody is asked: money is counted by it, a model of this
        machine saves what it computes under its name, and likewise a choice is remembered.
        """
        return (
            admitted.is_choice
            or self._settings.budget.is_limited
            or any(view.kind == "local" for view in admitted.world.engines if view.name in admitted.allowed)
        )

    async def estimate(self, request: ChatRequest, admitted: Admitted) -> Estimated:
        """Find what there is to choose by among those that were admitted: it takes as long as a vector does.
        Without one, what was learnt says nothing.
        """
        facts = measured(admitted.facts, request)
        if self._quality is not None:
            return Estimated(self._quality, facts)
        if self._lessons is None or not request.is_chat:
            return Estimated(PriorQuality(), facts)
        self._precedents.look()
        quality, vector = await self._lessons.estimating(question(request.messages))
        if vector is not None:
            facts = dataclasses.replace(facts, vector=vector.values, fingerprint=vector.fingerprint)
        return Estimated(quality, facts)

    async def permit(self, request: ChatRequest, engine: str) -> None:
        """Raises `NoPermittedRoute` where an engine may not be told a request's text, whatever it is told it
        for. Leaves no trace.
        """
        upstreams = await self.engines.all()
        privacy = await self._privacy.look_at(request, remember=False)
        facts = facts_of(request, upstreams.values(), privacy, covers=(engine,), left_s=None)
        world = await self._world(request, upstreams, facts, None)
        told = {*PERMISSIONS, "mode"}
        removed = tuple(
            entry
            for entry in permit(facts, world, self._settings).removed
            if entry.engine == engine and told & entry.codes.keys()
        )
        if removed:
            raise refusal(facts, Allowed((), removed), world)

    async def choose(
        self, request: ChatRequest, admitted: Admitted, estimated: Estimated | None = None
    ) -> Plan:
        """Put those that were admitted in order, by what was `estimated`, if it was."""
        facts, world, allowed = admitted
        if not admitted.is_choice:
            quality = self._quality or PriorQuality()
            return Plan(
                facts,
                world,
                allowed,
                lambda: order(measured(facts, request), allowed, world, quality, self._settings),
            )
        quality, facts = estimated or await self.estimate(request, admitted)
        ranking = order(facts, allowed, world, quality, self._settings)
        if ranking.following is not None and (precedent := await self._precedents.of(facts)) is not None:
            ranking = ranking.following(precedent)
        return Plan(facts, world, allowed, lambda: ranking)

    async def execution(self, run: Run, plan: Plan, chat_id: str | None) -> Execution:
        """Carry the plan out for a request of the chat. `run` learns what was decided."""
        settings = self._settings
        if self._lessons is not None:
            self._asked[run.request.id] = plan.facts, plan.world
        draft = None
        if len(plan.engines) > 1:
            if (cascade := plan.decision.cascade) is not None:
                draft = Drafting(cascade, plan.decision.chosen.p_ok)
            else:
                self._precedents.note(run, plan.facts, plan.engines[0], chat_id)
        run.private = plan.facts.local_only
        upstreams = await self.engines.all()
        chosen = [upstreams[name] for name in plan.engines]
        first = chosen[0]
        self._hedges.earn()
        if plan.facts.covers is None:
            run.reason = plan.decision.reason
        run.decision = plan
        run.limits = limits_of(settings.budget, run.created, chat_id=chat_id, tenant=run.request.tenant)
        candidates = Candidates(
            chosen,
            {each.name: _expected_tokens(plan.facts, each.name) for each in chosen},
            session=session_of(run.request),
            overlap={first.name: await overlaps(first, run.request, plan.facts.prompt_tokens(first.name))},
            most=settings.router.attempts,
            random=self._random,
        )
        till = Till(run, self._books, settings.budget)
        return Execution(run, candidates, till, settings.router, self._hedges, draft)

    def learned(self, run: Run) -> None:
        """A request is over: remember who has its prefix, and keep what was learnt from time to time."""
        asked = self._asked.pop(run.request.id, None)
        if run.finished and run.tried:
            if asked is not None and self._lessons is not None:
                facts, world = asked
                self._lessons.answered(facts, world.engine(run.tried[-1].engine), run.request.chat_id)
            name = run.tried[-1].engine
            tokens = run.usage.prompt_tokens + run.usage.completion_tokens
            self._warmth.note(session_of(run.request), name, tokens)
            self.engines.ask_about(name)
        for tried in run.tried:
            # Also where it went well: another address may rest, since the process before this one.
            self.engines.watch(tried.engine)
        self.engines.keep()

    async def states(self) -> list[dict[str, Any]]:
        """Every engine with the state of its addresses, for operators."""
        upstreams = await self.engines.all()
        return [upstream.report() for upstream in upstreams.values()]

    async def aclose(self) -> None:
        await self._precedents.aclose()
        await self.engines.aclose()

    # ------------------------------------------------------------------------------------------------- inside

    def _covers(self, model: str) -> tuple[str, ...] | None:
        """The engines that a model name means: all for `auto`, unless the config says which pool that is."""
        entry = self._models.pool(model)
        if entry is not None:
            return (entry.name,)
        return None if model == "auto" else (model,)

    async def _look_at_disk(self, upstreams: dict[str, Upstream]) -> None:
        """What local models saved of chats before this process began is nearly as good as in memory."""
        if not isinstance(self._models, KeepsChats):
            return
        try:
            saved = await asyncio.to_thread(self._models.saved_tokens)
        except StorageError as error:
            log.info("chats on disk count as cold: %s", error.message)
            return
        for (chat_id, model), tokens in saved.items():
            for upstream in upstreams.values():
                if upstream.kind == "local" and model in (upstream.name, upstream.model):
                    self._warmth.note(chat_id, upstream.name, tokens)

    async def _world(
        self, request: ChatRequest, upstreams: dict[str, Upstream], facts: Facts, chat_id: str | None
    ) -> World:
        settings, now = self._settings, time.time()
        session, tokens = session_of(request), facts.estimated_tokens
        return World(
            now=now,
            engines=tuple(
                upstream.view(now, self._warmth.tokens(session, upstream.name, tokens))
                for upstream in upstreams.values()
            ),
            budgets=await self._budgets(request, now, chat_id),
            key=await self._keys.limits_of(request.tenant),
            currency=settings.budget.currency,
            rates=settings.budget.rates,
        )

    async def _budgets(self, request: ChatRequest, now: float, chat_id: str | None) -> tuple[Budget, ...]:
        settings = self._settings.budget
        if not settings.is_limited or self._books is None:
            return ()
        chat_id = request.chat_id if chat_id is None else chat_id
        limits = limits_of(settings, now, chat_id=chat_id, tenant=request.tenant)
        try:
            sums = await self._books.do(lambda ledger: ledger.sums(limits))
        except StorageError:
            # Whoever wants money is told by the till that nobody knows what is left.
            return ()
        views = (limit.view(*each) for limit, each in zip(limits, sums, strict=True))
        return tuple(view for view in views if view is not None)


def _stays(request: ChatRequest) -> bool:
    """Whether it is said that the request stays on this machine."""
    return request.private or request.offline or request.mode == "local"


def _expected_tokens(facts: Facts, engine: str) -> int:
    return facts.prompt_tokens(engine) + round(facts.output_tokens.p50) * facts.num_choices
