"""Under which names the answer to a request is kept: hard partitions first, similarity only inside one.

Two requests share a partition only where everything but the wording of the last turn is equal: whose they
are, their privacy, the system prompt, the conversation so far, how tokens are drawn, what the answer must
match. Tools, images, several choices and hot sampling have no partition at all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection

from edgecloud.types import ChatRequest, Message, Sampling
from edgecloud.wire import native

from .eligibility import DAY_S, FRESH_S, judge
from .records import Key

SCHEMA = 1
"""Part of every key: raise it when what is kept changes its meaning."""

MAX_TEMPERATURE = 0.5
"""Above it a caller asked for variety. None is the engine's default, which nobody asked for."""

# Who asks and when, not what: none of these changes the answer. The model is compared as the answerer,
# `max_tokens` with the length of the kept answer, `streamed` with how it came.
_IDENTITY = (
    "id",
    "model",
    "max_tokens",
    "deadline_s",
    "fresh",
    "cache",
    "max_age_s",
    "only_kept",
    "priority",
    "files",
    "offline",
    "journal",
    "chat_id",
    "parent_id",
    "tenant",
    "door",
    "streamed",
    "parallel_tool_calls",
    "tool_choice",
)


def key_of(
    request: ChatRequest, *, languages: Collection[str] = ("en",), lifetime_s: float = 30 * DAY_S
) -> Key:
    """The keys of a request; one that no tier may serve has neither, and says why.

    `languages` are those of the embedder, `lifetime_s` the seconds that an ordinary answer is kept.
    """
    scope = scope_of(request)
    text = _last_turn(request)
    unfit = _unfit(request)
    if unfit:
        return Key(scope, None, None, text, 0.0, unfit)
    verdict = judge(text, languages=languages, lifetime_s=lifetime_s)
    reason = _unfit_for_similarity(request) or verdict.reason
    # What is only recognised lies apart: there it costs nothing to those that are compared.
    tier = "words" if verdict.only_words else "semantic"
    partition = None if reason else _digest(tier, _partition(request, scope, verdict.language))
    exact = _digest("exact", _whole(request, scope)) if _is_repeatable(request.sampling) else None
    lifetime_s = min(lifetime_s, verdict.lifetime_s) if request.is_chat else FRESH_S
    return Key(
        scope, exact, partition, text, lifetime_s, reason,
        request.max_tokens, request.max_age_s, request.streamed, verdict.only_words,
    )  # fmt: skip


def scope_of(request: ChatRequest) -> str:
    """Whose answers these are: an API key's, or this machine's user's. Keyless HTTP is nobody we know."""
    if request.tenant is not None:
        return f"key:{request.tenant}"
    return "http" if request.door == "http" else "user"


def _unfit(request: ChatRequest) -> str:
    if request.tools or any(m.tool_calls or m.role == "tool" for m in request.messages):
        return "tools act, and an old answer would not"
    if request.n > 1:
        return "several answers were asked for, which are to differ"
    return ""


def _unfit_for_similarity(request: ChatRequest) -> str:
    sampling = request.sampling
    if not request.is_chat:
        return "a raw prompt is continued, not understood"
    if not request.messages or request.messages[-1].role != "user" or request.continue_final:
        return "the last turn is not the user's"
    if any(message.images for message in request.messages):
        return "it holds images"
    if request.logprobs is not None or request.echo:
        return "it asks for the tokens themselves"
    if sampling.seed is not None:
        return "a seed asks for one answer to one wording"
    if sampling.temperature is not None and sampling.temperature > MAX_TEMPERATURE:
        return "its temperature asks for variety"
    return ""


def _is_repeatable(sampling: Sampling) -> bool:
    return sampling.temperature == 0 or sampling.seed is not None


def _last_turn(request: ChatRequest) -> str:
    return request.messages[-1].content if request.messages and request.messages[-1].role == "user" else ""


def _whole(request: ChatRequest, scope: str) -> object:
    """Everything that the answer of a repeatable request depends on."""
    sampling = request.sampling
    if sampling.temperature == 0:
        # Greedy: what else is said of drawing changes nothing, but what moves the logits does.
        sampling = dataclasses.replace(sampling, seed=None, top_k=None, top_p=None, min_p=None)
    return [scope, _fields(dataclasses.replace(request, sampling=sampling))]


def _partition(request: ChatRequest, scope: str, language: str) -> object:
    """Everything of a request but its last turn."""
    # Any two temperatures that ask for no variety are one class.
    sampling = dataclasses.replace(request.sampling, temperature=None)
    messages = (*request.messages[:-1], Message("user", name=request.messages[-1].name))
    return [scope, language, _fields(dataclasses.replace(request, sampling=sampling, messages=messages))]


def _fields(request: ChatRequest) -> dict[str, object]:
    return {name: value for name, value in native.dump(request).items() if name not in _IDENTITY}


def _digest(tier: str, value: object) -> bytes:
    text = json.dumps([SCHEMA, tier, value], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
