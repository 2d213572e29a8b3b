"""Engines of the router's world over scripted ones, for tests of what happens between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from edgecloud.app.books import Books
from edgecloud.app.candidates import Candidates
from edgecloud.app.drafting import Drafting
from edgecloud.app.execute import Execution
from edgecloud.app.hedging import HedgeBudget
from edgecloud.app.run import Run
from edgecloud.app.till import Till
from edgecloud.app.upstreams import Deployment, Upstream
from edgecloud.engine import Engine
from edgecloud.router.budgets import limits_of
from edgecloud.router.money import Price
from edgecloud.settings import BudgetSettings, RouterSettings
from edgecloud.types import Capabilities, ChatRequest, EngineEvent


def make_upstream(
    *engines: Engine, name: str | None = None, local: bool = False, price: Price | None = None, **fields: Any
) -> Upstream:
    """One engine of the world, each of `engines` at an address of its own."""
    price = price or Price()
    return Upstream(
        name or engines[0].name,
        engines[0].name,
        "local" if local else "pool",
        [Deployment("" if local else f"host-{n}", engine) for n, engine in enumerate(engines)],
        local=local,
        price=price,
        billed=price,
        capabilities=Capabilities(context=4096),
        **fields,
    )


class Executed:
    """One request carried out over upstreams, the first being the first choice."""

    def __init__(
        self,
        request: ChatRequest,
        *upstreams: Upstream,
        books: Books | None = None,
        budget: BudgetSettings | None = None,
        draft: Drafting | None = None,
        hedges: HedgeBudget | None = None,
        overlap: Mapping[str, Mapping[str, int]] | None = None,
        **router: Any,
    ) -> None:
        self.upstreams = upstreams
        self.run = Run(request)
        self.events: list[EngineEvent] = []
        budget = budget or BudgetSettings()
        self.run.limits = limits_of(budget, self.run.created, chat_id=request.chat_id, tenant=request.tenant)
        settings = RouterSettings(**router)
        candidates = Candidates(
            upstreams,
            {upstream.name: 100 for upstream in upstreams},
            session=request.chat_id,
            overlap=overlap,
            most=settings.attempts,
            random=Random(1),
        )
        till = Till(self.run, books, budget)
        hedges = hedges or HedgeBudget(settings.hedge)
        self.execution = Execution(self.run, candidates, till, settings, hedges, draft)

    async def go(self) -> Executed:
        """Run it to its end."""
        async for event in self.execution.events():
            self.run.see(event)
            self.events.append(event)
        return self

    @property
    def text(self) -> str:
        return "".join(getattr(event, "text", "") for event in self.events if hasattr(event, "num_tokens"))

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        return [(tried.engine, tried.outcome) for tried in self.run.tried]

    def notices(self) -> Sequence[str]:
        return [event.kind for event in self.events if type(event).__name__ == "Notice"]

    @property
    def outstanding(self) -> int:
        """Tokens still counted against any address."""
        return sum(
            upstream.outstanding[deployment.name]
            for upstream in self.upstreams
            for deployment in upstream.deployments
        )
