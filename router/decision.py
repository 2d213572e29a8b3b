"""What the router decided and what made it: the allowed set, the ranked candidates, numbers and reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .facts import Spread

RankMode = Literal["quality", "balanced", "cheap", "local", "pool"]
FilterName = Literal["name", "mode", "privacy", "offline", "capability", "breaker", "key", "money", "slo"]


@dataclass(frozen=True, slots=True)
class Removed:
    """One engine that a filter took, with a code for machines and a sentence for people.

    `also` are the codes of later filters that would have taken it too: what is not in there did not stand in
    its way.
    """

    engine: str
    filter: FilterName
    code: str
    sentence: str
    also: Mapping[FilterName, str] = field(default_factory=dict)

    @property
    def codes(self) -> dict[FilterName, str]:
        """Every filter that refuses the engine, with its code."""
        return {self.filter: self.code, **self.also}


@dataclass(frozen=True, slots=True)
class Allowed:
    """The engines that may see this request, now and in every later step: retry, fallback, hedge, cascade,
    shadow, title, embedding, sharing of cached answers. It can only be narrowed.

    `reopens_at` (Unix seconds) is when the first engine comes back that only its breaker holds.
    """

    engines: tuple[str, ...]
    removed: tuple[Removed, ...] = ()
    reopens_at: float | None = None

    def __contains__(self, engine: object) -> bool:
        return engine in self.engines

    def without(self, *engines: str) -> Allowed:
        """The same set with fewer engines: those that have failed, or that cannot do the step at hand."""
        return Allowed(
            tuple(name for name in self.engines if name not in engines), self.removed, self.reopens_at
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """The chance that an engine's answer is right, with a 90 % interval, and what it was estimated from."""

    mean: float
    low: float
    high: float
    source: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A question with known outcomes, near this one: cosine similarity, score 0..1 by model. `id` names it,
    for its text may be somebody else's.
    """

    id: str
    similarity: float
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine in the order of trial.

    `gain` is its chance of a right answer above the baseline's: the best local candidate's, or the weakest's
    where none is local. Money is in the decision's currency: `cost` is expected, `worst_cost` the most that
    one attempt can take. `switch_cost` is the worth of the warm prefix left behind at another engine.
    `in_time` is the chance that the answer comes within the deadline, 1 without one; `answers_seen` is from
    how many answers its speed is known: with none it is a guess. `utility` is what they were ranked by, in
    money.
    """

    engine: str
    local: bool
    p_ok: Estimate
    gain: float
    cost: float
    worst_cost: float
    first_token_s: Spread
    total_s: Spread
    switch_cost: float
    utility: float
    warm_tokens: int = 0
    in_time: float = 1.0
    answers_seen: int = 0


@dataclass(frozen=True, slots=True)
class Cascade:
    """Draft at `draft`, hold back the first `hold_back` tokens, and accept them at a chance of `floor`, which
    is expected with a chance of `p_accept`; else `escalate`, with nothing shown.
    """

    draft: str
    escalate: str
    floor: float
    hold_back: int
    p_accept: float


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """What would have had to differ for another engine to be chosen, and by how much."""

    engine: str
    what: Literal["budget_price", "gain", "prompt_tokens", "prefix", "precedent"]
    value: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The candidates in the order of trial, and all that was weighed.

    `at` is in Unix seconds; `reason` is why the first is first, in a few words for the receipt. `quality` is
    the version of what estimated the chances; `labels` are those of the privacy rules that matched.
    """

    request_id: str
    at: float
    mode: RankMode
    candidates: tuple[Candidate, ...]
    reason: str
    removed: tuple[Removed, ...] = ()
    cascade: Cascade | None = None
    neighbours: tuple[Neighbour, ...] = ()
    budget_price: float = 0.0
    currency: str = "USD"
    quality: str = ""
    labels: tuple[str, ...] = ()
    counterfactuals: tuple[Counterfactual, ...] = ()

    @property
    def chosen(self) -> Candidate:
        return self.candidates[0]

    @property
    def recipients(self) -> tuple[str, ...]:
        """Engines off this machine that may be sent this request, whatever fails on the way."""
        return tuple(candidate.engine for candidate in self.candidates if not candidate.local)
