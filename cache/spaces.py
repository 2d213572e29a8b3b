"""The codes of every partition asked for, in memory, in step with what all processes write to the file."""

from __future__ import annotations

import hashlib
import sqlite3

from . import store
from .index import CodeTable

GHOSTS = 32
"""So many deleted entries may linger in a table: they are found, not there, and only take others' places."""


def space_of(partition: bytes, fingerprint: str) -> bytes:
    """A request's partition among vectors of one embedder."""
    return hashlib.sha256(partition + fingerprint.encode()).digest()


def count_other(connection: sqlite3.Connection, fingerprint: str) -> int:
    """Answers whose prompts have vectors, but not of this embedder."""
    rows = connection.execute(
        "SELECT answers.partition, vectors.partition FROM answers JOIN vectors USING (number)"
    )
    return sum(space_of(partition, fingerprint) != space for partition, space in rows)


class Spaces:
    """Code tables by partition, loaded when first asked for."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._tables: dict[bytes, CodeTable] = {}
        self._removed: dict[bytes, float] = {}

    def table(self, partition: bytes, num_bytes: int) -> CodeTable:
        """The partition's codes of `num_bytes` each, with what was added since the last time."""
        removed = store.count(self._connection, store.REMOVED)
        table = self._tables.get(partition)
        if table is None or removed > self._removed[partition] + GHOSTS:
            table = self._tables[partition] = CodeTable(num_bytes // 8)
            self._removed[partition] = removed
        rows = self._connection.execute(
            "SELECT number, code FROM vectors WHERE partition = ? AND number > ?", (partition, table.newest)
        )
        for number, code in rows:
            table.add(number, code)
        return table
