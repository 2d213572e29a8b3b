"""Which models with known outcomes speak for an engine: itself, or those of its family and size.

    log-odds(engine) = weighted mean over speakers of (log-odds(speaker) + slope log10(size / speaker's size))

Upwards the slope is that of `priors`. Downwards it is twice as steep: the known models are good at most of
what they were asked, and below them that is lost quickly. A size says little, so whoever is spoken for by
others has wide intervals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ..priors import SKILL_PER_DECADE, UNKNOWN_SIZE, parameters_of
from ..world import EngineKind, EngineView

# What a name says beside family, version and size; a quantised model is taken for the model.
_FILLER = re.compile(
    r"(?:instruct|it|chat|hf|gguf|awq|gptq|fp8|fp16|bf16|int4|int8|preview|latest|q\d\w*|iq\d\w*|k|m|s|l|xl|\d|v\d[\d.]*)"
)
_WORD = re.compile(r"[a-z0-9.]+")
_OWN_TRADE = ("code", "chatqa", "math")
# Models whose names tell no size, in billions of parameters, as it is widely believed.
_SIZES = {"gpt-4-1106": 300.0}

_SMALLER = 1.8
"""Log-odds lost for each decade that an engine is smaller than who speaks for it."""
_SAME_FAMILY = 2.0
_REACH = 0.35
"""Speakers of other sizes count e times less for each so many decades of size."""

_EXACT, _SIZED, _UNSIZED = 0.4, 1.0, 1.5
"""Half the width of a 90 % interval, in log-odds, where the rows are trusted."""


class Speaker(NamedTuple):
    """A model by its column, how much it says, and the log-odds by which the engine is ahead of it."""

    column: int
    weight: float
    shift: float


class Voice(NamedTuple):
    """Who speaks for an engine, half the width of a 90 % interval in log-odds, and this in words."""

    speakers: tuple[Speaker, ...]
    doubt: float
    source: str


def voice_of(engine: EngineView, models: Sequence[str]) -> Voice:
    """The voice of an engine among models with known outcomes."""
    return _voice_of(engine.model, engine.kind, engine.parameters, tuple(models))


@lru_cache(maxsize=256)
def _voice_of(asked: str, kind: EngineKind, parameters: float | None, models: tuple[str, ...]) -> Voice:
    name = signature(asked)
    for column, model in enumerate(models):
        if signature(model) == name:
            return Voice((Speaker(column, 1.0, 0.0),), _EXACT, f"known outcomes of {model}")
    known = parameters or size_of(asked)
    size = known or UNKNOWN_SIZE[kind]
    family = _family(asked)
    speakers = []
    for column, model in enumerate(models):
        theirs = size_of(model)
        if theirs is None or any(trade in model for trade in _OWN_TRADE):
            continue
        ahead = math.log10(size / theirs)
        weight = math.exp(-abs(ahead) / _REACH) * (_SAME_FAMILY if _family(model) == family else 1.0)
        slope = SKILL_PER_DECADE if ahead > 0 else _SMALLER
        speakers.append(Speaker(column, weight, slope * ahead))
    said = f"{known:.3g} billion parameters" if known else "an unknown size"
    return Voice(tuple(speakers), _SIZED if known else _UNSIZED, f"models like one of {said}")


def signature(model: str) -> frozenset[str]:
    """What tells one model from another in a name, however it is packed: family, version, size."""
    base = re.sub(r":[^/]*$", "", model.removeprefix("hf:")).rsplit("/", 1)[-1].lower().removesuffix(".gguf")
    words = _WORD.findall(base)
    return frozenset(word for word in words if not _FILLER.fullmatch(word)) or frozenset(words)


def size_of(model: str) -> float | None:
    """Billions of parameters by the model's name."""
    told = parameters_of(model)
    if told is not None:
        return told
    return next((size for name, size in _SIZES.items() if name in model), None)


def _family(model: str) -> str:
    letters = re.search(r"[a-z]{3,}", model.rsplit("/", 1)[-1].lower())
    return letters[0] if letters else ""
