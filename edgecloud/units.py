"""Sizes, ages, money and numbers as people read them; a megabyte is a million bytes, as on hub and disks."""

from __future__ import annotations

import math

MB = 1_000_000


def megabytes(num_bytes: float) -> str:
    """`1,204 MB`: whole ones, so that parts can be added up."""
    return f"{round(num_bytes / MB):,} MB"


def part(num_bytes: float, whole: float) -> str:
    """`42 of 98 MB`, `1.20 of 2.79 GB`: so much of a whole, in the whole's unit."""
    if whole >= 1000 * MB:
        return f"{num_bytes / (1000 * MB):.2f} of {size(whole)}"
    return f"{round(num_bytes / MB):,} of {megabytes(whole)}"


def size(num_bytes: float) -> str:
    """`23 kB`, `98 MB`, `4.37 GB`."""
    if num_bytes >= 1000 * MB:
        return f"{num_bytes / (1000 * MB):.2f} GB"
    return f"{num_bytes / MB:.0f} MB" if num_bytes >= MB else f"{num_bytes / 1000:.0f} kB"


def count(number: int, thing: str, things: str = "") -> str:
    """`1 chat`, `2,000 chats`; `things` where an s is not enough."""
    return f"{number} {thing}" if number == 1 else f"{number:,} {things or f'{thing}s'}"


def age(seconds: float | None) -> str:
    """`12 s`, `1 hour`, `3 days`: in the largest unit of which it is one or more; `some time` for None."""
    if seconds is None:
        return "some time"
    for unit, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit:
            return count(int(seconds // unit), name)
    return f"{max(0, int(seconds))} s"


def money(amount: float) -> str:
    """`0`, `12.50`, `0.0312`, `0.000034`: two decimals, and below 1 three digits that say something, without
    an exponent. An answer of a small model costs a millionth, which two decimals would call nothing.
    """
    if amount == 0:
        return "0"
    decimals = max(2, 2 - math.floor(math.log10(abs(amount))))
    whole, _, parts = f"{amount:.{decimals}f}".partition(".")
    return f"{whole}.{parts.rstrip('0'):0<2}"
