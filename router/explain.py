"""A decision in sentences: what `edgecloud why` prints."""

from __future__ import annotations

from collections.abc import Mapping

from edgecloud.units import money

from .decision import Candidate, Cascade, Decision
from .reason import percent, seconds

FEW_SCORES = 3


def explain(decision: Decision, *, carried_out: bool = True) -> tuple[str, ...]:
    """One sentence a line: the choice, what was weighed, what the filters took, what might have been.
    Without `carried_out` nobody was asked, and that is how it reads.

    Nothing of the request's text is in it, nor of its neighbours'.
    """
    was, left = ("was", "left") if carried_out else ("would be", "would leave")
    lines = [
        f"{decision.chosen.engine} {was} tried first: {decision.reason}.",
        f"The mode {'was' if carried_out else 'is'} {decision.mode}.",
    ]
    lines += [
        _candidate(number, one, decision.currency) for number, one in enumerate(decision.candidates, start=1)
    ]
    if decision.cascade is not None:
        lines.append(_cascade(decision.cascade))
    lines += [f"Taken by {entry.filter} ({entry.code}): {entry.sentence}." for entry in decision.removed]
    if decision.labels:
        lines.append(f"Kept on this machine for {', '.join(decision.labels)}.")
    recipients = decision.recipients
    lines.append(
        f"It might leave this machine for {', '.join(recipients)}."
        if recipients
        else f"Nothing {left} this machine."
    )
    lines.append(_budget(decision))
    for neighbour in decision.neighbours:
        lines.append(
            f"Near this question (similarity {neighbour.similarity:.2f}): {neighbour.id}, "
            f"{_outcomes(neighbour.scores)}."
        )
    lines += [f"{one.sentence}." for one in decision.counterfactuals]
    return tuple(lines)


def _candidate(number: int, one: Candidate, currency: str) -> str:
    warm = f", {one.warm_tokens} tokens warm" if one.warm_tokens else ""
    timely = f", in time with {percent(one.in_time)}" if one.in_time < 1 else ""
    guessed = "" if one.answers_seen else ", a guess"
    leaving = f", leaving a warm prefix {money(one.switch_cost)}" if one.switch_cost else ""
    return (
        f"{number}. {one.engine}: right with {percent(one.p_ok.mean)} ({percent(one.p_ok.low)} to "
        f"{percent(one.p_ok.high)}, {one.p_ok.source}), gain {one.gain:+.0%}, "
        f"costs {money(one.cost)} {currency} (at most {money(one.worst_cost)}), "
        f"first token {seconds(one.first_token_s.p50)} (P90 {seconds(one.first_token_s.p90)}), "
        f"whole {seconds(one.total_s.p50)} (P90 {seconds(one.total_s.p90)}{guessed}){timely}{warm}{leaving}, "
        f"utility {one.utility:.4f}."
    )


def _outcomes(scores: Mapping[str, float]) -> str:
    """Who was right; of many only the fewer by name."""
    if len(scores) <= FEW_SCORES:
        return "scores " + ", ".join(f"{model} {score:.2g}" for model, score in scores.items())
    right = [model for model, score in scores.items() if score >= 0.5]
    wrong = [model for model in scores if model not in right]
    told = f"{len(right)} of {len(scores)} models right"
    if not right or not wrong:
        return told
    which, fewer = ("right", right) if len(right) < len(wrong) else ("wrong", wrong)
    return f"{told}, {which} {', '.join(fewer)}"


def _cascade(cascade: Cascade) -> str:
    return (
        f"{cascade.draft} drafts; its first {cascade.hold_back} tokens are shown if they make a right "
        f"answer at least {percent(cascade.floor)} likely (expected: {percent(cascade.p_accept)} of drafts), "
        f"else {cascade.escalate} answers."
    )


def _budget(decision: Decision) -> str:
    if not decision.budget_price:
        return "The budget was not ahead of its time, so money counted at its face."
    return (
        f"Spending was ahead of its time, so money counted {1 + decision.budget_price:.2f} times "
        f"(price of the budget {decision.budget_price:.2f})."
    )
