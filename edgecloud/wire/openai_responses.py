"""OpenAI Responses without state: a body to a `ChatRequest`, and events to a `response` or to stream events.

A stream event's name is its `type`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgecloud.errors import BadRequest
from edgecloud.types import ChatRequest, Message, NamedTool, Tool, ToolCall

from . import fields as read
from .common import StreamOptions
from .constraints import response_format
from .fields import Fields
from .messages import content, role
from .sampling import sampling
from .tools import distinct, function_tool, tool_choice

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """A parsed body: the request, and what of the body the response object repeats."""

    request: ChatRequest
    options: StreamOptions
    echo: dict[str, Any]


def parse(body: Any) -> ResponsesCall:
    """What a decoded `/v1/responses` body asks for; raises `BadRequest` naming the field at fault.

    Nothing is stored, so what refers to something stored is refused. Tools that run at OpenAI (web search,
    shell) are left out beside functions: agents offer them to everyone, and a model that is not told of them
    can't call them. Who offers nothing else asks for just them, and is refused.
    """
    fields = Fields(body)
    for name in ("previous_response_id", "conversation", "prompt"):
        if fields.has(name):
            raise fields.wrong(name, "is not supported: nothing is stored here, send the whole input")
    if fields.flag("background"):
        raise fields.wrong("background", "is not supported")
    tools = [(item.name("type"), item) for item in fields.objects("tools")]
    offered = distinct(
        (function_tool(item, "parameters") for kind, item in tools if kind == "function"), "tools"
    )
    if tools and not offered:
        kinds = ", ".join(dict.fromkeys(kind[:64] for kind, _ in tools))
        raise fields.wrong("tools", f"has no function, and what is of type {kinds} is not run here")
    instructions = fields.text("instructions")
    turns = _Input().messages(fields)
    text_config = fields.object("text")
    reasoning = fields.object("reasoning")
    effort = None if reasoning is None else reasoning.text("effort", longest=32)
    request = ChatRequest(
        messages=(Message("system", instructions), *turns) if instructions else turns,
        model="auto" if not fields.has("model") else fields.name("model"),
        sampling=sampling(fields),
        max_tokens=fields.integer("max_output_tokens", 1),
        logprobs=fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS),
        constraint=None if text_config is None else response_format(text_config, "format"),
        tools=offered,
        tool_choice=tool_choice(fields, offered),
        parallel_tool_calls=fields.flag("parallel_tool_calls") is not False,
        template_kwargs={} if effort is None else {"reasoning_effort": effort},
        door="http",
    )
    # Obfuscation and the like are about OpenAI's network.
    fields.object("stream_options")
    options = StreamOptions(fields.flag("stream") or False)
    return ResponsesCall(request, options, _echo(request, fields, instructions, effort))


def _echo(
    request: ChatRequest, fields: Fields, instructions: str | None, effort: str | None
) -> dict[str, Any]:
    choice = request.tool_choice
    form = Fields(fields.get("text") or {}, "text").json("format") or {"type": "text"}
    return {
        "background": False,
        "instructions": instructions,
        "max_output_tokens": request.max_tokens,
        "metadata": fields.json("metadata") or {},
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": effort, "summary": None},
        "store": False,
        "temperature": request.sampling.temperature,
        "text": {"format": form},
        "tool_choice": {"type": "function", "name": choice.name} if isinstance(choice, NamedTool) else choice,
        "tools": [_tool_body(tool) for tool in request.tools],
        "top_logprobs": request.logprobs,
        "top_p": request.sampling.top_p,
        "truncation": "disabled",
        "user": fields.text("user"),
    }


def _tool_body(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
        "strict": tool.strict,
    }


class _Input:
    """Puts input items together into messages: an assistant's reasoning, text and calls are one message."""

    def __init__(self) -> None:
        self._turns: list[Message] = []
        self._clear()

    def _clear(self) -> None:
        self._text = ""
        self._calls: list[ToolCall] = []
        self._thoughts: list[str] = []

    def messages(self, fields: Fields) -> tuple[Message, ...]:
        value = fields.require("input")
        if isinstance(value, str):
            return (Message("user", read.text(value, "input")),)
        for item in fields.objects("input"):
            self._add(item, item.text("type", longest=64) or "message")
        self._flush()
        if not self._turns:
            raise fields.wrong("input", "must hold at least one message")
        return tuple(self._turns)

    def _flush(self) -> None:
        if self._text or self._calls or self._thoughts:
            reasoning = "".join(self._thoughts) or None
            self._turns.append(
                Message("assistant", self._text, tool_calls=tuple(self._calls), reasoning=reasoning)
            )
        self._clear()

    def _add(self, item: Fields, kind: str) -> None:
        if kind == "message":
            spoken = role(item)
            item.require("content")
            text, images = content(item, "content")
            if spoken == "assistant" and not images:
                if self._text or self._calls:
                    self._flush()
                self._text = text
                return
            self._flush()
            self._turns.append(Message(spoken, text, images))
        elif kind == "function_call":
            self._calls.append(
                ToolCall(item.name("call_id"), item.name("name"), item.text("arguments") or "{}")
            )
        elif kind == "function_call_output":
            self._flush()
            item.require("output")
            text, images = content(item, "output")
            self._turns.append(Message("tool", text, images, tool_call_id=item.name("call_id")))
        elif kind == "reasoning":
            if self._text or self._calls:
                self._flush()
            parts = [*item.objects("content"), *item.objects("summary")]
            self._thoughts += [part.text("text") or "" for part in parts]
        elif kind == "item_reference":
            raise BadRequest("Items are not stored here: send the whole item.", param=item.param("id"))
        else:
            raise item.wrong("type", f"is {kind[:64]!r}, which is no item that can be read here")
