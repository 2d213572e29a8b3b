"""OpenAI's responses, stateless: nothing is stored, the whole input comes with each request."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import cast

from fastapi import FastAPI, Request, Response

from edgecloud.errors import EdgeCloudError
from edgecloud.http.answer import Door, StreamedAnswer, WholeAnswer
from edgecloud.http.backend import Backend
from edgecloud.http.merge import Events
from edgecloud.http.openai import admitted
from edgecloud.http.responses import json_response
from edgecloud.http.routes import add_api
from edgecloud.http.sse import RESPONSES
from edgecloud.types import EngineEvent, Event
from edgecloud.wire import openai_responses
from edgecloud.wire.openai_responses_answer import ResponseEvents

_OWN_NAMES = {"messages": "input", "max_tokens": "max_output_tokens"}
"""What this dialect calls what an engine complains of by its name in a chat request."""


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
        events = cast(Events, _in_its_words(self.backend.chat(request)))
        encoder = ResponseEvents(call, call.request.model, int(time.time()))
        if call.options.stream:
            return StreamedAnswer(
                self.door, [events], lambda _, event: encoder.encode(event), encoder.fail, RESPONSES
            )
        return WholeAnswer(self.door, [events], lambda _, event: encoder.encode(event), encoder.body)

    async def input_tokens(self, http: Request) -> Response:
        """How many prompt tokens the response would be charged with."""
        call = openai_responses.parse(await self.door.bodies.json(http.scope, http.receive))
        with _own_names():
            count = await self.backend.count_tokens(admitted(http.scope, call.request))
        return json_response({"object": "response.input_tokens", "input_tokens": count})


async def _in_its_words(events: Events) -> AsyncGenerator[Event | EngineEvent, None]:
    with _own_names():
        async with aclosing(events):
            async for event in events:
                yield event


@contextmanager
def _own_names() -> Iterator[None]:
    """An error inside names the field that this route's client sent."""
    try:
        yield
    except EdgeCloudError as error:
        error.param = _OWN_NAMES.get(error.param or "", error.param)
        raise
