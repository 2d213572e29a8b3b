"""Garbage collection that nobody feels: what is there at the start stays, and is not looked at again."""

from __future__ import annotations

import gc

YOUNG = 10_000
"""Objects between two looks at the youngest, a few milliseconds each. Python's own 700 mean hundreds of looks
a second in a stream."""

MIDDLE, OLD = 3, 60
"""Looks at the younger between two at the older. What is on the screen outlives each look at the youngest and
is garbage soon after: 10 rounds of it, Python's own number, were 20 to 50 ms at once."""


def spare_what_stays() -> None:
    """Call once everything is imported.

    A full collection went through all modules, for 100 to 200 ms in the middle of an answer and of a word
    that is being typed (`bench/tui.py`); now it sees only what was made since.
    """
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
