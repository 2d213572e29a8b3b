"""Reading chats: the list, one whole chat, the chat that a name or 'the last one' means, and receipts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from edgecloud.errors import NotFound
from edgecloud.storage import marks
from edgecloud.types import Message

from ..chats import Asked, Chat, ChatSummary, Content, Status, StoredMessage
from .organizing import notes
from .tables import read_slices, unpack_seams

MIN_PREFIX = 4
"""Digits that the beginning of a chat's id must have to stand for it."""


def last_chat(connection: sqlite3.Connection, doors: Sequence[str]) -> str | None:
    row: tuple[str] | None = connection.execute(
        f"SELECT id FROM chats WHERE door IN ({marks(doors)}) ORDER BY updated DESC, id LIMIT 1",
        tuple(doors),
    ).fetchone()
    return row[0] if row else None


def recent(
    connection: sqlite3.Connection, doors: Sequence[str], limit: int, offset: int
) -> tuple[ChatSummary, ...]:
    """The chats last used; of all doors where none is named."""
    only = f"WHERE door IN ({marks(doors)})" if doors else ""
    rest = f"{only} ORDER BY updated DESC, id LIMIT ? OFFSET ?"
    return summaries(connection, rest, (*doors, limit, offset))


def summaries(
    connection: sqlite3.Connection, rest: str, arguments: tuple[object, ...]
) -> tuple[ChatSummary, ...]:
    """The chats that `rest` (what follows FROM chats) selects, each with who gave its latest answer."""
    rows = connection.execute(
        f"""SELECT id, title, door,
                   coalesce((SELECT nullif(model, '') FROM messages WHERE id = chats.head), model),
                   created, updated,
                   (SELECT count(*) FROM messages WHERE chat_id = chats.id),
                   coalesce((SELECT status FROM messages WHERE id = chats.head), '')
            FROM chats {rest}""",
        arguments,
    )
    return tuple(ChatSummary(*row) for row in rows)


def resolve(connection: sqlite3.Connection, name: str) -> str:
    """The chat that `name` means: an id or its unique beginning, with or without `chat-`.

    Raises `NotFound`, also for a beginning of under four digits, which could be anybody's.
    """
    stem = "chat-" + name.removeprefix("chat-")
    if len(stem) < len("chat-") + MIN_PREFIX:
        raise NotFound(f"{name[:80]!r} names no chat: give at least {MIN_PREFIX} digits of its id.")
    rows = connection.execute(
        "SELECT id FROM chats WHERE id = ? OR substr(id, 1, ?) = ?", (name, len(stem), stem)
    ).fetchall()
    ids = [id for (id,) in rows]
    if name in ids or len(ids) == 1:
        return name if name in ids else ids[0]
    if ids:
        raise NotFound(f"{len(ids)} chats begin with {name[:80]!r}: give more of the id.")
    raise _no_such_chat(name)


def show(connection: sqlite3.Connection, chat_id: str) -> Chat:
    """Everything in one chat. Raises `NotFound`."""
    found = summaries(connection, "WHERE id = ?", (chat_id,))
    if not found:
        raise _no_such_chat(chat_id)
    rows = connection.execute(
        """SELECT messages.id, parent_id, status, created, model, finish_reason, receipt_id, error,
                  seams, reasoning, role, text, extra
           FROM messages LEFT JOIN contents ON contents.id = content_id
           WHERE chat_id = ? ORDER BY number""",
        (chat_id,),
    ).fetchall()
    messages = tuple(_stored_message(connection, *row) for row in rows)
    (head,) = connection.execute("SELECT head FROM chats WHERE id = ?", (chat_id,)).fetchone()
    parents = {stored.id: stored.parent_id for stored in messages}
    path: list[str] = []
    while head is not None:
        path.append(head)
        head = parents[head]
    private = bool(notes(connection, chat_id).get("private"))
    return Chat(found[0], messages, tuple(reversed(path)), private)


def asked(connection: sqlite3.Connection, name: str) -> Asked | None:
    """What an answer, by its own id or its request's, was an answer to; None where it is not known."""
    row = connection.execute(
        """SELECT messages.id, messages.chat_id, receipt_id, json FROM messages
           JOIN receipts ON receipts.id = receipt_id WHERE messages.id = ?
              OR messages.chat_id = (SELECT chat_id FROM receipts WHERE id = ?) AND receipt_id = ? LIMIT 1""",
        (name, name, name),
    ).fetchone()
    if row is None:
        return None
    message_id, chat_id, request_id, receipt = row
    by_id = {stored.id: stored for stored in show(connection, chat_id).messages}
    path: list[Message] = []
    parent = by_id[message_id].parent_id
    while parent is not None:
        path.append(by_id[parent].message)
        parent = by_id[parent].parent_id
    known = json.loads(receipt)
    return Asked(request_id, chat_id, known["engine"], known["model"], tuple(reversed(path)))


def decision(connection: sqlite3.Connection, receipt_id: str) -> Mapping[str, Any] | None:
    """The receipt of an answer as it was stored, with its `chat_id`."""
    row = connection.execute("SELECT json, chat_id FROM receipts WHERE id = ?", (receipt_id,)).fetchone()
    return {**json.loads(row[0]), "chat_id": row[1]} if row else None


def _no_such_chat(name: str) -> NotFound:
    return NotFound(f"There is no chat {name[:80]!r}; `edgecloud history list` shows them.")


def _stored_message(
    connection: sqlite3.Connection,
    id: str,
    parent_id: str | None,
    status: Status,
    created: float,
    model: str,
    finish_reason: str | None,
    receipt_id: str | None,
    error: str | None,
    seams: str | None,
    reasoning: str | None,
    role: str | None,
    text: str | None,
    extra: str | None,
) -> StoredMessage:
    if status == "running":
        text, reasoning = read_slices(connection, id)
    message = Content(role or "assistant", text or "", extra).message(reasoning or None)
    return StoredMessage(
        id, parent_id, message, status, created, model, finish_reason, receipt_id, error, unpack_seams(seams)
    )
