"""`edgecloud serve` as a process, over a scripted engine: `python -m tests.support.serve_process PORT
DRAIN_S HANG_AT [KEY]`. `FAKE_LOST` is what could not be written at the end.
"""

from __future__ import annotations

import os
import sys

from edgecloud.app.cli.serve import run
from edgecloud.config.loading import load

from .fake_engine import FakeEngine
from .fake_gateway import fake_gateway


def main(port: str, drain_s: str, hang_at: str, key: str = "") -> None:
    settings = load(
        {
            "server.port": int(port),
            "server.drain_s": float(drain_s),
            "server.api_keys": (key,) if key else (),
            "log_level": "debug",
        }
    )
    hang = int(hang_at)
    engine = FakeEngine(
        lambda request: [b"x"] * (1 if request.prompt == "Hello" else 30),
        decode_s=0.02,
        hang_at=hang if hang >= 0 else None,
    )
    # Nobody else answers, whatever pools the settings name.
    alone = settings.model_copy(update={"pool": ()})
    gateway = fake_gateway(engine, settings=alone)
    close = gateway.aclose

    async def aclose() -> str:
        return await close() or os.environ.get("FAKE_LOST", "")

    gateway.aclose = aclose  # type: ignore[method-assign]
    run(settings, build=lambda _: gateway)


if __name__ == "__main__":
    main(*sys.argv[1:])
