"""Hard constraints: the engines that may see a request, and which filter took every other one.

    name -> mode -> privacy -> offline -> capability -> breaker -> key -> money -> slo

Each filter looks at one engine at a time and knows nothing of the others, so the set only ever shrinks and
no engine comes back because another one left.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from edgecloud.settings import Settings
from edgecloud.units import count, money

from .decision import Allowed, FilterName, RankMode, Removed
from .facts import Facts
from .spending import longest_answer, worst_cost
from .timing import whole_answer
from .world import EngineView, World

# A code for machines, and the rest of a sentence that begins with the engine's name.
Verdict = tuple[str, str] | None
Filter = Callable[[Facts, EngineView, World, Settings], Verdict]


def filter(facts: Facts, world: World, settings: Settings) -> Allowed:
    """The engines of the world that pass every filter, in the world's order.

    Pure: the same three values give the same set. An empty set is for `refusal.refusal` to explain.
    """
    engines, removed = [], []
    for view in world.engines:
        verdict = _judge(facts, view, world, settings)
        if verdict is None:
            engines.append(view.name)
        else:
            removed.append(verdict)
    resting = [
        world.engine(entry.engine).breaker.reopens_at
        for entry in removed
        if entry.codes.keys() == {"breaker"}
    ]
    reopens_at = min((moment for moment in resting if moment is not None), default=None)
    return Allowed(tuple(engines), tuple(removed), reopens_at)


def mode_of(facts: Facts, settings: Settings) -> RankMode:
    """The mode that holds for a request: its own, else the configured one."""
    return settings.router.mode if facts.mode == "auto" else facts.mode


def reserved_tokens(facts: Facts) -> int:
    """Tokens of context that must be left for the answer; longer ones are cut where the context ends."""
    expected = math.ceil(facts.output_tokens.p50)
    return expected if facts.max_tokens is None else min(expected, facts.max_tokens)


def _judge(facts: Facts, view: EngineView, world: World, settings: Settings) -> Removed | None:
    """The first filter that refuses the engine, with the names of the others that would."""
    verdicts = [(name, check(facts, view, world, settings)) for name, check in FILTERS]
    refusals = [(name, verdict) for name, verdict in verdicts if verdict is not None]
    if not refusals:
        return None
    (name, (code, rest)), *others = refusals
    return Removed(view.name, name, code, f"{view.name} {rest}", {other: also for other, (also, _) in others})


# -------------------------------------------------------------------------------------------------- filters


def _name(facts: Facts, view: EngineView, world: World, settings: Settings) -> Verdict:
    if facts.covers is None or view.name in facts.covers:
        return None
    return "not_asked_for", "is not what the model name asks for"


def _mode(facts: Facts, view: EngineView, world: World, settings: Settings) -> Verdict:
    mode = mode_of(facts, settings)
    if mode == "local" and not view.local:
        return "mode_local", "is not on this machine and the mode is local"
    if mode == "pool" and view.local:
        return "mode_pool", "is on this machine and the mode is pool"
    return None


def _privacy(facts: Facts, view: EngineView, world: World, settings: Settings) -> Verdict:
    if view.local:
        return None
    if facts.local_only:
        # One sentence says enough; `why` lists them all.
        reasons = [reason.sentence for reason in facts.privacy.reasons[:1]]
        return (
            "private",
            f"is not on this machine and the request is private ({reasons[0] if reasons else 'asked for'})",
        )
    regions = settings.privacy.regions
    if regions and view.region not in regions:
        where = f"is in {view.region}" if view.region else "has no region in the config"
        return "region", f"{where} and prompts may go to {', '.join(regions)} only"
    return None


def _offline(facts: Facts, view: EngineView, world: World, settings: Settings) -> Verdict:
    if (facts.offline or settings.offline) and not view.local:
        return "offline", "is not on this machine and offline mode is on"
    return None


def _capability(facts: Facts, view: EngineView, world: World, settings: Settings) -> Verdict:
    can, needs = view.capabilities, facts.needs
    for code, is_missing, what in (
        ("chat", needs.chat and not can.chat, "takes no chat messages"),
        ("completions", not needs.chat and not can.completions, "takes no raw prompts"),
        ("tools", needs.tools and not can.tools, "calls no tools"),
        ("json", needs.json and not can.json, "can't be held to a JSON format"),
        ("images", needs.images and not can.images, "sees no images"),
        ("logprobs", needs.logprobs and not can.logprobs, "gives no logprobs"),
        ("continue_final", needs.continue_final and not can.continue_final, "can't continue a message"),
    ):
        if is_missing:
            return code, what
    prompt, reserved = facts.prompt_tokens(view.name), reserved_tokens(facts)
    if prompt + reserved > can.context:
        about = "" if facts.is_counted(view.name) else "about "
        return (
            "context",
            f"holds {can.context:,} tokens; the prompt has {about}{prompt:,} and the answer needs "
            f"{reserved:,}",
        )
    return None


def _breaker(facts: Facts, view: EngineView, world: World, settings: Settings) -> Verdict:
    breaker = view.breaker
    if breaker.state == "closed" or breaker.probe:
        return None
    because = f" ({breaker.reason.removesuffix('.')})" if breaker.reason else ""
    if breaker.state == "half-open":
        return "probing", f"is being tried after failures{because}"
    if breaker.reopens_at is None:
        return "resting", f"rests after failures{because}"
    return "resting", f"rests for {max(0.0, breaker.reopens_at - world.now):.0f} s after failures{because}"


def _key(facts: Facts, view: EngineView, world: World, settings: Settings) -> Verdict:
    key = world.key
    if key is None:
        return None
    if key.engines is not None and view.name not in key.engines:
        return "key_engine", f"is not among the engines of the key {key.name}"
    if (
        key.tokens_left is not None
        and facts.prompt_tokens(view.name) + reserved_tokens(facts) > key.tokens_left
    ):
        return "key_quota", f"needs more than the {key.tokens_left} tokens left to the key {key.name}"
    return None


def _money(facts: Facts, view: EngineView, world: World, settings: Settings) -> Verdict:
    if view.price.is_free:
        return None
    cost = worst_cost(facts, view, world, settings)
    if cost is None:
        # Neither a budget nor a comparison can be kept in an unknown currency.
        return "currency", f"has prices in {view.currency}, for which budget.rates has no rate"
    for budget in world.budgets:
        if cost > budget.left:
            tokens = longest_answer(facts, view, world, budget.left)
            return "budget", (
                f"may cost {money(cost)} {world.currency} and the {budget.scope}'s budget of "
                f"{money(budget.limit)} has {money(max(budget.left, 0.0))} left"
                + (f", enough for an answer of {count(tokens, 'token')}" if tokens else "")
            )
    return None


def _slo(facts: Facts, view: EngineView, world: World, settings: Settings) -> Verdict:
    # Of an engine that nobody has measured the speed is a guess, and a guess refuses nobody.
    if facts.deadline_s is None or not view.speed.num_samples:
        return None
    typical = whole_answer(facts, view).p50
    if typical > facts.deadline_s:
        return "deadline", f"would typically take {typical:.1f} s of the {facts.deadline_s:.1f} s there are"
    return None


FILTERS: tuple[tuple[FilterName, Filter], ...] = (
    ("name", _name),
    ("mode", _mode),
    ("privacy", _privacy),
    ("offline", _offline),
    ("capability", _capability),
    ("breaker", _breaker),
    ("key", _key),
    ("money", _money),
    ("slo", _slo),
)
