"""What a request would cost at an engine, in the world's currency: as expected, and at most."""

from __future__ import annotations

from edgecloud.settings import Settings
from edgecloud.types import Usage

from .facts import Facts
from .money import amount
from .timing import uncached_tokens
from .world import EngineView, World


def expected_cost(facts: Facts, view: EngineView, world: World) -> float | None:
    """The cost of an answer of the expected length, a warm prefix at its own price.

    None where the price is in a currency that nobody gave a rate for.
    """
    prompt = facts.prompt_tokens(view.name)
    output = round(facts.output_tokens.p50) * facts.num_choices
    return _cost(view, world, Usage(prompt, output, prompt - uncached_tokens(facts, view)))


def worst_cost(facts: Facts, view: EngineView, world: World, settings: Settings) -> float | None:
    """The cost if nothing is cached and every choice is as long as it may be; None as above."""
    prompt = facts.prompt_tokens(view.name)
    room = max(view.capabilities.context - prompt, 0)
    longest = min(facts.max_tokens or settings.budget.answer_tokens, room)
    return _cost(view, world, Usage(prompt, longest * facts.num_choices))


def _cost(view: EngineView, world: World, usage: Usage) -> float | None:
    return world.convert(amount(view.price.cost(usage)), view.currency)
