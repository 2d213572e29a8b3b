"""One engine as what answers behind HTTP routes: its model's name, and nothing else, is served."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from edgecloud.engine import Engine
from edgecloud.errors import ModelNotFound
from edgecloud.types import ChatRequest, EngineEvent, ModelCard

from .engine import PoolEngine

AUTO = "auto"


class PoolBackend:
    """Implements `edgecloud.http.backend.Backend`. `auto` means the model too."""

    def __init__(self, engine: PoolEngine) -> None:
        self.engine = engine
        self._created = int(time.time())

    async def chat(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        self._check(request.model)
        async with aclosing(self.engine.generate(request)) as events:
            async for event in events:
                yield event

    async def models(self, tenant: str | None = None) -> list[ModelCard]:
        capabilities = await self.engine.capabilities()
        return [
            ModelCard(
                id=self.engine.text.name,
                kind="chat",
                engine="pool",
                aliases=(AUTO,),
                context=capabilities.context,
                created=self._created,
                loaded=True,
                detail=self.engine.text.variant,
                parameters=self.engine.facts.num_parameters,
                continues=capabilities.continue_final,
            )
        ]

    async def engine_of(self, request: ChatRequest) -> Engine:
        self._check(request.model)
        return self.engine

    async def count_tokens(self, request: ChatRequest) -> int:
        self._check(request.model)
        return await self.engine.count_tokens(request)

    async def held_tokens(self, request: ChatRequest) -> tuple[int, int]:
        """Prompt tokens, and how many of them need not be computed here."""
        self._check(request.model)
        return await self.engine.held_tokens(request)

    def _check(self, model: str) -> None:
        name = self.engine.text.name
        if model not in (name, AUTO):
            raise ModelNotFound(model, [name])
