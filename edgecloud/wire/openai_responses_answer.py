"""The answer side of OpenAI Responses: events to stream events and to the `response` object, from one state.

created, in_progress
for each item:  output_item.added, content_part.added, *.delta …, *.done, content_part.done, output_item.done
completed | incomplete | failed
"""

from __future__ import annotations

from typing import Any

from edgecloud.errors import EdgeCloudError
from edgecloud.types import (
    ChoiceDone,
    Done,
    Event,
    Finish,
    Notice,
    ReasoningDelta,
    Start,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)

from .common import Identity, logprob_body, suffix
from .openai_responses import ResponsesCall


class ResponseEvents:
    """Turns the events of one request into Responses stream events.

    `body()` is the whole response, streamed or not. `model` is the name the client sent; `created` is the
    Unix time in seconds.
    """

    def __init__(self, call: ResponsesCall, model: str, created: int) -> None:
        self._echo = call.echo
        self._id = suffix(call.request.id)
        self._created = created
        self._identity = Identity(model)
        self._sequence = 0
        self._items: list[_Item] = []
        self._open: _Item | None = None
        self._started = False
        self._cut = False
        self._usage: Usage | None = None
        self._status = "in_progress"
        self._error: dict[str, Any] | None = None

    def encode(self, event: Event | Done) -> list[dict[str, Any]]:
        """The stream events for one event, numbered."""
        return [self._number(event) for event in self._encode(event)]

    def fail(self, error: EdgeCloudError) -> list[dict[str, Any]]:
        """What ends a stream that failed: `response.failed`, or a bare `error` if nothing had begun."""
        if not self._started:
            about = {"code": error.code, "message": error.message, "param": error.param}
            return [self._number({"type": "error", **about})]
        self._status = "failed"
        self._error = {"code": _error_code(error), "message": error.message}
        return [self._number({"type": "response.failed", "response": self.body()})]

    def body(self) -> dict[str, Any]:
        """The response object as it stands now."""
        incomplete = self._status == "incomplete"
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": self._status,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if incomplete else None,
            "model": self._identity.model,
            "output": [item.body() for item in self._items],
            "usage": None if self._usage is None else _usage_body(self._usage),
            **self._echo,
            **self._identity.on_the_way(),
        }

    def _number(self, event: dict[str, Any]) -> dict[str, Any]:
        numbered = {"type": event["type"], "sequence_number": self._sequence, **event}
        self._sequence += 1
        return numbered

    def _encode(self, event: Event | Done) -> list[dict[str, Any]]:
        match event:
            case Start():
                self._identity.answered_by(event)
                if self._started:  # rerouted: the client has its response.created
                    return []
                self._started = True
                return [
                    {"type": "response.created", "response": self.body()},
                    {"type": "response.in_progress", "response": self.body()},
                ]
            case TextDelta():
                events, item = self._item("message", 0)
                return [*events, item.delta(event.text, event.logprobs)]
            case ReasoningDelta():
                events, item = self._item("reasoning", 0)
                return [*events, item.delta(event.text)]
            case ToolCallDelta():
                events, item = self._item("function_call", event.call_index, event.id, event.name)
                return [*events, item.delta(event.arguments)] if event.arguments else events
            case ChoiceDone():
                self._cut = event.reason == "length"
                return self._close("incomplete" if self._cut else "completed")
            case Notice():
                self._identity.noticed(event)
            case Finish() | Done():
                self._usage = event.usage
                self._status = "incomplete" if self._cut else "completed"
                return [{"type": f"response.{self._status}", "response": self.body()}]
        return []

    def _item(
        self, kind: str, call_index: int, call_id: str | None = None, name: str | None = None
    ) -> tuple[list[dict[str, Any]], _Item]:
        """The open item of this kind, and the events that close another one and open it."""
        item = self._open
        if item is not None and (item.kind, item.call_index) == (kind, call_index):
            return [], item
        events = self._close("completed")
        item = _Item(kind, self._id, len(self._items), call_index, call_id or "", name or "")
        self._items.append(item)
        self._open = item
        return events + item.opened(), item

    def _close(self, status: str) -> list[dict[str, Any]]:
        item, self._open = self._open, None
        return [] if item is None else item.closed(status)


_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_DELTAS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


class _Item:
    """One output item: a message, a reasoning, or a call of a function."""

    def __init__(
        self, kind: str, response_id: str, output_index: int, call_index: int, call_id: str, name: str
    ) -> None:
        self.kind = kind
        self.call_index = call_index
        self._id = f"{_PREFIXES[kind]}_{response_id}_{output_index}"
        self._output_index = output_index
        self._call_id = call_id
        self._name = name
        self._status = "in_progress"
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._begun = False

    @property
    def _place(self) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._id, "output_index": self._output_index}
        return place if self.kind == "function_call" else place | {"content_index": 0}

    def body(self) -> dict[str, Any]:
        head = {"id": self._id, "type": self.kind, "status": self._status}
        parts = [self._part()] if self._begun else []
        if self.kind == "message":
            return head | {"role": "assistant", "content": parts}
        if self.kind == "reasoning":
            return head | {"summary": [], "content": parts}
        return head | {"call_id": self._call_id, "name": self._name, "arguments": "".join(self._pieces)}

    def opened(self) -> list[dict[str, Any]]:
        added = {"output_index": self._output_index, "item": self.body()}
        events = [{"type": "response.output_item.added", **added}]
        if self.kind != "function_call":
            self._begun = True
            events.append({"type": "response.content_part.added", **self._place, "part": self._part()})
        return events

    def delta(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> dict[str, Any]:
        self._pieces.append(text)
        event = {"type": f"{_DELTAS[self.kind]}.delta", **self._place, "delta": text}
        if self.kind == "message":
            entries = [logprob_body(entry) for entry in logprobs]
            self._logprobs += entries
            event["logprobs"] = entries
        return event

    def closed(self, status: str) -> list[dict[str, Any]]:
        self._status = status
        text = "".join(self._pieces)
        done = {"type": f"{_DELTAS[self.kind]}.done", **self._place}
        events = []
        if self.kind == "function_call":
            events.append(done | {"name": self._name, "arguments": text})
        else:
            about = {"text": text, "logprobs": self._logprobs} if self.kind == "message" else {"text": text}
            events.append(done | about)
            events.append({"type": "response.content_part.done", **self._place, "part": self._part()})
        item = {"output_index": self._output_index, "item": self.body()}
        return [*events, {"type": "response.output_item.done", **item}]

    def _part(self) -> dict[str, Any]:
        text = "".join(self._pieces)
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(self._logprobs)}


def _usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _error_code(error: EdgeCloudError) -> str:
    """OpenAI's closed list has few codes."""
    if error.status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if error.status < 500 else "server_error"
