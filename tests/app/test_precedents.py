"""A toss-up goes where a like question went, whichever process that was in, and whatever the disk does."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edgecloud.app import precedents
from edgecloud.app.books import Books
from edgecloud.app.gateway import Gateway
from edgecloud.app.history import History
from edgecloud.app.journal import Journal
from edgecloud.app.lessons import Lessons
from edgecloud.errors import StorageError
from edgecloud.router.ledger import KeptPrecedents, Ledger
from edgecloud.types import ChatRequest, Message
from tests.router.learning_rows import FINGERPRINT, fitted

from .test_lessons import Even, House


class Shared(House):
    """A house whose gateways keep a ledger; `settings` are for the one that is opened next."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        router = {"second_value": 0.0, "hedge": 0.0}
        super().__init__(folder, load=lambda: Even(fitted(), FINGERPRINT), router=router, **settings)

    def open(self, load: Any = lambda: Even(fitted(), FINGERPRINT)) -> Gateway:
        async def find() -> Any:
            return await self.catalog.embedder("auto", listed_only=False)

        return Gateway(
            self.settings,
            self.catalog,
            Journal(lambda: History(self.path)) if self.settings.history.enabled else None,
            Books(lambda: Ledger(self.path, busy_s=0.2)),
            make_lessons=lambda: Lessons(find, None, load),
        )

    async def restart(self) -> None:
        await self.gateway.aclose()
        self.gateway = self.open()


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shared]:
    monkeypatch.setattr(Even, "ahead", -0.02)  # a toss-up that goes to the small one, unless one goes before
    house = Shared(tmp_path)
    yield house
    await house.gateway.aclose()


async def first_at_big(house: Shared, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> str | None:
    """A question that is clearly the large one's; the chat it is in."""
    with monkeypatch.context() as patch:
        patch.setattr(Even, "ahead", 0.2)
        finish = await house.ask("an easy one", fresh=True, **fields)
    assert finish.receipt.engine == "big"
    return finish.chat_id


async def engine_of(house: Shared, **fields: Any) -> str:
    return (await house.ask("easy in other words", fresh=True, **fields)).receipt.engine


async def test_the_next_process_decides_as_the_one_before_did(
    house: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    await first_at_big(house, monkeypatch)
    await house.restart()

    assert await engine_of(house) == "big"
    assert (await house.ask("a hard one", fresh=True)).receipt.engine == "small-8b"
    assert await engine_of(house, tenant="another") == "small-8b"
    story = await house.gateway.explain(ChatRequest(messages=(Message("user", "easy once more"),)))
    assert story["decision"]["reason"] == "a toss-up with small-8b, and a question like it went here"


async def test_one_process_knows_what_another_decided_meanwhile_until_that_is_deleted(
    house: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await engine_of(house) == "small-8b"
    assert house.gateway.books is not None
    await house.gateway.books.do(lambda ledger: None)  # what is settled is written before that
    beside, house.gateway = house.gateway, house.open()
    chat_id = await first_at_big(house, monkeypatch)
    assert chat_id is not None
    await house.gateway.aclose()

    house.gateway = beside
    assert await engine_of(house) == "big"
    # What was decided since goes by it too, and stays.
    Ledger(house.path).forget_chats([chat_id])
    assert await engine_of(house) == "big"


async def test_a_deleted_chat_decides_nothing_any_more(
    house: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat_id = await first_at_big(house, monkeypatch)
    assert chat_id is not None
    Ledger(house.path).forget_chats([chat_id])

    assert await engine_of(house) == "small-8b"
    await house.restart()
    assert await engine_of(house) == "small-8b"


@pytest.mark.parametrize(
    ("fields", "settings"),
    [({"journal": False}, {}), ({}, {"history": {"enabled": False}}), ({"mode": "local"}, {})],
)
async def test_what_leaves_no_trace_is_no_precedent_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: Any, settings: Any
) -> None:
    house = Shared(tmp_path, **settings)
    monkeypatch.setattr(Even, "ahead", 0.2)
    await house.ask("an easy one", fresh=True, **fields)
    await house.gateway.aclose()

    assert Ledger(house.path).precedents().newer == []


async def test_the_ledger_is_asked_once_where_there_is_a_choice_and_not_where_there_is_none(
    house: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, read = [], Ledger.precedents

    def counted(ledger: Ledger, *arguments: Any) -> KeptPrecedents:
        looks.append(arguments)
        return read(ledger, *arguments)

    monkeypatch.setattr(Ledger, "precedents", counted)
    await house.ask("an easy one", model="small-8b")
    await house.ask("an easy one", private=True)
    assert looks == []
    await engine_of(house)
    assert len(looks) == 1


async def test_a_disk_that_can_not_be_read_leaves_what_this_process_knows(
    house: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(ledger: Ledger, *_: Any) -> KeptPrecedents:
        raise StorageError("The disk is gone.")

    monkeypatch.setattr(Ledger, "precedents", refuse)
    await first_at_big(house, monkeypatch)
    assert await engine_of(house) == "big"


async def test_a_disk_that_does_not_answer_is_not_waited_for_twice(
    house: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, looks = threading.Event(), []

    def hang(ledger: Ledger, *_: Any) -> KeptPrecedents:
        looks.append(1)
        answers.wait(60)
        raise StorageError("It is too late.")

    monkeypatch.setattr(precedents, "PATIENCE_S", 0.01)
    await first_at_big(house, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "precedents", hang)
        try:
            # Without a line of the ledger, which would wait behind it.
            plans = [
                (await house.gateway.routing.plan(ChatRequest(messages=(Message("user", "easy again"),))))
                for _ in range(3)
            ]
        finally:
            answers.set()
    assert [plan.decision.chosen.engine for plan in plans] == ["big"] * 3
    assert looks == [1]
