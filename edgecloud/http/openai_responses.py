"""OpenAI's responses, stateless: nothing is stored, the whole input comes with each request."""

from __future__ import annotations

import dataclasses
import time

from fastapi import FastAPI, Request, Response

from edgecloud.http.answer import Door, StreamedAnswer, WholeAnswer
from edgecloud.http.backend import Backend
from edgecloud.http.openai import admitted
from edgecloud.http.responses import json_response
from edgecloud.http.routes import add_api
from edgecloud.http.sse import RESPONSES
from edgecloud.wire import openai_responses
from edgecloud.wire.openai_responses_answer import ResponseEvents


class ResponsesRoutes:
    """`/v1/responses` and its `input_tokens`, also without `/v1`."""

    def __init__(self, door: Door, backend: Backend) -> None:
        self.door = door
        self.backend = backend

    def add_to(self, app: FastAPI) -> None:
        """Register the routes."""
        add_api(app, "POST", "/responses", self.responses)
        add_api(app, "POST", "/responses/input_tokens", self.input_tokens)

    async def responses(self, http: Request) -> Response:
        call = openai_responses.parse(await self.door.bodies.json(http.scope, http.receive))
        request = admitted(http.scope, call.request, streamed=call.options.stream)
        call = dataclasses.replace(call, request=request)
        events = self.backend.chat(call.request)
        encoder = ResponseEvents(call, call.request.model, int(time.time()))
        if call.options.stream:
            return StreamedAnswer(
                self.door, [events], lambda _, event: encoder.encode(event), encoder.fail, RESPONSES
            )
        return WholeAnswer(self.door, [events], lambda _, event: encoder.encode(event), encoder.body)

    async def input_tokens(self, http: Request) -> Response:
        """How many prompt tokens the response would be charged with."""
        call = openai_responses.parse(await self.door.bodies.json(http.scope, http.receive))
        count = await self.backend.count_tokens(admitted(http.scope, call.request))
        return json_response({"object": "response.input_tokens", "input_tokens": count})
