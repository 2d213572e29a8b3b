"""One SQLite file that any thread may use: one connection behind a lock, every failure a `StorageError`."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgecloud.storage import (
    BUSY_S,
    DatabaseLocked,
    Migration,
    open_database,
    open_to_read,
    savepoint,
    snapshot,
    storage_errors,
    transaction,
    wait_at_most,
)

_writers: dict[Path, threading.RLock] = {}
"""Who writes to a file, of this process. SQLite has two connections wait for each other by sleeping, a
millisecond or more for what is over in a tenth of one.
"""


class Database:
    """What the stores of `edgecloud.db` are made of: inside `_reading`, `_snapshot` and `_writing`, the last
    one transaction, the connection is this thread's alone. Public methods raise `StorageError` when the file
    can't be used. `for_reading` it may be one that can't be written: then those that write raise.
    """

    def __init__(
        self,
        path: Path,
        migrations: Sequence[Migration],
        *,
        busy_s: float = BUSY_S,
        for_reading: bool = False,
    ) -> None:
        self.path = path
        self._busy_s = self._patience_s = busy_s
        self._lock = threading.RLock()
        self._writer = _writers.setdefault(path.absolute(), threading.RLock())
        opened = open_to_read if for_reading else open_database
        self._connection = opened(path, migrations, busy_s=busy_s)
        self._file = _identity(path)

    def is_in_place(self) -> bool:
        """Whether the path still names the file that is open here: what is written to a deleted or replaced
        one is gone.
        """
        return _identity(self.path) == self._file

    def wait_at_most(self, seconds: float | None) -> None:
        """How long to wait for another process's transaction from now on; None: as when it was opened."""
        self._patience_s = self._busy_s if seconds is None else seconds
        with self._reading() as connection:
            wait_at_most(connection, self._patience_s)

    def interrupt(self) -> None:
        """Break off what another thread does here just now, which raises there."""
        self._connection.interrupt()

    def close(self) -> None:
        with self._reading() as connection:
            connection.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, storage_errors(self.path):
            yield self._connection

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as connection, snapshot(connection):
            yield connection

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make what is written inside one transaction; a part that raises is undone by itself."""
        with self._writing():
            yield

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as connection, self._turn():
            begin = savepoint if connection.in_transaction else transaction
            with begin(connection):
                yield connection

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._writer.acquire(timeout=self._patience_s):
            raise DatabaseLocked(f"{self.path.name} is being written to; try again when that is done.")
        try:
            yield
        finally:
            self._writer.release()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
