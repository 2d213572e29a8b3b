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
        # Another caller may wait for it when this one leaves.
        return await asyncio.shield(self.begin(inputs[0]))

    def begin(self, text: str) -> asyncio.Task[EmbedResult]:
        """Have the text's vector made; whoever asks for it later finds it under way."""
        task = self._recent.get(text)
        if task is None or (task.done() and not self.has(text)):
            task = self._recent[text] = asyncio.create_task(self._embed(text))
            # Perhaps nobody asks.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._recent.move_to_end(text)
        while len(self._recent) > KEPT:
            self._recent.popitem(last=False)
        return task

    def has(self, text: str) -> bool:
        """Whether the text's vector is there already."""
        task = self._recent.get(text)
        return task is not None and task.done() and not task.cancelled() and task.exception() is None

    def expects(self, text: str) -> bool:
        """Whether the text's vector is there or being made."""
        task = self._recent.get(text)
        return task is not None and (not task.done() or self.has(text))

    async def aclose(self) -> None:
        """Nothing: the embedder belongs to the catalog."""

    async def _embed(self, text: str) -> EmbedResult:
        return await self._embedder.embed([text])


class Once:
    """The same embedder for every caller, found when it is first asked for. Raises what `find` raises."""

    def __init__(self, find: Callable[[], Awaitable[Embedder]]) -> None:
        self._find = find
        self._found: OnceEmbedder | None = None

    async def __call__(self) -> Embedder:
        if self._found is None:
            found = OnceEmbedder(await self._find())
            self._found = self._found or found
        return self._found

    def begin(self, text: str) -> None:
        """Have the text's vector made before anybody asks for it, where the embedder is known by now."""
        if self._found is not None:
            self._found.begin(text)

    def has(self, text: str) -> bool:
        """Whether the text's vector is there already."""
        return self._found is not None and self._found.has(text)

    def expects(self, text: str) -> bool:
        """Whether the text's vector is there or being made."""
        return self._found is not None and self._found.expects(text)
