"""How many threads this machine can really give to a model, and the sentence that says why."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

log = logging.getLogger("edgecloud.threads")


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    count: int
    reason: str


def choose_threads(asked: int = 0) -> ThreadChoice:
    """`asked` threads, or by itself (0): physical cores, within the process's affinity and its cgroup's CPU
    quota.

    More threads than cores make llama.cpp slower, not faster: every operation ends at a barrier that waits
    for the slowest.
    """
    if asked > 0:
        return ThreadChoice(asked, f"{asked}, as configured")
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    choice = ThreadChoice(physical, f"{physical}, one per physical core")
    usable = _affinity()
    if usable < choice.count:
        choice = ThreadChoice(usable, f"{usable}, because this process may use {usable} of {physical} cores")
    quota = cgroup_cpus()
    if quota is not None and max(1, int(quota)) < choice.count:
        count = max(1, int(quota))
        choice = ThreadChoice(count, f"{count}, because this container may use {quota:g} CPUs")
    return choice


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_cpus(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The CPU quota of this process's cgroup in CPUs (v2, then v1), or None."""
    try:
        quota, period = (root / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((root / "cpu/cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu/cpu.cfs_period_us").read_text())
        return None if quota_us <= 0 else quota_us / period_us
    except (OSError, ValueError):
        return None


class ThreadGovernor:
    """Gives up threads when steps collapse because something else wants the cores, and takes them back
    later.

    llama.cpp's threads wait for each other many times per token, so one that isn't scheduled stalls all. The
    sign is a decode step that takes `COLLAPSE` times what steps of its size took at best, `PATIENCE` times in
    a row.
    """

    COLLAPSE = 5.0
    PATIENCE = 8
    RETRY_STEPS = 400

    def __init__(self, choice: ThreadChoice) -> None:
        self._most = choice.count
        self.threads = choice.count
        self._best: dict[int, float] = {}
        self._slow = 0
        self._steps_reduced = 0

    def observe(self, num_tokens: int, seconds: float) -> bool:
        """A decode step of `num_tokens` took `seconds`; whether `threads` changed."""
        best = self._best.get(num_tokens)
        if best is None or seconds < best:
            self._best[num_tokens] = best = seconds
        else:
            # What was possible once need not be for ever: longer contexts are slower steps.
            self._best[num_tokens] = best = best * 1.001
        if self.threads < self._most:
            self._steps_reduced += 1
            if self._steps_reduced >= self.RETRY_STEPS:
                self.threads = self._most
                self._slow = 0
                log.info("back to %d threads", self.threads)
                return True
            return False
        self._slow = self._slow + 1 if seconds > self.COLLAPSE * best else 0
        if self._slow >= self.PATIENCE and self.threads > 1:
            self.threads = max(1, self.threads - 1)
            self._slow = 0
            self._steps_reduced = 0
            log.warning(
                "steps take %.0f times as long as they can: down to %d threads", seconds / best, self.threads
            )
            return True
        return False
