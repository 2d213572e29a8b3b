"""Anthropic's messages and token counting."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from edgecloud.http.answer import Door, StreamedAnswer, WholeAnswer
from edgecloud.http.backend import Backend
from edgecloud.http.openai import admitted
from edgecloud.http.responses import json_response
from edgecloud.http.routes import add_api
from edgecloud.http.sse import ANTHROPIC
from edgecloud.wire import anthropic


class AnthropicRoutes:
    """`/v1/messages` and `/v1/messages/count_tokens`, also without `/v1`."""

    def __init__(self, door: Door, backend: Backend) -> None:
        self.door = door
        self.backend = backend

    def add_to(self, app: FastAPI) -> None:
        """Register the routes."""
        add_api(app, "POST", "/messages", self.messages)
        add_api(app, "POST", "/messages/count_tokens", self.count_tokens)

    async def messages(self, http: Request) -> Response:
        request, options = anthropic.parse(await self.door.bodies.json(http.scope, http.receive))
        request = admitted(http.scope, request, streamed=options.stream)
        events = self.backend.chat(request)
        if options.stream:
            encoder = anthropic.MessageEvents(request, request.model)
            return StreamedAnswer(
                self.door, [events], lambda _, event: encoder.encode(event), encoder.fail, ANTHROPIC
            )
        whole = anthropic.MessageAssembler(request, request.model)
        return WholeAnswer(self.door, [events], lambda _, event: whole.add(event), whole.body)

    async def count_tokens(self, http: Request) -> Response:
        request = anthropic.parse_count(await self.door.bodies.json(http.scope, http.receive))
        count = await self.backend.count_tokens(admitted(http.scope, request))
        return json_response(anthropic.count_body(count))
