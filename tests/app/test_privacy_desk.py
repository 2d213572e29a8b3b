"""What binds a conversation, and for how long it is remembered."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from edgecloud.app import privacy
from edgecloud.app.books import Books
from edgecloud.app.privacy import PrivacyDesk
from edgecloud.router.ledger import Ledger
from edgecloud.router.privacy import UNREAD
from edgecloud.settings import PrivacySettings, Settings
from edgecloud.types import ChatRequest, Message

CARD = "my card is 4539 1488 0343 6467"


def ask(*texts: str, **fields: Any) -> ChatRequest:
    """A conversation of the user's and the assistant's texts in turn."""
    roles = ("user", "assistant")
    messages = tuple(Message(roles[place % 2], text) for place, text in enumerate(texts))
    return ChatRequest(messages=messages, **fields)


@pytest.fixture
def desk(tmp_path: Path) -> PrivacyDesk:
    return desk_over(tmp_path)


def desk_over(folder: Path, **rules: Any) -> PrivacyDesk:
    settings = Settings(privacy=PrivacySettings(**rules))
    return PrivacyDesk(settings, Books(lambda: Ledger(folder / "edgecloud.db")))


async def is_bound(desk: PrivacyDesk, request: ChatRequest, **how: bool) -> bool:
    return (await desk.look_at(request, **how)).local_only


async def test_a_chat_that_was_private_once_stays_so(desk: PrivacyDesk) -> None:
    assert await is_bound(desk, ask("hi", chat_id="chat-1", private=True))
    assert await is_bound(desk, ask("hi", "hello", "and?", chat_id="chat-1"))
    assert not await is_bound(desk, ask("hi", chat_id="chat-2"))


@pytest.mark.parametrize("texts", [(CARD, "hi"), ("hi", CARD)])
async def test_two_requests_of_a_chat_at_once_bind_it_as_one_of_them_does(
    desk: PrivacyDesk, texts: tuple[str, str]
) -> None:
    await asyncio.gather(*(desk.look_at(ask(text, chat_id="chat-1")) for text in texts))
    assert await is_bound(desk, ask("and?", chat_id="chat-1"))


async def test_another_process_knows_it_too(tmp_path: Path) -> None:
    first = desk_over(tmp_path)
    await first.look_at(ask("hi", chat_id="chat-1", private=True))
    assert first._books is not None
    await first._books.aclose()
    assert await is_bound(desk_over(tmp_path), ask("and?", chat_id="chat-1"))


async def test_a_chat_with_a_switch_can_take_its_own_wish_back_and_nothing_else(desk: PrivacyDesk) -> None:
    chat: dict[str, Any] = {"chat_id": "chat-1", "door": "chat"}
    assert await is_bound(desk, ask("hi", private=True, **chat))
    assert not await is_bound(desk, ask("hi", **chat))
    assert await is_bound(desk, ask("my card is 4539 1488 0343 6467", **chat))
    assert await is_bound(desk, ask("forget it", **chat))


async def test_asking_on_in_a_chat_goes_by_its_switch_too_and_by_what_was_found_in_it(
    desk: PrivacyDesk,
) -> None:
    chat: dict[str, Any] = {"chat_id": "chat-1"}
    assert await is_bound(desk, ask("hi", door="chat", private=True, **chat))
    assert not await is_bound(desk, ask("hi", "hello", "and?", door="ask", **chat))
    assert await is_bound(desk, ask("hi", "hello", "and?", door="ask", private=True, **chat))
    assert await is_bound(desk, ask("my card is 4539 1488 0343 6467", door="ask", **chat))
    assert await is_bound(desk, ask("forget it", door="ask", **chat))


async def test_another_process_knows_of_a_wish_that_was_taken_back(tmp_path: Path) -> None:
    first = desk_over(tmp_path)
    await first.look_at(ask("hi", chat_id="chat-1", door="chat", private=True))
    await first.look_at(ask("hi", chat_id="chat-1", door="chat"))
    assert first._books is not None
    await first._books.aclose()
    assert not await is_bound(desk_over(tmp_path), ask("and?", chat_id="chat-1"))


async def test_what_is_no_news_is_not_written_again(
    desk: PrivacyDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(desk._books, "bind", lambda session, reasons: written.append(session))
    for text in ("hi", "and?", "and then?"):
        await desk.look_at(ask(text, chat_id="chat-1", private=True))
        await desk.look_at(ask(text, chat_id="chat-2"))
    assert written == ["chat-1"]


async def test_memory_holds_the_conversations_that_were_seen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "KEPT", 2)
    desk = PrivacyDesk(Settings(), None)
    for chat in ("chat-1", "chat-2", "chat-1", "chat-3"):
        await desk.look_at(ask("hi", chat_id=chat, private=True))
    chats = [ask("hi", chat_id=f"chat-{number}") for number in (1, 2, 3)]
    assert [await is_bound(desk, chat, remember=False) for chat in chats] == [True, False, True]


async def test_over_http_the_turns_of_a_conversation_are_bound_and_other_greetings_are_not(
    desk: PrivacyDesk,
) -> None:
    assert await is_bound(desk, ask("hi", door="http", private=True))
    assert await is_bound(desk, ask("hi", "hello", "and?", door="http"))
    assert not await is_bound(desk, ask("hi", door="http"))
    assert not await is_bound(desk, ask("hi", "hello", "and?", door="http", tenant="other"))


async def test_a_conversation_stays_bound_when_another_begins_alike(tmp_path: Path) -> None:
    first = desk_over(tmp_path)
    assert await is_bound(first, ask("hi", door="http", private=True))
    assert first._books is not None
    await first._books.aclose()
    for desk in (first, desk_over(tmp_path)):
        assert not await is_bound(desk, ask("hi", door="http"))
        assert await is_bound(desk, ask("hi", "hello", "and?", door="http"))


async def test_looking_only_binds_nothing(desk: PrivacyDesk) -> None:
    assert await is_bound(desk, ask("hi", chat_id="chat-1", private=True), remember=False)
    assert not await is_bound(desk, ask("hi", chat_id="chat-1"))


async def test_an_attached_file_binds_by_its_path(tmp_path: Path) -> None:
    desk = desk_over(tmp_path, paths=("/clients/",))
    assert await is_bound(desk, ask("sum this up", files=("/clients/a.txt",)))
    assert not await is_bound(desk, ask("sum this up", files=("/public/a.txt",)))


async def test_while_nobody_can_read_what_was_wished_before_a_chat_stays_here(tmp_path: Path) -> None:
    first = desk_over(tmp_path)
    await first.look_at(ask("hi", chat_id="chat-1", private=True))
    assert first._books is not None
    await first._books.aclose()
    desk = PrivacyDesk(Settings(), Books(lambda: Ledger(tmp_path / "edgecloud.db", busy_s=0.05)))
    lock = sqlite3.connect(tmp_path / "edgecloud.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")

    wished, open_to_all = ask("and?", chat_id="chat-1"), ask("and?", chat_id="chat-2")
    locked = [(await desk.look_at(request)).reasons for request in (wished, open_to_all)]
    fresh = await is_bound(desk, ask("hi"))
    lock.execute("ROLLBACK")
    lock.close()

    assert locked == [(UNREAD,)] * 2
    assert not fresh, "a conversation that begins has no past"
    assert await is_bound(desk, wished)
    assert not await is_bound(desk, open_to_all), "what could not be read binds nothing for good"
