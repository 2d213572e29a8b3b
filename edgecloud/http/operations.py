"""What operators and their tools ask a server: is it alive, is it ready, how loaded, which version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from edgecloud.errors import Unavailable
from edgecloud.http.answer import Door
from edgecloud.http.drain import stopping
from edgecloud.http.responses import json_response
from edgecloud.http.routes import add_route
from edgecloud.types import Health

RUNNING = """edgecloud is running. The base URL for clients is this address with /v1 behind it.

/v1/models     the models that can be asked for
/openapi.json  every route
/health        whether it can answer now
"""


class OperatorRoutes:
    """`/` and health (no key needed), `/version`, `/load` and `/metrics`. `health` says whether answers can
    be had now, `is_alive` whether the process can still recover by itself: where it can't, it should be
    restarted.
    """

    def __init__(
        self,
        door: Door,
        health: Callable[[], Awaitable[Health]],
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self.door = door
        self.health = health
        self.is_alive = is_alive

    def add_to(self, app: FastAPI, *, metrics: bool) -> None:
        """Register the routes; `metrics` false leaves `/metrics` out."""
        add_route(app, "GET", "/", self.root)
        for path in ("/health", "/health/", "/health/ready", "/v1/health"):
            add_route(app, "GET", path, self.ready)
        add_route(app, "GET", "/health/live", self.live)
        add_route(app, "GET", "/version", self.version)
        add_route(app, "GET", "/load", self.load)
        if metrics:
            add_route(app, "GET", "/metrics", self.metrics)

    async def root(self, http: Request) -> Response:
        """What a person sees who opens the address in a browser. It tells nothing that needs a key."""
        return Response(RUNNING, media_type="text/plain")

    async def live(self, http: Request) -> Response:
        """The process runs, and does its work or could."""
        if not self.is_alive():
            health = await self.health()
            raise Unavailable(health.detail or "The engine has stopped.", code="not_alive")
        return json_response({"status": "ok"})

    async def ready(self, http: Request) -> Response:
        """It can answer now: the engines can decode and the server is not on its way out."""
        if self.door.drain.draining:
            raise stopping()
        health = await self.health()
        if not health.ok:
            raise Unavailable(health.detail or "The engine is not ready.", code="not_ready")
        return json_response({"status": "ok", "running": health.running, "waiting": health.waiting})

    async def version(self, http: Request) -> Response:
        return json_response({"version": http.app.version})

    async def load(self, http: Request) -> Response:
        """Answers being worked on, under vLLM's name for it."""
        return json_response({"server_load": len(self.door.drain.watches)})

    async def metrics(self, http: Request) -> Response:
        text = self.door.metrics.render(await self.health())
        return Response(text, media_type=CONTENT_TYPE_LATEST)
