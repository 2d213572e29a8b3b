"""Small models may say the same for ever: such an answer is cut, where nobody said how long it may be."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from edgecloud.types import ChoiceDone, Done, EngineEvent, Notice, ReasoningDelta, Start, TextDelta, Usage

LOOKED_AT = 3000
"""Characters at the end of an answer that must say all but nothing new."""

NEW = 0.06
"""Share of them that is left once what repeats is taken out. Of answers in circles it is 0.03 to 0.05, of
prose 0.3 to 0.5, of code and of lists of numbers hardly below 0.2.
"""

STOPPED = "The answer only repeated itself, so it was stopped; one with a limit of tokens runs up to that."

LOOK_EVERY = 200
"""Characters between two looks, of about a tenth of a millisecond each."""


async def cutting_circles(
    events: AsyncGenerator[EngineEvent, None],
) -> AsyncGenerator[EngineEvent, None]:
    """The events of one choice, ended as if by a limit once its text goes in circles, with a `Notice`."""
    tail, unseen = "", 0
    prompt_tokens = completion_tokens = reasoning_tokens = 0
    async with aclosing(events):
        async for event in events:
            yield event
            match event:
                case Start():
                    prompt_tokens = event.prompt_tokens
                case TextDelta() | ReasoningDelta():
                    completion_tokens += event.num_tokens
                    reasoning_tokens += event.num_tokens if isinstance(event, ReasoningDelta) else 0
                    tail = (tail + event.text)[-LOOKED_AT:]
                    unseen += len(event.text)
            if unseen < LOOK_EVERY:
                continue
            unseen = 0
            if goes_in_circles(tail):
                yield Notice("truncated", STOPPED)
                yield ChoiceDone(0, "length")
                yield Done(Usage(prompt_tokens, completion_tokens, reasoning_tokens=reasoning_tokens))
                return


def goes_in_circles(tail: str) -> bool:
    """Whether these `LOOKED_AT` characters say the same again and again, here and there in other words."""
    if len(tail) < LOOKED_AT:
        return False
    text = tail.encode(errors="replace")
    return len(zlib.compress(text)) <= NEW * len(text)
