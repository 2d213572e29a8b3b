"""Chances of a right answer before anything was learnt: the model's size against the question's structure.

    P(right) = sigmoid(skill(engine) - difficulty(question))        (Rasch, 1960)

Difficulty is mostly length: on public outcomes (RouteLLM's MMLU and GSM8K, LLMRouter's fourteen tasks)
nothing that needs no training ranks the gain better. The weights of words are assumptions that keep that
rank: benchmarks ask everything in the same words, people do not. In this model the gain of a stronger engine
grows with difficulty and falls again where both fail. Intervals are wide on purpose: a size says little.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from .decision import Estimate, Neighbour
from .facts import Facts, Structure
from .world import EngineKind, EngineView

# Log-odds at a question of middling difficulty: a model of 8 billion parameters, and ten times as many.
_SKILL_AT_8B, SKILL_PER_DECADE = 0.1, 0.9
_SMALLEST, _LARGEST = 0.05, 500.0
# A price says nothing of quality: money must not be paid because it is asked for.
UNKNOWN_SIZE: Mapping[EngineKind, float] = {"local": 3.0, "pool": 70.0, "hosted": 70.0}
# Half the width of a 90 % interval, in log-odds: models of one size differ by as much.
_DOUBT, _MORE_DOUBT = 1.0, 1.5
# A word and its space, and the length of a question of middling difficulty, in characters.
_WORD_CHARS, _MIDDLING_CHARS, _SHORTEST_CHARS = 5.7, 200.0, 20.0

_SIZE = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.IGNORECASE)


class PriorQuality:
    """`Quality` that has learnt nothing."""

    version = "prior-1"

    def predict(self, facts: Facts, engines: Sequence[EngineView]) -> Mapping[str, Estimate]:
        hard = difficulty(facts.structure)
        # What our word lists do not know has no measured structure.
        blind = facts.structure.language == "other"
        return {view.name: _estimate(view, hard, blind) for view in engines}

    def neighbours(self, facts: Facts) -> tuple[Neighbour, ...]:
        return ()


def difficulty(structure: Structure) -> float:
    """How hard a question looks, in log-odds; 0 is the middle of the benchmarks."""
    chars = _SHORTEST_CHARS + _WORD_CHARS * structure.num_words
    return (
        0.3 * math.log(chars / _MIDDLING_CHARS)
        + 0.3 * math.log1p(structure.reasoning)
        + 0.2 * math.log1p(structure.expertise)
        + 0.1 * math.log1p(structure.negations)
    )


def parameters_of(model: str) -> float | None:
    """Billions of parameters that a model's name tells: 0.135 of `SmolLM2-135M`, 56 of `Mixtral-8x7B`."""
    match = _SIZE.search(model)
    if match is None:
        return None
    experts, number, unit = match.groups()
    return int(experts or 1) * float(number) * (1.0 if unit in "bB" else 0.001)


def _estimate(view: EngineView, hard: float, blind: bool) -> Estimate:
    known = view.parameters or parameters_of(view.model)
    size = known or UNKNOWN_SIZE[view.kind]
    size = min(max(size, _SMALLEST), _LARGEST)
    log_odds = _SKILL_AT_8B + SKILL_PER_DECADE * math.log10(size / 8) - hard
    doubt = _DOUBT if known and not blind else _MORE_DOUBT
    source = f"a prior for {size:.2g} billion parameters" if known else "a prior for an unknown size"
    return Estimate(_sigmoid(log_odds), _sigmoid(log_odds - doubt), _sigmoid(log_odds + doubt), source)


def _sigmoid(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))
