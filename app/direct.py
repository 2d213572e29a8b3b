"""Asking the one engine that is meant, without a router."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from edgecloud.engine import Engine
from edgecloud.errors import EdgeCloudError, NoPermittedRoute
from edgecloud.settings import Settings
from edgecloud.types import ChatRequest, Done, EngineEvent

from .run import Run, Tried


def permit(engine: Engine, request: ChatRequest, settings: Settings) -> None:
    """Raises `NoPermittedRoute` for an engine that may not see the request."""
    if engine.local:
        if request.mode == "pool":
            raise NoPermittedRoute(
                f"{engine.name} is on this machine and the mode is pool: choose another mode."
            )
        return
    if request.offline or settings.offline:
        why = "offline mode is on"
    elif request.private:
        why = "the request is private"
    elif request.mode == "local":
        why = "the mode is local"
    else:
        return
    raise NoPermittedRoute(
        f"{engine.name} is not on this machine and {why}: ask for a local one, or set `local = true` in its "
        "entry (`edgecloud pool add --local`) if it computes here.",
        param="model",
    )


async def ask_alone(engine: Engine, run: Run) -> AsyncGenerator[EngineEvent, None]:
    """The engine's events for the request. Raises what the engine raises."""
    started, began = time.time(), time.monotonic()
    outcome, done = "failed", False
    run.asked.append(engine)
    try:
        request = dataclasses.replace(run.request, chat_id=run.chat_id)
        async with aclosing(engine.generate(request)) as events:
            async for event in events:
                done = done or isinstance(event, Done)
                yield event
        outcome = "ok"
    except EdgeCloudError as error:
        outcome = error.code or outcome
        raise
    except (asyncio.CancelledError, GeneratorExit):
        outcome = "ok" if done else "interrupted"
        raise
    finally:
        seconds = time.monotonic() - began
        at_least = not done and run.start is not None
        run.tried.append(Tried(engine.name, "", started, seconds, outcome, run.usage, at_least=at_least))
