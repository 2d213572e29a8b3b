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
    """What is set aside for an answer: nothing is cached, the prompt takes as many tokens as it can, every
    choice is as long as it may be; None as above.
    """
    room = max(view.capabilities.context - facts.prompt_tokens(view.name), 0)
    longest = min(facts.max_tokens or settings.budget.answer_tokens, room)
    return _most(view, world, Usage(_most_prompt(facts, view), longest * facts.num_choices))


def longest_answer(facts: Facts, view: EngineView, world: World, left: float) -> int:
    """The tokens of the longest answer that so much money is enough for, of each choice; 0 for none."""
    prompt = _most(view, world, Usage(_most_prompt(facts, view), 0)) or 0.0
    million = _most(view, world, Usage(0, 1_000_000 * facts.num_choices)) or 0.0
    return max(0, int((left - prompt) / million * 1_000_000)) if million else 0


def _most_prompt(facts: Facts, view: EngineView) -> int:
    return max(facts.most_prompt_tokens, facts.prompt_tokens(view.name))


def _most(view: EngineView, world: World, usage: Usage) -> float | None:
    return world.convert(amount(view.price.most(usage)), view.currency)


def _cost(view: EngineView, world: World, usage: Usage) -> float | None:
    return world.convert(amount(view.price.cost(usage)), view.currency)
