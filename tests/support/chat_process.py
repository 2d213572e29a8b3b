"""`edgecloud …` as a process over a scripted engine: `python -m tests.support.chat_process ARGUMENTS`.

`FAKE_TOKENS` are the tokens of every answer, as JSON; `FAKE_DECODE_S` the seconds between them;
`FAKE_HANG_AT` the token it hangs at; `FAKE_LOAD_S` seconds before the gateway is there; `FAKE_CRASH` a secret
that is in a local variable when the list of models fails, as a bug of ours would; `FAKE_LOST` what could not
be written at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from edgecloud.app.cli.main import run
from edgecloud.app.cli.shell import State
from edgecloud.app.gateway import Gateway
from edgecloud.app.history import History
from edgecloud.app.journal import Journal
from edgecloud.folders import data_dir
from edgecloud.settings import Settings
from edgecloud.types import ModelCard

from .fake_engine import FakeEngine
from .fake_gateway import FakeCatalog


class BrokenCatalog(FakeCatalog):
    """Fails as a bug would, with a secret at hand."""

    async def cards(self) -> list[ModelCard]:
        api_key = os.environ["FAKE_CRASH"]
        raise ValueError(f"a bug of ours, {len(api_key)} letters long")


class LosingGateway(Gateway):
    """Tells at its end what a disk refused."""

    async def aclose(self) -> str:
        return await super().aclose() or os.environ.get("FAKE_LOST", "")


async def open_gateway(settings: Settings) -> Gateway:
    await asyncio.sleep(float(os.environ.get("FAKE_LOAD_S", "0")))
    tokens = json.loads(os.environ.get("FAKE_TOKENS", '["Hello", " from", " here."]'))
    hang_at = os.environ.get("FAKE_HANG_AT")
    engine = FakeEngine(
        [token.encode() for token in tokens],
        decode_s=float(os.environ.get("FAKE_DECODE_S", "0")),
        hang_at=int(hang_at) if hang_at else None,
    )
    catalog = BrokenCatalog([engine]) if "FAKE_CRASH" in os.environ else FakeCatalog([engine])
    os.write(2, b"a native library speaks\n")
    return LosingGateway(settings, catalog, Journal(lambda: History(data_dir() / "edgecloud.db")))


if __name__ == "__main__":
    run(sys.argv[1:], State(open_gateway=open_gateway))
