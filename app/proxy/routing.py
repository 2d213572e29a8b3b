"""Why requests went where they went, and how the engines are, for those who call over HTTP."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from edgecloud.errors import BadRequest
from edgecloud.http.answer import Door
from edgecloud.http.call import call_of
from edgecloud.http.openai import admitted
from edgecloud.http.responses import json_response
from edgecloud.http.routes import add_api, add_route
from edgecloud.wire import openai_chat
from edgecloud.wire.fields import Fields

from ..gateway import Gateway


class RoutingRoutes:
    """`/route/explain` for a request of the past (GET, by id) or one that is not sent (POST, a chat body);
    `/route/feedback` for what a person thought of an answer; `/health/router` for the engines. A key sees its
    own requests only; nobody sees a text.
    """

    def __init__(self, door: Door, gateway: Gateway) -> None:
        self.door = door
        self.gateway = gateway

    def add_to(self, app: FastAPI) -> None:
        """Register the routes."""
        add_api(app, "GET", "/route/explain", self.past)
        add_api(app, "POST", "/route/explain", self.planned)
        add_api(app, "POST", "/route/feedback", self.verdict)
        add_route(app, "GET", "/health/router", self.states)

    async def past(self, http: Request) -> Response:
        request_id = http.query_params.get("id", "")
        if not request_id:
            raise BadRequest("Say which request: /route/explain?id=req-…", param="id")
        return json_response(await self.gateway.why(request_id, tenant=call_of(http.scope).tenant))

    async def planned(self, http: Request) -> Response:
        request, _ = openai_chat.parse(await self.door.bodies.json(http.scope, http.receive))
        return json_response(await self.gateway.explain(admitted(http.scope, request)))

    async def verdict(self, http: Request) -> Response:
        fields = Fields(await self.door.bodies.json(http.scope, http.receive))
        await self.gateway.feedback(
            fields.required_text("id"), fields.required_text("verdict"), tenant=call_of(http.scope).tenant
        )
        return json_response({"ok": True})

    async def states(self, http: Request) -> Response:
        return json_response({"engines": await self.gateway.router_states()})
