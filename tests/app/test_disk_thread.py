"""The thread that owns a database: waits once for a lock, refuses at once until it is gone, gives up late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from edgecloud.app import disk_thread as module
from edgecloud.app.disk_thread import DiskThread
from edgecloud.errors import StorageError
from edgecloud.storage import DatabaseLocked

LOCKED = DatabaseLocked("db is locked.")
FULL = StorageError("The disk is full.")


class Database:
    """Refuses the first works with the errors of the script, and notes how long it is told to wait."""

    def __init__(self, *script: StorageError) -> None:
        self.script = list(script)
        self.patience: list[float | None] = []
        self.num_tended = 0
        self.is_open = True

    def is_in_place(self) -> bool:
        return True

    def wait_at_most(self, seconds: float | None) -> None:
        self.patience.append(seconds)

    def close(self) -> None:
        self.is_open = False

    def work(self) -> str:
        if self.script:
            raise self.script.pop(0)
        return "done"

    def tend(self) -> None:
        self.num_tended += 1
        self.work()


def thread_of(open_database: Callable[[], Database], pause_s: float | None = None) -> DiskThread[Database]:
    return DiskThread("test", open_database, tend=Database.tend, pause=lambda: pause_s)


async def do(thread: DiskThread[Any]) -> str:
    result: str = await asyncio.wrap_future(thread.submit(Database.work))
    return result


async def test_a_lock_is_waited_for_once_until_something_succeeds() -> None:
    database = Database(LOCKED, LOCKED)
    thread = thread_of(lambda: database)
    for _ in range(2):
        with pytest.raises(DatabaseLocked):
            await do(thread)
    assert set(database.patience) == {module.IMPATIENT_S}
    assert await do(thread) == "done"
    assert database.patience[-1] is None
    await thread.aclose(1)


async def test_a_file_that_took_long_not_to_open_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []

    def open_database() -> Database:
        opened.append(1)
        raise LOCKED

    monkeypatch.setattr(module, "SLOW_S", -1.0)
    thread = thread_of(open_database)
    for _ in range(5):
        with pytest.raises(DatabaseLocked):
            await do(thread)
    assert len(opened) == 1
    monkeypatch.setattr(module, "SLOW_S", 60.0)
    await thread.aclose(0)


async def test_the_end_tends_until_a_lock_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_RETRY_S", 0.0)
    database = Database(*[LOCKED] * 50)
    thread = thread_of(lambda: database, pause_s=3600)
    with pytest.raises(DatabaseLocked):
        await do(thread)

    assert await thread.aclose(3600) is None
    assert database.num_tended == 50
    assert not database.is_open


@pytest.mark.parametrize(("refusal", "within_s"), [(LOCKED, 0.0), (FULL, 3600.0)])
async def test_what_is_still_refused_at_the_end_is_told(refusal: StorageError, within_s: float) -> None:
    """A lock that stays until then; a full disk is not waited for, as nobody works on it."""
    database = Database(*[refusal] * 50)
    thread = thread_of(lambda: database, pause_s=3600)
    with pytest.raises(StorageError):
        await do(thread)

    assert await thread.aclose(within_s) is refusal
    assert database.num_tended == 1


async def test_what_was_refused_is_tried_again_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    database = Database(*[LOCKED] * 5)
    thread = thread_of(lambda: database, pause_s=0.0)
    thread.submit(lambda _: None)  # it begins with its first work, and what comes of that is no matter
    while database.script:  # noqa: ASYNC110 - it happens in a thread
        await asyncio.sleep(0.01)
    assert await thread.aclose(1) is None


async def test_a_bug_in_one_work_is_raised_to_who_asked_and_stops_nobody_else() -> None:
    thread = thread_of(Database)

    def broken(_: Database) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        await asyncio.wrap_future(thread.submit(broken))
    assert await do(thread) == "done"
    await thread.aclose(1)


async def test_all_that_ask_for_it_soon_are_tended_at_once_and_whoever_asks_later_again() -> None:
    database = Database()
    thread = thread_of(lambda: database)
    for number in (1, 2):
        for _ in range(5):
            thread.tend_within(0.05)
        await until(lambda number=number: database.num_tended >= number)  # type: ignore[misc]
        assert database.num_tended == number
    await thread.aclose(1)


async def test_it_tends_in_time_though_there_is_always_something_to_do() -> None:
    database = Database()
    thread = thread_of(lambda: database)

    def again(_: Database) -> None:
        if not database.num_tended:
            thread.submit(again)

    thread.submit(again)
    thread.tend_within(0.01)
    await until(lambda: database.num_tended == 1)
    await thread.aclose(1)


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")
