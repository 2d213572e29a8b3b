"""A pool over HTTP: the ground's routes over one engine, and what operators and routers ask a pool."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI, Request, Response

from edgecloud.errors import BadRequest, EdgeCloudError, Unavailable
from edgecloud.http.answer import Door
from edgecloud.http.anthropic import AnthropicRoutes
from edgecloud.http.body import Bodies
from edgecloud.http.drain import Drain, Watch
from edgecloud.http.models import ModelRoutes
from edgecloud.http.openai import OpenAIRoutes, admitted
from edgecloud.http.openai_responses import ResponsesRoutes
from edgecloud.http.openapi import document
from edgecloud.http.operations import OperatorRoutes
from edgecloud.http.responses import json_response
from edgecloud.http.routes import add_api, add_route
from edgecloud.http.stack import guarded_app
from edgecloud.http.tokens import TokenRoutes
from edgecloud.metrics import Metrics
from edgecloud.settings import ServerSettings
from edgecloud.units import MB
from edgecloud.wire import openai_chat, openai_completions

from .backend import PoolBackend
from .engine import PoolEngine

# Names of held blocks told at once: steps wait while they are listed. The most is a million tokens' worth.
HEADS, MAX_HEADS = 4096, 65536


class PoolRoutes:
    """`/health/deep`, and `/v1/prefixes`, also without `/v1`: which computed prefixes this replica holds."""

    def __init__(self, door: Door, backend: PoolBackend) -> None:
        self.door = door
        self.backend = backend

    def add_to(self, app: FastAPI) -> None:
        """Register the routes."""
        add_route(app, "GET", "/health/deep", self.deep)
        add_api(app, "GET", "/prefixes", self.prefixes)
        add_api(app, "POST", "/prefixes", self.held)

    async def deep(self, http: Request) -> Response:
        """A token is decoded, now, and its logits are numbers."""
        try:
            async with Watch(http.receive, self.door.drain):
                probe = await self.backend.engine.probe()
        except EdgeCloudError as error:
            raise Unavailable(f"No token could be decoded: {error.message}", code="not_decoding") from error
        return json_response({"status": "ok", "token": probe.token, "seconds": round(probe.seconds, 4)})

    async def prefixes(self, http: Request) -> Response:
        """Names of the blocks that are held, the latest `limit` of them."""
        limit = http.query_params.get("limit", str(HEADS))
        if not limit.isascii() or not limit.isdecimal() or not 0 < int(limit[:9]) <= MAX_HEADS:
            raise BadRequest(f"limit must be a number from 1 to {MAX_HEADS}.", param="limit")
        held = await self.backend.engine.held_prefixes(int(limit))
        return json_response({"object": "prefixes", "model": self.backend.engine.text.name, **held._asdict()})

    async def held(self, http: Request) -> Response:
        """How many of the prompt tokens of a chat or completion this replica need not compute."""
        body = await self.door.bodies.json(http.scope, http.receive)
        if isinstance(body, dict) and body.get("messages") is not None:
            request, _ = openai_chat.parse(body)
        else:
            request = openai_completions.parse(body)[0][0]
        num_prompt, num_held = await self.backend.held_tokens(admitted(http.scope, request))
        return json_response({"object": "prefix", "prompt_tokens": num_prompt, "cached_tokens": num_held})


def create_app(engine: PoolEngine, settings: ServerSettings, *, drain: Drain | None = None) -> FastAPI:
    """The ASGI app over an engine, which the caller closes. `drain` is shared with the server that runs the
    app.
    """
    metrics = Metrics()
    metrics.registry.register(engine.loop.metrics)
    door = Door(
        bodies=Bodies(int(settings.body_limit_mb * MB)),
        drain=drain or Drain(),
        metrics=metrics,
        ping_s=settings.ping_s,
    )
    backend = PoolBackend(engine)
    app = guarded_app(door, settings, title="edgecloud pool", version=version("edgecloud"))
    OpenAIRoutes(door, backend.chat).add_to(app)
    ResponsesRoutes(door, backend).add_to(app)
    AnthropicRoutes(door, backend).add_to(app)
    ModelRoutes(backend).add_to(app)
    TokenRoutes(door, backend).add_to(app)
    PoolRoutes(door, backend).add_to(app)
    OperatorRoutes(door, engine.health, lambda: engine.loop.has_heartbeat).add_to(
        app, metrics=settings.metrics
    )
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    return app
