"""Anthropic messages: a body to a `ChatRequest`, and events to a message or to stream events.

A stream event's name is its `type`.
"""

from __future__ import annotations

import json
from typing import Any

from edgecloud.errors import EdgeCloudError
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Done,
    Event,
    Finish,
    Message,
    Notice,
    ReasoningDelta,
    Sampling,
    Start,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    Usage,
)

from .common import Answer, Identity, StreamOptions, compact, suffix
from .errors import anthropic_error
from .fields import Fields
from .messages import base64_image, content
from .sampling import stops
from .tools import distinct, function_tool, named

# ------------------------------------------------------------------------------------------------ the request


def parse(body: Any) -> tuple[ChatRequest, StreamOptions]:
    """The request that a decoded `/v1/messages` body asks for; raises `BadRequest` naming the field at fault.

    A last message of the assistant's is continued, as at Anthropic. `thinking` becomes the template's
    `enable_thinking`.
    """
    fields = Fields(body)
    fields.require("max_tokens")
    return _request(fields), StreamOptions(fields.flag("stream") or False)


def parse_count(body: Any) -> ChatRequest:
    """The request whose prompt a `/v1/messages/count_tokens` body wants counted."""
    return _request(Fields(body))


def count_body(input_tokens: int) -> dict[str, Any]:
    return {"input_tokens": input_tokens}


def _request(fields: Fields) -> ChatRequest:
    tools = _tools(fields)
    choice, parallel = _tool_choice(fields, tools)
    turns = _messages(fields)
    top_k = fields.integer("top_k", -1, 2**31 - 1)
    fields.object("metadata")
    return ChatRequest(
        messages=turns,
        model="auto" if not fields.has("model") else fields.name("model"),
        sampling=Sampling(
            temperature=fields.number("temperature", 0, 2),
            top_p=fields.number("top_p", 0, 1, above=True),
            top_k=None if top_k is None else max(top_k, 0),
        ),
        max_tokens=fields.integer("max_tokens", 1),
        stop=stops(fields, "stop_sequences"),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        continue_final=turns[-1].role == "assistant" and not turns[-1].tool_calls,
        template_kwargs=_thinking(fields),
        door="http",
    )


def _messages(fields: Fields) -> tuple[Message, ...]:
    turns: list[Message] = []
    system, _ = content(fields, "system")
    if system:
        turns.append(Message("system", system))
    spoken = len(turns)
    fields.require("messages")
    for item in fields.objects("messages"):
        item.require("role")
        if item.get("role") == "system":
            raise item.wrong("role", "must be user or assistant: what the system says goes into `system`")
        role = item.choice("role", "user", "assistant") or ""
        if isinstance(item.require("content"), str):
            turns.append(Message(role, content(item, "content")[0]))
        else:
            turns += _Blocks(role).messages(item)
    if len(turns) == spoken:
        raise fields.wrong("messages", "must hold at least one message")
    return tuple(turns)


class _Blocks:
    """Gathers the content blocks of one message; each tool result becomes a message of its own."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._turns: list[Message] = []
        self._clear()

    def _clear(self) -> None:
        self._texts: list[str] = []
        self._images: list[str] = []
        self._calls: list[ToolCall] = []
        self._thoughts: list[str] = []

    def messages(self, item: Fields) -> list[Message]:
        for block in item.objects("content"):
            self._add(block, block.name("type"))
        self._flush(even_empty=not self._turns)
        return self._turns

    def _flush(self, *, even_empty: bool = False) -> None:
        if even_empty or self._texts or self._images or self._calls or self._thoughts:
            self._turns.append(
                Message(
                    self._role,
                    "".join(self._texts),
                    tuple(self._images),
                    tuple(self._calls),
                    reasoning="".join(self._thoughts) or None,
                )
            )
        self._clear()

    def _add(self, block: Fields, kind: str) -> None:
        assistant = self._role == "assistant"
        if kind == "text":
            self._texts.append(block.required_text("text"))
        elif kind == "image" and not assistant:
            self._images.append(image(block))
        elif kind == "document" and not assistant:
            self._texts.append(_document(block))
        elif kind == "tool_result" and not assistant:
            self._flush()
            text, images = _tool_result(block)
            self._turns.append(Message("tool", text, images, tool_call_id=block.name("tool_use_id")))
        elif kind == "tool_use" and assistant:
            block.require("input")
            self._calls.append(ToolCall(block.name("id"), block.name("name"), compact(block.json("input"))))
        elif kind == "thinking" and assistant:
            self._thoughts.append(block.text("thinking") or "")
        elif kind != "redacted_thinking":
            raise block.wrong(
                "type", f"is {kind[:64]!r}, which is no block that can be read here in this role"
            )


def _tool_result(block: Fields) -> tuple[str, tuple[str, ...]]:
    value = block.get("content")
    if not isinstance(value, list):
        return content(block, "content")
    texts: list[str] = []
    images: list[str] = []
    for part in block.objects("content"):
        kind = part.name("type")
        if kind == "image":
            images.append(image(part))
        elif kind == "text":
            texts.append(part.required_text("text"))
        elif kind == "document":
            texts.append(_document(part))
        else:
            raise part.wrong("type", f"is {kind[:64]!r}, which can't be read here: send text or image")
    return "".join(texts), tuple(images)


def _document(block: Fields) -> str:
    """A document's text, under its title if it has one, set off from what stands beside it."""
    source = block.inner("source")
    kind = source.name("type")
    if kind == "text":
        text = source.required_text("data")
    elif kind == "content":
        text, images = content(source, "content")
        if images:
            raise source.wrong("content", "holds images: send them as image blocks beside the document")
    else:
        raise source.wrong("type", f"is {kind[:64]!r}, and only documents of type text can be read here")
    lines = [block.text("title") or "", block.text("context") or "", text]
    return "\n\n" + "\n".join(line for line in lines if line) + "\n\n"


def image(block: Fields) -> str:
    """An image block as a data URI; only base64 sources, for nothing is fetched."""
    source = block.inner("source")
    if source.name("type") != "base64":
        raise source.wrong("type", "must be base64: images are not fetched from elsewhere")
    return base64_image(source, "data", source.name("media_type", longest=80))


def _tools(fields: Fields) -> tuple[Tool, ...]:
    result = []
    for item in fields.objects("tools"):
        if item.get("type") not in (None, "custom"):
            raise item.wrong("type", "must be custom: tools that run at Anthropic are not offered here")
        item.require("input_schema")
        result.append(function_tool(item, "input_schema"))
    return distinct(result, "tools")


def _tool_choice(fields: Fields, tools: tuple[Tool, ...]) -> tuple[ToolChoice, bool]:
    """The choice, and whether several calls at once are allowed."""
    choice = fields.object("tool_choice")
    if choice is None:
        return "auto", True
    choice.require("type")
    kind = choice.choice("type", "auto", "any", "tool", "none")
    parallel = not choice.flag("disable_parallel_tool_use")
    if kind == "tool":
        return named(choice, tools), parallel
    if kind == "any":
        if not tools:
            raise choice.wrong("type", "is 'any' but there are no tools")
        return "required", parallel
    return "none" if kind == "none" else "auto", parallel


def _thinking(fields: Fields) -> dict[str, Any]:
    thinking = fields.object("thinking")
    if thinking is None:
        return {}
    return {"enable_thinking": thinking.name("type") != "disabled"}


# ------------------------------------------------------------------------------------------------- the answer


class MessageAssembler:
    """Gathers the events of one request into a message body. `model` is the name the client sent."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        self._request = request
        self._answer = Answer(model)

    def add(self, event: Event | Done) -> None:
        self._answer.add(event)

    def body(self) -> dict[str, Any]:
        """The body, once the stream has ended."""
        choice = self._answer.choices[0]
        blocks: list[dict[str, Any]] = []
        if choice.reasoning:
            blocks.append({"type": "thinking", "thinking": choice.reasoning, "signature": ""})
        if choice.text:
            blocks.append({"type": "text", "text": choice.text})
        for call in choice.tool_calls:
            blocks.append(
                {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}
            )
        return {
            **_message(self._request, self._answer.identity),
            "content": blocks,
            "stop_reason": _stop_reason(choice.finish_reason, choice.stop),
            "stop_sequence": choice.stop,
            "usage": usage_body(self._answer.usage),
            **self._answer.identity.on_the_way(),
        }


class MessageEvents:
    """Turns the events of one request into Anthropic's stream events; blocks never overlap."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        self._request = request
        self._identity = Identity(model)
        self._started = False
        self._index = -1
        self._open: tuple[str, int] | None = None
        self._done: ChoiceDone | None = None

    def encode(self, event: Event | Done) -> list[dict[str, Any]]:
        """The stream events for one event."""
        match event:
            case Start():
                return self._start(event)
            case TextDelta():
                block = {"type": "text", "text": ""}
                return self._delta(("text", 0), block, {"type": "text_delta", "text": event.text})
            case ReasoningDelta():
                block = {"type": "thinking", "thinking": "", "signature": ""}
                return self._delta(("thinking", 0), block, {"type": "thinking_delta", "thinking": event.text})
            case ToolCallDelta():
                return self._tool_delta(event)
            case ChoiceDone():
                self._done = event
                return self._close()
            case Notice():
                self._identity.noticed(event)
            case Finish() | Done():
                return self._stop(event.usage)
        return []

    def fail(self, error: EdgeCloudError) -> list[dict[str, Any]]:
        """What ends a stream that failed."""
        return [anthropic_error(error, self._request.id)]

    def _start(self, start: Start) -> list[dict[str, Any]]:
        if self._started:  # rerouted: the client has its message_start
            return []
        self._started = True
        self._identity.answered_by(start)
        message = {
            **_message(self._request, self._identity),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_body(Usage(prompt_tokens=start.prompt_tokens)),
        }
        return [{"type": "message_start", "message": message}]

    def _tool_delta(self, event: ToolCallDelta) -> list[dict[str, Any]]:
        block: dict[str, Any] = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": event.arguments}
        events = self._delta(("tool_use", event.call_index), block, delta)
        return events if event.arguments else events[:-1]

    def _delta(
        self, key: tuple[str, int], block: dict[str, Any], delta: dict[str, Any]
    ) -> list[dict[str, Any]]:
        events = []
        if self._open != key:
            events = self._close()
            self._open = key
            self._index += 1
            events.append({"type": "content_block_start", "index": self._index, "content_block": block})
        events.append({"type": "content_block_delta", "index": self._index, "delta": delta})
        return events

    def _close(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        self._open = None
        return [{"type": "content_block_stop", "index": self._index}]

    def _stop(self, usage: Usage) -> list[dict[str, Any]]:
        done = self._done
        if done is None:
            raise RuntimeError("The stream ended before its choice was done.")
        delta = {"stop_reason": _stop_reason(done.reason, done.stop), "stop_sequence": done.stop}
        return [
            {
                "type": "message_delta",
                "delta": delta,
                "usage": usage_body(usage),
                **self._identity.on_the_way(),
            },
            {"type": "message_stop"},
        ]


def usage_body(usage: Usage) -> dict[str, int]:
    """Anthropic's `input_tokens` leave out what came from the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _message(request: ChatRequest, identity: Identity) -> dict[str, Any]:
    return {
        "id": f"msg_{suffix(request.id)}",
        "type": "message",
        "role": "assistant",
        "model": identity.model,
    }


def _stop_reason(reason: str, stop: str | None) -> str:
    if stop is not None:
        return "stop_sequence"
    return {"length": "max_tokens", "tool_calls": "tool_use"}.get(reason, "end_turn")


def _input(arguments: str) -> dict[str, Any]:
    """The arguments as the object that clients expect; what is none stays readable under `arguments`."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = arguments
    return value if isinstance(value, dict) else {"arguments": arguments}
