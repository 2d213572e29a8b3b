"""Writing one turn: its prompt before any work, the answer while it streams, its end, and what crashes left.

Each function is part of a transaction that its caller began.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from edgecloud.owner import Owner
from edgecloud.storage import marks
from edgecloud.types import ChatRequest, Message, Receipt, ToolCall, new_id

from ..chats import ROOT_PATH, Seam, Status, Turn, extend_path, paths_of, prompt_of, storable, title_of
from .organizing import pin
from .removing import was_removed
from .tables import drop_content, pack_seams, read_slices, store_content, store_slice

HEARTBEAT_STALE_S = 15.0
"""Where a process id may have been used again, an answer without a heartbeat for this long is given up."""


def begin(connection: sqlite3.Connection, request: ChatRequest, turn: Turn, owner: Owner, now: float) -> Turn:
    """Write what of the prompt is new, and one running answer a choice that belongs to `owner`, with the ids
    of `turn`, but in the chat that the request goes on with, if it does.

    Where that chat was removed since the request was put together, only its last question is written: what a
    person removed does not come back with the next prompt.
    """
    prompt, prefill = prompt_of(request)
    if _was_removed(connection, request):
        prompt, prefill = _last_question(prompt), ""
    chat_id, parent_id, path, num_known = _place(connection, request, prompt, turn.chat_id, now)
    for message in prompt[num_known:]:
        content_id, digest = store_content(connection, message)
        path = extend_path(path, digest)
        message_id = new_id("msg")
        connection.execute(
            """INSERT INTO messages
               (id, chat_id, parent_id, path, content_id, reasoning, status, created, updated)
               VALUES (?, ?, ?, ?, ?, ?, 'complete', ?, ?)""",
            (message_id, chat_id, parent_id, path, content_id, message.reasoning, now, now),
        )
        parent_id = message_id
    for answer in turn.message_ids:
        connection.execute(
            """INSERT INTO messages
               (id, chat_id, parent_id, status, created, updated, model, owner_pid, owner_started)
               VALUES (?, ?, ?, 'running', ?, ?, ?, ?, ?)""",
            (answer, chat_id, parent_id, now, now, request.model, *owner),
        )
        if prefill:
            store_slice(connection, answer, prefill)
    connection.execute(
        "UPDATE chats SET updated = ?, head = ?, model = ? WHERE id = ?",
        (now, turn.message_ids[0], request.model, chat_id),
    )
    if request.private:
        pin(connection, chat_id)
    return dataclasses.replace(turn, chat_id=chat_id)


def chat_of(connection: sqlite3.Connection, request: ChatRequest) -> str | None:
    """The chat that `begin` would write the request to; None where it would make one."""
    if request.chat_id is not None:
        return request.chat_id
    prompt, _ = prompt_of(request)
    found = _known(connection, request, prompt, paths_of(prompt))
    return found[0] if found else None


def append(connection: sqlite3.Connection, message_id: str, text: str, reasoning: str, now: float) -> None:
    """Keep a slice of a running answer; of one that was removed meanwhile, nothing."""
    if touch(connection, message_id, now):
        store_slice(connection, message_id, text, reasoning)


def touch(connection: sqlite3.Connection, message_id: str, now: float) -> bool:
    """Renew the heartbeat of a running answer; False if it is gone."""
    return connection.execute("UPDATE messages SET updated = ? WHERE id = ?", (now, message_id)).rowcount > 0


def finish(
    connection: sqlite3.Connection,
    turn: Turn,
    receipt: Receipt | None,
    reasons: Mapping[int, str],
    tool_calls: Mapping[int, Sequence[ToolCall]],
    status: Status,
    error: str | None,
    now: float,
    seams: Sequence[Seam] = (),
    rest: Mapping[int, tuple[str, str]] = MappingProxyType({}),
) -> None:
    """End the running answers: fold the slices of each and the `rest` of it (text and reasoning) into one
    content, and keep the receipt. `seams` are the first choice's, as what is continued has no other.
    """
    if not connection.execute("SELECT 1 FROM chats WHERE id = ?", (turn.chat_id,)).fetchone():
        return  # removed by the user while it was being answered
    for index, message_id in enumerate(turn.message_ids):
        calls = tuple(tool_calls.get(index, ()))
        _end(connection, message_id, status, error, now, calls, rest.get(index, ("", "")))
        connection.execute(
            """UPDATE messages SET finish_reason = ?, seams = ifnull(?, seams),
               receipt_id = ifnull(?, receipt_id), model = ifnull(?, model) WHERE id = ?""",
            (
                reasons.get(index),
                pack_seams(seams) if index == 0 else None,
                receipt.id if receipt is not None else None,
                receipt.model if receipt is not None else None,
                message_id,
            ),
        )
    if receipt is not None:
        connection.execute(
            "INSERT OR REPLACE INTO receipts (id, chat_id, created, json) VALUES (?, ?, ?, ?)",
            (receipt.id, turn.chat_id, now, json.dumps(dataclasses.asdict(receipt))),
        )


def recover(connection: sqlite3.Connection, now: float) -> int:
    """Keep what dead processes had written and mark it interrupted; returns how many answers."""
    running = connection.execute(
        "SELECT id, updated, owner_pid, owner_started FROM messages WHERE status = 'running'"
    ).fetchall()
    orphans = [id for id, updated, *owner in running if _is_orphan(Owner(*owner), now - updated)]
    for message_id in orphans:
        _end(connection, message_id, "interrupted", "The program ended while it was answering.", now)
    return len(orphans)


def _is_orphan(owner: Owner, silence_s: float) -> bool:
    state = owner.state()
    return state == "dead" or (state == "unsure" and silence_s > HEARTBEAT_STALE_S)


def _end(
    connection: sqlite3.Connection,
    message_id: str,
    status: Status,
    error: str | None,
    now: float,
    tool_calls: tuple[ToolCall, ...] = (),
    rest: tuple[str, str] = ("", ""),
) -> None:
    parent_path, earlier_id, earlier_text, earlier_reasoning = connection.execute(
        """SELECT parents.path, contents.id, contents.text, messages.reasoning FROM messages
           LEFT JOIN messages parents ON parents.id = messages.parent_id
           LEFT JOIN contents ON contents.id = messages.content_id WHERE messages.id = ?""",
        (message_id,),
    ).fetchone()
    # An answer that `recover` took too early already has a content; what came after is added to it.
    text, reasoning = read_slices(connection, message_id)
    text = (earlier_text or "") + text + rest[0]
    reasoning = (earlier_reasoning or "") + reasoning + storable(rest[1])
    content_id, digest = store_content(connection, Message("assistant", text, tool_calls=tool_calls))
    path = extend_path(parent_path or ROOT_PATH, digest)
    connection.execute(
        """UPDATE messages SET path = ?, content_id = ?, reasoning = ?, status = ?, error = ?,
           updated = ?, owner_pid = NULL, owner_started = NULL WHERE id = ?""",
        (path, content_id, reasoning or None, status, error, now, message_id),
    )
    connection.execute("DELETE FROM slices WHERE message_id = ?", (message_id,))
    if earlier_id is not None:
        drop_content(connection, earlier_id)


# ------------------------------------------------------------------------------------ where a prompt belongs


def _place(
    connection: sqlite3.Connection,
    request: ChatRequest,
    prompt: Sequence[Message],
    new_chat_id: str,
    now: float,
) -> tuple[str, str | None, bytes, int]:
    """The prompt's chat (made if need be), the message it hangs under, that one's path, and how many messages
    of the prompt are already there.
    """
    paths = paths_of(prompt)
    found = _known(connection, request, prompt, paths)
    if found:
        chat_id, parent_id, num_known = found
        return chat_id, parent_id, paths[num_known - 1], num_known
    connection.execute(
        """INSERT OR IGNORE INTO chats (id, title, door, tenant, model, created, updated)
           VALUES (?, ?, ?, ?, ?, ?, ?)""",
        (new_chat_id, title_of(prompt), request.door, request.tenant, request.model, now, now),
    )
    return new_chat_id, None, ROOT_PATH, 0


def _was_removed(connection: sqlite3.Connection, request: ChatRequest) -> bool:
    """Whether the request goes on from a kept message of a chat that is there no more."""
    if request.chat_id is None or request.parent_id is None:
        return False
    return was_removed(connection, request.chat_id)


def _last_question(prompt: Sequence[Message]) -> tuple[Message, ...]:
    """What a chat begins with that was the end of another: its system prompt, and what is asked now."""
    asked = [place for place, message in enumerate(prompt) if message.role == "user"][-1:] or [0]
    return (
        *(message for message in prompt[: asked[0]] if message.role == "system"),
        *prompt[asked[0] :],
    )


def _known(
    connection: sqlite3.Connection, request: ChatRequest, prompt: Sequence[Message], paths: Sequence[bytes]
) -> tuple[str, str, int] | None:
    """As `_longest_prefix`; None where that is no conversation yet."""
    found = _longest_prefix(connection, request, paths)
    # A shared system prompt alone doesn't make two conversations one.
    if found and (request.chat_id or any(message.role != "system" for message in prompt[: found[2]])):
        return found
    return None


def _longest_prefix(
    connection: sqlite3.Connection, request: ChatRequest, paths: Sequence[bytes]
) -> tuple[str, str, int] | None:
    """The chat and message that end the longest known prefix, and its length; of equals the latest."""
    arguments: list[str | None]
    if request.chat_id is not None:
        where, arguments = "chats.id = ?", [request.chat_id]
    elif request.door in ("ask", "chat"):
        return None  # these doors say which chat they continue
    else:
        where, arguments = "chats.door = ? AND chats.tenant IS ?", [request.door, request.tenant]
    depths = {path: depth for depth, path in enumerate(paths, start=1)}
    # From the deep end, a bounded number of paths a query: nearly always the first one finds it.
    for end in range(len(paths), 0, -200):
        chunk = paths[max(0, end - 200) : end]
        rows = connection.execute(
            f"""SELECT messages.chat_id, messages.id, path, chats.updated, number
                FROM messages JOIN chats ON chats.id = chat_id
                WHERE path IN ({marks(chunk)}) AND {where}""",
            [*chunk, *arguments],
        ).fetchall()
        if rows:
            best = max(rows, key=lambda row: (depths[row[2]], row[1] == request.parent_id, row[3], row[4]))
            return best[0], best[1], depths[best[2]]
    return None
