"""Chats as files: written as Markdown or JSON for nobody else to read, and read back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from edgecloud.errors import BadRequest
from edgecloud.folders import expanded
from edgecloud.types import Message, ToolCall

from .chat_markdown import Imported, as_markdown_file, from_markdown
from .chats import Chat, Seam, Status, StoredMessage, as_json
from .pins import with_pin
from .text_files import write_private

MAX_BYTES = 256 * 2**20


def default_name(chat: Chat) -> str:
    """A file name for a chat: the first words of its title."""
    words = re.sub(r"[^\w]+", "-", chat.summary.title.lower()).strip("-")[:40].strip("-")
    return f"{words or 'chat'}.md"


def export_chat(chat: Chat, name: str) -> Path:
    """Write a chat with its whole tree to a new file: as JSON for `.json`, else as Markdown.

    Returns where it is. Raises `BadRequest`; never writes over a file.
    """
    chat = with_pin(chat)
    path = expanded(name)
    is_json = path.suffix == ".json"
    write_private(path, json.dumps(as_json(chat), indent=2) + "\n" if is_json else as_markdown_file(chat))
    return path


def import_chat(name: str) -> Imported:
    """A chat from a file that `export_chat` wrote, or from Markdown with a heading, `## user` or
    `## assistant`, over each message. Raises `BadRequest` for what is neither.
    """
    path = expanded(name)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadRequest(f"{path.name} is larger than {MAX_BYTES // 2**20} MiB, which no chat is.")
        text = path.read_bytes().decode("utf-8")  # line ends as they are: they may be part of what was said
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"{path.name} is not a chat: it is not UTF-8 text.") from error
    return _from_json(text, path.name) if path.suffix == ".json" else from_markdown(text, path.name)


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
