"""How many threads this machine can really give to a model, and the sentence that says why."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
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


class IdleCpus:
    """How many CPUs did nothing since the last look, over the whole machine."""

    def __init__(self) -> None:
        self._at, self._idle = time.monotonic(), psutil.cpu_times().idle

    def __call__(self) -> float:
        at, idle = time.monotonic(), psutil.cpu_times().idle
        idle_cpus = (idle - self._idle) / max(at - self._at, 1e-3)
        self._at, self._idle = at, idle
        return idle_cpus


class ThreadGovernor:
    """Gives up threads when something else wants the cores, and takes them back when those are idle.

    llama.cpp's threads wait for each other hundreds of times per token, so one that isn't scheduled stalls
    all: two threads on a busy two-core machine are many times slower than one. The sign is how much CPU time
    the process got: threads that wait at a barrier mostly spin, so `n` healthy ones take close to `n` CPUs.
    """

    WINDOW_S = 0.1
    STARVED = 0.7
    RETRY_S = 2.0
    RETRY_MOST_S = 60.0

    def __init__(self, choice: ThreadChoice, *, idle_cpus: Callable[[], float] | None = None) -> None:
        self.threads = choice.count
        self._most = choice.count
        self._idle_cpus = idle_cpus or IdleCpus()
        self._wall = self._cpu = 0.0
        self._reduced_s = 0.0
        self._retry_s = self.RETRY_S

    def observe(self, seconds: float, cpu_seconds: float) -> bool:
        """A step took `seconds`, in which the process got `cpu_seconds`; whether `threads` changed."""
        self._wall += seconds
        self._cpu += cpu_seconds
        if self._wall < self.WINDOW_S:
            return False
        wall, share = self._wall, self._cpu / self._wall
        self._wall = self._cpu = 0.0
        if self.threads > 1 and share < self.STARVED * self.threads:
            return self._reduce(share)
        if self.threads == self._most:
            self._retry_s, self._reduced_s = self.RETRY_S, 0.0
            return False
        self._reduced_s += wall
        return self._reduced_s >= self._retry_s and self._retry()

    def _reduce(self, share: float) -> bool:
        if self._reduced_s:
            # The last retry failed: wait longer before the next.
            self._retry_s = min(self.RETRY_MOST_S, 2 * self._retry_s)
        log.warning("%d threads get %.1f CPUs: something else is running", self.threads, share)
        self.threads = max(1, min(self.threads - 1, int(share)))
        self._reduced_s = 0.0
        self._idle_cpus()
        return True

    def _retry(self) -> bool:
        if self._idle_cpus() < self.STARVED * (self._most - self.threads):
            self._reduced_s = 0.0
            return False
        log.info("cores are idle: back to %d threads", self._most)
        self.threads = self._most
        return True
