"""OpenAI chat completions, both ways.

For the doors, a body to a `ChatRequest` and events to an answer or chunks; for the remote engine, a
`ChatRequest` to a body and chunks to events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edgecloud.errors import BadRequest
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Done,
    EngineEvent,
    Event,
    Finish,
    Message,
    NamedTool,
    Notice,
    ReasoningDelta,
    Start,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)

from . import upstream_values as values
from .common import Answer, Choice, Identity, StreamOptions, logprob_body, openai_usage, suffix, timings_body
from .constraints import constraint
from .fields import Fields
from .messages import messages
from .sampling import max_tokens, min_tokens, priority, sampling, stop_token_ids, stops, stream_options
from .tools import tool_choice, tools
from .upstream import StreamDecoder
from .upstream_request import encode_common

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20

# ------------------------------------------------------------------------------------------------ the request


def parse(body: Any) -> tuple[ChatRequest, StreamOptions]:
    """The request that a decoded JSON body asks for. Unknown fields are ignored and null is absent.

    Raises `BadRequest` with the dotted path of the first field at fault. Reads llama.cpp's and vLLM's
    additions too.
    """
    fields = Fields(body)
    offered = tools(fields)
    _refuse_legacy_functions(fields)
    modalities = fields.list("modalities")
    if modalities is not None and modalities != ["text"]:
        raise fields.wrong("modalities", "may only be ['text']")
    fields.text("user")
    fields.object("metadata")
    turns = messages(fields)
    limit = max_tokens(fields)
    request = ChatRequest(
        messages=turns,
        model="auto" if not fields.has("model") else fields.name("model"),
        sampling=sampling(fields),
        max_tokens=limit,
        stop=stops(fields),
        stop_token_ids=stop_token_ids(fields),
        min_tokens=min_tokens(fields, limit),
        ignore_eos=fields.flag("ignore_eos") or False,
        n=fields.integer("n", 1, MAX_CHOICES) or 1,
        logprobs=_logprobs(fields),
        constraint=constraint(fields),
        tools=offered,
        tool_choice=tool_choice(fields, offered),
        parallel_tool_calls=fields.flag("parallel_tool_calls") is not False,
        continue_final=_continue_final(fields, turns),
        template_kwargs=_template_kwargs(fields),
        priority=priority(fields),
        door="http",
    )
    return request, stream_options(fields)


def _refuse_legacy_functions(fields: Fields) -> None:
    if fields.list("functions"):
        raise fields.wrong("functions", "is no longer supported: send tools")
    if fields.get("function_call") not in (None, "none", "auto"):
        raise fields.wrong("function_call", "is no longer supported: send tool_choice")


def _logprobs(fields: Fields) -> int | None:
    wanted = fields.flag("logprobs")
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if wanted:
        return top or 0
    if top:
        raise fields.wrong("top_logprobs", "is only allowed when logprobs is true")
    return None


def _continue_final(fields: Fields, turns: tuple[Message, ...]) -> bool:
    wanted = fields.flag("continue_final_message") or False
    prompted = fields.flag("add_generation_prompt")
    if wanted and prompted:
        raise BadRequest(
            "continue_final_message and add_generation_prompt can't both be true.",
            param="continue_final_message",
        )
    if wanted and turns[-1].role != "assistant":
        raise fields.wrong("continue_final_message", "needs the last message to be the assistant's")
    if prompted is False and not wanted:
        raise fields.wrong("add_generation_prompt", "can only be false together with continue_final_message")
    return wanted


def _template_kwargs(fields: Fields) -> dict[str, Any]:
    kwargs = dict(fields.json("chat_template_kwargs") or {})
    effort = fields.text("reasoning_effort", longest=32)
    if effort is not None:
        kwargs["reasoning_effort"] = effort
    return kwargs


# ------------------------------------------------------------------------------------------------- the answer


class ChatAssembler:
    """Gathers the events of one request into a `chat.completion` body.

    `model` is the name the client sent; `created` is the Unix time in seconds.
    """

    def __init__(self, request: ChatRequest, model: str, created: int) -> None:
        self._request = request
        self._created = created
        self._answer = Answer(model, request.n)

    def add(self, event: Event | Done) -> None:
        self._answer.add(event)

    def body(self) -> dict[str, Any]:
        """The body, once the stream has ended."""
        answer = self._answer
        return {
            "id": f"chatcmpl-{suffix(self._request.id)}",
            "object": "chat.completion",
            "created": self._created,
            "model": answer.identity.model,
            "system_fingerprint": answer.identity.fingerprint,
            "choices": [self._choice(index, choice) for index, choice in enumerate(answer.choices)],
            "usage": openai_usage(answer.usage),
            **answer.extras,
        }

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        calls = choice.tool_calls
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not choice.text else choice.text,
            "refusal": None,
        }
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if calls:
            message["tool_calls"] = [_call_body(call) for call in calls]
        return {
            "index": index,
            "message": message,
            "logprobs": None if self._request.logprobs is None else _logprobs_body(choice.logprobs),
            "finish_reason": choice.finish_reason,
        }


class ChatChunks:
    """Turns the events of one request into `chat.completion.chunk` bodies, as they come.

    Each choice begins with one role chunk, sent with its first event so that a reroute before it goes unseen,
    and ends with one that has the finish reason and an empty delta. With `include_usage` a last chunk has the
    usage and no choices.
    """

    def __init__(self, request: ChatRequest, options: StreamOptions, model: str, created: int) -> None:
        self._options = options
        self._want_logprobs = request.logprobs is not None
        self._identity = Identity(model)
        self._head = {
            "id": f"chatcmpl-{suffix(request.id)}",
            "object": "chat.completion.chunk",
            "created": created,
        }
        self._begun: set[int] = set()
        self._usage = Usage()

    def encode(self, event: Event | Done) -> list[dict[str, Any]]:
        """The chunks for one event, often none or one."""
        match event:
            case TextDelta():
                self._count(event.num_tokens)
                logprobs = _logprobs_body(event.logprobs) if self._want_logprobs and event.logprobs else None
                return self._choice(event.index, {"content": event.text}, logprobs=logprobs)
            case ReasoningDelta():
                self._count(event.num_tokens)
                return self._choice(event.index, {"reasoning_content": event.text})
            case ToolCallDelta():
                return self._choice(event.index, {"tool_calls": [_call_delta(event)]})
            case ChoiceDone():
                (*begun, last) = self._choice(event.index, {}, finish=event.reason)
                return [*begun, {**last, **self._identity.on_the_way()}]
            case Start():
                self._identity.answered_by(event)
                self._usage = Usage(prompt_tokens=event.prompt_tokens)
                return []
            case Finish() | Done():
                self._usage = event.usage
                if not self._options.include_usage:
                    return []
                return [{**self._chunk([], openai_usage(event.usage)), **timings_body(event)}]
            case Notice():
                self._identity.noticed(event)
                return []

    def _count(self, num_tokens: int) -> None:
        if self._options.continuous_usage:
            usage = self._usage
            self._usage = Usage(usage.prompt_tokens, usage.completion_tokens + num_tokens)

    def _choice(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish: str | None = None,
    ) -> list[dict[str, Any]]:
        usage = openai_usage(self._usage) if self._options.continuous_usage else None
        chunks = []
        if index not in self._begun:
            self._begun.add(index)
            role = {"role": "assistant", "content": "", "refusal": None}
            chunks.append(
                self._chunk([{"index": index, "delta": role, "logprobs": None, "finish_reason": None}], usage)
            )
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunks.append(self._chunk([choice], usage))
        return chunks

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        chunk = {
            **self._head,
            "model": self._identity.model,
            "system_fingerprint": self._identity.fingerprint,
            "choices": choices,
        }
        if self._options.include_usage:
            chunk["usage"] = usage
        return chunk


def _call_body(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _call_delta(event: ToolCallDelta) -> dict[str, Any]:
    delta: dict[str, Any] = {"index": event.call_index}
    function = {"arguments": event.arguments}
    if event.id is not None:
        delta |= {"id": event.id, "type": "function"}
        function = {"name": event.name or "", "arguments": event.arguments}
    return {**delta, "function": function}


def _logprobs_body(logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    return {"content": [logprob_body(entry) for entry in logprobs], "refusal": None}


# ------------------------------------------------------------------------------ the other way: to an upstream


def encode(request: ChatRequest, model: str, stream: bool = True) -> dict[str, Any]:
    """The body that asks an OpenAI-compatible server for what `request` asks us; what is unset is left out.

    `model` is the upstream's name for the model. `request` has messages.
    """
    body = encode_common(request, model, stream)
    body["messages"] = [_message_body(message) for message in request.messages]
    if request.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": request.logprobs}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                    **({"strict": True} if tool.strict else {}),
                },
            }
            for tool in request.tools
        ]
        choice = request.tool_choice
        body["tool_choice"] = (
            {"type": "function", "function": {"name": choice.name}}
            if isinstance(choice, NamedTool)
            else choice
        )
        if not request.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    if request.continue_final:
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    kwargs = dict(request.template_kwargs)
    if "reasoning_effort" in kwargs:
        body["reasoning_effort"] = kwargs.pop("reasoning_effort")
    if kwargs:
        body["chat_template_kwargs"] = kwargs
    return body


def _message_body(message: Message) -> dict[str, Any]:
    content: Any = message.content
    if message.images:
        content = [{"type": "text", "text": message.content}] if message.content else []
        content += [{"type": "image_url", "image_url": {"url": image}} for image in message.images]
    elif message.tool_calls and not content:
        content = None
    body: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        body["tool_calls"] = [_call_body(call) for call in message.tool_calls]
    for key, value in (
        ("tool_call_id", message.tool_call_id),
        ("name", message.name),
        ("reasoning_content", message.reasoning),
    ):
        if value is not None:
            body[key] = value
    return body


class ChunkDecoder(StreamDecoder):
    """Chat chunks, or one whole `chat.completion`, to events."""

    def __init__(self, n: int = 1) -> None:
        super().__init__(n)
        self._calls = [values.ToolCalls(index) for index in range(n)]

    def feed(self, chunk: Any) -> list[EngineEvent]:
        text = _text_alone(chunk)
        if text is None or 0 not in self._open or self._waiting:
            return super().feed(chunk)
        self._counted += 1
        return [TextDelta(text)]

    def _deltas(self, index: int, choice: dict[str, Any]) -> list[EngineEvent]:
        delta = values.mapping(choice.get("delta") or choice.get("message"), "delta")
        events: list[EngineEvent] = []
        reasoning = values.content(delta.get("reasoning_content") or delta.get("reasoning"), "reasoning")
        if reasoning:
            events.append(ReasoningDelta(reasoning, index))
        # A hosted model's refusal is what it has to say.
        text = values.content(delta.get("content") or delta.get("refusal"), "content")
        logprobs = self.joined(index, _read_logprobs(choice.get("logprobs")), bool(text))
        if text:
            events.append(TextDelta(text, index, logprobs, max(1, len(logprobs))))
        legacy = values.mapping(delta.get("function_call"), "function_call")
        calls = values.sequence(delta.get("tool_calls"), "tool_calls")
        if legacy:
            calls = [*calls, {"index": 0, "function": legacy}]
        for call in calls:
            events += self._calls[index].read(call)
        return events


def _text_alone(chunk: Any) -> str | None:
    """The text of a chunk that says nothing else, as nearly all do; None for what is read with care."""
    try:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        text = delta["content"]
        if len(delta) > 1 or choice.get("finish_reason") or choice.get("logprobs") or choice.get("index"):
            return None
        if chunk.get("usage") or chunk.get("error") or chunk.get("timings"):
            return None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return text if type(text) is str and text and text.isascii() else None


def _read_logprobs(value: Any) -> list[TokenLogprob]:
    body = values.mapping(value, "logprobs")
    return [values.token_logprob(entry) for entry in values.sequence(body.get("content"), "logprobs")]
