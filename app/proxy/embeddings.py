"""OpenAI's embeddings."""

from __future__ import annotations

import dataclasses

from fastapi import FastAPI, Request, Response

from edgecloud.http.answer import Door
from edgecloud.http.call import call_of
from edgecloud.http.drain import Watch
from edgecloud.http.responses import json_response
from edgecloud.http.routes import add_api
from edgecloud.wire import openai_embeddings

from ..gateway import Gateway


class EmbeddingRoutes:
    """`/v1/embeddings`, also without `/v1`."""

    def __init__(self, door: Door, gateway: Gateway) -> None:
        self.door = door
        self.gateway = gateway

    def add_to(self, app: FastAPI) -> None:
        """Register the routes."""
        add_api(app, "POST", "/embeddings", self.embeddings)

    async def embeddings(self, http: Request) -> Response:
        request, encoding = openai_embeddings.parse(await self.door.bodies.json(http.scope, http.receive))
        call = call_of(http.scope)
        async with Watch(http.receive, self.door.drain):
            result = await self.gateway.embed(
                dataclasses.replace(request, tenant=call.tenant), listed_only=True
            )
        call.model = result.model
        call.notes["prompt_tokens"] = result.prompt_tokens
        cut = {"x-edgecloud-truncated": str(result.num_truncated)} if result.num_truncated else None
        return json_response(openai_embeddings.body(result, request.model, encoding), cut)
