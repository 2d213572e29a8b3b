"""The bookkeeper's thread: no line is lost to a disk that refuses for a while, and nobody waits for one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from edgecloud.app import books as module
from edgecloud.app.books import Books
from edgecloud.app.disk_thread import DiskThread
from edgecloud.app.run import Run, Tried
from edgecloud.errors import BudgetExceeded, StorageError
from edgecloud.router.budgets import limits_of
from edgecloud.router.ledger import Ledger
from edgecloud.router.money import NANO
from edgecloud.settings import BudgetSettings
from edgecloud.types import ChatRequest, Usage


class Disk:
    """Opens the ledger, or refuses to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refuses = False
        self.num_opened = 0

    def open(self) -> Ledger:
        self.num_opened += 1
        if self.refuses:
            raise StorageError("edgecloud.db is locked.")
        return Ledger(self.path)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "edgecloud.db")


def closing(request_id: str, nano: int = 7) -> Any:
    run = Run(ChatRequest(prompt="hi", id=request_id))
    run.tried.append(Tried("big", "host:1", time.time(), 0.1, "ok", Usage(1, 1), nano))
    return run.closing(run.receipt(), "ok", None)


def ids(disk: Disk) -> list[str]:
    ledger = Ledger(disk.path)
    try:
        return [line["id"] for line in ledger.recent(99)][::-1]
    finally:
        ledger.close()


async def test_lines_are_written_by_the_time_it_is_closed(disk: Disk) -> None:
    books = Books(disk.open)
    for number in range(5):
        books.settle(closing(f"req-{number}"))
    await books.aclose()
    assert ids(disk) == [f"req-{number}" for number in range(5)]


async def test_lines_without_money_wait_for_each_other_and_those_with_it_for_nobody(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER_S", 60.0)
    books = Books(disk.open)
    for number in range(3):
        books.settle(closing(f"req-{number}", nano=0))
    await asyncio.sleep(0.05)
    assert ids(disk) == []
    books.settle(closing("req-3"))
    assert await books.do(lambda ledger: len(ledger.recent(99))) == 4
    await books.aclose()


async def test_whoever_asks_finds_the_lines_that_still_wait(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER_S", 60.0)
    books = Books(disk.open)
    books.settle(closing("req-1", nano=0))
    assert await books.do(lambda ledger: len(ledger.recent(99))) == 1
    await books.aclose()


async def test_what_the_disk_refused_is_written_in_order_when_it_can_be(disk: Disk) -> None:
    books = Books(disk.open)
    disk.refuses = True
    books.settle(closing("req-0"))
    with pytest.raises(StorageError):
        await books.do(lambda ledger: None)
    disk.refuses = False
    books.settle(closing("req-1"))
    await books.aclose()
    assert ids(disk) == ["req-0", "req-1"]


async def test_a_disk_that_never_comes_back_fills_no_memory(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 3)
    books = Books(disk.open)
    disk.refuses = True
    for number in range(6):
        books.settle(closing(f"req-{number}"))
        with pytest.raises(StorageError):
            await books.do(lambda ledger: None)
    disk.refuses = False
    await books.aclose()
    assert ids(disk) == ["req-3", "req-4", "req-5"], "the oldest go first"


async def test_lines_that_wait_are_not_compared_with_each_other(disk: Disk) -> None:
    class Told:
        """Work that is as good as any other, and says so."""

        compared = 0

        def __eq__(self, other: object) -> bool:
            Told.compared += 1
            return self is other

        def __call__(self, ledger: Ledger) -> None: ...

    books = Books(disk.open)
    for _ in range(100):
        books._keep(Told())
    await books.aclose()

    assert Told.compared == 0


async def test_a_line_that_is_a_bug_does_not_hold_up_the_others(disk: Disk) -> None:
    books = Books(disk.open)
    books.keep_engines({"big": object()})
    books.settle(closing("req-1"))
    await books.aclose()
    assert ids(disk) == ["req-1"]


async def test_money_is_reserved_before_it_returns_and_a_refusal_is_raised(disk: Disk) -> None:
    books = Books(disk.open)
    limits = limits_of(BudgetSettings(per_day=1.0), time.time(), chat_id=None, tenant=None)
    await books.reserve("req-1", limits, NANO)
    with pytest.raises(BudgetExceeded):
        await books.reserve("req-2", limits, 1)
    await books.aclose()


async def test_where_nothing_could_be_set_aside_nothing_is_missed_at_the_end(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_IMPATIENT_S", 0.05)
    disk.refuses = True
    books = Books(disk.open)
    limits = limits_of(BudgetSettings(per_day=1.0), time.time(), chat_id=None, tenant=None)
    with pytest.raises(StorageError):
        await books.reserve("req-1", limits, 1)
    books.settle(closing("req-1", nano=0))
    assert await books.aclose() == ""


async def test_a_caller_that_leaves_while_reserving_leaves_nothing_reserved(disk: Disk) -> None:
    books = Books(disk.open)
    limits = limits_of(BudgetSettings(per_day=1.0), time.time(), chat_id=None, tenant=None)
    task = asyncio.create_task(books.reserve("req-1", limits, NANO))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    run = Run(ChatRequest(prompt="hi", id="req-1"))
    run.limits = limits
    books.settle(run.closing(run.receipt(), "interrupted", None))
    sums = await books.do(lambda ledger: ledger.sums(limits))
    assert sums[0] == (0, 0)
    await books.aclose()


async def test_requests_under_way_say_that_they_live(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
    books, beats = Books(disk.open), list[tuple[str, ...]]()
    monkeypatch.setattr(Ledger, "heartbeat", lambda self, names: beats.append(tuple(names)))
    limits = limits_of(BudgetSettings(per_day=1.0), time.time(), chat_id=None, tenant=None)
    await books.reserve("req-1", limits, 1)
    while not beats:  # noqa: ASYNC110 - it happens in a thread
        await asyncio.sleep(0.01)
    await books.aclose()
    assert beats[0] == ("req-1",)


async def test_nothing_is_opened_for_nothing(disk: Disk) -> None:
    await Books(disk.open).aclose()
    assert disk.num_opened == 0
    books = Books(disk.open)
    books.prepare()
    books.prepare()
    await books.aclose()
    assert disk.num_opened == 1


async def test_after_the_file_was_deleted_lines_go_to_the_new_one(disk: Disk) -> None:
    books = Books(disk.open)
    await books.do(lambda ledger: None)
    for file in disk.path.parent.glob("edgecloud.db*"):
        file.unlink()
    books.settle(closing("req-1"))
    assert await books.aclose() == ""
    assert ids(disk) == ["req-1"]


@pytest.mark.parametrize(("nano", "told"), [(7, "What a request cost is not counted: edgecloud.db"), (0, "")])
async def test_money_that_cannot_be_counted_is_told_at_the_end(disk: Disk, nano: int, told: str) -> None:
    books = Books(disk.open)
    disk.refuses = True
    books.settle(closing("req-0", nano))
    assert (await books.aclose()).startswith(told)
    assert disk.num_opened == 1 + bool(nano), "money at once, and all once more: nobody works on that disk"


@pytest.mark.parametrize(
    ("nano", "patient", "within_s"), [(0, False, 2.0), (0, True, 30.0), (7, False, 30.0)]
)
async def test_a_lock_is_waited_for_at_the_end_for_what_it_is_worth(
    disk: Disk, nano: int, patient: bool, within_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    real = DiskThread.aclose

    async def aclose(self: DiskThread[Any], within_s: float) -> StorageError | None:
        waited.append(within_s)
        return await real(self, 0)

    monkeypatch.setattr(DiskThread, "aclose", aclose)
    books = Books(disk.open)
    disk.refuses = True
    books.settle(closing("req-0", nano))
    await books.aclose(patient=patient)
    assert waited == [within_s]


async def test_a_line_is_not_settled_again_because_tidying_was_refused(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIDY_EVERY", 1)
    books = Books(disk.open)
    await books.do(lambda ledger: None)
    refusals = [StorageError("edgecloud.db is locked.")]
    settled: list[str] = []

    def tidy(self: Ledger) -> None:
        if refusals:
            raise refusals.pop()

    monkeypatch.setattr(Ledger, "tidy", tidy)
    monkeypatch.setattr(Ledger, "settle", lambda self, entry, *rest, **more: settled.append(entry.receipt.id))
    books.settle(closing("req-1"))
    await books.aclose()
    assert (settled, refusals) == (["req-1"], [])
