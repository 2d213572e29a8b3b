"""A conversation as the variables of a chat template, in the form that this template's habits ask for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from edgecloud.types import Message, Tool, ToolCall

_ROLES = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class Habits:
    """What a template was found to take."""

    system: bool = True
    late_system: bool = True
    lone_system: bool = True
    parts: bool = False  # content as a list of parts
    no_tools_is_none: bool = True  # else the variable must be undefined
    tools: bool = False
    calls: bool = True
    arguments_as_text: bool = False
    content_is_none: bool = False  # of a message that only calls; else it must be text
    short_ids: bool = False  # call ids of nine letters and digits, as Mistral's templates demand


class Guard(Protocol):
    """What every user's string goes through; `whole` where a template may put it inside a control token."""

    def __call__(self, text: str, *, whole: bool = False) -> str: ...


def template_variables(
    messages: Sequence[Message], tools: Sequence[Tool], extra: Mapping[str, Any], habits: Habits, guard: Guard
) -> dict[str, Any]:
    """`messages` and `tools` as Hugging Face's templates expect them, over the caller's `extra`.

    Raises `RecursionError` for data nested too deeply.
    """
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    variables = {"documents": None, **guarded(dict(extra), guard)}
    variables["messages"] = [_message(message, names, habits, guard) for message in messages]
    if tools or habits.no_tools_is_none:
        variables["tools"] = [_tool(tool, guard) for tool in tools] or None
    return variables


def append_to_content(message: dict[str, Any], text: str) -> None:
    """Put text at the end of a message made by `template_variables`."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + text
    else:
        content[-1]["text"] += text


def guarded(value: Any, guard: Guard) -> Any:
    """A copy of JSON-like data with every string guarded, keys too."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, Mapping):
        return {
            guard(key) if isinstance(key, str) else key: guarded(item, guard) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [guarded(item, guard) for item in value]
    return value


def _message(message: Message, names: Mapping[str, str], habits: Habits, guard: Guard) -> dict[str, Any]:
    role = message.role if message.role in _ROLES else guard(message.role, whole=True)
    content: Any = guard(message.content)
    if habits.content_is_none and message.tool_calls and not content:
        content = None
    elif habits.parts:
        content = [{"type": "text", "text": content}]
    result: dict[str, Any] = {"role": role, "content": content}
    name = message.name or names.get(message.tool_call_id or "")
    if name:
        result["name"] = guard(name, whole=True)
    if message.tool_call_id:
        result["tool_call_id"] = guard(_call_id(message.tool_call_id, habits))
    if message.reasoning:
        result["reasoning_content"] = guard(message.reasoning)
    if message.tool_calls:
        result["tool_calls"] = [
            {
                "id": guard(_call_id(call.id, habits)),
                "type": "function",
                "function": {"name": guard(call.name), "arguments": _arguments(call, habits, guard)},
            }
            for call in message.tool_calls
        ]
    return result


def _arguments(call: ToolCall, habits: Habits, guard: Guard) -> Any:
    if not habits.arguments_as_text:
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if isinstance(arguments, dict):
            return guarded(arguments, guard)
    return guard(call.arguments)


def _call_id(call_id: str, habits: Habits) -> str:
    """The id, or a stand-in where the template takes only short ones and this comes from another server."""
    if not habits.short_ids or (len(call_id) == 9 and call_id.isascii() and call_id.isalnum()):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]


def _tool(tool: Tool, guard: Guard) -> dict[str, Any]:
    function = {
        "name": guard(tool.name),
        "description": guard(tool.description),
        "parameters": guarded(dict(tool.parameters) or {"type": "object", "properties": {}}, guard),
    }
    return {"type": "function", "function": function}
