"""What the router is told of a request, measured here: what decides who may answer, then how hard it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from edgecloud.types import ChatRequest, NamedTool

from ..router.facts import Facts, Needs, Privacy, Spread
from ..router.money import most_prompt_tokens
from ..router.structure import gist, measure, question
from ..router.wording import wording
from .upstreams import Upstream

BYTES_PER_TOKEN = 3.5
TOKENS_PER_TURN = 4
# An answer that nobody measured yet.
TYPICAL_ANSWER = Spread(256.0, 768.0)


def facts_of(
    request: ChatRequest,
    upstreams: Iterable[Upstream],
    privacy: Privacy,
    *,
    covers: tuple[str, ...] | None,
    left_s: float | None,
) -> Facts:
    """The facts of a request: numbers and labels, nothing of its text. `left_s` is what is left of its
    deadline. How its question is built is for `measured`: only an estimate of quality asks for that.
    """
    return Facts(
        request_id=request.id,
        estimated_tokens=estimated_tokens(request),
        most_prompt_tokens=most_prompt_tokens(request),
        output_tokens=_expected(request, upstreams),
        max_tokens=request.max_tokens,
        num_choices=request.n,
        needs=needs_of(request),
        privacy=privacy,
        covers=covers,
        mode=request.mode,
        private=request.private,
        offline=request.offline,
        deadline_s=left_s,
        tenant=request.tenant,
    )


def measured(facts: Facts, request: ChatRequest) -> Facts:
    """The facts with the structure and the words of the request's question."""
    text = question(request.messages) if request.is_chat else _raw(request)
    return dataclasses.replace(facts, structure=measure(text), words=wording(gist(text)))


def needs_of(request: ChatRequest) -> Needs:
    """What an engine must be able to do."""
    choice = request.tool_choice
    constraint = request.constraint
    return Needs(
        chat=request.is_chat,
        tools=bool(request.tools) and (isinstance(choice, NamedTool) or choice != "none"),
        json=constraint is not None and constraint.kind in ("json", "schema"),
        images=any(message.images for message in request.messages),
        logprobs=request.logprobs is not None,
        continue_final=request.continue_final,
    )


def estimated_tokens(request: ChatRequest) -> int:
    """Prompt tokens by length alone, never 0: no tokenizer is asked before it is known who may see the
    text.
    """
    if isinstance(request.prompt, tuple):
        return max(1, len(request.prompt))
    if request.prompt is not None:
        return _tokens(request.prompt)
    total = 0
    for message in request.messages:
        total += TOKENS_PER_TURN + _tokens(message.content)
        total += sum(_tokens(call.arguments) for call in message.tool_calls)
    for tool in request.tools:
        total += _tokens(tool.description) + _tokens(str(tool.parameters))
    return max(1, total)


def tokens_of_answer(request: ChatRequest) -> int:
    """What an answer takes that nobody measured yet, within what the request allows."""
    typical = round(TYPICAL_ANSWER.p50)
    return (typical if request.max_tokens is None else min(typical, request.max_tokens)) * request.n


def _tokens(text: str) -> int:
    return round(len(text.encode(errors="replace")) / BYTES_PER_TOKEN)


def _raw(request: ChatRequest) -> str:
    return request.prompt if isinstance(request.prompt, str) else ""


def _expected(request: ChatRequest, upstreams: Iterable[Upstream]) -> Spread:
    """How long the answer will be: as they were lately, within what the request allows."""
    known = [each for upstream in upstreams if (each := upstream.estimates.answer_tokens) is not None]
    spread = TYPICAL_ANSWER
    if known:
        spread = Spread(
            sum(each.p50 for each in known) / len(known), sum(each.p90 for each in known) / len(known)
        )
    most = float(request.max_tokens) if request.max_tokens else float("inf")
    return Spread(max(1.0, min(spread.p50, most)), max(1.0, min(spread.p90, most)))
