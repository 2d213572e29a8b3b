"""Getting a model from the hub, with its progress on the screen; typing and asking go on meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgecloud.errors import BadRequest

from ..pull import Pull, Stopped
from ..widgets.label import Label

if TYPE_CHECKING:
    from ..chat_view import ChatView

LOOK_S = 0.25


async def pull(screen: ChatView, spec: str) -> None:
    """Get a model; returns when it is here."""
    if not spec:
        raise BadRequest("Say which: /pull hf:owner/repo:QUANT")
    if screen.pulling is not None:
        raise BadRequest(screen.keys.fill("A model is being pulled already; {chat.stop} stops it."))
    pulling = screen.pulling = Pull(spec, screen.settings)
    label = screen.query_one("#work", Label)
    label.display = True
    stops = screen.keys.fill(" · {chat.stop} stops")
    task = asyncio.ensure_future(asyncio.to_thread(pulling.run))
    try:
        while not task.done():
            label.show(pulling.words + stops)
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
