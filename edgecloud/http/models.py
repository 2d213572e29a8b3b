"""The models that can be asked for by name, with the key that asks."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from edgecloud.errors import ModelNotFound
from edgecloud.http.backend import Backend
from edgecloud.http.call import call_of
from edgecloud.http.responses import json_response
from edgecloud.http.routes import add_api
from edgecloud.wire import openai_models


class ModelRoutes:
    """`/v1/models` and `/v1/models/{id}`, also without `/v1`; an id may hold slashes."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def add_to(self, app: FastAPI) -> None:
        """Register the routes."""
        add_api(app, "GET", "/models", self.list)
        add_api(app, "GET", "/models/{model:path}", self.one)

    async def list(self, http: Request) -> Response:
        return json_response(openai_models.list_body(await self.backend.models(call_of(http.scope).tenant)))

    async def one(self, http: Request) -> Response:
        name: str = http.path_params["model"]
        cards = await self.backend.models(call_of(http.scope).tenant)
        if not name:
            return json_response(openai_models.list_body(cards))
        for card in cards:
            if name == card.id or name in card.aliases:
                return json_response(openai_models.body(card))
        raise ModelNotFound(name, [card.id for card in cards])
