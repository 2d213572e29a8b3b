"""Where a plot's axes are marked: round numbers, in words that a person reads."""

from __future__ import annotations

import math
import re

MARKS = 4
"""About how many of them."""


def round_marks(highest: float) -> list[float]:
    """From 0 to the first round number that is not below `highest`, in steps of 1, 2 or 5 and zeros."""
    if highest <= 0 or not math.isfinite(highest):
        return [0.0]
    least = highest / MARKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def short(number: float) -> str:
    """A count in as few characters as say it: 900, 1.5k, 20k, 3M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def round_amount(amount: str) -> str:
    """An amount of money without the zeros that say nothing: $0.04 for $0.0400."""
    return re.sub(r"\.?0+(?=\D*$)", "", amount) if "." in amount else amount


def ago(unit: str, latest: str, *places: int) -> list[str]:
    """Names of the places so many units ago; without a unit they are counted in what the plot is of."""
    return [" ".join(filter(None, (str(place), unit, "ago"))) if place else latest for place in places]
