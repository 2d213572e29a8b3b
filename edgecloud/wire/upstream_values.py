"""Reads the parts of what other OpenAI-compatible servers send: values, usage, logprobs, tool calls.

Tolerant where they differ in habit (missing ids, null content, names of fields), and an `UpstreamError` where
a shape makes no sense.
"""

from __future__ import annotations

import math
from typing import Any

from edgecloud.errors import UpstreamError
from edgecloud.types import Notice, Timings, TokenLogprob, ToolCallDelta, TopLogprob, Usage, new_id

from .common import WHO_WROTE, compact

# More than any context there is, and it fits every database.
MOST_TOKENS = 10**9


def read_notices(value: Any) -> list[Notice]:
    """Who else had a part in the answer, as a server of ours says; whatever anybody else has there is not
    ours.
    """
    match value:
        case {"notices": [*notices]}:
            return [
                Notice(kind, text)
                for notice in notices
                if isinstance(notice, dict)
                and (kind := notice.get("kind")) in WHO_WROTE
                and isinstance(text := notice.get("text"), str)
            ]
    return []


def read_usage(value: Any) -> Usage | None:
    """Tokens as the upstream counts them; None where it does not say, or says what makes no sense: by then
    the answer is there, and nobody is to lose it for that. What was seen of it is counted instead.
    """
    if not value:
        return None
    try:
        usage = mapping(value, "usage")
        prompt = mapping(usage.get("prompt_tokens_details"), "prompt_tokens_details")
        completion = mapping(usage.get("completion_tokens_details"), "completion_tokens_details")
        return Usage(
            prompt_tokens=count(usage.get("prompt_tokens"), "prompt_tokens"),
            completion_tokens=count(usage.get("completion_tokens"), "completion_tokens"),
            cached_tokens=count(prompt.get("cached_tokens"), "cached_tokens"),
            reasoning_tokens=count(completion.get("reasoning_tokens"), "reasoning_tokens"),
        )
    except UpstreamError:
        return None


def read_timings(value: Any) -> Timings | None:
    """What our pools and llama-server say of where the time went; what makes no sense says nothing."""
    if not isinstance(value, dict):
        return None
    parts = (value.get(name) for name in ("queue_ms", "prompt_ms", "predicted_ms"))
    seconds = [
        part / 1000
        if isinstance(part, int | float) and not isinstance(part, bool) and 0 <= part < 1e10
        else 0.0
        for part in parts
    ]
    queue_s, prefill_s, decode_s = seconds
    return Timings(queue_s, prefill_s, queue_s + prefill_s, decode_s)


def mapping(value: Any, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise nonsense(what)
    return value


def sequence(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise nonsense(what)
    return value


def string(value: Any, what: str) -> str:
    """The text with lone surrogates replaced; "" for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise nonsense(what)
    return value if value.isascii() else value.encode(errors="replace").decode()


def count(value: Any, what: str) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise nonsense(what)
    return value


def real(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise nonsense(what)
    try:
        return float(value)
    except OverflowError:
        raise nonsense(what) from None


def nonsense(what: str) -> UpstreamError:
    return UpstreamError(f"The upstream sent a {what} that makes no sense.")


def content(value: Any, what: str) -> str:
    """Text, or the text parts of a list."""
    if not isinstance(value, list):
        return string(value, what)
    parts = (mapping(part, what) for part in value)
    return "".join(
        string(part.get("text"), what) for part in parts if part.get("type") in ("text", "output_text")
    )


def token_logprob(value: Any) -> TokenLogprob:
    """One entry of a chat answer's logprobs; ids are known from llama-server only, else -1."""
    entry = mapping(value, "logprob")
    tops = tuple(
        TopLogprob(token, logprob, raw, id)
        for token, logprob, raw, id in map(
            _logprob_parts, sequence(entry.get("top_logprobs"), "top_logprobs")
        )
    )
    return TokenLogprob(*_logprob_parts(entry), tops)


def legacy_logprob(token: Any, logprob: Any, top: Any) -> TokenLogprob:
    """One position of the legacy lists, whose alternatives are a mapping of tokens, or null."""
    name = string(token, "token")
    # An echoed prompt's first token follows nothing.
    chosen = math.nan if logprob is None else real(logprob, "logprob")
    alternatives = sorted(
        (
            (real(value, "logprob"), string(key, "token"))
            for key, value in mapping(top, "top_logprobs").items()
        ),
        reverse=True,
    )
    tops = tuple(TopLogprob(key, value, key.encode(), -1) for value, key in alternatives)
    return TokenLogprob(name, chosen, name.encode(), -1, tops)


def _logprob_parts(value: Any) -> tuple[str, float, bytes, int]:
    entry = mapping(value, "logprob")
    token = string(entry.get("token"), "token")
    octets = sequence(entry.get("bytes"), "bytes")
    try:
        raw = bytes(octets) if octets else token.encode()
    except (TypeError, ValueError):
        raise nonsense("bytes") from None
    id = entry.get("id")
    return token, real(entry.get("logprob"), "logprob"), raw, id if isinstance(id, int) else -1


class ToolCalls:
    """Puts the pieces of one choice's tool calls in order.

    Servers leave out `index`, or send 0 for every call, leave out the id, repeat the name, or send the
    arguments as an object.
    """

    def __init__(self, choice: int) -> None:
        self._choice = choice
        self._key: int | None = None
        self._id = ""
        self._count = 0

    def read(self, value: Any) -> list[ToolCallDelta]:
        """One piece of a call as a delta, none where it says nothing. Raises `UpstreamError`."""
        piece = mapping(value, "tool call")
        function = mapping(piece.get("function"), "function")
        id = string(piece.get("id"), "tool call id")
        name = string(function.get("name"), "function name")
        arguments = function.get("arguments")
        text = string(_json_text(arguments) if isinstance(arguments, dict) else arguments, "arguments")
        if self._begins(piece.get("index"), id, name):
            if not name:
                raise nonsense("tool call without a name")
            self._id = id
            self._count += 1
            return [ToolCallDelta(self._count - 1, id or new_id("call"), name, text, self._choice)]
        return [ToolCallDelta(self._count - 1, None, None, text, self._choice)] if text else []

    def _begins(self, index: Any, id: str, name: str) -> bool:
        """Whether a piece is the first of a call: another index, or the same with another id and a name."""
        if index is None:
            return self._count == 0 or bool(name and (not id or id != self._id))
        key = count(index, "tool call index")
        if self._key is not None and key < self._key:
            raise nonsense("piece of an earlier tool call")
        fresh = self._count == 0 or key != self._key or bool(name and id and id != self._id)
        self._key = key
        return fresh


def _json_text(value: dict[str, Any]) -> str:
    try:
        return compact(value)
    except (ValueError, RecursionError):
        raise nonsense("arguments") from None
