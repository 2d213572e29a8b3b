"""Keeping chats in order: names, notes, what was read, which branch is shown, copies and imports.

Each function is part of a transaction that its caller began.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from edgecloud.errors import BadRequest, NotFound
from edgecloud.types import new_id

from ..chats import ROOT_PATH, StoredMessage, extend_path
from .tables import pack_seams, store_content

MAX_TITLE = 200


def rename(connection: sqlite3.Connection, chat_id: str, title: str) -> None:
    """Give a chat another title. Raises `BadRequest` for an empty one, `NotFound`."""
    title = " ".join(title.split())[:MAX_TITLE]
    if not title:
        raise BadRequest("A chat needs a title.")
    changed = connection.execute("UPDATE chats SET title = ? WHERE id = ?", (title, chat_id)).rowcount
    if not changed:
        raise NotFound(f"There is no chat {chat_id[:80]!r} any more.")


def show_branch(connection: sqlite3.Connection, chat_id: str, message_id: str) -> None:
    """Let the chat open on the branch that ends in this message; nothing if either is gone."""
    connection.execute(
        """UPDATE chats SET head = ? WHERE id = ? AND EXISTS
           (SELECT 1 FROM messages WHERE id = ? AND chat_id = chats.id)""",
        (message_id, chat_id, message_id),
    )


def notes(connection: sqlite3.Connection, chat_id: str) -> Mapping[str, Any]:
    """What was noted about a chat: its system prompt, parameters, pins; empty if nothing was."""
    row = connection.execute("SELECT json FROM chat_notes WHERE chat_id = ?", (chat_id,)).fetchone()
    found = json.loads(row[0]) if row else {}
    return found if isinstance(found, dict) else {}


def set_notes(connection: sqlite3.Connection, chat_id: str, values: Mapping[str, Any]) -> bool:
    """Note these instead of what was noted; nothing, and False, if there is no such chat."""
    done = connection.execute(
        """INSERT INTO chat_notes (chat_id, json) SELECT id, ? FROM chats WHERE id = ?
           ON CONFLICT (chat_id) DO UPDATE SET json = excluded.json""",
        (json.dumps(values), chat_id),
    )
    return done.rowcount > 0


def pin(connection: sqlite3.Connection, chat_id: str) -> None:
    """Note that the chat stays on this machine, whichever door said so."""
    noted = notes(connection, chat_id)
    if not noted.get("private"):
        set_notes(connection, chat_id, {**noted, "private": True})


def mark_read(connection: sqlite3.Connection, chat_id: str, now: float) -> None:
    connection.execute(
        """INSERT INTO chat_notes (chat_id, json, read) SELECT id, '{}', ? FROM chats WHERE id = ?
           ON CONFLICT (chat_id) DO UPDATE SET read = excluded.read""",
        (now, chat_id),
    )


def unread(connection: sqlite3.Connection) -> frozenset[str]:
    """Chats that were read once and have something new since. What other programs asked is not news."""
    rows = connection.execute(
        "SELECT id FROM chats JOIN chat_notes ON chat_id = id WHERE read IS NOT NULL AND updated > read"
    )
    return frozenset(id for (id,) in rows)


def prompts(connection: sqlite3.Connection, limit: int) -> tuple[str, ...]:
    """What a person asked last, oldest first, each text once."""
    rows = connection.execute(
        """SELECT text FROM messages JOIN contents ON contents.id = content_id
           JOIN chats ON chats.id = chat_id
           WHERE role = 'user' AND door IN ('ask', 'chat')
           GROUP BY content_id ORDER BY max(number) DESC LIMIT ?""",
        (limit,),
    ).fetchall()
    return tuple(text for (text,) in reversed(rows))


def receipts(connection: sqlite3.Connection, chat_id: str) -> Mapping[str, Mapping[str, Any]]:
    """The receipts of a chat's answers by id, as they were stored."""
    rows = connection.execute("SELECT id, json FROM receipts WHERE chat_id = ?", (chat_id,))
    return {id: json.loads(text) for id, text in rows}


def insert(
    connection: sqlite3.Connection,
    title: str,
    messages: Sequence[StoredMessage],
    head: str | None,
    now: float,
    receipts: Mapping[str, Mapping[str, Any]],
    *,
    private: bool = False,
) -> str:
    """A new chat of these messages, parents before their children, under new ids; returns the chat's.

    `head` is the old id of the message that it opens on. Raises `BadRequest` for a message whose parent does
    not come before it.
    """
    chat_id = new_id("chat")
    model = next((stored.model for stored in reversed(messages) if stored.model), "auto")
    connection.execute(
        "INSERT INTO chats (id, title, door, model, created, updated) VALUES (?, ?, 'chat', ?, ?, ?)",
        (chat_id, title[:MAX_TITLE], model, now, now),
    )
    new_receipts = {id: new_id("req") for id in receipts}
    for id, receipt in receipts.items():
        connection.execute(
            "INSERT INTO receipts (id, chat_id, created, json) VALUES (?, ?, ?, ?)",
            (new_receipts[id], chat_id, now, json.dumps({**receipt, "id": new_receipts[id]})),
        )
    paths: dict[str, tuple[str, bytes]] = {}
    for stored in messages:
        if stored.parent_id is not None and stored.parent_id not in paths:
            raise BadRequest("The chat cannot be read: a message comes before the one it answers.")
        parent_id, parent_path = paths.get(stored.parent_id or "", (None, ROOT_PATH))
        content_id, digest = store_content(connection, stored.message)
        message_id, path = new_id("msg"), extend_path(parent_path, digest)
        # What still runs belongs to its own chat: the copy has what was there by now.
        status = "interrupted" if stored.status == "running" else stored.status
        connection.execute(
            """INSERT INTO messages
               (id, chat_id, parent_id, path, content_id, reasoning, status, created, updated, model,
                finish_reason, error, receipt_id, seams)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (
                message_id, chat_id, parent_id, path, content_id, stored.message.reasoning, status,
                stored.created, now, stored.model, stored.finish_reason, stored.error,
                new_receipts.get(stored.receipt_id or ""), pack_seams(stored.seams),
            ),
        )  # fmt: skip
        paths[stored.id] = message_id, path
    if head is not None and head in paths:
        connection.execute("UPDATE chats SET head = ? WHERE id = ?", (paths[head][0], chat_id))
    if private:
        pin(connection, chat_id)
    return chat_id
