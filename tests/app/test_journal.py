"""The journal on disks that refuse: nothing that was answered is lost while the process lives."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from edgecloud.app import disk_thread
from edgecloud.app import journal as journal_module
from edgecloud.app.chats import Seam, Turn
from edgecloud.app.history import History
from edgecloud.app.journal import Journal, OpenTurn, Status
from edgecloud.app.open import build_gateway
from edgecloud.settings import HistorySettings, Settings
from edgecloud.types import ChatRequest, ChoiceDone, Message, Notice, Start, TextDelta
from tests.support.live import eventually


def asked(text: str = "hi", **fields: object) -> ChatRequest:
    return ChatRequest(messages=(Message("user", text),), **fields)  # type: ignore[arg-type]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "edgecloud.db"


def open_impatiently(database: Path) -> History:
    """A history that gives a locked file up at once."""
    return History(database, busy_s=0.01)


@pytest.fixture
def locked(database: Path) -> Iterator[sqlite3.Connection]:
    """Another program's connection, to lock the file with."""
    other = sqlite3.connect(database, isolation_level=None)
    yield other
    other.close()


def counting_transactions(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One item for each transaction that answers are written in from now on."""
    begun: list[None] = []
    real = History.together

    def together(self: History) -> AbstractContextManager[None]:
        begun.append(None)
        return real(self)

    monkeypatch.setattr(History, "together", together)
    return begun


def texts_of(history: History) -> list[str]:
    """What every chat's answer says."""
    return [history.show(chat.id).messages[-1].message.content for chat in history.list()]


def the_answer(database: Path) -> tuple[str, str]:
    history = History(database)
    (summary,) = history.list()
    answer = history.show(summary.id).messages[-1]
    history.close()
    return answer.message.content, answer.status


async def test_a_lock_in_the_middle_leaves_no_hole(
    database: Path, locked: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_thread, "RETRY_S", 0.05)
    journal = Journal(lambda: open_impatiently(database))
    turn, told = await journal.begin(asked(n=2))
    assert turn is not None
    assert told is None

    locked.execute("BEGIN EXCLUSIVE")
    turn.add(TextDelta("one ", index=0))
    turn.add(TextDelta("eins ", index=1))
    await asyncio.sleep(0.6)  # a flush meets the lock
    turn.add(TextDelta("two", index=0))
    locked.execute("ROLLBACK")
    await journal.finish(turn, None, "complete")
    await journal.aclose()

    history = History(database)
    (summary,) = history.list()
    texts = [message.message.content for message in history.show(summary.id).messages[-2:]]
    history.close()
    assert texts == ["one two", "eins "]


async def test_an_end_that_met_a_lock_is_written_when_it_is_gone(
    database: Path, locked: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_thread, "RETRY_S", 0.05)
    journal = Journal(lambda: open_impatiently(database))
    turn, _ = await journal.begin(asked())
    assert turn is not None
    turn.add(TextDelta("all of it"))

    locked.execute("BEGIN EXCLUSIVE")
    await journal.finish(turn, None, "complete")
    locked.execute("ROLLBACK")
    await asyncio.to_thread(eventually, lambda: not journal._open)

    assert the_answer(database) == ("all of it", "complete")
    await journal.aclose()


async def test_closing_tries_once_more(database: Path, locked: sqlite3.Connection) -> None:
    journal = Journal(lambda: open_impatiently(database))
    turn, _ = await journal.begin(asked())
    assert turn is not None
    turn.add(TextDelta("all of it"))

    locked.execute("BEGIN EXCLUSIVE")
    await journal.finish(turn, None, "complete")
    locked.execute("ROLLBACK")
    await journal.aclose()

    assert the_answer(database) == ("all of it", "complete")


@pytest.mark.parametrize("status", ["complete", "interrupted", "failed"])
async def test_closing_waits_for_a_lock_that_outlives_the_answer(
    database: Path, locked: sqlite3.Connection, status: Status
) -> None:
    journal = Journal(lambda: open_impatiently(database))
    turn, _ = await journal.begin(asked())
    assert turn is not None
    locked.execute("BEGIN EXCLUSIVE")
    turn.add(TextDelta("all of it"))
    await journal.finish(turn, None, status, "gone wrong" if status == "failed" else None)
    closing = asyncio.create_task(journal.aclose())
    await asyncio.sleep(0.3)  # some tries meet the lock
    assert not closing.done()
    locked.execute("ROLLBACK")

    assert await closing == ""
    assert the_answer(database) == ("all of it", status)


async def test_what_a_lock_still_refuses_at_the_very_end_is_told(
    database: Path, locked: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "CLOSE_WAIT_S", 0.2)
    journal = Journal(lambda: open_impatiently(database))
    turns = [(await journal.begin(asked(f"prompt {number}")))[0] for number in range(2)]
    locked.execute("BEGIN EXCLUSIVE")
    for turn in turns:
        assert turn is not None
        turn.add(TextDelta("lost"))
        await journal.finish(turn, None, "complete")
    told = await journal.aclose()
    locked.execute("ROLLBACK")

    assert told == (
        "The history lacks the ends of 2 answers: "
        "edgecloud.db is locked by another program; try again when it is done."
    )


async def test_one_refusal_of_the_disk_is_met_once_a_pass(
    database: Path, locked: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait for the whole busy timeout, and a new prompt behind all of them."""
    written = counting_transactions(monkeypatch)
    monkeypatch.setattr(disk_thread, "RETRY_S", 60.0)
    journal = Journal(lambda: open_impatiently(database))
    turns = [(await journal.begin(asked(f"prompt {number}")))[0] for number in range(5)]
    locked.execute("BEGIN EXCLUSIVE")
    for turn in turns:
        assert turn is not None
        turn.add(TextDelta("x"))
    await asyncio.sleep(0.8)

    assert len(written) == 1
    locked.execute("ROLLBACK")
    await journal.aclose()
    assert len(written) == 2
    history = History(database)
    assert texts_of(history) == ["x"] * 5
    history.close()


async def test_ends_that_nobody_waits_for_are_written_together(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = counting_transactions(monkeypatch)
    monkeypatch.setattr("edgecloud.app.journal.LINGER_S", 60.0)
    journal = Journal(lambda: History(database))
    for number in range(5):
        turn, _ = await journal.begin(asked(f"prompt {number}"))
        assert turn is not None
        turn.add(TextDelta("x"))
        await journal.finish(turn, None, "complete", wait_s=0.0)
    assert not written

    # Whoever reads finds all that happened before.
    assert await journal.read(texts_of) == ["x"] * 5
    assert len(written) == 1
    await journal.aclose()


async def test_a_turn_that_goes_on_from_an_answer_finds_it_written(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgecloud.app.journal.LINGER_S", 60.0)
    journal = Journal(lambda: History(database))
    first, _ = await journal.begin(asked("hello"))
    assert first is not None
    first.add(TextDelta("hi"))
    await journal.finish(first, None, "complete", wait_s=0.0)

    said = (Message("user", "hello"), Message("assistant", "hi"), Message("user", "and?"))
    second, _ = await journal.begin(ChatRequest(messages=said))
    assert second is not None
    assert second.turn.chat_id == first.turn.chat_id
    await journal.aclose()


async def test_a_bug_in_one_end_takes_no_other_end_with_it(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgecloud.app.journal.LINGER_S", 60.0)
    journal = Journal(lambda: History(database))
    for number in range(3):
        turn, _ = await journal.begin(asked(f"prompt {number}"))
        assert turn is not None
        turn.add(TextDelta("x"))
        if number == 1:
            turn.reasons = None  # type: ignore[assignment]
        await journal.finish(turn, None, "complete", wait_s=0.0)

    statuses = await journal.read(lambda history: [chat.status for chat in history.list()])
    assert sorted(statuses) == ["complete", "complete", "running"]
    await journal.aclose()


async def test_a_deleted_database_is_made_anew_for_the_next_prompt(database: Path) -> None:
    journal = Journal(lambda: History(database))
    lost, _ = await journal.begin(asked("lost with the file"))
    assert lost is not None
    for file in database.parent.glob("edgecloud.db*"):
        file.unlink()

    turn, told = await journal.begin(asked("the next"))
    assert turn is not None
    assert told is None
    for open_turn in (lost, turn):
        open_turn.add(TextDelta("answer"))
        await journal.finish(open_turn, None, "complete")
    await journal.aclose()

    assert the_answer(database) == ("answer", "complete")


async def test_who_asked_is_told_once_that_the_end_is_not_kept_yet(
    database: Path, locked: sqlite3.Connection
) -> None:
    journal = Journal(lambda: open_impatiently(database))
    turns = [(await journal.begin(asked(f"prompt {number}")))[0] for number in range(2)]
    locked.execute("BEGIN EXCLUSIVE")
    told = [await journal.finish(turn, None, "complete") for turn in turns if turn is not None]
    locked.execute("ROLLBACK")
    await journal.aclose()

    assert told == ["edgecloud.db is locked by another program; try again when it is done.", None]


async def test_a_prompt_that_meets_a_lock_waits_beside_the_work_and_is_written_when_it_is_gone(
    database: Path, locked: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_thread, "RETRY_S", 0.05)
    History(database).close()
    journal = Journal(lambda: open_impatiently(database))
    locked.execute("BEGIN EXCLUSIVE")
    first, told = await journal.begin(asked("hello", door="ask"))
    assert first is not None
    assert told is None
    first.add(TextDelta("hi"))
    said = (Message("user", "hello"), Message("assistant", "hi"), Message("user", "and?"))
    await journal.finish(first, None, "complete", wait_s=0.0)
    second, _ = await journal.begin(ChatRequest(messages=said, chat_id=first.turn.chat_id, door="ask"))
    assert second is not None
    second.add(TextDelta("all"))
    ids = (*first.turn.message_ids, *second.turn.message_ids)
    locked.execute("ROLLBACK")
    await asyncio.to_thread(eventually, lambda: first not in journal._open)
    second.add(TextDelta(" of it"))
    await journal.finish(second, None, "complete")
    assert await journal.aclose() == ""

    history = History(database)
    chat = history.show(first.turn.chat_id)
    history.close()
    assert [each.message.content for each in chat.messages] == ["hello", "hi", "and?", "all of it"]
    assert tuple(each.id for each in chat.messages if each.message.role == "assistant") == ids
    assert {each.status for each in chat.messages} == {"complete"}


async def test_a_prompt_is_not_waited_for_long(
    database: Path, locked: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a statement waits for a lock as long as it does in the product."""
    monkeypatch.setattr(journal_module, "BEGIN_S", 0.05)
    History(database).close()
    journal = Journal(lambda: History(database))
    locked.execute("BEGIN EXCLUSIVE")
    turn, told = await journal.begin(asked())
    assert turn is not None
    assert told is None
    turn.add(TextDelta("all of it"))
    await journal.finish(turn, None, "complete", wait_s=0.0)
    locked.execute("ROLLBACK")

    assert await journal.aclose() == ""
    assert the_answer(database) == ("all of it", "complete")


async def test_only_so_many_prompts_wait_in_memory_and_what_is_lost_is_told(
    database: Path, locked: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "CLOSE_WAIT_S", 0.2)
    monkeypatch.setattr(journal_module, "MOST_LATE", 2)
    History(database).close()
    journal = Journal(lambda: open_impatiently(database))
    locked.execute("BEGIN EXCLUSIVE")
    told = [await journal.begin(asked(f"prompt {number}")) for number in range(3)]
    lost = await journal.aclose()
    locked.execute("ROLLBACK")

    sentence = "edgecloud.db is locked by another program; try again when it is done."
    assert [turn is None for turn, _ in told] == [False, False, True]
    assert told[2][1] == sentence
    assert lost == f"The history lacks 2 questions: {sentence}"


async def test_where_another_engine_went_on_is_kept_with_the_answer(database: Path) -> None:
    journal = Journal(lambda: History(database))
    begun = asked()
    begun = replace(
        begun, messages=(*begun.messages, Message("assistant", "Once ")), continue_final=True, n=2
    )
    turn, _ = await journal.begin(begun)
    assert turn is not None
    for event in (
        Start("local", "model", 1),
        Notice("rerouted", "big is down. small answers instead."),
        Notice("cached", "not a seam"),
        TextDelta("upon"),
        TextDelta("elsewhere", index=1),
        Notice("continued", "small goes on from here."),
        TextDelta(" a time"),
        ChoiceDone(0, "stop"),
    ):
        turn.add(event)
    await journal.finish(turn, None, "complete")
    await journal.aclose()

    history = History(database)
    chat = history.show(turn.turn.chat_id)
    kept = chat.conversation[-1]
    assert kept.message.content == "Once upon a time"
    assert kept.seams == (
        Seam(5, "big is down. small answers instead."),
        Seam(9, "small goes on from here."),
    )
    copy = history.insert("a copy", chat.messages, chat.path[-1])
    assert history.show(copy).conversation[-1].seams == kept.seams
    history.close()


async def test_an_answer_under_way_says_that_it_lives(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[Turn] = []
    monkeypatch.setattr(History, "heartbeat", lambda self, turn: beats.append(turn))
    monkeypatch.setattr(journal_module, "HEARTBEAT_S", 0.0)
    journal = Journal(lambda: History(database))
    turn, _ = await journal.begin(asked())
    assert turn is not None
    await asyncio.to_thread(eventually, lambda: len(beats) >= 2)
    await journal.finish(turn, None, "complete")
    await journal.aclose()
    assert set(beats) == {turn.turn}


async def test_a_long_running_program_tidies_up_whether_anybody_asks_or_not(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "TIDY_S", 0.01)
    tidied: list[History] = []
    journal = Journal(lambda: History(database), tidied.append)
    journal.prepare()
    await asyncio.to_thread(eventually, lambda: len(tidied) >= 3)
    turn, _ = await journal.begin(asked())
    assert turn is not None
    before = len(tidied)
    await asyncio.to_thread(eventually, lambda: len(tidied) > before)
    await journal.finish(turn, None, "complete")
    await journal.aclose()


async def test_a_chat_that_grows_too_old_under_a_running_program_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path))
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    monkeypatch.setattr(journal_module, "TIDY_S", 0.01)
    gateway = build_gateway(Settings(history=HistorySettings(retention_days=7)))
    assert gateway.journal is not None
    await gateway.journal.read(History.list)  # what was too old at the start is gone by now
    long_ago = History(tmp_path / "edgecloud.db", clock=lambda: time.time() - 8 * 86400)
    long_ago.finish(long_ago.begin(asked("too old")), None, {}, {}, "complete")

    await asyncio.to_thread(eventually, lambda: long_ago.list() == ())
    long_ago.close()
    await gateway.aclose()


def test_what_is_put_back_comes_before_what_arrived_meanwhile() -> None:
    turn = OpenTurn(Turn("chat-1", ("msg-1",)), asked())
    turn.add(TextDelta("one "))
    taken = turn.take()
    turn.add(TextDelta("two"))
    turn.put_back(taken)

    assert turn.take() == {0: ("one two", "")}
