"""A question's structure as a row of numbers, beside its vector: what an embedding hardly sees."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..facts import Structure

Floats = NDArray[np.float32]

# Counts that grow without bound, as logarithms; shares as they are.
COUNTS = (
    "num_chars",
    "num_words",
    "num_lines",
    "maths",
    "code",
    "questions",
    "options",
    "negations",
    "reasoning",
    "expertise",
)
SHARES = ("mean_word", "digits", "capitals", "symbols")
NAMES = (*COUNTS, *SHARES)
LENGTH = NAMES.index("num_chars")


def features(structure: Structure) -> Floats:
    """One number for each of `NAMES`."""
    counts = [math.log1p(getattr(structure, name)) for name in COUNTS]
    return np.array([*counts, *(getattr(structure, name) for name in SHARES)], np.float32)
