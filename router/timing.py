"""How long an engine would take over a request, from what is known of its speed."""

from __future__ import annotations

import math

from .facts import Facts, Spread
from .world import EngineView

GUESS_TAIL = 3.0
"""How many times longer than guessed the slow tenth of engines takes that nobody has asked yet."""

_P90_OF_A_NORMAL = 1.2816


def first_token(facts: Facts, view: EngineView) -> Spread:
    """Seconds until the answer begins: the queue, the way, and the prompt but for its warm prefix."""
    return _together(_waits(facts, view))


def whole_answer(facts: Facts, view: EngineView) -> Spread:
    """Seconds until the answer of the expected length is complete."""
    output, decode = facts.output_tokens, view.speed.decode
    return _together([*_waits(facts, view), Spread(output.p50 / decode.p50, output.p50 / decode.p90)])


def in_time(facts: Facts, view: EngineView) -> float:
    """The chance that the whole answer comes within the deadline: 1 where there is none.

    Lognormal between the two quantiles, as waits and rates are: their tails are long.
    """
    if facts.deadline_s is None:
        return 1.0
    total_s = whole_answer(facts, view)
    typical_s = max(total_s.p50, 1e-3)
    tail = max(total_s.p90 / typical_s, 1.01 if view.speed.num_samples else GUESS_TAIL)
    spreads = math.log(max(facts.deadline_s, 1e-3) / typical_s) * _P90_OF_A_NORMAL / math.log(tail)
    return 0.5 * (1.0 + math.erf(spreads / math.sqrt(2.0)))


def uncached_tokens(facts: Facts, view: EngineView) -> int:
    """Prompt tokens to compute; at least the last one always is, to get its logits."""
    tokens = facts.prompt_tokens(view.name)
    return tokens - min(view.warm_tokens, max(tokens - 1, 0))


def _waits(facts: Facts, view: EngineView) -> list[Spread]:
    tokens, speed = uncached_tokens(facts, view), view.speed
    return [
        speed.queue_s,
        speed.overhead_s,
        Spread(tokens / speed.prefill.p50, tokens / speed.prefill.p90),
    ]


def _together(parts: list[Spread]) -> Spread:
    """One after the other. The tails of independent parts seldom meet: the distances between the quantiles
    add like standard deviations, where adding the P90s would be a P98.
    """
    p50 = sum(part.p50 for part in parts)
    return Spread(p50, p50 + math.hypot(*(max(0.0, part.p90 - part.p50) for part in parts)))
