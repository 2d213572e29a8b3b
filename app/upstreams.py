"""The engines that the router may choose among: their addresses, health, speed and prices, as they stand.

An `Upstream` is one engine of the config; each of its addresses is a `Deployment` with a breaker of its own.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from edgecloud.engine import Engine
from edgecloud.settings import BudgetSettings, PoolEntry
from edgecloud.types import Capabilities, Timings, Usage

from ..router.balance import Outstanding, Replica, choose
from ..router.breaker import Breaker, Lease, Snapshot
from ..router.latency import LOCAL_PRIOR, REMOTE_PRIOR, Estimates
from ..router.ledger import AnswerEntry
from ..router.money import Price
from ..router.world import BreakerView, EngineKind, EngineView

Clock = Callable[[], float]

IN_PROCESS = ""
"""The address of an engine in this process."""

UNKNOWN_CONTEXT = 131_072
"""Tokens of context of an endpoint that does not tell: it refuses by itself what does not fit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Deployment:
    """One address of an engine; `name` is its host and port, "" for an engine in this process, `url` the
    whole of it.
    """

    name: str
    engine: Engine
    weight: float = 1.0
    url: str = ""
    breaker: Breaker = dataclasses.field(default_factory=Breaker)


FREE = Price()


class Turn(NamedTuple):
    """A deployment that was chosen, with the leave to ask it."""

    deployment: Deployment
    lease: Lease


class Upstream:
    """One engine of the router's world. `clock` gives seconds that no change of the date moves.

    `price` is in `currency`; `billed` is the same in the budget's currency, free where no rate is known
    (the router refuses such an engine before).
    """

    def __init__(
        self,
        name: str,
        model: str,
        kind: EngineKind,
        deployments: Sequence[Deployment],
        *,
        local: bool,
        price: Price = FREE,
        billed: Price = FREE,
        currency: str = "USD",
        region: str = "",
        parameters: float | None = None,
        capabilities: Capabilities,
        context_known: bool = True,
        clock: Clock = time.monotonic,
    ) -> None:
        self.name = name
        self.model = model
        self.kind: EngineKind = kind
        self.deployments = tuple(deployments)
        self.local = local
        self.price = price
        self.billed = billed
        self.currency = currency
        self.region = region
        self.parameters = parameters
        self.capabilities = capabilities
        self.context_known = context_known
        self.estimates = Estimates(LOCAL_PRIOR if local else REMOTE_PRIOR)
        self.outstanding = Outstanding()
        self.silent: set[str] = set()
        """Addresses that do not tell which prefixes they hold."""
        self._clock = clock

    def view(self, now: float, warm_tokens: int = 0) -> EngineView:
        """The engine as the router looks at it, at `now` in Unix seconds."""
        return EngineView(
            name=self.name,
            kind=self.kind,
            local=self.local,
            model=self.model,
            capabilities=self.capabilities,
            price=self.price,
            currency=self.currency,
            region=self.region,
            parameters=self.parameters,
            breaker=self._breaker(now),
            speed=self.estimates.speed,
            warm_tokens=warm_tokens,
        )

    def admit(
        self,
        tokens: int,
        random: Random,
        *,
        session: str | None = None,
        overlap: Mapping[str, int] | None = None,
        but: Sequence[str] = (),
    ) -> Turn | None:
        """Take a turn at one of its deployments, none of those named in `but`; None if all of them rest.
        `session` and `overlap` are as in `router.balance.choose`.
        """
        ready = self._ready(but)
        if not ready:
            return None
        replicas = [Replica(each.name, each.weight, self.outstanding[each.name]) for each in ready]
        chosen = choose(replicas, tokens, random, session=session, overlap=overlap or {})
        deployment = next(each for each in ready if each.name == chosen.name)
        lease = deployment.breaker.admit(self._clock())
        assert lease is not None, f"{self.name} was ready and admits nobody"
        return Turn(deployment, lease)

    def is_ready(self, but: Sequence[str] = ()) -> bool:
        """Whether `admit` would give a turn."""
        return bool(self._ready(but))

    def succeeded(self, turn: Turn, usage: Usage, timings: Timings) -> None:
        """A whole answer came."""
        slow = self.estimates.is_slow(timings.ttft_s, usage.prompt_tokens)
        turn.deployment.breaker.succeed(turn.lease, self._clock(), slow=slow)
        self.estimates.learn(usage, timings)

    def failed(
        self, turn: Turn, reason: str, pause_s: float | None = None, *, all_of_it: bool = False
    ) -> None:
        """The deployment failed; with `all_of_it` whatever made it fail holds for every address."""
        now = self._clock()
        turn.deployment.breaker.fail(turn.lease, now, reason, pause_s=pause_s)
        if all_of_it:
            for other in self.deployments:
                if other is not turn.deployment and (lease := other.breaker.admit(now)) is not None:
                    other.breaker.fail(lease, now, reason, pause_s=pause_s)

    def released(self, turn: Turn) -> None:
        """The request ended without saying anything of the deployment."""
        turn.deployment.breaker.release(turn.lease)

    def answered(self, turn: Turn) -> None:
        """The deployment works, without an answer to learn from."""
        turn.deployment.breaker.succeed(turn.lease, self._clock())

    def rests(self, deployment: Deployment) -> bool:
        """Whether a deployment is left alone, or under trial."""
        return deployment.breaker.state(self._clock()) != "closed"

    def rest_s(self, deployment: Deployment) -> float:
        """Seconds until a deployment may be asked again."""
        now = self._clock()
        return max(0.0, (deployment.breaker.retry_at(now) or now) - now)

    def probe(self, deployment: Deployment) -> Lease | None:
        """The one leave to find out whether a deployment that rested is back; None if it is not to be had."""
        return deployment.breaker.admit(self._clock()) if self.rests(deployment) else None

    def may_wake(self, deployment: Deployment) -> bool:
        """Whether a deployment that rests may be asked for its health before its pause is over."""
        return deployment.breaker.may_wake

    def wake(self, deployment: Deployment) -> None:
        """A deployment that rests says that it is well: let it be tried."""
        deployment.breaker.wake(self._clock())

    def is_late(self, waited_s: float, prompt_tokens: int) -> bool:
        """Whether a first token is so late that an honest upstream would have begun."""
        return waited_s > self.patience_s(prompt_tokens)

    def patience_s(self, prompt_tokens: int) -> float:
        """How long to wait for a first token while somebody else could be asked. A model of ours may have to
        be loaded first, and says so itself when it is stuck.
        """
        if self.deployments[0].name == IN_PROCESS:
            return math.inf
        return max(20.0, 4.0 * self.estimates.ttft_s(prompt_tokens).p90)

    def learn_context(self, context: int) -> None:
        """Take in how many tokens of context the endpoint says it has; what the config says goes before."""
        if not self.context_known and context > 0:
            self.capabilities = dataclasses.replace(self.capabilities, context=context)
            self.context_known = True

    def learn_continuing(self) -> None:
        """Take in that the endpoint goes on with a message that was begun."""
        self.capabilities = dataclasses.replace(self.capabilities, continue_final=True)

    def learn_size(self, num_parameters: int) -> None:
        """Take in how many weights the endpoint says its model has, where nobody knew."""
        if self.parameters is None and num_parameters > 0:
            self.parameters = num_parameters / 1e9

    def learn_from(self, answers: Sequence[AnswerEntry]) -> None:
        """Take in answers of the past, oldest first: of this model only, by any of its names."""
        file = getattr(self.deployments[0].engine, "file", None)
        names = {self.name, self.model, getattr(file, "name", self.model)}
        for each in answers:
            if each.model in names:
                decode_s = each.usage.completion_tokens / each.tokens_per_s if each.tokens_per_s else 0.0
                self.estimates.learn(each.usage, Timings(ttft_s=each.ttft_s, decode_s=decode_s))

    def state(self) -> dict[str, Any]:
        """What is worth keeping for the next process, as JSON."""
        now = self._clock()
        breakers = {each.name: each.breaker.snapshot(now) for each in self.deployments}
        return {
            "speed": self.estimates.to_json(),
            "breakers": {
                name: {
                    **dataclasses.asdict(kept),
                    "reason": self._named(name).breaker.reason,
                    "url": self._named(name).url,
                }
                for name, kept in breakers.items()
                if kept is not None
            },
            "context": self.capabilities.context if self.context_known else 0,
            "parameters": self.parameters or 0.0,
            "model": self.model,
        }

    def report(self) -> dict[str, Any]:
        """Its state for operators, as JSON."""
        now, speed = self._clock(), self.estimates.speed
        return {
            "engine": self.name,
            "kind": self.kind,
            "local": self.local,
            "addresses": [
                {
                    "address": each.name or "this process",
                    "state": each.breaker.state(now),
                    "reason": each.breaker.reason,
                    "retry_in_s": max(0.0, (each.breaker.retry_at(now) or now) - now),
                    "outstanding_tokens": self.outstanding[each.name],
                }
                for each in self.deployments
            ],
            "answers_seen": speed.num_samples,
            "wait_s": speed.queue_s.p50,
            "prefill_tokens_per_s": speed.prefill.p50,
            "decode_tokens_per_s": speed.decode.p50,
        }

    def restore(self, state: Any, age_s: float) -> None:
        """Go on from what another process kept `age_s` seconds ago; what makes no sense in it is left out."""
        if not isinstance(state, Mapping):
            return
        self.estimates.load_json(state.get("speed"))
        if type(context := state.get("context")) is int:
            self.learn_context(context)
        match state:
            # Behind the same name there may be another model now.
            case {"model": self.model, "parameters": float() | int() as billions} if 0 < billions < 1e6:
                self.learn_size(round(billions * 1e9))
        breakers = state.get("breakers")
        for name, kept in breakers.items() if isinstance(breakers, Mapping) else ():
            match kept:
                # Where the address or the model is another now, that may be what was mended.
                case {
                    "left_s": float() | int() as left_s,
                    "trips": int() as trips,
                    "reason": str() as why,
                    "url": url,
                } if self._has(name) and url == self._named(name).url and state.get("model") == self.model:
                    snapshot = Snapshot(left_s - max(0.0, age_s), trips)
                    self._named(name).breaker.restore(snapshot, self._clock(), why)

    # ------------------------------------------------------------------------------------------------- inside

    def _ready(self, but: Sequence[str]) -> list[Deployment]:
        now = self._clock()
        return [
            each for each in self.deployments if each.name not in but and each.breaker.retry_at(now) is None
        ]

    def _has(self, name: str) -> bool:
        return any(each.name == name for each in self.deployments)

    def _named(self, name: str) -> Deployment:
        return next(each for each in self.deployments if each.name == name)

    def _breaker(self, now: float) -> BreakerView:
        moment = self._clock()
        breakers = [each.breaker for each in self.deployments]
        states = [breaker.state(moment) for breaker in breakers]
        if "closed" in states:
            return BreakerView()
        ready = [breaker for breaker in breakers if breaker.retry_at(moment) is None]
        if ready:
            return BreakerView("half-open", probe=True, reason=ready[0].reason)
        soonest = min(breakers, key=lambda breaker: breaker.retry_at(moment) or 0.0)
        reopens_at = now + (soonest.retry_at(moment) or 0.0) - moment
        state: Any = "half-open" if "half-open" in states else "open"
        return BreakerView(state, reopens_at, reason=soonest.reason)


def remote_upstream(
    entry: PoolEntry, deployments: Sequence[Deployment], budget: BudgetSettings, clock: Clock = time.monotonic
) -> Upstream:
    """The upstream of a `[[pool]]` entry. What is priced is taken for somebody else's."""
    price = price_of(entry)
    return Upstream(
        entry.name,
        entry.model,
        "pool" if price.is_free else "hosted",
        deployments,
        local=entry.local,
        price=price,
        billed=billed_price(entry, budget),
        currency=entry.currency,
        region=entry.region,
        capabilities=capabilities_of(entry),
        context_known=entry.context > 0,
        clock=clock,
    )


def price_of(entry: PoolEntry) -> Price:
    """What the endpoint asks for a million tokens, in its own currency."""
    cached = entry.price_in if entry.price_cached is None else entry.price_cached
    return Price(entry.price_in, cached, entry.price_out)


def billed_price(entry: PoolEntry, budget: BudgetSettings) -> Price:
    """The same in the budget's currency; nothing where no rate is known, for then nothing is sent there."""
    price = price_of(entry)
    rate = 1.0 if entry.currency == budget.currency else budget.rates.get(entry.currency, 0.0)
    return Price(price.prompt * rate, price.cached * rate, price.completion * rate)


def capabilities_of(entry: PoolEntry) -> Capabilities:
    """What an endpoint can do: everything that its entry doesn't say it lacks, or that is not expected."""
    can = {name: name not in entry.lacks for name in ("tools", "json", "images", "logprobs")}
    return Capabilities(context=entry.context or UNKNOWN_CONTEXT, continue_final=entry.may_continue, **can)
