"""Runs tasks in a process beside this one, so that what breaks or hangs in one of them costs that one only.

A kernel that reads outside of its memory spoils the GPU's context for everything that comes after it in its
process; one that never ends cannot be interrupted. Hence another process, and a new one after each failure.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any


def each(
    names: Sequence[str], task: Callable[[str], Any], *, limit_s: float, until: float = float("inf")
) -> Iterator[tuple[str, Any, str]]:
    """For each name, what `task(name)` returned and "", or None and why nothing came of it.

    A task has `limit_s` seconds; at `until`, by `time.monotonic()`, all end. One that fails behind others in
    a process is tried once more in a process of its own: the fault may be theirs. `task` and what it returns
    are pickled.
    """
    context = multiprocessing.get_context("spawn")
    left = list(names)
    while left and time.monotonic() < until:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(theirs, task, tuple(left)), daemon=True)
        process.start()
        theirs.close()
        is_first, why = True, ""
        while left and not why:
            seconds = max(min(limit_s, until - time.monotonic()), 0.0)
            if ours.poll(seconds):
                result, why = _received(ours)
            else:
                result, why = None, f"no end after {seconds:.0f} s"
                # To try it again would cost as much again.
                is_first = True
            if not why or is_first:
                yield left.pop(0), result, why
            is_first = False
        # What it printed is to come out; a broken GPU may keep it from ending.
        process.join(0 if why.startswith("no end") else 10)
        process.kill()
        process.join()
        ours.close()
    yield from ((name, None, "not begun: the time is over") for name in left)


def _received(pipe: Connection) -> tuple[Any, str]:
    try:
        result, why = pipe.recv()
    except EOFError:
        return None, "its process died"
    return result, why


def _work(pipe: Connection, task: Callable[[str], Any], names: tuple[str, ...]) -> None:
    for name in names:
        try:
            result = task(name)
        except Exception as problem:
            first = (str(problem).strip().splitlines() or [""])[0]
            pipe.send((None, f"{type(problem).__name__}: {first[:100]}"))
            return
        pipe.send((result, ""))
