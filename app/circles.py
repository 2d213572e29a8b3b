"""Small models may say the same for ever: such an answer is cut, where nobody said how long it may be."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from edgecloud.types import ChoiceDone, Done, EngineEvent, Notice, ReasoningDelta, Start, TextDelta, Usage

LOOKED_AT = 2000
"""Characters at the end of an answer that must all be repetition."""

LONGEST_ROUND = 250
"""Characters of what is repeated: at least eight rounds are seen before an answer is cut."""

STOPPED = "The answer only repeated itself, so it was stopped; one with a limit of tokens runs up to that."

LOOK_EVERY = 200
"""Characters between two looks, of about a third of a millisecond each."""


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
    """Whether these `LOOKED_AT` characters are one short text again and again."""
    if len(tail) < LOOKED_AT:
        return False
    # A text has the period that its longest border leaves (Knuth, Morris, Pratt 1977).
    borders, length = [0], 0
    for character in tail[1:]:
        while length and tail[length] != character:
            length = borders[length - 1]
        length += tail[length] == character
        borders.append(length)
    return len(tail) - length <= LONGEST_ROUND
