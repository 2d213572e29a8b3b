"""How far a pull is, on one line of the terminal: how much is here, how fast it comes, what time is left."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable

from edgecloud.units import part, size

from ..visible import neutral
from .shell import write

REFRESH_S = 0.1
WINDOW_S = 5.0
"""How far back the speed is looked at: long enough to be read, short enough to notice a slow network."""
BAR = 30
LEAST_BAR = 8


class PullLine:
    """Call it with the bytes that are here, those in all, and the file's name; `clear` takes it away."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._name = ""
        self._seen: deque[tuple[float, int]] = deque()
        self._shown_at = float("-inf")

    def __call__(self, done: int, total: int, name: str) -> None:
        now = self._clock()
        if now - self._shown_at < REFRESH_S and done < total:
            return
        self._shown_at = now
        if name != self._name:
            self._name = name
            self._seen.clear()
        self._seen.append((now, done))
        while now - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()
        since, before = self._seen[0]
        rate = (done - before) / (now - since) if now > since else 0.0
        width = shutil.get_terminal_size().columns - 1
        write(
            sys.stderr, "\r" + neutral(pull_line(done, total, name, rate, width), is_terminal=True) + "\x1b[K"
        )

    def clear(self) -> None:
        write(sys.stderr, "\r\x1b[K")


def pull_line(done: int, total: int, name: str, rate: float, width: int) -> str:
    """At most `width` characters: first the bar goes, then the name's end. `rate` is bytes a second, 0 where
    it is not known.
    """
    facts = part(done, total)
    if rate > 0:
        facts += f", {size(rate)}/s, {_time((total - done) / rate)} left"
    room = width - len(facts) - len("  ")
    bar = min(BAR, room - len(name) - len("  "))
    if bar >= LEAST_BAR:
        filled = round(bar * done / max(total, 1))
        return f"{name}  {'█' * filled}{'░' * (bar - filled)}  {facts}"
    if len(name) > room:
        name = name[: room - 1] + "…" if room > 1 else ""
    return f"{name}  {facts}"[:width]


def _time(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{minutes:.0f} min" if minutes >= 2 else f"{seconds:.0f} s"
