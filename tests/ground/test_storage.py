"""Opening, migrating and failing: what every database of the house relies on."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgecloud import storage
from edgecloud.errors import StorageError
from edgecloud.storage import (
    DatabaseDamaged,
    check_database,
    open_database,
    open_or_rebuild,
    snapshot,
    storage_errors,
    transaction,
    truncate_wal,
)

NOBODY = 65534


def create_words(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE words (word TEXT)")


def add_first_word(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO words VALUES ('first')")


def break_half_way(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO words VALUES ('half')")
    raise ValueError("no")


def commit_by_mistake(connection: sqlite3.Connection) -> None:
    connection.executescript("INSERT INTO words VALUES ('early');")


MIGRATIONS = (create_words, add_first_word)


def words(connection: sqlite3.Connection) -> list[str]:
    return [word for (word,) in connection.execute("SELECT word FROM words")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "words.db"


def test_a_fresh_database_is_private_to_the_user(path: Path) -> None:
    connection = open_database(path, MIGRATIONS)

    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"words.db": 0o600, "words.db-wal": 0o600, "words.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    connection.close()


def test_a_file_that_others_could_read_is_made_private(path: Path) -> None:
    path.parent.mkdir()
    path.touch(0o644)
    open_database(path, MIGRATIONS).close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_promised_pragmas_are_on(path: Path) -> None:
    connection = open_database(path)

    values = {
        name: connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "foreign_keys", "secure_delete", "busy_timeout")
    }
    assert values == {"journal_mode": "wal", "foreign_keys": 1, "secure_delete": 1, "busy_timeout": 10_000}


def test_each_migration_runs_once(path: Path) -> None:
    open_database(path, MIGRATIONS[:1]).close()
    open_database(path, MIGRATIONS).close()

    assert words(open_database(path, MIGRATIONS)) == ["first"]


def test_a_failed_migration_leaves_nothing_and_is_tried_again(path: Path) -> None:
    with pytest.raises(ValueError, match="no"):
        open_database(path, (*MIGRATIONS, break_half_way))

    assert words(open_database(path, MIGRATIONS)) == ["first"]


def test_a_migration_that_commits_is_a_bug_told_at_once(path: Path) -> None:
    with pytest.raises(RuntimeError, match="commit_by_mistake"):
        open_database(path, (*MIGRATIONS, commit_by_mistake))


def create_words_slowly(connection: sqlite3.Connection) -> None:
    create_words(connection)
    time.sleep(0.3)  # so that the others find nothing applied and wait for the lock


def open_when_all_are_ready(path: Path, barrier: Barrier) -> None:
    barrier.wait()
    open_database(path, (create_words_slowly, add_first_word)).close()


def test_eight_processes_open_a_fresh_file_at_once(path: Path) -> None:
    context = get_context("spawn")
    barrier = context.Barrier(8)
    processes = [context.Process(target=open_when_all_are_ready, args=(path, barrier)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0] * 8
    assert words(open_database(path)) == ["first"]


def test_a_transaction_is_all_or_nothing(path: Path) -> None:
    connection = open_database(path, MIGRATIONS)

    def interrupted() -> None:
        with transaction(connection):
            connection.execute("INSERT INTO words VALUES ('lost')")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert words(connection) == ["first"]
    assert not connection.in_transaction


def test_reads_that_sqlite_ended_by_itself_fail_with_what_they_failed_of(tmp_path: Path) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        with snapshot(connection):
            connection.execute("ROLLBACK")  # as SQLite does where a read fails of the disk
            raise ValueError("the first")

    connection = open_database(tmp_path / "words.db", [create_words])
    with closing(connection), pytest.raises(ValueError, match="the first"):
        fail(connection)


def test_a_locked_database_is_one_sentence(path: Path) -> None:
    holder = open_database(path, MIGRATIONS)
    waiting = open_database(path, MIGRATIONS, busy_s=0.01)
    holder.execute("BEGIN IMMEDIATE")

    with (
        pytest.raises(StorageError, match=r"words\.db is locked by another program"),
        storage_errors(path),
        transaction(waiting),
    ):
        pass


def test_a_full_disk_is_one_sentence_and_loses_nothing(path: Path) -> None:
    connection = open_database(path, MIGRATIONS)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")

    with (
        pytest.raises(StorageError, match=r"disk with words\.db is full"),
        storage_errors(path),
        transaction(connection),
    ):
        connection.execute("INSERT INTO words VALUES (?)", ("x" * 100_000,))

    assert words(connection) == ["first"]


@pytest.mark.parametrize(
    "content", [b"this was never a database, but it is long enough" * 30, b"\x00" * 5000]
)
def test_a_damaged_file_is_one_sentence_and_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)

    with pytest.raises(DatabaseDamaged) as damaged:
        open_database(path, MIGRATIONS)
    assert damaged.value.message == f"{path} is damaged; move it away and a fresh one is made."
    assert path.read_bytes() == content


def test_a_file_damaged_inside_is_found_by_reading_it_all(path: Path) -> None:
    connection = open_database(path, MIGRATIONS)
    with transaction(connection):
        connection.executemany("INSERT INTO words VALUES (?)", [("word" * 100,)] * 1000)
    connection.close()
    check_database(path)

    content = bytearray(path.read_bytes())
    content[40_960:81_920] = b"\xff" * 40_960
    path.write_bytes(content)

    with pytest.raises(DatabaseDamaged):
        check_database(path)


def test_a_damaged_cache_is_made_anew(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this was never a database, but it is long enough" * 30)

    assert words(open_or_rebuild(path, MIGRATIONS)) == ["first"]


def test_a_healthy_cache_is_kept(path: Path) -> None:
    open_database(path, MIGRATIONS).execute("INSERT INTO words VALUES ('kept')")

    assert words(open_or_rebuild(path, MIGRATIONS)) == ["first", "kept"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StorageError, match=r"words\.db cannot be opened: .*([Ee]xists|directory)"):
        open_database(tmp_path / "file" / "words.db")


def as_reader(path: Path, lines: str) -> str:
    """What is printed where the file and its folder can only be read."""
    script = f"""
import os
from pathlib import Path
from edgecloud.errors import StorageError
from edgecloud.storage import open_database, open_to_read, storage_errors
path = Path({str(path)!r})
def make(connection):
    connection.execute("CREATE TABLE words (word TEXT)")
def add_word(connection):
    connection.execute("INSERT INTO words VALUES ('second')")
def words(connection):
    return [word for (word,) in connection.execute("SELECT word FROM words")]
if os.geteuid() == 0:  # modes mean nothing to root
    os.setgid({NOBODY})
    os.setuid({NOBODY})
try:
    with storage_errors(path):
        {lines}
except StorageError as error:
    print(type(error).__name__, error)
"""
    for file in path.parent.iterdir():
        file.chmod(0o400)
    path.parent.chmod(0o500)
    if os.geteuid() == 0:
        for owned in (path.parent, *path.parent.iterdir()):
            os.chown(owned, NOBODY, NOBODY)
        for folder in [*path.parent.parents][:3]:
            folder.chmod(folder.stat().st_mode | 0o711)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    path.parent.chmod(0o700)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_read_only_database_is_one_sentence(path: Path) -> None:
    open_database(path, MIGRATIONS).close()

    told = as_reader(path, "open_database(path)")

    assert "words.db cannot be written: check the permissions" in told


def test_a_read_only_database_is_read_and_not_written(path: Path) -> None:
    open_database(path, MIGRATIONS).close()

    assert as_reader(path, "print(words(open_to_read(path)))") == "['first']\n"
    wrote = as_reader(path, "add_word(open_to_read(path))")
    assert wrote.startswith("ReadOnly ")
    assert "words.db cannot be written" in wrote


def test_a_database_that_cannot_be_made_is_empty(path: Path) -> None:
    path.parent.mkdir()
    assert as_reader(path, "print(words(open_to_read(path, [make])))") == "[]\n"
    assert "ReadOnly" in as_reader(path, "add_word(open_to_read(path, [make]))")


def test_the_log_of_a_read_only_database_is_read_too(path: Path) -> None:
    with closing(open_database(path, MIGRATIONS)) as writer:
        writer.execute("INSERT INTO words VALUES ('second')")
        told = as_reader(path, "print(words(open_to_read(path)))")
    assert told == "['first', 'second']\n"


def test_what_was_written_last_is_not_left_out(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    with closing(open_database(path, MIGRATIONS)):
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")

    told = as_reader(copy, "print(words(open_to_read(path)))")

    assert told.startswith("ReadOnly ")
    assert "words.db-wal, which can't be read where nothing can be written" in told


def test_a_read_only_database_of_an_older_version_is_read_as_of_ours(path: Path) -> None:
    open_database(path, MIGRATIONS).close()

    told = as_reader(path, "print(words(open_to_read(path, [add_word])))")

    assert told == "['first', 'second']\n"


def test_the_wal_is_emptied_unless_someone_reads(path: Path) -> None:
    connection = open_database(path, MIGRATIONS)
    reader = open_database(path, MIGRATIONS)
    reader.execute("BEGIN")
    words(reader)
    connection.execute("INSERT INTO words VALUES ('second')")

    assert not truncate_wal(connection, patience_s=0)
    reader.execute("COMMIT")
    assert truncate_wal(connection)
    assert path.with_name("words.db-wal").stat().st_size == 0


def test_opening_again_keeps_the_locks_of_this_process(path: Path) -> None:
    """POSIX drops all of a process's locks on a file when it closes any descriptor of it."""
    first = open_database(path, MIGRATIONS)
    first.execute("INSERT INTO words VALUES ('second')")
    open_database(path, MIGRATIONS).close()

    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM words'); c.close()"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)

    # The last connection takes the WAL away; the other process must have seen that it was not the last.
    assert path.with_name("words.db-wal").exists()
    first.close()


def test_a_file_that_nothing_more_can_be_written_to_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "words.db"
    storage.check_writable(path)
    size = path.stat().st_size
    opened = storage.open_database

    def open_full(path: Path) -> sqlite3.Connection:
        connection = opened(path)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(storage, "open_database", open_full)
    with closing(opened(path)) as connection:
        connection.execute("VACUUM")
    with pytest.raises(StorageError, match=r"disk with words\.db is full"):
        storage.check_writable(path)
    assert path.stat().st_size <= size


def test_an_error_of_the_disk_where_there_is_no_room_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    for free, kind in ((0, storage.DiskFull), (10**9, StorageError)):
        monkeypatch.setattr(storage.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        with pytest.raises(StorageError) as raised, storage_errors(tmp_path / "words.db"):
            raise error
        assert type(raised.value) is kind
