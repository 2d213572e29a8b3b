"""`edgecloud pool serve` as a process, over a fake runner: `python -m tests.support.pool_process PORT DRAIN_S
[FAULT]`.
"""

from __future__ import annotations

import sys

from edgecloud.app.cli.pool_serve import run
from edgecloud.config.loading import load
from edgecloud.pool.plan import StepPlan

from .fake_pool import make_pool


def main(port: str, drain_s: str, fault: str = "") -> None:
    settings = load({"pool_server.port": int(port), "server.drain_s": float(drain_s), "log_level": "debug"})

    def before_step(plan: StepPlan) -> None:
        if fault:
            raise RuntimeError(fault)

    options = {"step_s": 0.01, "before_step": before_step}
    run(settings, build=lambda settings: make_pool(num_blocks=64, context=256, runner=options)[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
