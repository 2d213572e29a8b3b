"""Full-text search. The index is brought up to date when somebody searches: asking never waits for it."""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Sequence

from edgecloud.shorten import boundary
from edgecloud.storage import transaction, waiting_at_most

from ..chats import Hit
from .tables import get_state, set_state

PATIENCE_S = 1.0
"""How long a search waits for who writes, to find what came since the last one in the index too."""

EXCERPT_LENGTH = 160
LEAD_LENGTH = 60
"""Characters of an excerpt, and how many of them stand before the match."""

FOLDED_LENGTH = 200_000
"""How far into a message a match is looked for whose accents differ, in characters."""


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
            # FTS5's snippet() takes the square of a word's count: minutes for a letter in a long answer.
            "SELECT rowid AS id, rank FROM contents_index WHERE contents_index MATCH ? ORDER BY rank LIMIT ?",
            (match, limit),
            words,
        )
    if hits:
        return hits
    escaped = query.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return _hits(
        connection,
        "SELECT id, -id AS rank FROM contents WHERE text LIKE ? ESCAPE '\\' ORDER BY rank LIMIT ?",
        (f"%{escaped}%", limit),
        (query,),
    )


def update_index(connection: sqlite3.Connection) -> bool:
    """Index what was written since the last search; False without FTS5 or if nothing can be written."""
    try:
        with waiting_at_most(connection, PATIENCE_S), transaction(connection):
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


def _hits(
    connection: sqlite3.Connection, found: str, arguments: tuple[object, ...], words: Sequence[str]
) -> tuple[Hit, ...]:
    rows = connection.execute(
        f"""WITH found AS MATERIALIZED ({found})
            SELECT chat_id, messages.id, title, role, text, messages.updated FROM found
            JOIN contents ON contents.id = found.id
            JOIN messages ON content_id = found.id
            JOIN chats ON chats.id = chat_id
            ORDER BY found.rank, messages.updated DESC""",
        arguments,
    )
    return tuple(
        Hit(chat_id, message_id, title, role, excerpt(text, words), updated)
        for chat_id, message_id, title, role, text, updated in rows
    )


def excerpt(text: str, words: Sequence[str]) -> str:
    """One line: the text around the first place where one of `words` begins a word, or else stands at all."""
    at = _position(text, words)
    if at is None:
        folded = "".join(map(_without_accent, text[:FOLDED_LENGTH]))
        at = _position(folded, ["".join(map(_without_accent, word)) for word in words]) or 0
    start = boundary(text, max(0, at - LEAD_LENGTH))
    end = boundary(text, start + EXCERPT_LENGTH)
    line = " ".join(text[start:end].split())
    return ("…" if start else "") + line + ("…" if end < len(text) else "")


def _position(text: str, words: Sequence[str]) -> int | None:
    any_word = "|".join(map(re.escape, words))
    found = re.search(rf"\b(?:{any_word})", text, re.IGNORECASE) or re.search(any_word, text, re.IGNORECASE)
    return found.start() if found else None


def _without_accent(character: str) -> str:
    """The letter below an accent: one character for one, so that positions stay."""
    return unicodedata.normalize("NFD", character)[0]
