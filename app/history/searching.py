"""Full-text search. The index is brought up to date when somebody searches: asking never waits for it."""

from __future__ import annotations

import sqlite3

from edgecloud.storage import transaction

from ..chats import Hit
from .tables import get_state, set_state


def search(connection: sqlite3.Connection, query: str, limit: int) -> tuple[Hit, ...]:
    """Messages with words that begin with each of the query's, best first; else those that hold it as it
    stands, which finds parts of words and languages without spaces.
    """
    words = query.split()
    if not words:
        return ()
    hits: tuple[Hit, ...] = ()
    if update_index(connection):
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


def update_index(connection: sqlite3.Connection) -> bool:
    """Index what was written since the last search; False without FTS5 or if nothing can be written."""
    try:
        with transaction(connection):
            connection.execute(
                """CREATE VIRTUAL TABLE IF NOT EXISTS contents_index USING fts5 (
                   text, content='contents', content_rowid='id',
                   tokenize='unicode61 remove_diacritics 2')"""
            )
            done = get_state(connection, "indexed")
            connection.execute(
                "INSERT INTO contents_index (rowid, text) SELECT id, text FROM contents WHERE id > ?",
                (done,),
            )
            (newest,) = connection.execute("SELECT max(id) FROM contents").fetchone()
            set_state(connection, "indexed", max(done, newest or 0))
    except sqlite3.OperationalError:
        return False
    return True


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
