"""What was asked and answered: chats as trees of messages, in `edgecloud.db`.

    chats ──< messages (a tree: parent) >── contents (each text once, by hash)
                 └──< slices: the answer as it streams, folded into `contents` at its end

A message knows the hash of its whole path, so a request that carries its history again (an agent, a web page)
finds the chat it continues by its longest known prefix, and only what is new is written. An answer being
written belongs to a process; if that dies, the next one to `recover` keeps the partial and marks it
interrupted. The full-text index is brought up to date when somebody searches: asking never waits for it.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgecloud.errors import NotFound
from edgecloud.storage import (
    Migration,
    Owner,
    open_database,
    storage_errors,
    this_process,
    transaction,
    truncate_wal,
)
from edgecloud.types import ChatRequest, Message, Receipt, ToolCall, new_id

from .chats import (
    ROOT_PATH,
    Chat,
    ChatSummary,
    Content,
    Hit,
    Status,
    StoredMessage,
    extend_path,
    paths_of,
    prompt_of,
    storable,
    title_of,
)

HEARTBEAT_STALE_S = 15.0
"""Where a process id may have been used again, an answer without a heartbeat for this long is given up."""

MIN_PREFIX = 4
"""Digits that the beginning of a chat's id must have to stand for it."""

_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt being answered: where it is written. `message_ids` has one answer a choice."""

    chat_id: str
    message_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    """`purged` is False while another process keeps old pages readable; the next `recover` tries again."""

    num_chats: int
    num_messages: int
    purged: bool


def create_history(connection: sqlite3.Connection) -> None:
    for statement in (
        """CREATE TABLE chats (
            id TEXT PRIMARY KEY, title TEXT NOT NULL, door TEXT NOT NULL, tenant TEXT, model TEXT NOT NULL,
            created REAL NOT NULL, updated REAL NOT NULL, head TEXT) WITHOUT ROWID""",
        "CREATE INDEX chats_by_update ON chats (updated)",
        # Ids are never used again: the full-text index knows by the highest one how far it has come.
        """CREATE TABLE contents (
            id INTEGER PRIMARY KEY AUTOINCREMENT, hash BLOB NOT NULL UNIQUE,
            role TEXT NOT NULL, text TEXT NOT NULL, extra TEXT)""",
        """CREATE TABLE messages (
            number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
            chat_id TEXT NOT NULL REFERENCES chats ON DELETE CASCADE,
            parent_id TEXT, path BLOB, content_id INTEGER REFERENCES contents, reasoning TEXT,
            status TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
            model TEXT NOT NULL DEFAULT '', finish_reason TEXT, error TEXT, receipt_id TEXT,
            owner_pid INTEGER, owner_started REAL)""",
        "CREATE INDEX messages_by_chat ON messages (chat_id)",
        "CREATE INDEX messages_by_path ON messages (path)",
        "CREATE INDEX messages_by_content ON messages (content_id)",
        "CREATE INDEX messages_running ON messages (status) WHERE status = 'running'",
        """CREATE TABLE slices (
            number INTEGER PRIMARY KEY, message_id TEXT NOT NULL,
            text TEXT NOT NULL, reasoning TEXT NOT NULL)""",
        "CREATE INDEX slices_by_message ON slices (message_id)",
        """CREATE TABLE receipts (
            id TEXT PRIMARY KEY, chat_id TEXT NOT NULL REFERENCES chats ON DELETE CASCADE,
            created REAL NOT NULL, json TEXT NOT NULL) WITHOUT ROWID""",
        "CREATE INDEX receipts_by_chat ON receipts (chat_id)",
        "CREATE TABLE history_state (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    ):
        connection.execute(statement)


MIGRATIONS: Sequence[Migration] = (create_history,)


class History:
    """The history in one database file. Methods may be called from any thread; all raise `StorageError`."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._name = path.name
        self._path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._owner = this_process()
        self._connection = open_database(path, MIGRATIONS)
        self._file = _identity(path)

    def is_in_place(self) -> bool:
        """Whether the path still names the file that is open here."""
        return _identity(self._path) == self._file

    def close(self) -> None:
        with self._reading() as connection:
            connection.close()

    # ------------------------------------------------------------------------------- writing an answer

    def begin(self, request: ChatRequest) -> Turn:
        """Write the prompt, and one running answer a choice, before any work is done for it."""
        prompt, prefill = prompt_of(request)
        now = self._clock()
        with self._writing() as connection:
            chat_id, parent_id, path, num_known = self._place(connection, request, prompt, now)
            for message in prompt[num_known:]:
                content_id, digest = _store_content(connection, message)
                path = extend_path(path, digest)
                message_id = new_id("msg")
                connection.execute(
                    """INSERT INTO messages
                       (id, chat_id, parent_id, path, content_id, reasoning, status, created, updated)
                       VALUES (?, ?, ?, ?, ?, ?, 'complete', ?, ?)""",
                    (message_id, chat_id, parent_id, path, content_id, message.reasoning, now, now),
                )
                parent_id = message_id
            answers = tuple(new_id("msg") for _ in range(request.n))
            for answer in answers:
                connection.execute(
                    """INSERT INTO messages
                       (id, chat_id, parent_id, status, created, updated, model, owner_pid, owner_started)
                       VALUES (?, ?, ?, 'running', ?, ?, ?, ?, ?)""",
                    (answer, chat_id, parent_id, now, now, request.model, *self._owner),
                )
                if prefill:
                    _store_slice(connection, answer, prefill)
            connection.execute(
                "UPDATE chats SET updated = ?, head = ?, model = ? WHERE id = ?",
                (now, answers[0], request.model, chat_id),
            )
        return Turn(chat_id, answers)

    def append(self, turn: Turn, index: int, text: str, reasoning: str = "") -> None:
        """Keep a slice of a running answer; of one that was removed meanwhile, nothing."""
        message_id = turn.message_ids[index]
        with self._writing() as connection:
            if self._touch(connection, message_id):
                _store_slice(connection, message_id, text, reasoning)

    def heartbeat(self, turn: Turn) -> None:
        """Say that the running answers are still worked on."""
        with self._writing() as connection:
            for message_id in turn.message_ids:
                self._touch(connection, message_id)

    def finish(
        self,
        turn: Turn,
        receipt: Receipt | None,
        reasons: Mapping[int, str],
        tool_calls: Mapping[int, Sequence[ToolCall]],
        status: Literal["complete", "interrupted", "failed"],
        error: str | None = None,
    ) -> None:
        """End the running answers: fold the slices of each into one content, and keep the receipt."""
        with self._writing() as connection:
            if not connection.execute("SELECT 1 FROM chats WHERE id = ?", (turn.chat_id,)).fetchone():
                return  # removed by the user while it was being answered
            for index, message_id in enumerate(turn.message_ids):
                self._end(connection, message_id, status, error, tuple(tool_calls.get(index, ())))
                connection.execute(
                    "UPDATE messages SET finish_reason = ? WHERE id = ?", (reasons.get(index), message_id)
                )
                if receipt is not None:
                    connection.execute(
                        "UPDATE messages SET receipt_id = ?, model = ? WHERE id = ?",
                        (receipt.id, receipt.model, message_id),
                    )
            if receipt is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO receipts (id, chat_id, created, json) VALUES (?, ?, ?, ?)",
                    (receipt.id, turn.chat_id, self._clock(), json.dumps(dataclasses.asdict(receipt))),
                )

    def recover(self) -> int:
        """Keep what dead processes had written and mark it interrupted; finish a purge that was blocked.

        Returns how many answers were recovered. One taken from a live process by mistake is set right when
        that finishes it.
        """
        with self._writing() as connection:
            running = connection.execute(
                "SELECT id, updated, owner_pid, owner_started FROM messages WHERE status = 'running'"
            ).fetchall()
            orphans = [id for id, updated, *owner in running if self._is_orphan(Owner(*owner), updated)]
            for message_id in orphans:
                error = "The program ended while it was answering."
                self._end(connection, message_id, "interrupted", error)
        with self._reading() as connection:
            if _get_state(connection, "purge_pending"):
                self._purge()
        return len(orphans)

    def _is_orphan(self, owner: Owner, updated: float) -> bool:
        state = owner.state()
        stale = self._clock() - updated > HEARTBEAT_STALE_S
        return state == "dead" or (state == "unsure" and stale)

    def _touch(self, connection: sqlite3.Connection, message_id: str) -> bool:
        """Renew the heartbeat; False if the message is gone."""
        cursor = connection.execute(
            "UPDATE messages SET updated = ? WHERE id = ?", (self._clock(), message_id)
        )
        return cursor.rowcount > 0

    def _end(
        self,
        connection: sqlite3.Connection,
        message_id: str,
        status: Status,
        error: str | None,
        tool_calls: tuple[ToolCall, ...] = (),
    ) -> None:
        parent_path, earlier_id, earlier_text, earlier_reasoning = connection.execute(
            """SELECT parents.path, contents.id, contents.text, messages.reasoning FROM messages
               LEFT JOIN messages parents ON parents.id = messages.parent_id
               LEFT JOIN contents ON contents.id = messages.content_id WHERE messages.id = ?""",
            (message_id,),
        ).fetchone()
        # An answer that `recover` took too early already has a content; what came after is added to it.
        text, reasoning = _read_slices(connection, message_id)
        text = (earlier_text or "") + text
        reasoning = (earlier_reasoning or "") + reasoning
        content_id, digest = _store_content(connection, Message("assistant", text, tool_calls=tool_calls))
        connection.execute(
            """UPDATE messages SET path = ?, content_id = ?, reasoning = ?, status = ?, error = ?,
               updated = ?, owner_pid = NULL, owner_started = NULL WHERE id = ?""",
            (
                extend_path(parent_path or ROOT_PATH, digest),
                content_id,
                reasoning or None,
                status,
                error,
                self._clock(),
                message_id,
            ),
        )
        connection.execute("DELETE FROM slices WHERE message_id = ?", (message_id,))
        if earlier_id is not None:
            _drop_content(connection, earlier_id)

    def _place(
        self, connection: sqlite3.Connection, request: ChatRequest, prompt: Sequence[Message], now: float
    ) -> tuple[str, str | None, bytes, int]:
        """Where the prompt belongs: its chat (made if need be), the message it hangs under, that one's path,
        and how many messages of the prompt are already there."""
        paths = paths_of(prompt)
        found = _longest_prefix(connection, request, paths)
        # A shared system prompt alone doesn't make two conversations one.
        if found and (request.chat_id or any(message.role != "system" for message in prompt[: found[2]])):
            chat_id, parent_id, num_known = found
            return chat_id, parent_id, paths[num_known - 1], num_known
        chat_id = request.chat_id or new_id("chat")
        connection.execute(
            """INSERT OR IGNORE INTO chats (id, title, door, tenant, model, created, updated)
               VALUES (?, ?, ?, ?, ?, ?, ?)""",
            (chat_id, title_of(prompt), request.door, request.tenant, request.model, now, now),
        )
        return chat_id, None, ROOT_PATH, 0

    # ----------------------------------------------------------------------------------------- reading

    def last_chat(self, doors: Sequence[str] = ("ask", "chat")) -> str | None:
        """The chat last used through one of the doors: an agent's traffic is not 'my last chat'."""
        with self._reading() as connection:
            row: tuple[str] | None = connection.execute(
                f"""SELECT id FROM chats WHERE door IN ({_marks(doors)})
                    ORDER BY updated DESC, id LIMIT 1""",
                tuple(doors),
            ).fetchone()
        return row[0] if row else None

    def messages(self, chat_id: str) -> tuple[Message, ...]:
        """The conversation that ends in the latest answer, to be continued; answers with nothing left out."""
        conversation = (stored.message for stored in self.show(chat_id).conversation)
        return tuple(m for m in conversation if m.role != "assistant" or m.content or m.tool_calls)

    def list(self, limit: int = 50, offset: int = 0) -> tuple[ChatSummary, ...]:
        """Chats, the last used first."""
        with self._reading() as connection:
            return _summaries(connection, "ORDER BY updated DESC, id LIMIT ? OFFSET ?", (limit, offset))

    def resolve(self, name: str) -> str:
        """The chat that `name` means: an id or its unique beginning, with or without `chat-`.

        Raises `NotFound`, also for a beginning of under four digits, which could be anybody's.
        """
        stem = "chat-" + name.removeprefix("chat-")
        if len(stem) < len("chat-") + MIN_PREFIX:
            raise NotFound(f"{name[:80]!r} names no chat: give at least {MIN_PREFIX} digits of its id.")
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT id FROM chats WHERE id = ? OR substr(id, 1, ?) = ?", (name, len(stem), stem)
            ).fetchall()
        ids = [id for (id,) in rows]
        if name in ids or len(ids) == 1:
            return name if name in ids else ids[0]
        if ids:
            raise NotFound(f"{len(ids)} chats begin with {name[:80]!r}: give more of the id.")
        raise _no_such_chat(name)

    def show(self, chat_id: str) -> Chat:
        """Everything in one chat. Raises `NotFound`."""
        with self._writing() as connection:  # several reads that see the same moment
            summaries = _summaries(connection, "WHERE id = ?", (chat_id,))
            if not summaries:
                raise _no_such_chat(chat_id)
            rows = connection.execute(
                """SELECT messages.id, parent_id, status, created, model, finish_reason, receipt_id, error,
                          reasoning, role, text, extra
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
        return Chat(summaries[0], messages, tuple(reversed(path)))

    def search(self, query: str, limit: int = 50) -> tuple[Hit, ...]:
        """Messages with words that begin with each of the query's, best first; else those that hold it as it
        stands, which finds parts of words and languages without spaces."""
        words = query.split()
        if not words:
            return ()
        with self._reading() as connection:
            hits: tuple[Hit, ...] = ()
            if self._update_index():
                match = " ".join('"' + word.replace('"', '""') + '"*' for word in words)
                hits = _hits(
                    connection,
                    """SELECT rowid AS id, snippet(contents_index, 0, '', '', '…', 16) AS excerpt, rank
                       FROM contents_index WHERE contents_index MATCH ? ORDER BY rank LIMIT ?""",
                    (match, limit),
                )
            if hits:
                return hits
            escaped = query.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            return _hits(
                connection,
                """SELECT id, -id AS rank,
                          substr(text, max(1, instr(lower(text), lower(?)) - 60), 160) AS excerpt
                   FROM contents WHERE text LIKE ? ESCAPE '\\' ORDER BY rank LIMIT ?""",
                (query, f"%{escaped}%", limit),
            )

    def decision(self, receipt_id: str) -> Mapping[str, Any] | None:
        """The receipt of an answer as it was stored, with its `chat_id`."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT json, chat_id FROM receipts WHERE id = ?", (receipt_id,)
            ).fetchone()
        return {**json.loads(row[0]), "chat_id": row[1]} if row else None

    # ---------------------------------------------------------------------------------------- removing

    def remove(self, chat_ids: Sequence[str]) -> Removal:
        """Delete chats and what only they hold, from the tables, the index, the free pages and the WAL."""
        num_chats = num_messages = 0
        with self._writing() as connection:
            for chat_id in chat_ids:
                of_chat = (chat_id,)
                contents = connection.execute(
                    """SELECT DISTINCT content_id FROM messages
                       WHERE chat_id = ? AND content_id IS NOT NULL""",
                    of_chat,
                ).fetchall()
                connection.execute(
                    "DELETE FROM slices WHERE message_id IN (SELECT id FROM messages WHERE chat_id = ?)",
                    of_chat,
                )
                num_messages += connection.execute("DELETE FROM messages WHERE chat_id = ?", of_chat).rowcount
                num_chats += connection.execute("DELETE FROM chats WHERE id = ?", of_chat).rowcount
                for (content_id,) in contents:
                    _drop_content(connection, content_id)
            _set_state(connection, "purge_pending", 1)
        return Removal(num_chats, num_messages, purged=self._purge())

    def remove_all(self) -> Removal:
        with self._reading() as connection:
            return self.remove([id for (id,) in connection.execute("SELECT id FROM chats")])

    def prune(self, retention_days: int) -> Removal:
        """Remove the chats last used longer ago than this, but running ones; 0 keeps all."""
        if retention_days <= 0:
            return Removal(0, 0, purged=True)
        with self._reading() as connection:
            expired = connection.execute(
                """SELECT id FROM chats WHERE updated < ? AND NOT EXISTS
                   (SELECT 1 FROM messages WHERE chat_id = chats.id AND status = 'running')""",
                (self._clock() - retention_days * _DAY_S,),
            ).fetchall()
        return self.remove([id for (id,) in expired]) if expired else Removal(0, 0, purged=True)

    def _purge(self) -> bool:
        with self._reading() as connection:
            if _get_state(connection, "indexed"):
                # The index marks words as deleted, and keeps them, until its segments are merged.
                with transaction(connection):
                    connection.execute("INSERT INTO contents_index (contents_index) VALUES ('optimize')")
            if not truncate_wal(connection):
                return False
            with transaction(connection):
                _set_state(connection, "purge_pending", 0)
            return True

    def _update_index(self) -> bool:
        """Index what was written since the last search; False without FTS5 or if nothing can be written."""
        with self._reading() as connection:
            try:
                with transaction(connection):
                    connection.execute(
                        """CREATE VIRTUAL TABLE IF NOT EXISTS contents_index USING fts5 (
                           text, content='contents', content_rowid='id',
                           tokenize='unicode61 remove_diacritics 2')"""
                    )
                    done = _get_state(connection, "indexed")
                    connection.execute(
                        """INSERT INTO contents_index (rowid, text)
                           SELECT id, text FROM contents WHERE id > ?""",
                        (done,),
                    )
                    (newest,) = connection.execute("SELECT max(id) FROM contents").fetchone()
                    _set_state(connection, "indexed", max(done, newest or 0))
            except sqlite3.OperationalError:
                return False
            return True

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, storage_errors(self._name):
            yield self._connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as connection, transaction(connection):
            yield connection


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _no_such_chat(name: str) -> NotFound:
    return NotFound(f"There is no chat {name[:80]!r}; `edgecloud history list` shows them.")


# ------------------------------------------------------------------------------------------------ statements


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
                WHERE path IN ({_marks(chunk)}) AND {where}""",
            [*chunk, *arguments],
        ).fetchall()
        named = [row for row in rows if row[1] == request.parent_id]
        if rows:
            best = max(named or rows, key=lambda row: (depths[row[2]], row[3], row[4]))
            return best[0], best[1], depths[best[2]]
    return None


def _store_content(connection: sqlite3.Connection, message: Message) -> tuple[int, bytes]:
    content = Content.of(message)
    row = connection.execute("SELECT id FROM contents WHERE hash = ?", (content.digest,)).fetchone()
    if row is None:
        row = connection.execute(
            "INSERT INTO contents (hash, role, text, extra) VALUES (?, ?, ?, ?) RETURNING id",
            (content.digest, *content),
        ).fetchone()
    return row[0], content.digest


def _drop_content(connection: sqlite3.Connection, content_id: int) -> None:
    """Delete a content that no message holds any more."""
    if connection.execute("SELECT 1 FROM messages WHERE content_id = ? LIMIT 1", (content_id,)).fetchone():
        return
    if content_id <= _get_state(connection, "indexed"):
        connection.execute(
            """INSERT INTO contents_index (contents_index, rowid, text)
               SELECT 'delete', id, text FROM contents WHERE id = ?""",
            (content_id,),
        )
    connection.execute("DELETE FROM contents WHERE id = ?", (content_id,))


def _store_slice(connection: sqlite3.Connection, message_id: str, text: str, reasoning: str = "") -> None:
    connection.execute(
        "INSERT INTO slices (message_id, text, reasoning) VALUES (?, ?, ?)",
        (message_id, storable(text), storable(reasoning)),
    )


def _read_slices(connection: sqlite3.Connection, message_id: str) -> tuple[str, str]:
    slices = connection.execute(
        "SELECT text, reasoning FROM slices WHERE message_id = ? ORDER BY number", (message_id,)
    ).fetchall()
    return "".join(text for text, _ in slices), "".join(reasoning for _, reasoning in slices)


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
    reasoning: str | None,
    role: str | None,
    text: str | None,
    extra: str | None,
) -> StoredMessage:
    if status == "running":
        text, reasoning = _read_slices(connection, id)
    message = Content(role or "assistant", text or "", extra).message(reasoning or None)
    return StoredMessage(id, parent_id, message, status, created, model, finish_reason, receipt_id, error)


def _summaries(
    connection: sqlite3.Connection, rest: str, arguments: tuple[object, ...]
) -> tuple[ChatSummary, ...]:
    rows = connection.execute(
        f"""SELECT id, title, door, model, created, updated,
                   (SELECT count(*) FROM messages WHERE chat_id = chats.id),
                   coalesce((SELECT status FROM messages WHERE id = chats.head), '')
            FROM chats {rest}""",
        arguments,
    )
    return tuple(ChatSummary(*row) for row in rows)


def _hits(connection: sqlite3.Connection, found: str, arguments: tuple[object, ...]) -> tuple[Hit, ...]:
    rows = connection.execute(
        f"""WITH found AS MATERIALIZED ({found})
            SELECT chat_id, messages.id, title, role, excerpt, messages.updated FROM found
            JOIN contents ON contents.id = found.id
            JOIN messages ON content_id = found.id
            JOIN chats ON chats.id = chat_id
            ORDER BY found.rank, messages.updated DESC""",
        arguments,
    )
    return tuple(
        Hit(chat_id, message_id, title, role, " ".join(excerpt.split()), updated)
        for chat_id, message_id, title, role, excerpt, updated in rows
    )


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _get_state(connection: sqlite3.Connection, key: str) -> int:
    row = connection.execute("SELECT value FROM history_state WHERE key = ?", (key,)).fetchone()
    return int(row[0]) if row else 0


def _set_state(connection: sqlite3.Connection, key: str, value: int) -> None:
    connection.execute("INSERT OR REPLACE INTO history_state VALUES (?, ?)", (key, value))
