"""SQLite the way every room uses it: open, migrate, write in a transaction, and say what went wrong.

Plain `sqlite3`: nothing here needs more, and `ask` should not wait for an import. A room exports
`MIGRATIONS`, functions that change the schema; each runs once per file, in a transaction of its own, however
many processes open a fresh file at the same moment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from edgecloud.errors import StorageError

Migration = Callable[[sqlite3.Connection], None]
"""Changes the schema with `connection.execute`; never with `executescript`, which commits first."""

_PROBE_BYTES = 64_000
"""Some pages more than a question and its answer take."""

BUSY_S = 10.0
"""How long a statement waits for another process's transaction. Ours are milliseconds long."""

_NOT_WRITABLE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN)


class Open(Protocol):
    """How a database is opened: `open_database`, or `open_or_rebuild`."""

    def __call__(
        self, path: Path, migrations: Sequence[Migration] = (), *, busy_s: float = BUSY_S
    ) -> sqlite3.Connection: ...


class DatabaseDamaged(StorageError):
    """The file is not a database, or its pages contradict each other."""

    default_code = "storage_damaged"


class DiskFull(StorageError):
    """There is no room for what is to be written, and deleting is writing too."""


class ReadOnly(StorageError):
    """The file cannot be written, nor perhaps read: its own permissions, its folder's, or the disk's."""


class DatabaseLocked(StorageError):
    """Another program is writing, and did not end while we waited."""


def open_database(
    path: Path, migrations: Sequence[Migration] = (), *, busy_s: float = BUSY_S
) -> sqlite3.Connection:
    """A connection in autocommit mode (write inside `transaction`) to a file whose schema is up to date.

    WAL, foreign keys and secure delete are on; the file is 0600, a folder made for it 0700. The connection
    may be used from several threads, one at a time: its owner holds a lock. Raises `StorageError`.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_private(path)
        connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
        try:
            _enter_wal(connection, busy_s)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = ON")
            _migrate(connection, migrations)
        except BaseException:
            connection.close()
            raise
        return connection


def open_or_rebuild(
    path: Path, migrations: Sequence[Migration] = (), *, busy_s: float = BUSY_S
) -> sqlite3.Connection:
    """As `open_database`, for a file with nothing precious: a damaged one is thrown away and made anew."""
    try:
        return open_database(path, migrations, busy_s=busy_s)
    except DatabaseDamaged:
        pass
    # Of several processes that meet the damage at once, one rebuilds; the others open what it made.
    with storage_errors(path), path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return open_database(path, migrations, busy_s=busy_s)
        except DatabaseDamaged:
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            return open_database(path, migrations, busy_s=busy_s)


def open_to_read(
    path: Path,
    migrations: Sequence[Migration] = (),
    *,
    busy_s: float = BUSY_S,
    open_to_write: Open = open_database,
) -> sqlite3.Connection:
    """As `open_to_write`; of a file that can't be written, or made, what is there is read, and writing fails.

    Raises `ReadOnly` where what was written last is out of reach.
    """
    try:
        return open_to_write(path, migrations, busy_s=busy_s)
    except ReadOnly:
        with storage_errors(path):
            return _open_read_only(path, migrations, busy_s)


def check_database(path: Path) -> None:
    """Read through the whole file. Raises `DatabaseDamaged`, or `StorageError` if it cannot be used."""
    with storage_errors(path), contextlib.closing(open_database(path)) as connection:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise _damaged(path)


def check_writable(path: Path) -> None:
    """Write as much as an answer takes, and take it back. Raises `StorageError`, of a full disk for one."""
    with storage_errors(path), contextlib.closing(open_database(path)) as connection:
        # Rolled back it would never have left memory; what is committed is in the log, and takes room on the
        # disk whatever is free in the file.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE probe (bytes BLOB)")
        connection.execute("INSERT INTO probe VALUES (zeroblob(?))", (_PROBE_BYTES,))
        connection.execute("DROP TABLE probe")
        connection.execute("COMMIT")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """`BEGIN IMMEDIATE` … `COMMIT`, rolled back on any exception.

    A transaction that reads first and asks for the write lock later fails with 'database is locked' at once
    when another has written in between, whatever the timeout.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        # A full disk or a lost file has SQLite roll back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def savepoint(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A part of a transaction that is undone by itself on any exception."""
    connection.execute("SAVEPOINT part")
    try:
        yield connection
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO part")
            connection.execute("RELEASE part")
        raise
    connection.execute("RELEASE part")


@contextlib.contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Reads that all see one moment, whoever writes meanwhile and for however long."""
    is_inside = connection.in_transaction
    if is_inside:
        yield connection
        return
    connection.execute("BEGIN")
    try:
        yield connection
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def wait_at_most(connection: sqlite3.Connection, seconds: float) -> None:
    """How long a statement waits for another process's transaction from now on."""
    connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


def marks(values: Collection[object]) -> str:
    """A `?` for each value, for `IN (…)`."""
    return ",".join("?" * len(values))


@contextlib.contextmanager
def waiting_at_most(connection: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """How long statements wait inside for another process's transaction."""
    (timeout_ms,) = connection.execute("PRAGMA busy_timeout").fetchone()
    wait_at_most(connection, seconds)
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {timeout_ms}")


def truncate_wal(connection: sqlite3.Connection, *, patience_s: float = 2.0) -> bool:
    """Move the WAL into the database and empty it; False if another process still reads the old pages."""
    with waiting_at_most(connection, patience_s):
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system raise inside into one `StorageError` about the file; where
    somebody has to go to it, with its folder.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _explain(error, path) from error
    except OSError as error:
        kind = ReadOnly if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else StorageError
        raise kind(f"{path} cannot be opened: {error.strerror or error}.") from error


def _open_read_only(path: Path, migrations: Sequence[Migration], busy_s: float) -> sqlite3.Connection:
    if not path.exists():
        return _reader("file::memory:", migrations, busy_s)
    name = f"{path.absolute().as_uri()}?mode=ro"
    try:
        return _reader(name, migrations, busy_s)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in _NOT_WRITABLE:
            raise
        # A log is read through shared memory beside it. Where that can't be made there must be none: SQLite
        # would take the file for all there is.
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            raise ReadOnly(
                f"The latest of {path} is in {log.name}, which can't be read where nothing can be written: "
                "copy the folder to where it can, and set EDGECLOUD_HOME to that."
            ) from error
        return _reader(f"{name}&immutable=1", migrations, busy_s)


def _reader(name: str, migrations: Sequence[Migration], busy_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        name, uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA schema_version").fetchone()
        try:
            _migrate(connection, migrations)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise
            # An older version's: a copy of it can be brought up to date.
            with contextlib.closing(connection) as older:
                connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                older.backup(connection)
            _migrate(connection, migrations)
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _damaged(path: Path) -> DatabaseDamaged:
    return DatabaseDamaged(f"{path} is damaged; move it away and a fresh one is made.")


def _explain(error: sqlite3.Error, path: Path) -> StorageError:
    # The low byte is the primary code, the rest says where inside SQLite. Errors of the binding have none.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_IOERR and _is_full(path.parent):
        code = sqlite3.SQLITE_FULL  # what is said where not even the shared memory beside the file fits
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return DatabaseLocked(f"{path.name} is locked by another program; try again when it is done.")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return _damaged(path)
        case sqlite3.SQLITE_FULL:
            return DiskFull(f"The disk with {path.name} is full; free some space and try again.")
        case _ if code in _NOT_WRITABLE:
            return ReadOnly(f"{path} cannot be written: check the permissions of the file and its folder.")
        case _:
            return StorageError(f"{path} cannot be used: {error}.")


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _PROBE_BYTES
    except OSError:
        return False


def _make_private(path: Path) -> None:
    """See to it that the file is there and 0600; SQLite gives its WAL and shared memory the same mode.

    A file that exists is never opened here: closing it would drop the locks that other connections of this
    process hold on it, and another process could then take the WAL away from under them.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)


def _enter_wal(connection: sqlite3.Connection, busy_s: float) -> None:
    """Switch to WAL. Processes that do so at once to a fresh file meet SQLITE_BUSY whatever the timeout."""
    deadline = time.monotonic() + busy_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    if not migrations:
        return
    connection.execute(
        "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied REAL NOT NULL) WITHOUT ROWID"
    )
    applied = {name for (name,) in connection.execute("SELECT name FROM migrations")}
    for migration in migrations:
        name = f"{migration.__module__.rpartition('.')[2]}.{migration.__name__}"
        if name in applied:
            continue
        with transaction(connection):
            # Another process may have been faster while this one waited for the write lock.
            if connection.execute("SELECT 1 FROM migrations WHERE name = ?", (name,)).fetchone():
                continue
            migration(connection)
            if not connection.in_transaction:
                raise RuntimeError(f"the migration {name} ended its transaction")
            connection.execute("INSERT INTO migrations VALUES (?, ?)", (name, time.time()))
