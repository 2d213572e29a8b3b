"""OpenAI's chat and completions routes over anything that turns a `ChatRequest` into events: the gateway,
or a bare engine.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from fastapi import FastAPI, Request, Response

from edgecloud.http.answer import Door, StreamedAnswer, WholeAnswer
from edgecloud.http.asgi import Scope
from edgecloud.http.asked import asked_of
from edgecloud.http.call import call_of
from edgecloud.http.merge import Events
from edgecloud.http.routes import add_api
from edgecloud.types import ChatRequest, new_id
from edgecloud.wire import openai_chat, openai_completions

Chat = Callable[[ChatRequest], Events]


def admitted(scope: Scope, request: ChatRequest, number: int = 0, *, streamed: bool = False) -> ChatRequest:
    """The request with what its headers say: `tenant` from the key, what `asked_of` reads, and the receipt's
    id equal to the answer's `x-request-id` where we chose that. `streamed` is whether its answer is.
    """
    call = call_of(scope)
    return dataclasses.replace(
        request,
        tenant=call.tenant,
        **asked_of(scope),
        id=call.request_id if call.own_id and number == 0 else new_id("req"),
        streamed=streamed,
        door="http",
    )


class OpenAIRoutes:
    """`/v1/chat/completions` and `/v1/completions`, also without `/v1`, as llama.cpp's clients ask."""

    def __init__(self, door: Door, chat: Chat) -> None:
        self.door = door
        self.chat = chat

    def add_to(self, app: FastAPI) -> None:
        """Register the routes."""
        add_api(app, "POST", "/chat/completions", self.chat_completions)
        add_api(app, "POST", "/completions", self.completions)

    async def chat_completions(self, http: Request) -> Response:
        request, options = openai_chat.parse(await self.door.bodies.json(http.scope, http.receive))
        request = admitted(http.scope, request, streamed=options.stream)
        events, model, created = self.chat(request), request.model, int(time.time())
        if options.stream:
            chunks = openai_chat.ChatChunks(request, options, model, created)
            return StreamedAnswer(self.door, [events], lambda _, event: chunks.encode(event))
        whole = openai_chat.ChatAssembler(request, model, created)
        return WholeAnswer(self.door, [events], lambda _, event: whole.add(event), whole.body)

    async def completions(self, http: Request) -> Response:
        parsed, options = openai_completions.parse(await self.door.bodies.json(http.scope, http.receive))
        requests = [
            admitted(http.scope, request, number, streamed=options.stream)
            for number, request in enumerate(parsed)
        ]
        streams, model, created = [self.chat(r) for r in requests], requests[0].model, int(time.time())
        if options.stream:
            chunks = openai_completions.CompletionChunks(requests, options, model, created)
            return StreamedAnswer(self.door, streams, chunks.encode)
        whole = openai_completions.CompletionAssembler(requests, model, created)
        return WholeAnswer(self.door, streams, whole.add, whole.body)
