"""Puts the routes together behind the checks of `edgecloud.http`."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from edgecloud.http.answer import Door
from edgecloud.http.anthropic import AnthropicRoutes
from edgecloud.http.body import Bodies
from edgecloud.http.drain import Drain
from edgecloud.http.models import ModelRoutes
from edgecloud.http.openai import OpenAIRoutes
from edgecloud.http.openai_responses import ResponsesRoutes
from edgecloud.http.openapi import document
from edgecloud.http.operations import OperatorRoutes
from edgecloud.http.stack import guarded_app
from edgecloud.http.tokens import TokenRoutes
from edgecloud.metrics import Metrics, metrics
from edgecloud.settings import Settings
from edgecloud.units import MB

from ..gateway import Gateway
from .embeddings import EmbeddingRoutes
from .metering import RouterMetrics
from .routing import RoutingRoutes


def create_app(
    gateway: Gateway,
    settings: Settings,
    *,
    drain: Drain | None = None,
    metrics: Metrics = metrics,
) -> FastAPI:
    """The ASGI app over a gateway, which the caller closes. `drain` is shared with the server that runs the
    app.
    """
    door = Door(
        bodies=Bodies(int(settings.server.body_limit_mb * MB)),
        drain=drain or Drain(),
        metrics=metrics,
        ping_s=settings.server.ping_s,
    )
    app = guarded_app(door, settings.server, title="edgecloud", version=version("edgecloud"))
    OpenAIRoutes(door, gateway.chat).add_to(app)
    ResponsesRoutes(door, gateway).add_to(app)
    AnthropicRoutes(door, gateway).add_to(app)
    EmbeddingRoutes(door, gateway).add_to(app)
    ModelRoutes(gateway).add_to(app)
    TokenRoutes(door, gateway).add_to(app)
    RoutingRoutes(door, gateway).add_to(app)
    RouterMetrics(gateway, metrics.registry)
    OperatorRoutes(door, gateway.health).add_to(app, metrics=settings.server.metrics)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    return app
