"""A decision in sentences: what `edgecloud why` prints."""

from __future__ import annotations

from collections.abc import Mapping

from edgecloud.units import money

from .decision import Candidate, Cascade, Decision
from .facts import Spread
from .privacy import ASKED, PINNED, UNJUDGED, UNREAD
from .reason import percent, seconds

FEW_SCORES = 3
NEAR = 0.4
"""Cosine below which the nearest known question is about something else."""
WIDTH = 110
"""Characters of a line, about."""

_WISHES = {
    ASKED.label: "you asked for it",
    **{reason.label: reason.sentence for reason in (PINNED, UNJUDGED, UNREAD)},
}


def explain(decision: Decision, *, carried_out: bool = True) -> tuple[str, ...]:
    """One sentence a line: the choice, what was weighed, what the filters took, what might have been.
    Without `carried_out` nobody was asked, and that is how it reads. Where there was no choice, nobody looked
    into the question, and nothing is said of how likely an answer is right.

    Nothing of the request's text is in it, nor of its neighbours'.
    """
    was, left = ("was", "left") if carried_out else ("would be", "would leave")
    lines = [
        f"{decision.chosen.engine} {was} tried first: {decision.reason}.",
        f"The mode {'was' if carried_out else 'is'} {decision.mode}.",
    ]
    is_choice = len(decision.candidates) > 1
    for number, one in enumerate(decision.candidates, start=1):
        lines += _candidate(number, one, decision.currency, is_choice=is_choice)
    if decision.cascade is not None:
        lines.append(_cascade(decision.cascade))
    lines += [f"Taken by {entry.filter} ({entry.code}): {entry.sentence}." for entry in decision.removed]
    if decision.labels:
        lines.append(
            f"Kept on this machine: {', '.join(_WISHES.get(each, each) for each in decision.labels)}."
        )
    recipients = decision.recipients
    lines.append(
        f"It might leave this machine for {', '.join(recipients)}."
        if recipients
        else f"Nothing {left} this machine."
    )
    if decision.budget_price:
        lines.append(
            f"Spending was ahead of its time, so money counted {1 + decision.budget_price:.2f} times "
            f"(price of the budget {decision.budget_price:.2f})."
        )
    for neighbour in decision.neighbours:
        if neighbour.similarity >= NEAR:
            near = f"Near this question (similarity {neighbour.similarity:.2f}): {neighbour.id}, "
            lines.append(f"{near}{_outcomes(neighbour.scores, WIDTH - len(near) - 1)}.")
    lines += [f"{one.sentence}." for one in decision.counterfactuals]
    return tuple(lines)


def _candidate(number: int, one: Candidate, currency: str, *, is_choice: bool) -> list[str]:
    """What spoke for it; then, indented, what it would take."""
    warm = f", {one.warm_tokens} tokens warm" if one.warm_tokens else ""
    timely = f", in time with {percent(one.in_time)}" if one.in_time < 1 else ""
    guessed = "" if one.answers_seen else ", a guess"
    leaving = f", leaving a warm prefix {money(one.switch_cost)}" if one.switch_cost else ""
    price = f"{money(one.cost)} {currency} (at most {money(one.worst_cost)})" if one.worst_cost else "nothing"
    costs = (
        f"costs {price}, first token {_spread(one.first_token_s)}), "
        f"whole {_spread(one.total_s)}{guessed}){timely}{warm}{leaving}."
    )
    if not is_choice:
        return [f"{number}. {one.engine}: {costs}"]
    return [
        f"{number}. {one.engine}: right with {percent(one.p_ok.mean)} ({percent(one.p_ok.low)} to "
        f"{percent(one.p_ok.high)}, {one.p_ok.source}), gain {one.gain:+.0%}, utility {one.utility:.4f}.",
        f"   It {costs}",
    ]


def _spread(duration: Spread) -> str:
    return f"{seconds(duration.p50)} (P90 {seconds(duration.p90)}"


def _outcomes(scores: Mapping[str, float], room: int) -> str:
    """Who was right: by name where there are few, and as many names as there is room for."""
    if len(scores) <= FEW_SCORES:
        told = "scores " + ", ".join(f"{model} {score:.2g}" for model, score in scores.items())
        if len(told) <= room:
            return told
    right = [model for model, score in scores.items() if score >= 0.5]
    wrong = [model for model in scores if model not in right]
    told = f"{len(right)} of {len(scores)} models right"
    if not right or not wrong:
        return told
    which, fewer = ("right", right) if len(right) < len(wrong) else ("wrong", wrong)
    named = f"{told}, {which} {', '.join(fewer)}"
    return named if len(named) <= room else told


def _cascade(cascade: Cascade) -> str:
    return (
        f"{cascade.draft} drafts; its first {cascade.hold_back} tokens are shown if they make a right "
        f"answer at least {percent(cascade.floor)} likely (expected: {percent(cascade.p_accept)} of drafts), "
        f"else {cascade.escalate} answers."
    )
