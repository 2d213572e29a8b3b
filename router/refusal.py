"""What to do when no engine is left: wait for one that rests, or say what took which, and the way out."""

from __future__ import annotations

from edgecloud.errors import (
    BadRequest,
    BudgetExceeded,
    ContextLengthExceeded,
    DeadlineExceeded,
    EdgeCloudError,
    NoPermittedRoute,
    Unavailable,
)
from edgecloud.settings import Settings

from .decision import Allowed, FilterName, Removed
from .facts import Facts
from .filter import reserved_tokens
from .world import World

PERMISSIONS: frozenset[FilterName] = frozenset({"privacy", "offline", "key"})
FIELDS = {
    "chat": "messages",
    "completions": "prompt",
    "tools": "tools",
    "json": "response_format",
    "images": "messages",
    "logprobs": "logprobs",
    "continue_final": "continue_final_message",
}
# By a filter's code: what lets an engine pass that it took. No way leads past what an engine can't do.
WAYS = {
    "mode_local": "choose another mode",
    "mode_pool": "choose another mode",
    "private": "leave out what makes it private",
    "region": "name its region in its entry and in privacy.regions, if prompts may go there,",
    "offline": "switch offline mode off (or set `local = true` in its entry if it computes here: "
    "`edgecloud pool add --local`)",
    "resting": "wait until it has rested",
    "probing": "wait until it has been tried",
    "key_engine": "use another key",
    "key_quota": "wait until the key's quota is renewed",
    "budget": "raise the config's [budget] or wait for its next period",
    "currency": "say in budget.rates what its currency is worth",
    "deadline": "allow more time",
}


def wait_s(facts: Facts, allowed: Allowed, world: World, settings: Settings) -> float | None:
    """Seconds after which to filter again, because an engine comes back that only its breaker holds.

    None if there is none, or if it comes back too late: after the request's deadline, or after
    `router.wait_s` where it has none.
    """
    if allowed.engines or allowed.reopens_at is None:
        return None
    wait = max(0.0, allowed.reopens_at - world.now)
    patience = settings.router.wait_s if facts.deadline_s is None else facts.deadline_s
    return wait if wait < patience else None


def refusal(facts: Facts, allowed: Allowed, world: World) -> EdgeCloudError:
    """The error for an empty set; the sentence lists every engine with what took it.

    In this order: 503 with `retry_after` where a breaker alone holds an engine; then, of the engines that
    could have served the request, 403 if privacy, offline mode or the key took one, 402 if money did, 504 if
    the deadline did, and 403 if only the mode did, which whoever asked has chosen: of an engine that it took
    nothing else is told. 400 where no engine could have served it. Engines that the asked name does not mean
    count as if they were not there. `extra["removed"]` is the list for machines: `engine=filter:code`.
    """
    if allowed.engines:
        raise ValueError(f"There is no refusal where {allowed.engines} are allowed.")
    removed = [entry for entry in allowed.removed if entry.filter != "name"]
    if not removed:
        return Unavailable("There is no engine to answer: `edgecloud models` lists what can be had.")
    error = _error(facts, removed, allowed, world)
    error.extra["removed"] = " ".join(f"{entry.engine}={entry.filter}:{entry.code}" for entry in removed)
    return error


def _error(facts: Facts, removed: list[Removed], allowed: Allowed, world: World) -> EdgeCloudError:
    everything = "; ".join(entry.sentence for entry in removed)
    if any(entry.codes.keys() == {"breaker"} for entry in removed):
        return Unavailable(
            f"No engine can answer now: {everything}. Try again later, or ask another model.",
            retry_after=None if allowed.reopens_at is None else max(0.0, allowed.reopens_at - world.now),
        )
    able = [entry for entry in removed if "capability" not in entry.codes]
    took = {name for entry in able for name in entry.codes}
    in_mode = {name for entry in able if "mode" not in entry.codes for name in entry.codes}
    if took & PERMISSIONS or (took and not in_mode):
        return NoPermittedRoute(f"No engine may answer this: {everything}. {_way_out(able, allowed)}")
    if "money" in in_mode:
        if not any(entry.codes.get("money") == "budget" for entry in able):
            return BudgetExceeded(
                f"The budget can't count what an answer costs: {everything}. "
                f"Say in budget.rates what one unit of that currency is worth in {world.currency}."
            )
        return BudgetExceeded(
            f"The budget does not allow an answer: {everything}. "
            f"Raise it in the config's [budget] or wait for its next period{_or_locally(able, world)}."
        )
    if "slo" in in_mode:
        return DeadlineExceeded(
            f"No engine is expected to answer in time: {everything}. Allow more time or fewer tokens."
        )
    if able:
        return Unavailable(f"No engine can answer now: {everything}. Try again later.")
    return _incapable(facts, removed, world, everything)


def _or_locally(able: list[Removed], world: World) -> str:
    """The way past a budget, where an engine of this machine is kept from it by nothing but the mode."""
    free = any(entry.codes.keys() == {"mode"} and world.engine(entry.engine).local for entry in able)
    return ", or use the mode `local`" if free else ""


def _incapable(facts: Facts, removed: list[Removed], world: World, everything: str) -> EdgeCloudError:
    """400: the context, if that is what any engine fails by, else the field that none can serve."""
    short = [world.engine(entry.engine) for entry in removed if entry.codes["capability"] == "context"]
    if not short:
        return BadRequest(
            f"No engine can do what is asked: {everything}. Leave it out, or ask another model.",
            param=FIELDS[removed[0].codes["capability"]],
        )
    widest = max(short, key=lambda view: view.capabilities.context)
    return ContextLengthExceeded(
        facts.prompt_tokens(widest.name),
        widest.capabilities.context,
        reserved=reserved_tokens(facts),
        param="messages" if facts.needs.chat else "prompt",
        setting="local.ctx_size" if widest.kind == "local" else "",
        is_estimate=not facts.is_counted(widest.name),
    )


def _way_out(able: list[Removed], allowed: Allowed) -> str:
    """How to have one of the engines answer that could have: the one in whose way the least stands, and all
    that does. Half a way would only lead to the next refusal.
    """
    nearest = min(able, key=lambda entry: len(entry.codes))
    ways = " and ".join(dict.fromkeys(WAYS[code] for code in nearest.codes.values()))
    others = [entry.engine for entry in allowed.removed if entry.codes.keys() == {"name"}]
    instead = f", or ask {others[0]} instead" if others else ""
    return f"To have {nearest.engine} answer, {ways}{instead}."
