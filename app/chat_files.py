"""Chats as files: written as Markdown or JSON for nobody else to read, and read back."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from edgecloud.errors import BadRequest
from edgecloud.types import Message, ToolCall

from .chats import PRIVATE_LINE, Chat, Seam, Status, StoredMessage, as_json, as_markdown
from .pins import with_pin

MAX_BYTES = 256 * 2**20

_HEADING = re.compile(r"^## (system|user|assistant|tool)(?: \(.*\))?$")


class Imported(NamedTuple):
    """A chat out of a file: `head` is the message that it opens on, `private` whether it is pinned to this
    machine; False too where the file does not say.
    """

    title: str
    messages: tuple[StoredMessage, ...]
    head: str | None
    private: bool = False


def default_name(chat: Chat) -> str:
    """A file name for a chat: the first words of its title."""
    words = re.sub(r"[^\w]+", "-", chat.summary.title.lower()).strip("-")[:40].strip("-")
    return f"{words or 'chat'}.md"


def export_chat(chat: Chat, name: str) -> Path:
    """Write a chat to a new file: JSON with the whole tree for `.json`, else the conversation as Markdown.

    Returns where it is. Raises `BadRequest`; never writes over a file.
    """
    chat = with_pin(chat)
    path = Path(name).expanduser()
    is_json = path.suffix == ".json"
    write_private(path, json.dumps(as_json(chat), indent=2) + "\n" if is_json else as_markdown(chat))
    return path


def import_chat(name: str) -> Imported:
    """A chat from a file that `export_chat` wrote.

    Markdown has one conversation and no branches. Raises `BadRequest` for what is neither.
    """
    path = Path(name).expanduser()
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadRequest(f"{path.name} is larger than {MAX_BYTES // 2**20} MiB, which no chat is.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"{path.name} is not a chat: it is not UTF-8 text.") from error
    return _from_json(text, path.name) if path.suffix == ".json" else _from_markdown(text, path)


def write_private(path: Path, text: str) -> None:
    """A new file that only its owner can read. Raises `BadRequest`; never writes over a file."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror or error}.") from error


def _from_json(text: str, name: str) -> Imported:
    try:
        chat = json.loads(text)
        if chat["schema_version"] != 1:
            raise BadRequest(f"{name} was written by a later edgecloud: update this one.")
        messages = tuple(_stored(row) for row in chat["messages"])
        path = chat["path"]
        # Whatever it says but no: privacy was meant.
        private = bool(chat.get("private", False))
        return Imported(str(chat["summary"]["title"]), messages, path[-1] if path else None, private)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(f"{name} is not a chat that edgecloud exported as JSON.") from error


def _stored(row: Mapping[str, Any]) -> StoredMessage:
    message = row["message"]
    if row["status"] not in get_args(Status):
        raise ValueError(row["status"])
    return StoredMessage(
        id=str(row["id"]),
        parent_id=row["parent_id"],
        message=Message(
            str(message["role"]),
            str(message["content"]),
            images=tuple(map(str, message.get("images", ()))),
            tool_calls=tuple(ToolCall(**call) for call in message.get("tool_calls", ())),
            tool_call_id=message.get("tool_call_id"),
            name=message.get("name"),
            reasoning=message.get("reasoning"),
        ),
        status=row["status"],
        created=float(row["created"]),
        model=str(row.get("model", "")),
        finish_reason=row.get("finish_reason"),
        receipt_id=None,
        error=row.get("error"),
        seams=tuple(Seam(int(seam["position"]), str(seam["text"])) for seam in row.get("seams", ())),
    )


def _from_markdown(text: str, path: Path) -> Imported:
    lines = text.splitlines()
    title = lines[0].removeprefix("# ").strip() if lines and lines[0].startswith("# ") else path.stem
    parts: list[tuple[str, list[str]]] = []
    in_fence, private = False, False
    for line in lines:
        in_fence ^= line.lstrip().startswith("```")
        if (match := _HEADING.match(line)) and not in_fence:
            parts.append((match[1], []))
        elif parts:
            parts[-1][1].append(line)
        else:
            private = private or line.strip() == PRIVATE_LINE
    if not parts:
        raise BadRequest(f"{path.name} is not a chat that edgecloud exported: it has no '## user'.")
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
    return rest.strip("\n"), "\n".join(line.removeprefix("> ") for line in quoted.splitlines())
