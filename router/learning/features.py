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
# How it is asked, which came later: rows that were kept before end with SHARES.
FORM_COUNTS = (
    "stem_chars",
    "option_chars",
    "option_spread",
    "blanks",
    "following",
    "quotes",
    "numbers",
    "names",
    "commas",
    "all_or_none",
)
FORM_SHARES = (
    "numeric_options",
    "asks",
    "states",
    "asks_what",
    "asks_how",
    "supposes",
    "longest_word",
    "distinct_words",
)
NAMES = (*COUNTS, *SHARES, *FORM_COUNTS, *FORM_SHARES)
LENGTH = NAMES.index("num_chars")


def features(structure: Structure) -> Floats:
    """One number for each of `NAMES`."""
    counts = [math.log1p(getattr(structure, name)) for name in COUNTS]
    shares = [getattr(structure, name) for name in SHARES]
    form_counts = [math.log1p(getattr(structure.form, name)) for name in FORM_COUNTS]
    form_shares = [float(getattr(structure.form, name)) for name in FORM_SHARES]
    return np.array([*counts, *shares, *form_counts, *form_shares], np.float32)
