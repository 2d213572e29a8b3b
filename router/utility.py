"""What an engine's answer is worth in money: its chance of being right, its price, the wait, the prefix left.

utility = answer_value * P(right) * P(in time)
          - (1 + budget_price) * cost - second_value * seconds - switch_cost

An answer after the deadline is none. Of an engine that nobody has measured the speed is a guess with a long
tail, so that with little time those that are known come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgecloud.settings import RouterSettings, Settings

from .decision import Candidate, Estimate, RankMode
from .facts import Facts, Spread
from .money import amount
from .spending import expected_cost, worst_cost
from .timing import first_token, in_time, whole_answer
from .world import EngineView, World

# How much an answer's being right weighs against money and time, as a multiple of `router.answer_value`.
EMPHASIS: dict[RankMode, float] = {"quality": 10.0, "balanced": 1.0, "cheap": 0.1, "local": 1.0, "pool": 1.0}


@dataclass(frozen=True, slots=True)
class Weights:
    """What is weighed against what: money for a right answer, for a second of waiting, and what a unit of
    money costs above its face while a budget is ahead of time.
    """

    answer_value: float
    second_value: float
    budget_price: float
    slo_s: float


def weights_of(mode: RankMode, facts: Facts, world: World, router: RouterSettings) -> Weights:
    slo_s = router.slo_s if facts.deadline_s is None else min(router.slo_s, facts.deadline_s)
    return Weights(router.answer_value * EMPHASIS[mode], router.second_value, world.budget_price, slo_s)


def score_all(
    facts: Facts,
    views: Sequence[EngineView],
    world: World,
    estimates: Mapping[str, Estimate],
    weights: Weights,
    settings: Settings,
) -> list[Candidate]:
    """The engines as candidates, the best first; ties go to the cheaper, then to this machine, then by name.

    Raises `ValueError` for an engine whose currency has no rate: the filters let none pass.
    """
    local = [estimates[view.name].mean for view in views if view.local]
    baseline = max(local) if local else min(estimates[view.name].mean for view in views)
    home = max(views, key=lambda view: view.warm_tokens)
    candidates = []
    for view in views:
        p_ok, total_s = estimates[view.name], whole_answer(facts, view)
        cost, most = expected_cost(facts, view, world), worst_cost(facts, view, world, settings)
        if cost is None or most is None:
            raise ValueError(
                f"The filters let {view.name} pass with prices in {view.currency}, without a rate."
            )
        switch_cost = _switch_cost(view, home, world, weights)
        timely = in_time(facts, view)
        utility = (
            weights.answer_value * p_ok.mean * timely
            - (1.0 + weights.budget_price) * cost
            - weights.second_value * felt_s(total_s, weights)
            - switch_cost
        )
        candidates.append(
            Candidate(
                engine=view.name,
                local=view.local,
                p_ok=p_ok,
                gain=p_ok.mean - baseline,
                cost=cost,
                worst_cost=most,
                first_token_s=first_token(facts, view),
                total_s=total_s,
                switch_cost=switch_cost,
                utility=utility,
                warm_tokens=view.warm_tokens,
                in_time=timely,
                answers_seen=view.speed.num_samples,
            )
        )
    return sorted(candidates, key=lambda one: (-one.utility, one.cost, not one.local, one.engine))


def felt_s(total_s: Spread, weights: Weights) -> float:
    """Seconds as they are weighed: the typical ones, and what the slow tenth is late."""
    return total_s.p50 + max(0.0, total_s.p90 - weights.slo_s)


def _switch_cost(view: EngineView, home: EngineView, world: World, weights: Weights) -> float:
    """What coming back would cost: `home`, the engine that holds the longest warm prefix of this request,
    loses its state of the chat while another engine has it.

    The prompt that has to be computed now is in the candidate's own cost and seconds; this is the second
    time, and it is what keeps a chat from going to and fro.
    """
    lost = max(0, home.warm_tokens - view.warm_tokens)
    money = world.convert(amount(round(lost * (home.price.prompt - home.price.cached) * 1000)), home.currency)
    return (1.0 + weights.budget_price) * (
        money or 0.0
    ) + weights.second_value * lost / home.speed.prefill.p50
