"""What would have had to differ for another engine to be first, found by ranking again with that changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from edgecloud.settings import Settings

from .decision import Candidate, Cascade, Counterfactual, Estimate, Removed
from .facts import Facts
from .filter import reserved_tokens
from .precedents import following, margin
from .reason import told_apart
from .utility import Weights, score_all
from .world import EngineView, World

Ranking = Callable[[Facts, Sequence[EngineView], Weights], Sequence[Candidate]]


def counterfactuals(
    facts: Facts,
    ranked: Sequence[Candidate],
    cascade: Cascade | None,
    views: Sequence[EngineView],
    removed: Sequence[Removed],
    world: World,
    estimates: Mapping[str, Estimate],
    weights: Weights,
    settings: Settings,
) -> tuple[Counterfactual, ...]:
    """The nearest changes that would have put another engine first, of those that a person could make.

    The other engine is the best one on the other side of this machine's edge, or the second best.
    """

    def again(changed: Facts, engines: Sequence[EngineView], anew: Weights) -> Sequence[Candidate]:
        scored = score_all(changed, engines, world, estimates, anew, settings)
        return following(scored, changed.precedent, anew)

    found = list(_too_long(facts, removed, world))
    best = ranked[0]
    others = [one for one in ranked if one.local != best.local] or list(ranked[1:])
    # A cascade asks both, so there is nothing that the other would have to be chosen by.
    if others and cascade is None:
        pair = [view for view in views if view.name in (best.engine, others[0].engine)]
        found += _changes(facts, best, others[0], pair, weights, again)
    return tuple(found)


def _changes(
    facts: Facts,
    best: Candidate,
    other: Candidate,
    pair: Sequence[EngineView],
    weights: Weights,
    again: Ranking,
) -> Iterator[Counterfactual]:
    gap = best.utility - other.utility
    if gap < 0:
        sentence = f"It would have been {other.engine} if no question like it had been asked before"
        yield Counterfactual(other.engine, "precedent", -gap, sentence)
    if best.engine == facts.precedent:
        gap += margin(weights)

    # Utilities are straight lines in the price of money: two points of their distance give the crossing.
    dearer = again(facts, pair, replace(weights, budget_price=weights.budget_price + 1))
    utility = {one.engine: one.utility for one in dearer}
    slope = utility[best.engine] - utility[other.engine] - (best.utility - other.utility)
    crossing = weights.budget_price - gap / slope if slope else -1.0
    if crossing >= 0:
        side = "above" if slope < 0 else "below"
        price = told_apart(crossing, weights.budget_price, "f", digits=2)
        sentence = f"It would have been {other.engine} if the price of the budget were {side} {price}"
        yield Counterfactual(other.engine, "budget_price", crossing, sentence)

    worth = weights.answer_value * other.in_time
    gain = gap / worth if worth else 1.0
    if other.p_ok.mean + gain <= 1:
        chance = told_apart(other.p_ok.mean + gain, other.p_ok.mean, "%")
        sentence = f"It would have been {other.engine} if its chance of a right answer were {chance}"
        yield Counterfactual(other.engine, "gain", gain, sentence)

    def is_other(changed: Facts, engines: Sequence[EngineView] = pair) -> bool:
        return again(changed, engines, weights)[0].engine == other.engine

    shorter = _fewest_tokens(facts, pair, is_other)
    if shorter is not None:
        about = "" if all(facts.is_counted(view.name) for view in pair) else "about "
        sentence = f"It would have been {other.engine} if the prompt were {about}{shorter:,} tokens shorter"
        yield Counterfactual(other.engine, "prompt_tokens", shorter, sentence)

    cold = [replace(view, warm_tokens=0) for view in pair]
    if best.warm_tokens and is_other(facts, cold):
        sentence = f"It would have been {other.engine} if {best.engine} held none of this chat"
        yield Counterfactual(other.engine, "prefix", best.warm_tokens, sentence)


def _fewest_tokens(facts: Facts, pair: Sequence[EngineView], is_other: Callable[[Facts], bool]) -> int | None:
    """How many tokens to take off the prompt; None if leaving a single one would not do. By bisection."""
    low, high = 0, min(facts.prompt_tokens(view.name) for view in pair) - 1
    if high <= 0 or not is_other(_shortened(facts, pair, high)):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if is_other(_shortened(facts, pair, middle)):
            high = middle
        else:
            low = middle
    return high


def _shortened(facts: Facts, pair: Sequence[EngineView], tokens: int) -> Facts:
    counts = {view.name: facts.prompt_tokens(view.name) - tokens for view in pair}
    return replace(facts, num_prompt_tokens=counts)


def _too_long(facts: Facts, removed: Sequence[Removed], world: World) -> Iterator[Counterfactual]:
    for entry in removed:
        if entry.codes == {"capability": "context"}:
            context = world.engine(entry.engine).capabilities.context
            over = facts.prompt_tokens(entry.engine) + reserved_tokens(facts) - context
            about = "" if facts.is_counted(entry.engine) else "about "
            sentence = (
                f"{entry.engine} could have been asked if the prompt were {about}{over:,} tokens shorter"
            )
            yield Counterfactual(entry.engine, "prompt_tokens", over, sentence)
