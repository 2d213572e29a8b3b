"""Getting a model from the hub, with its progress on the screen; typing and asking go on meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgecloud import models
from edgecloud.errors import BadRequest
from edgecloud.settings import Settings

from ..widgets.label import Label

if TYPE_CHECKING:
    from ..screens.chat import ChatScreen

LOOK_S = 0.25


class Stopped(Exception):
    """The user had enough; what came is kept, and the next pull goes on from it."""


class Pull:
    """A pull that runs in a thread. `words` says how far it is."""

    def __init__(self, spec: str, settings: Settings) -> None:
        self.spec = spec
        self.settings = settings
        self.words = f"asking the hub for {spec} …"
        self._is_stopped = False

    def run(self) -> models.ModelFile:
        """The file when it is here. Raises `Stopped`, or an `EdgeCloudError` that says what went wrong."""
        return models.pull(self.spec, self.settings, self._progress)

    def stop(self) -> None:
        """Stop at the next piece."""
        self._is_stopped = True

    def _progress(self, done: int, total: int, name: str) -> None:
        if self._is_stopped:
            raise Stopped
        share = f"{done / total:.0%} of " if total else ""
        self.words = f"pulling {name}: {share}{max(done, total) / 2**20:,.0f} MB · Esc stops"


async def pull(screen: ChatScreen, spec: str) -> None:
    """Get a model; returns when it is here."""
    if not spec:
        raise BadRequest("Say which: /pull hf:owner/repo:QUANT")
    if screen.pulling is not None:
        raise BadRequest("A model is being pulled already; Esc stops it.")
    pulling = screen.pulling = Pull(spec, screen.settings)
    label = screen.query_one("#work", Label)
    label.display = True
    task = asyncio.ensure_future(asyncio.to_thread(pulling.run))
    try:
        while not task.done():
            label.show(pulling.words)
            await asyncio.wait([task], timeout=LOOK_S)
        file = task.result()
    except Stopped:
        screen.say("Stopped; what came is kept, and the next /pull goes on from it.")
        return
    finally:
        pulling.stop()
        screen.pulling = None
        label.display = False
    screen.say(f"{file.name} is here: /model {file.name} asks it in this chat.")
    await screen.load_models()
