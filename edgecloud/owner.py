"""Which process owns work in progress, so that what a dead one left is told from what a live one does."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Literal, NamedTuple


class Owner(NamedTuple):
    """One process: its id and when it started (seconds since the epoch), since ids are used again."""

    pid: int
    started: float

    def state(self) -> Literal["alive", "dead", "unsure"]:
        """`unsure`: the process id lives, but its start time differs: used again, or the clock was set."""
        started = _start_time(self.pid)
        if started is None:
            return "dead"
        return "alive" if abs(started - self.started) < 2 else "unsure"


def this_process() -> Owner:
    """The owner of what this process is working on."""
    return _owner(os.getpid())


@lru_cache(maxsize=1)
def _owner(pid: int) -> Owner:
    return Owner(pid, _start_time(pid) or 0.0)


def _start_time(pid: int) -> float | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None
