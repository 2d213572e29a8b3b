"""A pool that is asked while its question is written: what may go out before that, and what may not."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from edgecloud.app.books import Books
from edgecloud.app.chats import Turn
from edgecloud.app.gateway import Gateway
from edgecloud.app.history import History
from edgecloud.app.journal import Journal
from edgecloud.errors import UpstreamError
from edgecloud.router.ledger import Ledger
from edgecloud.settings import BudgetSettings, PoolEntry, Settings
from edgecloud.types import ChatRequest, Event, Finish, Message, Start
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog


class SlowHistory(History):
    """Writes no question before it `may`; `began` is set when it would."""

    began: threading.Event
    may: threading.Event

    def begin(self, request: ChatRequest, turn: Turn | None = None) -> Turn:
        self.began.set()
        self.may.wait(10)
        return super().begin(request, turn)


class House:
    """A gateway over one pool, or a model here, whose history waits for `may`."""

    def __init__(self, folder: Path, engine: FakeEngine, **settings: Any) -> None:
        self.path = folder / "edgecloud.db"
        self.began, self.may = threading.Event(), threading.Event()
        entry = PoolEntry(name="big", url="http://big:8000/v1", model="big-70b", price_out=1.0)
        self.gateway = Gateway(
            Settings(model="small", pool=(entry,), **settings),
            FakeCatalog([FakeEngine(name="small"), engine], pools=(entry,)),
            Journal(self._open),
            Books(lambda: Ledger(self.path)),
        )

    def _open(self) -> History:
        history = SlowHistory(self.path)
        history.began, history.may = self.began, self.may
        return history

    async def answer(self, model: str = "big") -> list[Event]:
        request = ChatRequest(messages=(Message("user", "remember me"),), model=model, door="http")
        return [event async for event in self.gateway.chat(request)]

    async def written(self) -> list[tuple[str, str]]:
        """Text and status of every message that is kept."""
        self.may.set()
        await self.gateway.aclose()
        history = History(self.path)
        chats = [history.show(chat.id) for chat in history.list()]
        history.close()
        return [(stored.message.content, stored.status) for chat in chats for stored in chat.messages]


@pytest.fixture
def far() -> FakeEngine:
    return FakeEngine([b"yes"], name="big", local=False)


async def until_asked(engine: FakeEngine) -> None:
    async with asyncio.timeout(10):
        while not engine.requests:  # noqa: ASYNC110 - an engine tells nobody that it was asked
            await asyncio.sleep(0.001)


async def test_a_pool_is_asked_meanwhile_and_nothing_is_shown_before_the_question_is_written(
    tmp_path: Path, far: FakeEngine
) -> None:
    house = House(tmp_path, far)
    events: list[Event] = []

    async def listen() -> None:
        request = ChatRequest(messages=(Message("user", "remember me"),), model="big", door="http")
        async for event in house.gateway.chat(request):
            events.append(event)
            if isinstance(event, Start):
                history = History(house.path)
                kept.append([chat.title for chat in history.list()])
                history.close()

    kept: list[list[str]] = []
    listening = asyncio.create_task(listen())
    await until_asked(far)
    for _ in range(20):
        await asyncio.sleep(0)
    assert events == []
    house.may.set()
    await listening
    assert isinstance(events[-1], Finish)
    assert kept == [["remember me"]]
    assert events[-1].chat_id is not None
    assert await house.written() == [("remember me", "complete"), ("yes", "complete")]


@pytest.mark.parametrize(
    ("model", "settings"), [("big", {"budget": BudgetSettings(per_day=1.0)}), ("small", {})]
)
async def test_where_money_is_counted_or_the_model_is_here_the_question_is_written_first(
    tmp_path: Path, far: FakeEngine, model: str, settings: dict[str, Any]
) -> None:
    house = House(tmp_path, far, **settings)
    here = await house.gateway.catalog.engine("small", listed_only=True)
    asking = asyncio.create_task(house.answer(model))
    await asyncio.to_thread(house.began.wait, 10)
    for _ in range(20):
        await asyncio.sleep(0)
    assert isinstance(here, FakeEngine)
    assert far.requests == here.requests == []
    house.may.set()
    await asyncio.gather(asking, return_exceptions=True)
    assert (await house.written())[0] == ("remember me", "complete")


async def test_a_pool_that_fails_before_the_question_is_written_leaves_question_and_reason(
    tmp_path: Path,
) -> None:
    down = FakeEngine(name="big", local=False, refuse=UpstreamError("It is down."))
    house = House(tmp_path, down)
    asking = asyncio.create_task(house.answer())
    await until_asked(down)
    house.may.set()
    with pytest.raises(UpstreamError, match="down"):
        await asking
    assert await house.written() == [("remember me", "complete"), ("", "failed")]


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_client_that_leaves_meanwhile_leaves_nothing_running(
    tmp_path: Path, is_written: bool
) -> None:
    house = House(tmp_path, FakeEngine(name="big", local=False, hang_at=0))
    asking = asyncio.create_task(house.answer())
    await asyncio.to_thread(house.began.wait, 10)
    if is_written:
        house.may.set()
        await house.gateway.journal.read(lambda history: None)  # type: ignore[union-attr]
    asking.cancel()
    await asyncio.sleep(0)
    house.may.set()
    await asyncio.gather(asking, return_exceptions=True)
    assert await house.written() == [("remember me", "complete"), ("", "interrupted")]
