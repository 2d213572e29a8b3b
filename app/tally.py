"""What `edgecloud stats` and the dashboard say alike: from when on they count, and who was asked."""

from __future__ import annotations

import time

NOBODY = "nobody asked"
"""What stands for the engine where a request was over before any was asked."""


def first_of(days: int) -> float:
    """When the first of the last `days` calendar days began here, in seconds since the epoch."""
    year, month, day = time.localtime()[:3]
    return time.mktime((year, month, day - days + 1, 0, 0, 0, 0, 0, -1))
