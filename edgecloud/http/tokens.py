"""Tokens in and out, with the bodies of both llama.cpp and vLLM."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response

from edgecloud.engine import Engine, TokenizesPrompts
from edgecloud.errors import BadRequest
from edgecloud.http.answer import Door
from edgecloud.http.backend import Backend
from edgecloud.http.openai import admitted
from edgecloud.http.responses import json_response
from edgecloud.http.routes import add_api
from edgecloud.types import ChatRequest
from edgecloud.wire import fields as read
from edgecloud.wire import openai_chat
from edgecloud.wire.fields import Fields


class TokenRoutes:
    """`/tokenize` and `/detokenize`, and a chat's `input_tokens`, each with and without `/v1`."""

    def __init__(self, door: Door, backend: Backend) -> None:
        self.door = door
        self.backend = backend

    def add_to(self, app: FastAPI) -> None:
        """Register the routes."""
        add_api(app, "POST", "/chat/completions/input_tokens", self.input_tokens)
        add_api(app, "POST", "/tokenize", self.tokenize)
        add_api(app, "POST", "/detokenize", self.detokenize)

    async def input_tokens(self, http: Request) -> Response:
        """How many prompt tokens a chat would be charged with."""
        request, _ = openai_chat.parse(await self.door.bodies.json(http.scope, http.receive))
        count = await self.backend.count_tokens(admitted(http.scope, request))
        return json_response({"object": "response.input_tokens", "input_tokens": count})

    async def tokenize(self, http: Request) -> Response:
        """`content` as llama.cpp has it (no BOS by default), `prompt` as vLLM (BOS by default), or `messages`
        as the chat template renders them; of those an engine that leaves that to a server only has the count.
        """
        body = await self.door.bodies.json(http.scope, http.receive)
        fields = Fields(body)
        if fields.has("messages"):
            request, _ = openai_chat.parse(body)
            return json_response(await self._of_chat(admitted(http.scope, request)))
        model = fields.name("model") if fields.has("model") else "auto"
        if fields.has("content"):
            text, add_special = fields.text("content"), fields.flag("add_special") or False
        else:
            fields.require("prompt")
            text, add_special = fields.text("prompt"), fields.flag("add_special_tokens") is not False
        asked = ChatRequest(prompt=text or "", model=model)
        engine = await self.backend.engine_of(admitted(http.scope, asked))
        parse_special = fields.flag("parse_special") is not False
        ids = await engine.tokenize(text or "", add_special=add_special, parse_special=parse_special)
        context = await _context(engine)
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": context, "tokens": ids}
        if fields.flag("with_pieces") or fields.flag("return_token_strs"):
            pieces = {token_id: await engine.token_bytes(token_id) for token_id in set(ids)}
            if fields.flag("with_pieces"):
                answer["tokens"] = [{"id": token_id, "piece": _piece(pieces[token_id])} for token_id in ids]
            else:
                answer["token_strs"] = [pieces[token_id].decode("utf-8", "replace") for token_id in ids]
        return json_response(answer)

    async def detokenize(self, http: Request) -> Response:
        """Token ids to text, under both names."""
        fields = Fields(await self.door.bodies.json(http.scope, http.receive))
        model = fields.name("model") if fields.has("model") else "auto"
        if fields.require("tokens") is not None and not isinstance(fields.get("tokens"), list):
            raise BadRequest("tokens must be a list of token ids.", param="tokens")
        ids = read.token_ids(fields.list("tokens") or [], "tokens")
        asked = ChatRequest(prompt=tuple(ids), model=model)
        text = await (await self.backend.engine_of(admitted(http.scope, asked))).detokenize(ids)
        return json_response({"content": text, "prompt": text})

    async def _of_chat(self, request: ChatRequest) -> dict[str, Any]:
        engine = await self.backend.engine_of(request)
        if not isinstance(engine, TokenizesPrompts):
            return {"count": await engine.count_tokens(request), "max_model_len": await _context(engine)}
        ids = await engine.prompt_ids(request)
        return {"count": len(ids), "max_model_len": await _context(engine), "tokens": ids}


async def _context(engine: Engine) -> int:
    """Tokens that a prompt and its answer may have together."""
    return (await engine.capabilities()).context


def _piece(raw: bytes) -> str | list[int]:
    """Text, or the bytes of what is only a part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
