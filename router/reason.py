"""Why the first candidate is first, in the few words that a receipt has room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from edgecloud.units import money

from .decision import Candidate, Cascade, FilterName, Removed
from .utility import Weights, felt_s

MOST_DIGITS = 6

TAKEN: dict[FilterName, str] = {
    "name": "not asked for",
    "mode": "the mode",
    "privacy": "privacy",
    "offline": "offline mode",
    "capability": "what it can do",
    "breaker": "its failures",
    "key": "the key's limits",
    "money": "the budget",
    "slo": "the deadline",
}


def reason(
    ranked: Sequence[Candidate],
    cascade: Cascade | None,
    removed: Sequence[Removed],
    weights: Weights,
    currency: str,
) -> str:
    """What made the difference to the next best: the largest of the terms that speak for the first. Whoever
    is first only because those whose speed is known are too slow is said to be a guess.
    """
    words = _difference(ranked, cascade, removed, weights, currency)
    late = [entry.engine for entry in removed if entry.filter == "slo"]
    if late and cascade is None and not ranked[0].answers_seen:
        words += f"; how fast it is nobody knows yet, and {', '.join(late)} would be too late"
    return words


def _difference(
    ranked: Sequence[Candidate],
    cascade: Cascade | None,
    removed: Sequence[Removed],
    weights: Weights,
    currency: str,
) -> str:
    if cascade is not None:
        chance = percent(cascade.p_accept)
        return f"drafted here first: good enough with a chance of {chance}, else {cascade.escalate}"
    if len(ranked) == 1:
        if any(entry.filter == "name" for entry in removed):
            return "asked for by name"
        taken = [f"{entry.engine}: {TAKEN[entry.filter]}" for entry in removed]
        return f"the only one left ({'; '.join(taken)})" if taken else "the only engine there is"
    best, other = ranked[0], ranked[1]
    if best.utility < other.utility:
        return f"a toss-up with {other.engine}, and a question like it went here"
    worth = 1.0 + weights.budget_price
    chances = f"{percent(best.p_ok.mean)} against {percent(other.p_ok.mean)}"
    timely = f"{percent(best.in_time)} against {percent(other.in_time)}"
    terms = [
        (
            weights.answer_value * best.in_time * (best.p_ok.mean - other.p_ok.mean),
            f"more likely right ({chances}) than {other.engine}",
        ),
        (
            weights.answer_value * other.p_ok.mean * (best.in_time - other.in_time),
            f"more likely in time ({timely}) than {other.engine}",
        ),
        (
            worth * (other.cost - best.cost),
            f"cheaper ({money(best.cost)} against {money(other.cost)} {currency}) than {other.engine}",
        ),
        (
            weights.second_value * (felt_s(other.total_s, weights) - felt_s(best.total_s, weights)),
            f"faster ({seconds(best.total_s.p50)} against {seconds(other.total_s.p50)}) than {other.engine}",
        ),
        (other.switch_cost - best.switch_cost, f"holds {best.warm_tokens} tokens of this chat already"),
    ]
    gain, words = max(terms, key=lambda term: term[0])
    return words if gain > 0 else f"as good as {other.engine}"


def percent(chance: float) -> str:
    return f"{chance:.0%}"


def told_apart(number: float, other: float, kind: Literal["%", "f"], *, digits: int = 0) -> str:
    """A number with as many digits as tell it from the other, from `digits` on."""
    told = f"{number:.{digits}{kind}}"
    if digits < MOST_DIGITS and told == f"{other:.{digits}{kind}}":
        return told_apart(number, other, kind, digits=digits + 1)
    return told


def seconds(duration: float) -> str:
    return f"{duration:.1f} s"
