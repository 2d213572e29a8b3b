"""One request through the gateway: events, receipt, journal, deadline, cancellation, refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from edgecloud.app.gateway import Gateway
from edgecloud.app.history import History
from edgecloud.app.journal import Journal
from edgecloud.app.run import Closing
from edgecloud.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EdgeCloudError,
    InternalError,
    ModelNotFound,
    NoPermittedRoute,
    StorageError,
)
from edgecloud.settings import Settings
from edgecloud.types import ChatRequest, Event, Finish, Message, Notice, Start, TextDelta
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog


def ask(text: str = "hi", **fields: object) -> ChatRequest:
    return ChatRequest(messages=(Message("user", text),), **fields)  # type: ignore[arg-type]


async def collect(gateway: Gateway, request: ChatRequest) -> list[Event]:
    return [event async for event in gateway.chat(request)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "edgecloud.db"


@pytest.fixture
def read(database: Path) -> Iterator[History]:
    history = History(database)
    yield history
    history.close()


def gateway_over(
    *engines: FakeEngine, database: Path | None = None, settings: Settings | None = None
) -> Gateway:
    journal = Journal(lambda: History(database)) if database else None
    return Gateway(settings or Settings(), FakeCatalog(engines), journal)


async def test_a_stream_starts_with_start_and_ends_with_one_receipt() -> None:
    events = await collect(gateway_over(FakeEngine(cached_tokens=1)), ask("one two"))
    assert isinstance(events[0], Start)
    assert [type(e) for e in events].count(Finish) == 1
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert finish.receipt.engine == "fake"
    assert finish.receipt.reason == "the default model"
    assert (finish.receipt.prompt_tokens, finish.receipt.cached_tokens) == (3, 1)
    assert [attempt.outcome for attempt in finish.receipt.attempts] == ["ok"]


async def test_a_model_asked_for_by_name_says_so() -> None:
    *_, finish = await collect(
        gateway_over(FakeEngine(name="small"), FakeEngine(name="large")), ask(model="large")
    )
    assert isinstance(finish, Finish)
    assert (finish.receipt.model, finish.receipt.reason) == ("large", "asked for by name")


@pytest.mark.parametrize(("door", "num_kept"), [("http", 0), ("ask", 1), ("chat", 1)])
async def test_a_wrong_model_name_loses_nothing_a_person_typed_and_keeps_nothing_of_a_program(
    database: Path, read: History, door: str, num_kept: int
) -> None:
    gateway = gateway_over(FakeEngine(), database=database)
    with pytest.raises(ModelNotFound):
        await collect(gateway, ask(model="nobody", door=door))
    await gateway.aclose()
    chats = read.list()
    assert len(chats) == num_kept
    assert [read.show(chat.id).conversation[-1].status for chat in chats] == ["failed"] * num_kept


async def test_the_prompt_is_in_the_history_before_the_engine_works(database: Path, read: History) -> None:
    gateway = gateway_over(FakeEngine(hang_at=0), database=database)
    stream = gateway.chat(ask("remember me"))
    assert isinstance(await anext(stream), Start)
    (chat,) = read.list()
    assert read.show(chat.id).conversation[0].message.content == "remember me"
    await stream.aclose()
    await gateway.aclose()


async def test_the_answer_is_in_the_history_when_finish_arrives(database: Path, read: History) -> None:
    gateway = gateway_over(FakeEngine(), database=database)
    *_, finish = await collect(gateway, ask())
    assert isinstance(finish, Finish)
    assert finish.chat_id is not None
    answer = read.show(finish.chat_id).conversation[-1]
    assert (answer.message.content, answer.status) == ("Hello, world!", "complete")
    assert answer.id == finish.message_id
    await gateway.aclose()


async def test_a_closed_stream_cancels_the_engine_and_keeps_the_partial(
    database: Path, read: History
) -> None:
    engine = FakeEngine(hang_at=2)
    gateway = gateway_over(engine, database=database)
    closings: list[Closing] = []
    gateway.watchers.append(closings.append)
    async with aclosing(gateway.chat(ask())) as stream:
        async for event in stream:
            if isinstance(event, TextDelta) and event.text == ",":
                break
    await gateway.aclose()
    assert engine.cancelled == ["decode"]
    answer = read.show(read.list()[0].id).conversation[-1]
    assert (answer.message.content, answer.status) == ("Hello,", "interrupted")
    receipt = read.decision(answer.receipt_id or "")
    assert receipt is not None
    assert (receipt["prompt_tokens"], receipt["completion_tokens"]) == (2, 2)
    (tried,) = closings[0].tried
    assert (tried.usage.completion_tokens, tried.at_least) == (2, True)


async def test_a_cancelled_task_keeps_the_partial(database: Path, read: History) -> None:
    engine = FakeEngine(hang_at=1)
    gateway = gateway_over(engine, database=database)
    task = asyncio.create_task(collect(gateway, ask()))
    while not engine.generated:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gateway.aclose()
    answer = read.show(read.list()[0].id).conversation[-1]
    assert (answer.message.content, answer.status) == ("Hello", "interrupted")


async def test_the_partial_is_on_disk_while_the_engine_still_works(database: Path, read: History) -> None:
    gateway = gateway_over(FakeEngine(hang_at=3), database=database)
    seen = asyncio.create_task(collect(gateway, ask()))
    for _ in range(500):
        await asyncio.sleep(0.02)
        chats = read.list()
        if chats and read.show(chats[0].id).conversation[-1].message.content == "Hello, world":
            break
    else:
        pytest.fail("the partial never reached the disk")
    seen.cancel()
    await asyncio.gather(seen, return_exceptions=True)
    await gateway.aclose()


async def test_a_failing_engine_keeps_the_partial_and_the_reason(database: Path, read: History) -> None:
    gateway = gateway_over(
        FakeEngine(fail_at=1, error=EdgeCloudError("The pool fell over.")), database=database
    )
    with pytest.raises(EdgeCloudError, match="fell over"):
        await collect(gateway, ask())
    await gateway.aclose()
    answer = read.show(read.list()[0].id).conversation[-1]
    assert (answer.message.content, answer.status, answer.error) == ("Hello", "failed", "The pool fell over.")


async def test_a_bug_is_shown_as_one_sentence_without_its_text() -> None:
    gateway = gateway_over(FakeEngine(fail_at=0, error=RuntimeError("secret /path")))
    with pytest.raises(InternalError) as caught:
        await collect(gateway, ask())
    assert "secret" not in caught.value.message


async def test_an_overlong_prompt_is_refused_before_start() -> None:
    with pytest.raises(ContextLengthExceeded):
        await anext(gateway_over(FakeEngine(context=3)).chat(ask("one two three four")))


async def test_a_hung_engine_ends_at_the_deadline_and_is_cancelled() -> None:
    engine = FakeEngine(hang_at=1)
    with pytest.raises(DeadlineExceeded):
        await collect(gateway_over(engine), ask(deadline_s=0.05))
    assert engine.cancelled == ["decode"]


async def test_offline_refuses_an_engine_elsewhere_and_serves_a_local_one() -> None:
    gateway = gateway_over(FakeEngine(name="near"), FakeEngine(name="far", local=False))
    with pytest.raises(NoPermittedRoute, match="`local = true`"):
        await collect(gateway, ask(model="far", offline=True))
    assert isinstance((await collect(gateway, ask(model="near", offline=True)))[-1], Finish)
    assert isinstance((await collect(gateway, ask(model="far")))[-1], Finish)


@pytest.mark.parametrize("num_turns_of_the_loop", [1, 2, 3])
async def test_a_caller_that_leaves_while_the_prompt_is_written_leaves_nothing_running(
    database: Path, read: History, num_turns_of_the_loop: int
) -> None:
    gateway = gateway_over(FakeEngine(), database=database)
    task = asyncio.create_task(collect(gateway, ask()))
    for _ in range(num_turns_of_the_loop):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert isinstance((await collect(gateway, ask("again")))[-1], Finish), "the journal died"
    await gateway.aclose()
    statuses = [stored.status for chat in read.list() for stored in read.show(chat.id).messages]
    assert "running" not in statuses


async def test_a_request_that_wants_no_history_leaves_none(database: Path, read: History) -> None:
    gateway = gateway_over(FakeEngine(), database=database)
    *_, finish = await collect(gateway, ask(journal=False))
    await gateway.aclose()
    assert isinstance(finish, Finish)
    assert finish.chat_id is None
    assert read.list() == ()


@pytest.mark.parametrize("door", ["chat", "http"])
async def test_the_engine_is_told_the_chat_that_history_keeps_the_answer_in(
    database: Path, door: str
) -> None:
    asked: list[ChatRequest] = []

    def script(request: ChatRequest) -> list[bytes]:
        asked.append(request)
        return [b"yes"]

    gateway = gateway_over(FakeEngine(script=script), database=database)
    *_, finish = await collect(gateway, ask(door=door))
    await collect(gateway, ask(door=door, journal=False))
    await gateway.aclose()
    assert isinstance(finish, Finish)
    assert finish.chat_id is not None
    assert [request.chat_id for request in asked] == [finish.chat_id, None]


async def test_http_requests_leave_no_history_where_the_settings_say_so(
    database: Path, read: History
) -> None:
    settings = Settings.model_validate({"server": {"journal": False}})
    gateway = gateway_over(FakeEngine(), database=database, settings=settings)
    *_, finish = await collect(gateway, ask(door="http"))
    await collect(gateway, ask("another", door="ask"))
    await gateway.aclose()
    assert isinstance(finish, Finish)
    assert finish.chat_id is None
    assert [chat.title for chat in read.list()] == ["another"]


async def test_without_a_usable_history_the_answer_comes_and_the_user_is_told_once() -> None:
    def broken() -> History:
        raise StorageError("edgecloud.db is locked.")

    gateway = Gateway(Settings(), FakeCatalog([FakeEngine()]), Journal(broken))
    first, second = await collect(gateway, ask()), await collect(gateway, ask())
    assert [e.text for e in first if isinstance(e, Notice)] == [
        "This answer is not kept: edgecloud.db is locked."
    ]
    assert not [e for e in second if isinstance(e, Notice)]
    assert "".join(e.text for e in second if isinstance(e, TextDelta)) == "Hello, world!"
    await gateway.aclose()


async def test_history_that_breaks_midway_does_not_hurt_the_answer(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("The disk with edgecloud.db is full.")

    monkeypatch.setattr(History, "append", full)
    gateway = gateway_over(FakeEngine(), database=database)
    events = await collect(gateway, ask())
    assert isinstance(events[-1], Finish)
    await gateway.aclose()


async def test_health_is_that_of_the_sickest_engine() -> None:
    well, sick = FakeEngine(name="well"), FakeEngine(name="sick")
    gateway = gateway_over(well, sick)
    assert (await gateway.health()).ok
    sick.ok = False
    health = await gateway.health()
    assert (health.ok, health.detail) == (False, "The fake engine is stuck.")


@pytest.mark.parametrize(("door", "waits"), [("http", False), ("ask", True), ("chat", True)])
async def test_only_who_can_be_told_waits_for_the_disk_at_the_end_and_all_is_kept(
    database: Path, read: History, monkeypatch: pytest.MonkeyPatch, door: str, waits: bool
) -> None:
    waited, finish = [], Journal.finish

    async def noted(journal: Journal, *ending: Any, wait_s: float = 1.0) -> str | None:
        waited.append(wait_s > 0)
        return await finish(journal, *ending, wait_s=wait_s)

    monkeypatch.setattr(Journal, "finish", noted)
    gateway = gateway_over(FakeEngine(), database=database)
    await collect(gateway, ask(door=door))
    await gateway.aclose()

    (chat,) = read.list()
    assert waited == [waits]
    assert read.show(chat.id).conversation[-1].status == "complete"
