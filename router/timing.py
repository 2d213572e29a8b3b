"""How long an engine would take over a request, from what is known of its speed."""

from __future__ import annotations

import math

from .facts import Facts, Spread
from .world import EngineView


def first_token(facts: Facts, view: EngineView) -> Spread:
    """Seconds until the answer begins: the queue, the way, and the prompt but for its warm prefix."""
    return _together(_waits(facts, view))


def whole_answer(facts: Facts, view: EngineView) -> Spread:
    """Seconds until the answer of the expected length is complete."""
    output, decode = facts.output_tokens, view.speed.decode
    return _together([*_waits(facts, view), Spread(output.p50 / decode.p50, output.p50 / decode.p90)])


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
