"""The vector of one prompt, computed once however many parts of the gateway ask for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from edgecloud.engine import Embedder
from edgecloud.types import EmbedResult

KEPT = 64
"""Texts whose vectors are kept: what is asked for twice is asked for within one request, or the next turn."""


class OnceEmbedder:
    """An `Embedder` that remembers the last single texts."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._recent: OrderedDict[str, asyncio.Task[EmbedResult]] = OrderedDict()

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def dimensions(self) -> int:
        return self._embedder.dimensions

    @property
    def fingerprint(self) -> str:
        return self._embedder.fingerprint

    async def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> EmbedResult:
        if len(inputs) != 1 or not isinstance(inputs[0], str):
            return await self._embedder.embed(inputs)
        text = inputs[0]
        task = self._recent.get(text)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._recent[text] = asyncio.create_task(self._embed(text))
        self._recent.move_to_end(text)
        while len(self._recent) > KEPT:
            self._recent.popitem(last=False)
        # Another caller may wait for it when this one leaves.
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Nothing: the embedder belongs to the catalog."""

    async def _embed(self, text: str) -> EmbedResult:
        return await self._embedder.embed([text])


def once(find: Callable[[], Awaitable[Embedder]]) -> Callable[[], Awaitable[Embedder]]:
    """The same embedder for every caller, found when it is first asked for. Raises what `find` raises."""
    kept: list[OnceEmbedder] = []

    async def found() -> Embedder:
        if not kept:
            kept.append(OnceEmbedder(await find()))
        return kept[0]

    return found
