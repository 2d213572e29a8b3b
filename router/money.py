"""What a request costs: prices, and exact sums of them.

Sums are whole billionths of the currency (`nano`): a token of a cheap model costs fifty of them, and sums of
whole numbers come back to exactly 0, which sums of floats do not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from edgecloud.types import ChatRequest, Usage

NANO = 1_000_000_000

TEMPLATE_TOKENS = 64
"""More than any chat template adds to a prompt, for all of it and again for each turn."""

IMAGE_TOKENS = 2048
"""More than the common models make of one image."""


@dataclass(frozen=True, slots=True)
class Price:
    """Money for a million tokens: asked, asked but cached, answered. All in one currency."""

    prompt: float = 0.0
    cached: float = 0.0
    completion: float = 0.0

    @property
    def is_free(self) -> bool:
        return self.prompt == self.cached == self.completion == 0.0

    def cost(self, usage: Usage) -> int:
        """What the usage costs, in nano, rounded up."""
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        millionths = (
            (usage.prompt_tokens - cached) * nano(self.prompt)
            + cached * nano(self.cached)
            + usage.completion_tokens * nano(self.completion)
        )
        return -(-millionths // 1_000_000)

    def most(self, usage: Usage) -> int:
        """What the usage costs at most, however much of its prompt turns out to be cached, in nano."""
        dearest = max(self.prompt, self.cached)
        return Price(dearest, dearest, self.completion).cost(usage)


def most_prompt_tokens(request: ChatRequest) -> int:
    """More tokens than any tokenizer makes of the prompt: those that know bytes make at most one of each."""
    if isinstance(request.prompt, tuple):
        return len(request.prompt) + TEMPLATE_TOKENS
    if request.prompt is not None:
        return _size(request.prompt) + TEMPLATE_TOKENS
    total = TEMPLATE_TOKENS * (1 + len(request.messages) + len(request.tools))
    for message in request.messages:
        total += _size(message.content) + _size(message.reasoning or "") + IMAGE_TOKENS * len(message.images)
        total += sum(_size(call.name) + _size(call.arguments) for call in message.tool_calls)
    for tool in request.tools:
        # Templates write schemas with escapes, some of them indented.
        schema = json.dumps(dict(tool.parameters), indent=4)
        total += _size(tool.name) + _size(tool.description) + _size(schema)
    return total


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def most_usage(request: ChatRequest, max_tokens: int) -> Usage:
    """The most that one attempt at the request can use, `max_tokens` answered for each choice."""
    return Usage(prompt_tokens=most_prompt_tokens(request), completion_tokens=max_tokens * request.n)


def nano(amount: float) -> int:
    """An amount of the currency in nano, rounded to the nearest."""
    return round(amount * NANO)


def amount(nano: int) -> float:
    """Nano as an amount of the currency."""
    return nano / NANO
