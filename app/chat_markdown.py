"""A chat as one Markdown document: to be read, or as a file that holds the whole tree and can be read back.

In a file a comment under every heading says what the words don't: where the message hangs, how it ended,
where in it another engine went on. Files without such comments, written by hand or by others, are read by
their headings.

    ## assistant (smollm2, interrupted)
    <!-- edgecloud-1f2e3d4c {"id": 1, "parent": 0, "status": "interrupted"} -->
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from edgecloud.errors import BadRequest
from edgecloud.shorten import one_line
from edgecloud.types import Message, ToolCall

from .chats import Chat, Seam, Status, StoredMessage
from .visible import neutral

PRIVATE_LINE = "Private: nothing of this chat leaves this machine."
"""Stands in the head of a pinned chat, for people and for the import."""

BRANCHES = "# Other branches"

_HEADING = re.compile(r"^## (system|user|assistant|tool)(?: \(.*\))?$")
_MARK = re.compile(r"^## [^\n]*\n<!-- edgecloud-([0-9a-f]{8}) (\{[^\n]*\}) -->\n\n", re.MULTILINE)


class Imported(NamedTuple):
    """A chat out of a file: `head` is the message that it opens on, `private` whether it is pinned to this
    machine; False too where the file does not say.
    """

    title: str
    messages: tuple[StoredMessage, ...]
    head: str | None
    private: bool = False


# ------------------------------------------------------------------------------------------------ writing


def as_markdown(chat: Chat) -> str:
    """The conversation that ends in the latest answer, to be read; what stands beside it is counted."""
    # A title is a line: a control character is nobody's text there, in a pipe neither.
    parts = [neutral(_head(chat), is_terminal=True)]
    parts += [f"{_heading(stored)}\n\n{_body(stored).strip(chr(10))}" for stored in chat.conversation]
    if num_others := len(chat.messages) - len(chat.path):
        are = "message stands" if num_others == 1 else "messages stand"
        parts.append(f"({num_others} more {are} in other branches: `edgecloud history export` has them all.)")
    return "\n\n".join(parts) + "\n"


def as_markdown_file(chat: Chat) -> str:
    """The whole tree: the conversation first, then what stands beside it. `from_markdown` reads it back."""
    numbers = {stored.id: number for number, stored in enumerate(chat.messages)}
    shown = set(chat.path)
    others = [stored for stored in chat.messages if stored.id not in shown]
    # No message can hold what is made of it: text that looks like our comments is text.
    key = hashlib.sha256(repr(chat.messages).encode()).hexdigest()[:8]
    instead_of = _instead_of(chat)
    parts = [_head(chat)]
    for place, stored in enumerate([*chat.conversation, *others]):
        if place == len(shown):
            parts.append(f"{BRANCHES}\n<!-- edgecloud-{key} -->")
        facts = json.dumps(_facts(stored, numbers), ensure_ascii=False).replace(">", "\\u003e")
        heading = _heading(stored, instead_of(stored))
        parts.append(f"{heading}\n<!-- edgecloud-{key} {facts} -->\n\n{_body(stored)}")
    return "\n\n".join(parts) + "\n"


def _head(chat: Chat) -> str:
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(chat.summary.created))
    private = f"\n\n{PRIVATE_LINE}" if chat.private else ""
    return f"# {chat.summary.title}\n\n{chat.summary.id}, {date}{private}"


def _heading(stored: StoredMessage, beside: str = "") -> str:
    status = "" if stored.status == "complete" else stored.status
    details = ", ".join(detail for detail in (stored.model, status, beside) if detail)
    return f"## {' '.join(stored.message.role.split())}" + (f" ({details})" if details else "")


def _instead_of(chat: Chat) -> Callable[[StoredMessage], str]:
    """What of the conversation a branch begins beside."""
    by_parent = {stored.parent_id: stored for stored in chat.conversation}
    by_id = {stored.id: stored for stored in chat.conversation}

    def say(stored: StoredMessage) -> str:
        if stored.id in by_id or (beside := by_parent.get(stored.parent_id)) is None:
            return ""
        asked = by_id.get(beside.parent_id or "")
        if beside.message.role == "assistant" and asked is not None:
            return f"beside the answer to “{one_line(asked.message.content, 40)}”"
        return f"beside “{one_line(beside.message.content, 40)}”"

    return say


def _facts(stored: StoredMessage, numbers: Mapping[str, int]) -> dict[str, Any]:
    """What the words of a message don't say, as far as it is not usual."""
    message = stored.message
    facts = {
        "parent": numbers.get(stored.parent_id or ""),
        "role": message.role,
        "created": stored.created,
        "status": stored.status if stored.status != "complete" else None,
        "model": stored.model,
        "finish_reason": stored.finish_reason,
        "error": stored.error,
        "seams": [dataclasses.asdict(seam) for seam in stored.seams],
        "reasoning": _num_lines(message.reasoning),
        "calls": [dataclasses.asdict(call) for call in message.tool_calls],
        "images": len(message.images),
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    said = {
        name: value for name, value in facts.items() if value not in (None, "", [], 0) or name == "parent"
    }
    return {"id": numbers[stored.id], **said}


def _num_lines(text: str | None) -> int:
    return text.count("\n") + 1 if text else 0


def _body(stored: StoredMessage) -> str:
    """What the message says, what was thought before it and called after it, and where its seams are."""
    message, text = stored.message, stored.message.content
    for seam in sorted(stored.seams, key=lambda seam: seam.position, reverse=True):
        text = text[: seam.position] + _seam_line(seam) + text[seam.position :]
    thought = (
        "".join(f"> {line}\n" for line in message.reasoning.split("\n")) + "\n" if message.reasoning else ""
    )
    return thought + text + _calls(message.tool_calls) + "".join(_images(message.images))


def _seam_line(seam: Seam) -> str:
    return f"\n\n> ⚡ {' '.join(seam.text.split())}\n\n"


def _calls(calls: Sequence[ToolCall]) -> str:
    return "".join(f"\n`{call.name}({call.arguments})`" for call in calls)


def _images(images: Sequence[str]) -> Iterator[str]:
    for number, image in enumerate(images, 1):
        yield f"\n\n![image {number}]({image})"


# ------------------------------------------------------------------------------------------------ reading


def from_markdown(text: str, name: str) -> Imported:
    """A chat from a Markdown file called `name`. Raises `BadRequest` where it is none."""
    if text.split("\n", 1)[0].endswith("\r"):
        text = text.replace("\r\n", "\n")
    first = text.split("\n", 1)[0]
    title = first.removeprefix("# ").strip() if first.startswith("# ") else name.rsplit(".", 1)[0]
    if (found := _MARK.search(text)) is None:
        return _by_headings(text, title, name)
    try:
        messages, head = _by_marks(text, found[1])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BadRequest(
            f"{name} was a chat that edgecloud exported, but its comments were changed."
        ) from error
    return Imported(title, messages, head, PRIVATE_LINE in text[: found.start()].split("\n"))


def _by_marks(text: str, key: str) -> tuple[tuple[StoredMessage, ...], str | None]:
    """The messages, oldest first, and the last one of the conversation."""
    branches = f"\n\n{BRANCHES}\n<!-- edgecloud-{key} -->"
    marks = [mark for mark in _MARK.finditer(text) if mark[1] == key]
    ends = [mark.start() - 2 for mark in marks[1:]] + [len(text.removesuffix("\n"))]
    found: dict[int, StoredMessage] = {}
    head = None
    is_beside = False
    for mark, end in zip(marks, ends, strict=True):
        facts, body = json.loads(mark[2]), text[mark.end() : end]
        found[int(facts["id"])] = stored = _stored(facts, body.removesuffix(branches))
        if not is_beside:
            head = stored.id
        is_beside = is_beside or body.endswith(branches)
    return tuple(found[number] for number in sorted(found)), head


def _stored(facts: Mapping[str, Any], body: str) -> StoredMessage:
    status = facts.get("status", "complete")
    if status not in get_args(Status):
        raise ValueError(status)
    body, images = _take_images(body, int(facts.get("images", 0)))
    calls = tuple(ToolCall(**call) for call in facts.get("calls", ()))
    body = body.removesuffix(_calls(calls))
    body, reasoning = _take_reasoning(body, int(facts.get("reasoning", 0)))
    seams = tuple(Seam(int(seam["position"]), str(seam["text"])) for seam in facts.get("seams", ()))
    for seam in sorted(seams, key=lambda seam: seam.position):
        line, place = _seam_line(seam), seam.position
        if body.startswith(line, place):
            body = body[:place] + body[place + len(line) :]
    parent = facts["parent"]
    return StoredMessage(
        id=f"m{facts['id']}",
        parent_id=None if parent is None else f"m{parent}",
        message=Message(
            str(facts["role"]),
            body,
            images=images,
            tool_calls=calls,
            tool_call_id=facts.get("tool_call_id"),
            name=facts.get("name"),
            reasoning=reasoning,
        ),
        status=status,
        created=float(facts["created"]),
        model=str(facts.get("model", "")),
        finish_reason=facts.get("finish_reason"),
        error=facts.get("error"),
        seams=seams,
    )


def _take_images(body: str, count: int) -> tuple[str, tuple[str, ...]]:
    images: list[str] = []
    for number in range(count, 0, -1):
        body, begins, image = body.rpartition(f"\n\n![image {number}](")
        if not begins:
            raise ValueError(number)
        images.append(image.removesuffix(")"))
    return body, tuple(reversed(images))


def _take_reasoning(body: str, num_lines: int) -> tuple[str, str | None]:
    if not num_lines:
        return body, None
    lines = body.split("\n", num_lines + 1)
    return "".join(lines[num_lines + 1 :]), "\n".join(line.removeprefix("> ") for line in lines[:num_lines])


def _by_headings(text: str, title: str, name: str) -> Imported:
    """One conversation without branches, a message a heading."""
    parts: list[tuple[str, list[str]]] = []
    in_fence, private = False, False
    for line in text.replace("\r\n", "\n").split("\n"):
        in_fence ^= line.lstrip().startswith("```")
        if (match := _HEADING.match(line)) and not in_fence:
            parts.append((match[1], []))
        elif parts:
            parts[-1][1].append(line)
        else:
            private = private or line.strip() == PRIVATE_LINE
    if not parts:
        raise BadRequest(f"{name} is not a chat that edgecloud exported: it has no '## user'.")
    messages: list[StoredMessage] = []
    for number, (role, body) in enumerate(parts):
        content, reasoning = _split_reasoning(role, body)
        messages.append(
            StoredMessage(
                id=f"m{number}",
                parent_id=f"m{number - 1}" if number else None,
                message=Message(role, content, reasoning=reasoning),
                status="complete",
                created=time.time(),
            )
        )
    return Imported(title, tuple(messages), messages[-1].id, private)


def _split_reasoning(role: str, body: list[str]) -> tuple[str, str | None]:
    """An answer's text, and the quoted lines before it, which are what the model thought."""
    text = "\n".join(body).strip("\n")
    if role != "assistant" or not text.startswith("> "):
        return text, None
    quoted, _, rest = text.partition("\n\n")
    return rest.strip("\n"), "\n".join(line.removeprefix("> ") for line in quoted.split("\n"))
