"""Bodies that tests send to a pool's server, and a gate that holds its steps."""

from __future__ import annotations

import threading
from typing import Any

from edgecloud.pool.engine import PoolEngine
from edgecloud.pool.plan import StepPlan


class Gate:
    """Holds the runner before its steps until it is opened."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        self.event.wait(20)

    def open(self) -> None:
        self.event.set()


def completion(prompt: Any = "abc|", **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 5, **fields}


def is_idle(engine: PoolEngine) -> bool:
    stats = engine.loop.stats
    return (engine.loop.num_waiting, stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0, 0)
