"""Brings a conversation into the shape a chat template takes: turns are joined and moved, never dropped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from edgecloud.types import Message


def front_system(messages: Iterable[Message]) -> tuple[Message, ...]:
    """`developer` is `system`, and system messages at the front become one."""
    shape = [replace(m, role="system") if m.role == "developer" else m for m in messages]
    num_front = next((i for i, m in enumerate(shape) if m.role != "system"), len(shape))
    return merge_runs(shape[:num_front]) + tuple(shape[num_front:])


def hoist_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Every system message at the front, as one."""
    system = [m for m in messages if m.role == "system"]
    return merge_runs(system) + tuple(m for m in messages if m.role != "system")


def system_into_user(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The system message as the beginning of the first user message, for templates without that role."""
    if not messages or messages[0].role != "system":
        return tuple(messages)
    system, *rest = messages
    if rest and rest[0].role == "user":
        return (_joined(replace(system, role="user"), rest[0]), *rest[1:])
    return (replace(system, role="user"), *rest)


def merge_runs(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Neighbours of one role as one message; calls and tool results stay apart."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.role == message.role != "tool"
            and not (last.tool_calls or message.tool_calls)
        ):
            merged[-1] = _joined(last, message)
        else:
            merged.append(message)
    return tuple(merged)


def calls_as_text(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Tool calls and results as the text of ordinary turns, for templates that would leave them out."""
    if not any(message.tool_calls or message.role == "tool" for message in messages):
        return tuple(messages)
    shape: list[Message] = []
    for message in messages:
        if message.tool_calls:
            calls = [
                f'{{"name": {json.dumps(c.name)}, "arguments": {c.arguments or "{}"}}}'
                for c in message.tool_calls
            ]
            content = "\n".join([text for text in (message.content,) if text] + calls)
            shape.append(replace(message, content=content, tool_calls=()))
        elif message.role == "tool":
            shape.append(Message("user", f"Result: {message.content}"))
        else:
            shape.append(message)
    return merge_runs(shape)


def one_call_each(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Every call in a turn of its own, its result behind it, for templates that take one call at a time.

    A result is that of the last call before it with its id: some clients begin to count anew in each turn.
    """
    results = {
        place: message.tool_call_id for place, message in enumerate(messages) if message.role == "tool"
    }
    shape: list[Message] = []
    for place, message in enumerate(messages):
        if message.tool_calls:
            for number, call in enumerate(message.tool_calls):
                turn = message if number == 0 else Message(message.role)
                shape.append(replace(turn, tool_calls=(call,)))
                found = next((at for at, id in results.items() if at > place and id == call.id), None)
                if found is not None:
                    del results[found]
                    shape.append(messages[found])
        elif message.role != "tool" or place in results:
            shape.append(message)
    return tuple(shape)


def _joined(first: Message, second: Message) -> Message:
    content = "\n\n".join(text for text in (first.content, second.content) if text)
    reasoning = "\n\n".join(text for text in (first.reasoning, second.reasoning) if text)
    return replace(first, content=content, images=first.images + second.images, reasoning=reasoning or None)
