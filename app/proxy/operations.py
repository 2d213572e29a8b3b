"""What operators and their tools ask a server: is it alive, ready, how loaded, which version, what numbers."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from edgecloud.errors import Unavailable
from edgecloud.http.answer import Door
from edgecloud.http.drain import stopping
from edgecloud.http.responses import json_response

from ..gateway import Gateway


class OperatorRoutes:
    """Health (no key needed), `/version`, `/load` and `/metrics`."""

    def __init__(self, door: Door, gateway: Gateway) -> None:
        self.door = door
        self.gateway = gateway

    def add_to(self, app: FastAPI, *, metrics: bool) -> None:
        """Register the routes; `metrics` false leaves `/metrics` out."""
        for path in ("/health", "/health/", "/health/ready", "/v1/health"):
            app.add_route(path, self.ready, methods=["GET"])
        app.add_route("/health/live", self.live, methods=["GET"])
        app.add_route("/version", self.version, methods=["GET"])
        app.add_route("/load", self.load, methods=["GET"])
        if metrics:
            app.add_route("/metrics", self.metrics, methods=["GET"])

    async def live(self, http: Request) -> Response:
        """The process runs."""
        return json_response({"status": "ok"})

    async def ready(self, http: Request) -> Response:
        """It can answer now: the engines can decode and the server is not on its way out."""
        if self.door.drain.draining:
            raise stopping()
        health = await self.gateway.health()
        if not health.ok:
            raise Unavailable(health.detail or "The engine is not ready.", code="not_ready")
        return json_response({"status": "ok", "running": health.running, "waiting": health.waiting})

    async def version(self, http: Request) -> Response:
        return json_response({"version": http.app.version})

    async def load(self, http: Request) -> Response:
        """Answers being worked on, under vLLM's name for it."""
        return json_response({"server_load": len(self.door.drain.watches)})

    async def metrics(self, http: Request) -> Response:
        text = self.door.metrics.render(await self.gateway.health())
        return Response(text, media_type=CONTENT_TYPE_LATEST)
