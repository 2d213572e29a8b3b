"""Going on where an engine broke off in the middle of its answer: what was said, and who could take over."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterable

from edgecloud.errors import EdgeCloudError
from edgecloud.types import ChatRequest, Done, EngineEvent, Message, Start, TextDelta, ToolCallDelta, Usage

from .run import num_tokens
from .upstreams import Upstream


class Said:
    """What the caller has seen of an answer so far, all engines that wrote it together."""

    def __init__(self) -> None:
        self.failure: EdgeCloudError | None = None
        """What broke the answer off, None while nothing did."""
        self._text: list[str] = []
        self._prompt_tokens = 0
        self._num_tokens = 0
        self._num_calls = 0
        self._earlier = Usage()

    def see(self, event: EngineEvent) -> EngineEvent:
        """Note an event; returns it as the caller is to see it, its usage with that of the earlier parts."""
        self._num_tokens += num_tokens(event)
        match event:
            case Start():
                self._prompt_tokens = event.prompt_tokens
            case TextDelta():
                self._text.append(event.text)
            case ToolCallDelta():
                self._num_calls += 1
            case Done():
                return Done(_sum(self._earlier, event.usage), event.timings)
        return event

    def following(self, request: ChatRequest) -> ChatRequest | None:
        """The request that goes on from here; None where nobody can: several choices, a tool call, a format
        that an engine would begin anew, or nothing said yet.
        """
        text = "".join(self._text)
        if request.n != 1 or not request.is_chat or self._num_calls or request.constraint or not text:
            return None
        turns = request.messages
        if request.continue_final:
            text, turns = turns[-1].content + text, turns[:-1]
        left = None if request.max_tokens is None else request.max_tokens - self._num_tokens
        if left is not None and left < 1:
            return None
        return dataclasses.replace(
            request,
            messages=(*turns, Message("assistant", text)),
            continue_final=True,
            max_tokens=left,
        )

    def break_off(self) -> None:
        """What was said until now is one engine's part."""
        self._earlier = _sum(self._earlier, Usage(self._prompt_tokens, self._num_tokens))
        self._text.clear()
        self._num_tokens = self._prompt_tokens = 0


def can_continue(upstream: Upstream) -> bool:
    """Whether the engine can go on with a message that somebody else began."""
    return upstream.capabilities.continue_final


async def ask_who_continues(upstreams: Iterable[Upstream]) -> None:
    """Ask those of whom it is not expected whether they can; that sends nobody's text."""
    await asyncio.gather(*(_ask(each) for each in upstreams if not can_continue(each)))


async def _ask(upstream: Upstream) -> None:
    for deployment in upstream.deployments:
        if upstream.rests(deployment):
            continue
        with contextlib.suppress(EdgeCloudError):
            if (await deployment.engine.capabilities()).continue_final:
                upstream.learn_continuing()
                return


def _sum(a: Usage, b: Usage) -> Usage:
    """Prompt tokens are the first part's: the caller sent no other prompt."""
    return Usage(
        a.prompt_tokens or b.prompt_tokens,
        a.completion_tokens + b.completion_tokens,
        a.cached_tokens if a.prompt_tokens else b.cached_tokens,
        a.reasoning_tokens + b.reasoning_tokens,
    )
