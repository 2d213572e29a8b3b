"""Carrying a decision out: candidates in their order, one deadline and one reservation for all of them.

    until the first piece of an answer: the next address, then the next candidate, on any fault but the
    caller's; from then on the answer is that engine's, and if it breaks off, another goes on where settings
    allow that

Nobody but the decision's candidates is ever asked, whatever fails.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from edgecloud.errors import BudgetExceeded, EdgeCloudError, UpstreamError
from edgecloud.settings import RouterSettings
from edgecloud.types import ChatRequest, EngineEvent, Notice, Start

from .attempt import Attempt
from .candidates import Candidates
from .continuing import Said, ask_who_continues, can_continue
from .drafting import Drafting
from .faults import fault_of
from .hedging import HedgeBudget
from .opening import Opening, race
from .run import NEXT_IN_LINE, Run
from .till import Till
from .upstreams import Turn, Upstream


class Execution:
    """One request being answered by the candidates of its decision; `draft` where it is drafted first."""

    def __init__(
        self,
        run: Run,
        candidates: Candidates,
        till: Till,
        settings: RouterSettings,
        hedges: HedgeBudget,
        draft: Drafting | None = None,
    ) -> None:
        self._run = run
        self._candidates = candidates
        self._till = till
        self._settings = settings
        self._hedges = hedges
        self._draft = draft
        self._first, self._reason = candidates.upstreams[0].name, run.reason
        self._passed: list[str] = []  # why it is not the first choice that answers
        self._notices: list[str] = []  # what of that the caller has not been told yet

    async def events(self) -> AsyncGenerator[EngineEvent, None]:
        """The answer's events. Raises one `EdgeCloudError` when nobody could give it."""
        said, seam = Said(), None
        run = self._run
        opening = await self._open(dataclasses.replace(run.request, chat_id=run.chat_id))
        while True:
            async with aclosing(self._told(opening, said, seam)) as told:
                async for event in told:
                    # An answer begins once.
                    if seam is None or not isinstance(event, Start):
                        yield event
            failure = said.failure
            if failure is None:
                return
            self._candidates.give_up(opening.attempt.upstream, failure)
            request = await self._following(opening.attempt.request, said)
            if request is None:
                raise failure
            said.break_off()
            opening = await self._open(request)
            name = opening.attempt.upstream.name
            seam = Notice("continued", f"{failure.message} {name} goes on from here.")

    # ------------------------------------------------------------------------------------------------- inside

    async def _told(
        self, opening: Opening, said: Said, seam: Notice | None
    ) -> AsyncGenerator[EngineEvent, None]:
        """The events of an attempt after `seam`; what breaks it off is left in `said.failure`."""
        said.failure = None
        async with aclosing(opening.rest) as rest:
            try:
                if seam is not None:
                    yield seam
                for event in opening.head:
                    yield said.see(event)
                    if isinstance(event, Start):
                        for notice in self._rerouted(opening.attempt.upstream):
                            yield notice
                async for event in rest:
                    yield said.see(event)
            except EdgeCloudError as error:
                said.failure = error

    def _rerouted(self, upstream: Upstream) -> Iterator[Notice]:
        if self._notices:
            yield Notice("rerouted", f"{' '.join(self._notices)} {upstream.name} answers instead.")
            self._notices.clear()

    async def _open(self, request: ChatRequest) -> Opening:
        """An attempt that has begun to answer. Raises the fault that ended the search."""
        while True:
            opening = await self._next(request)
            if opening is None:
                left_s = self._run.left_s
                await self._candidates.wait_for_return(self._settings.wait_s if left_s is None else left_s)
                continue
            upstream = opening.attempt.upstream
            self._account_for(upstream)
            try:
                if self._draft is not None and self._draft.is_by(upstream):
                    draft, self._draft = self._draft, None
                    if await draft.is_accepted(opening):
                        return opening
                    self._candidates.postpone(upstream)
                    self._pass_over(draft.complaint)
                    continue
                opened = await self._begun(opening, request)
            except EdgeCloudError as error:
                self._candidates.give_up(upstream, error)
                if not fault_of(error).elsewhere:
                    raise
                self._pass_over(error.message)
                continue
            if opened is not None:
                if opened is not opening:
                    self._passed.append(f"{upstream.name} was slower to begin.")
                    self._account_for(opened.attempt.upstream)
                return opened
            late = f"{upstream.name} did not begin to answer in time."
            self._candidates.give_up(upstream, UpstreamError(late))
            self._pass_over(late)

    def _pass_over(self, why: str) -> None:
        self._passed.append(why)
        self._notices.append(why)

    def _account_for(self, upstream: Upstream) -> None:
        """Let the receipt's reason be that of the one who is asked now: the first choice's speaks for that
        one alone. Who goes on with an answer does not change who began it.
        """
        if self._run.start is not None:
            return
        if upstream.name == self._first:
            self._run.reason = self._reason
            return
        why = " ".join(dict.fromkeys(self._passed)) or f"{self._first} could not be asked."
        self._run.reason = f"{NEXT_IN_LINE} {why.removesuffix('.')}"

    async def _begun(self, opening: Opening, request: ChatRequest) -> Opening | None:
        """The attempt, or a rival of it, once it has begun to answer; None if neither did in time."""
        upstream = opening.attempt.upstream
        tokens = self._candidates.tokens[upstream.name]
        patience_s = upstream.patience_s(tokens)
        if not self._candidates.has_another() or math.isinf(patience_s):
            # Nobody to turn to: what it says goes out as it comes, its `Start` before its first word.
            await opening.start()
            return opening
        if not self._hedges.has_room:
            return await race(opening, patience_s)
        hedge_s = min(patience_s, upstream.estimates.ttft_s(tokens).p90)
        return await race(opening, patience_s, hedge_s=hedge_s, rival=lambda: self._rival(request))

    async def _rival(self, request: ChatRequest) -> Opening | None:
        return await self._next(request) if self._hedges.take() else None

    async def _next(self, request: ChatRequest) -> Opening | None:
        """The next attempt that is paid for; None if nobody is left."""
        while (found := self._candidates.next()) is not None:
            upstream, turn = found
            try:
                return await self._attempt(upstream, turn, request)
            except BudgetExceeded as error:
                self._passed.append(f"{upstream.name} is not paid for by the budget.")
                self._candidates.unaffordable(upstream, error)
        return None

    async def _attempt(self, upstream: Upstream, turn: Turn, request: ChatRequest) -> Opening:
        if self._draft is not None and self._draft.is_by(upstream):
            request = self._draft.asked(request)
        if (left_s := self._run.left_s) is not None:
            request = dataclasses.replace(request, deadline_s=max(0.001, left_s))
        try:
            ticket = await self._till.pay_for(upstream, request)
        except BaseException:
            upstream.released(turn)
            raise
        tokens = self._candidates.tokens[upstream.name]
        self._run.asked.append(turn.deployment.engine)
        return Opening(
            Attempt(
                upstream,
                turn,
                ticket.request,
                tokens,
                lambda tried: self._till.book(ticket, tried),
                most=ticket.most,
            )
        )

    async def _following(self, request: ChatRequest, said: Said) -> ChatRequest | None:
        """The request that goes on after a fault in the middle of an answer, where that may be done."""
        if not self._settings.continue_elsewhere or said.failure is None:
            return None
        if not fault_of(said.failure).cools:
            return None
        following = said.following(request)
        if following is not None:
            await ask_who_continues(self._candidates.upstreams)
            self._candidates.only(can_continue)
        return following if self._candidates.has_another() else None
