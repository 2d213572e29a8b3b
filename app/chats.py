"""What a stored chat looks like, how a message becomes a stored content, and a chat plain JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from edgecloud.shorten import one_line
from edgecloud.types import ChatRequest, Door, Message, ToolCall, new_id

Status = Literal["running", "complete", "interrupted", "failed"]

OWN_DOORS: tuple[Door, ...] = ("chat", "ask")
"""Where a person asks. Through the others come programs, by the hundred."""

ROOT_PATH = b""


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """One line of the list. `status` is the latest answer's; times are seconds since the epoch."""

    id: str
    title: str
    door: str
    model: str
    created: float
    updated: float
    num_messages: int
    status: str


@dataclass(frozen=True, slots=True)
class Seam:
    """Where in an answer's text, after so many characters, something happened that a sentence tells: another
    engine goes on, or answers instead.
    """

    position: int
    text: str


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One node of a chat's tree. The last five are of answers only."""

    id: str
    parent_id: str | None
    message: Message
    status: Status
    created: float
    model: str = ""
    finish_reason: str | None = None
    receipt_id: str | None = None
    error: str | None = None
    seams: tuple[Seam, ...] = ()


@dataclass(frozen=True, slots=True)
class Chat:
    """A whole chat: every node, oldest first, and the ids from the first message to the latest answer.

    A `private` one is pinned to this machine, and so is what it is copied to.
    """

    summary: ChatSummary
    messages: tuple[StoredMessage, ...]
    path: tuple[str, ...]
    private: bool = False

    @property
    def conversation(self) -> tuple[StoredMessage, ...]:
        """The messages that end in the latest answer."""
        by_id = {stored.id: stored for stored in self.messages}
        return tuple(by_id[id] for id in self.path)


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer of the past: its request, who gave it, and the messages that it answered."""

    request_id: str
    chat_id: str
    engine: str
    model: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt being answered: where it is written. `message_ids` has one answer a choice."""

    chat_id: str
    message_ids: tuple[str, ...]


def new_turn(request: ChatRequest) -> Turn:
    """Ids for a request, before anything is written."""
    return Turn(request.chat_id or new_id("chat"), tuple(new_id("msg") for _ in range(request.n)))


@dataclass(frozen=True, slots=True)
class Hit:
    """One message that matches a search, with the words around the match."""

    chat_id: str
    message_id: str
    title: str
    role: str
    excerpt: str
    updated: float


# --------------------------------------------------------------------------------------- stored contents


class Content(NamedTuple):
    """What is stored once however often it is sent: role, text, and the rest of a message as JSON.

    Reasoning is not part of it, since clients do not send it back.
    """

    role: str
    text: str
    extra: str | None

    @classmethod
    def of(cls, message: Message) -> Content:
        extra = {
            "images": message.images,
            "tool_calls": [dataclasses.asdict(call) for call in message.tool_calls],
            "tool_call_id": message.tool_call_id,
            "name": message.name,
        }
        kept = {key: value for key, value in extra.items() if value}
        return cls(storable(message.role), storable(message.content), json.dumps(kept) if kept else None)

    def message(self, reasoning: str | None) -> Message:
        extra = json.loads(self.extra) if self.extra else {}
        return Message(
            self.role,
            self.text,
            images=tuple(extra.get("images", ())),
            tool_calls=tuple(ToolCall(**call) for call in extra.get("tool_calls", ())),
            tool_call_id=extra.get("tool_call_id"),
            name=extra.get("name"),
            reasoning=reasoning,
        )

    @property
    def digest(self) -> bytes:
        # JSON holds no bare newline, so no two contents look the same. The text itself is hashed as it is: an
        # agent's whole history comes by here with every request.
        return hashlib.sha256(f"{json.dumps([self.role, self.extra])}\n{self.text}".encode()).digest()[:16]


def extend_path(path: bytes, digest: bytes) -> bytes:
    """The hash of a conversation with one more content; equal where all contents from the first on are."""
    return hashlib.sha256(path + digest).digest()[:16]


def paths_of(messages: Sequence[Message]) -> list[bytes]:
    """For every message, the path from the first one to it."""
    paths, path = [], ROOT_PATH
    for message in messages:
        path = extend_path(path, Content.of(message).digest)
        paths.append(path)
    return paths


def prompt_of(request: ChatRequest) -> tuple[tuple[Message, ...], str]:
    """The messages to journal, and the beginning of the answer where the caller wrote that too."""
    if request.prompt is not None:
        text = request.prompt if isinstance(request.prompt, str) else json.dumps(request.prompt)
        return (Message("prompt", text),), ""
    last = request.messages[-1] if request.messages else None
    if request.continue_final and last is not None and last.role == "assistant":
        return request.messages[:-1], last.content
    return request.messages, ""


def title_of(prompt: Sequence[Message]) -> str:
    """The first words that are not the system's, on one line of at most 80 characters."""
    spoken = next((message.content for message in prompt if message.role != "system"), "")
    return one_line(storable(spoken[:400]), 80)


def storable(text: str) -> str:
    """SQLite holds UTF-8: a lone surrogate becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


# ----------------------------------------------------------------------------------------------- exports


def as_json(chat: Chat) -> dict[str, Any]:
    """Every message of the chat's tree, with its parent, in plain JSON values."""
    return {"schema_version": 1, **dataclasses.asdict(chat)}
