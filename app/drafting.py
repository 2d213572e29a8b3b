"""Drafting on this machine first: the beginning is held back and judged before any of it is shown."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from edgecloud.types import ChatRequest, ChoiceDone, Done, EngineEvent, TextDelta, TokenLogprob

from .opening import Opening
from .upstreams import Upstream

Accept = Callable[[str, Sequence[TokenLogprob], bool], bool]
"""Whether to keep a draft: its text so far, its tokens with their logprobs, and whether it is complete."""


class Draft:
    """A draft by `engine`, whose first `hold_back` tokens are judged by `accept`."""

    def __init__(self, engine: str, hold_back: int, accept: Accept) -> None:
        self._engine = engine
        self._hold_back = hold_back
        self._accept = accept
        self._wants_logprobs = False

    @property
    def verdict(self) -> str:
        """What to tell of a draft that was not kept."""
        return f"The draft by {self._engine} was not good enough."

    def is_by(self, upstream: Upstream) -> bool:
        return upstream.name == self._engine

    def asked(self, request: ChatRequest) -> ChatRequest:
        """The request as the drafting engine gets it: with the logprobs that the judgement needs."""
        self._wants_logprobs = request.logprobs is not None
        return request if self._wants_logprobs else dataclasses.replace(request, logprobs=0)

    async def is_accepted(self, opening: Opening) -> bool:
        """Read the beginning of the draft and judge it; one that is not kept is ended. Raises what the engine
        raises.
        """
        text: list[str] = []
        logprobs: list[TokenLogprob] = []
        complete = False
        async for event in opening.rest:
            opening.head.append(event)
            if isinstance(event, TextDelta):
                text.append(event.text)
                logprobs += event.logprobs
            complete = complete or isinstance(event, ChoiceDone | Done)
            if complete or len(logprobs) >= self._hold_back:
                break
        if not self._accept("".join(text), logprobs, complete):
            await opening.aclose("rejected")
            return False
        if not self._wants_logprobs:
            opening.head = [_bare(event) for event in opening.head]
            opening.rest = _all_bare(opening.rest)
        return True


async def _all_bare(events: AsyncGenerator[EngineEvent, None]) -> AsyncGenerator[EngineEvent, None]:
    async with aclosing(events):
        async for event in events:
            yield _bare(event)


def _bare(event: EngineEvent) -> EngineEvent:
    """The event without the logprobs that nobody but us asked for."""
    if isinstance(event, TextDelta) and event.logprobs:
        return dataclasses.replace(event, logprobs=())
    return event
