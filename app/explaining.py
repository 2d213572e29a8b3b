"""Why a request went where it went: for `edgecloud why`, `/route/explain` and dry runs alike."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgecloud.units import age, money
from edgecloud.wire.native import dump_record, load_record

from ..router.decision import Decision
from ..router.explain import explain
from ..router.ledger.crashed import CRASHED
from .run import NEXT_IN_LINE

if TYPE_CHECKING:
    from edgecloud.engine import Engine
    from edgecloud.types import CacheInfo, ChatRequest

    from ..router.ledger import Ledger
    from .routing import Plan


def plan_story(plan: Plan) -> dict[str, Any]:
    """A plan that nobody has carried out."""
    decision = plan.explained()
    return {
        "id": plan.facts.request_id,
        "decision": dump_record(decision),
        "sentences": list(explain(decision, carried_out=False)),
    }


def named_story(request: ChatRequest, engine: Engine) -> dict[str, Any]:
    """A request for one engine, which nobody has carried out: there is no `decision`."""
    place = "here" if engine.local else "elsewhere"
    return {
        "id": request.id,
        "engine": engine.name,
        "model": request.model,
        "local": engine.local,
        "decision": None,
        "sentences": [f"{request.model} would answer, {place}: it is named, so nothing is weighed."],
    }


def with_cache(story: dict[str, Any], info: CacheInfo, why_off: str) -> dict[str, Any]:
    """A story of what would be, and what the cache would do; `why_off` says why it would do nothing."""
    sentences = list(story["sentences"])
    if info.entry_id is not None:
        similarity, ago = info.similarity or 0.0, age(info.age_s)
        what = "the same question" if similarity >= 1.0 else f"a similar question ({similarity:.0%} alike)"
        sentences.append(f"But {what} was answered {ago} ago: that kept answer would be given.")
    elif why_off:
        sentences.append(f"No kept answer would be given: {why_off.removesuffix('.')}.")
    return {**story, "cache": asdict(info), "sentences": sentences}


def request_story(ledger: Ledger, request_id: str, *, tenant: str | None = None) -> dict[str, Any]:
    """A request that was answered or refused, with its decision if there was a choice. With a `tenant` only
    that key's own. Raises `NotFound`.
    """
    story = ledger.receipt(request_id, tenant=tenant)
    stored = ledger.decision(story["id"])
    sentences: list[str] = []
    if story["receipt"]["cache"]["entry_id"] is not None:
        sentences += _kept_answer(story["receipt"])
    elif story["outcome"] == CRASHED:
        sentences.append(f"{story['receipt']['reason'].capitalize()}.")
    elif stored is None and story["outcome"] != "ok" and not story["attempts"]:
        sentences.append(f"It ended ({story['outcome']}) before anybody was chosen.")
    elif stored is None:
        sentences.append("Only one engine was meant, so nothing was weighed.")
    elif "refused" in stored:
        sentences.append(f"It was refused: {stored['refused']}")
    else:
        sentences += explain(load_record(Decision, stored))
        sentences += _who_came_next(story["receipt"])
    return {**story, "decision": stored, "sentences": [*sentences, *_attempts(story)]}


def _kept_answer(receipt: dict[str, Any]) -> list[str]:
    """What was given instead of asking anybody, and whose it was: a hit's receipt names who computed it."""
    cache = receipt["cache"]
    similarity = cache["similarity"] or 0.0
    asked = (
        "This was asked before"
        if similarity >= 1.0
        else f"A similar question was asked before (similarity {similarity:.2f})"
    )
    who = receipt["engine"]
    if receipt["model"] != who:
        who += f" ({receipt['model']})"
    entry = cache["entry_id"]
    return [
        f"{asked}, so nobody was asked: {who} answered it {age(cache['age_s'])} earlier.",
        f"Cache: {cache['verdict']}, entry {entry}; `edgecloud cache show {entry}` shows it, `--fresh` asks "
        "again.",
    ]


def _who_came_next(receipt: dict[str, Any]) -> list[str]:
    """That it was not the first choice that was asked last, and why: one that no budget paid for was not
    asked at all, so no attempt tells of it.
    """
    reason = receipt["reason"]
    return [f"Then it was {receipt['engine']}, {reason}."] if reason.startswith(NEXT_IN_LINE) else []


def _attempts(story: dict[str, Any]) -> list[str]:
    currency = story["receipt"]["currency"]
    return [
        f"Attempt {number}: {each['engine']}{' at ' + each['replica'] if each['replica'] else ''}, "
        f"{each['outcome']} after {each['seconds']:.2f} s, {each['prompt_tokens']} + "
        f"{each['completion_tokens']} tokens, {money(each['cost'])} {currency}"
        f"{' at least' if each['at_least'] else ''}."
        for number, each in enumerate(story["attempts"], start=1)
    ]
