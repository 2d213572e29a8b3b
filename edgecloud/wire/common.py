"""What the OpenAI and Anthropic formats share: stream options, usage, and an answer gathered from events."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from edgecloud.types import (
    ChoiceDone,
    Done,
    Event,
    Finish,
    FinishReason,
    Notice,
    ReasoningDelta,
    Start,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)

WHO_WROTE = ("rerouted", "continued")
"""Notices that say whose an answer is: clients are told these, others are for whoever runs the server."""

# JSON has no infinities; OpenAI's own floor for an impossible token.
LEAST_LOGPROB = -9999.0


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Whether to stream, whether a usage chunk ends it, and whether every chunk carries the usage so far."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


class Choice:
    """What one choice has said so far."""

    __slots__ = ("_calls", "_reasoning", "_text", "logprobs", "reason", "stop")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[str, str, list[str]]] = {}
        self.logprobs: list[TokenLogprob] = []
        self.reason: FinishReason | None = None
        self.stop: str | None = None

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [ToolCall(id, name, "".join(pieces)) for id, name, pieces in self._calls.values()]

    @property
    def finish_reason(self) -> FinishReason:
        if self.reason is None:
            raise RuntimeError("An answer was asked for before every choice was done.")
        return self.reason

    def add(self, event: TextDelta | ReasoningDelta | ToolCallDelta | ChoiceDone) -> None:
        match event:
            case TextDelta():
                self._text.append(event.text)
                self.logprobs.extend(event.logprobs)
            case ReasoningDelta():
                self._reasoning.append(event.text)
            case ToolCallDelta():
                if event.call_index not in self._calls:
                    self._calls[event.call_index] = (event.id or "", event.name or "", [])
                self._calls[event.call_index][2].append(event.arguments)
            case ChoiceDone():
                self.reason, self.stop = event.reason, event.stop


class Answer:
    """The events of one request gathered into choices."""

    def __init__(self, model: str, n: int = 1) -> None:
        self.identity = Identity(model)
        self.choices = [Choice() for _ in range(n)]
        self.usage = Usage()
        self.extras: dict[str, Any] = {}

    def add(self, event: Event | Done) -> None:
        match event:
            case Start():
                self.identity.answered_by(event)
            case TextDelta() | ReasoningDelta() | ToolCallDelta() | ChoiceDone():
                self.choices[event.index].add(event)
            case Notice():
                self.identity.noticed(event)
            case Finish() | Done():
                self.usage = event.usage
                self.extras = {**timings_body(event), **self.identity.on_the_way()}


class Identity:
    """The `model` and `system_fingerprint` of an answer, known in full once `Start` has come, and who else
    had a part in it.

    An explicit model name is echoed; `auto` reports who answered.
    """

    __slots__ = ("_echo", "_notices", "fingerprint", "model")

    def __init__(self, model: str) -> None:
        self._echo = model
        self._notices: list[Notice] = []
        self.model = model
        self.fingerprint = "edgecloud"

    def answered_by(self, start: Start) -> None:
        if self._echo == "auto":
            self.model = start.model
        self.fingerprint = "-".join(part for part in ("edgecloud", start.engine, start.variant) if part)

    def noticed(self, notice: Notice) -> None:
        if notice.kind in WHO_WROTE:
            self._notices.append(notice)

    def on_the_way(self) -> dict[str, Any]:
        """The field that says who else had a part in the answer; no field where nobody had."""
        if not self._notices:
            return {}
        notices = [{"kind": notice.kind, "text": notice.text} for notice in self._notices]
        return {"edgecloud": {"notices": notices}}


def suffix(request_id: str) -> str:
    """The part of our request id after its prefix, so that `chatcmpl-…` and the receipt can be matched."""
    return request_id.rpartition("-")[2]


def finite(logprob: float) -> float:
    """The log-probability as JSON can hold it, never above zero."""
    return LEAST_LOGPROB if math.isnan(logprob) else max(LEAST_LOGPROB, min(logprob, 0.0))


def compact(value: Any) -> str:
    """JSON text without spaces, non-ASCII kept as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def logprob_body(entry: TokenLogprob) -> dict[str, Any]:
    """One token in OpenAI's chat and Responses form."""
    tops = [
        {"token": top.token, "logprob": finite(top.logprob), "bytes": list(top.bytes)} for top in entry.top
    ]
    return {
        "token": entry.token,
        "logprob": finite(entry.logprob),
        "bytes": list(entry.bytes),
        "top_logprobs": tops,
    }


def timings_body(end: Finish | Done) -> dict[str, Any]:
    """Where a bare engine's time went, under llama-server's names where it has one; nothing of a gateway,
    whose answer has been through several hands.
    """
    if isinstance(end, Finish) or end.timings == Timings():
        return {}
    timings = {
        "queue": end.timings.queue_s,
        "prompt": end.timings.prefill_s,
        "predicted": end.timings.decode_s,
    }
    return {"timings": {f"{part}_ms": round(seconds * 1000, 3) for part, seconds in timings.items()}}


def openai_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
