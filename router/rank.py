"""Which of the allowed engines is tried first, second, last: by expected utility, and by drafting here first
where the local model may be good enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from edgecloud.settings import RouterSettings, Settings

from .counterfactual import counterfactuals
from .decision import Allowed, Candidate, Cascade, Decision, RankMode
from .facts import Facts
from .filter import mode_of
from .precedents import following, is_toss_up
from .quality import Quality
from .reason import reason
from .utility import Weights, score_all, weights_of
from .world import EngineView, World


class Ranking(NamedTuple):
    """A decision, and `explained`, which gives the same with what is only told of it: the nearest known
    questions, and what would have had to differ. That takes as long as the decision, and a request need not
    wait for it.

    Of a toss-up `following` gives the ranking by who was first for a question like it; None where that would
    change nothing.
    """

    decision: Decision
    explained: Callable[[], Decision]
    following: Callable[[str], Ranking] | None = None


def rank(facts: Facts, allowed: Allowed, world: World, quality: Quality, settings: Settings) -> Decision:
    """The allowed engines in the order of trial, with the numbers and reasons.

    Pure: the same values give the same decision. Raises `ValueError` for an empty set, which is for
    `refusal.refusal`.
    """
    return order(facts, allowed, world, quality, settings).explained()


def order(facts: Facts, allowed: Allowed, world: World, quality: Quality, settings: Settings) -> Ranking:
    """As `rank`, explained when somebody asks for it."""
    views = [view for view in world.engines if view.name in allowed]
    if not views:
        raise ValueError(
            f"Nothing can be ranked for {facts.request_id}: {len(world.engines)} engines, none allowed."
        )
    mode = mode_of(facts, settings)
    weights = weights_of(mode, facts, world, settings.router)
    estimates = quality.predict(facts, views)
    scored = score_all(facts, views, world, estimates, weights, settings)

    def ranking(facts: Facts) -> Ranking:
        ranked = following(scored, facts.precedent, weights)
        cascade = _cascade(facts, ranked, views, weights, mode, settings.router)
        decision = Decision(
            request_id=facts.request_id,
            at=world.now,
            mode=mode,
            candidates=_in_order_of_trial(ranked, cascade),
            reason=reason(ranked, cascade, allowed.removed, weights, world.currency),
            removed=allowed.removed,
            cascade=cascade,
            budget_price=weights.budget_price,
            currency=world.currency,
            quality=quality.version,
            labels=facts.privacy.labels if facts.local_only else (),
        )

        def explained() -> Decision:
            differing = counterfactuals(
                facts, ranked, cascade, views, allowed.removed, world, estimates, weights, settings
            )
            return replace(decision, neighbours=quality.neighbours(facts), counterfactuals=differing)

        return Ranking(decision, explained)

    found = ranking(facts)
    if is_toss_up(scored, weights):
        return found._replace(following=lambda engine: ranking(replace(facts, precedent=engine)))
    return found


def _in_order_of_trial(ranked: Sequence[Candidate], cascade: Cascade | None) -> tuple[Candidate, ...]:
    if cascade is None:
        return tuple(ranked)
    first = {cascade.draft: 0, cascade.escalate: 1}
    return tuple(sorted(ranked, key=lambda candidate: first.get(candidate.engine, 2)))


def _cascade(
    facts: Facts,
    candidates: Sequence[Candidate],
    views: Sequence[EngineView],
    weights: Weights,
    mode: RankMode,
    router: RouterSettings,
) -> Cascade | None:
    """Draft here and escalate elsewhere, where that is expected to beat going straight to either.

    Only in the grey zone: the interval of the local chance holds the floor. Tool calls are not judged by
    their first tokens, and an engine without logprobs can't be judged at all.
    """
    draft = next((one for one in candidates if one.local), None)
    other = next((one for one in candidates if not one.local), None)
    if draft is None or other is None or not router.cascade or mode in ("local", "pool") or facts.needs.tools:
        return None
    view = next(view for view in views if view.name == draft.engine)
    low, high, floor = draft.p_ok.low, draft.p_ok.high, router.floor
    if not view.capabilities.logprobs or not low < floor <= high:
        return None
    p_accept = (high - floor) / (high - low)
    accepted = draft.utility + weights.answer_value * draft.in_time * ((floor + high) / 2 - draft.p_ok.mean)
    drafting_s = draft.first_token_s.p50 + router.hold_back / view.speed.decode.p50
    escalated = other.utility - weights.second_value * drafting_s
    if p_accept * accepted + (1 - p_accept) * escalated <= max(draft.utility, other.utility):
        return None
    return Cascade(draft.engine, other.engine, floor, router.hold_back, p_accept)
