"""One chat held without a screen: asked, stopped, queued, repeated, kept."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgecloud.app.chats import Chat
from edgecloud.app.tui.session import Session
from edgecloud.app.tui.state.conversation import Conversation, Node
from edgecloud.app.tui.state.preferences import Preferences
from edgecloud.app.tui.state.waiting import NOTED, Route, noted, restored
from edgecloud.errors import UpstreamError
from edgecloud.types import Receipt
from tests.support.fake_engine import FakeEngine

from .chatting import make_session, until, waiting, words


async def ask(session: Session, text: str) -> Node:
    session.send(waiting(text))
    await until(lambda: not session.is_running)
    assert session.conversation.head is not None
    return session.conversation.head


async def reopened(session: Session) -> Conversation:
    """The chat as another process would open it."""
    assert session.chat_id is not None
    chat, receipts, _ = await session.store.chat(session.chat_id)
    return Conversation.of(chat, receipts)


def contents(conversation: Conversation) -> list[tuple[str, str, str]]:
    return [(node.role, node.message.content, node.status) for node in conversation.path]


async def test_an_answer_is_kept_with_its_receipt(tmp_path: Path) -> None:
    session = make_session(tmp_path)

    answer = await ask(session, "hi there")

    assert (answer.message.content, answer.status) == ("Hello, world!", "complete")
    assert answer.receipt is not None
    assert session.title == "hi there"
    kept = await reopened(session)
    assert contents(kept) == contents(session.conversation)
    assert kept.path[-1].receipt == answer.receipt
    assert [node.id for node in kept.path] == [node.id for node in session.conversation.path]


async def test_stopping_keeps_what_came_and_it_can_go_on(tmp_path: Path) -> None:
    engine = FakeEngine(words("one two three four"), hang_at=2)
    session = make_session(tmp_path, engine)
    session.send(waiting("count"))
    await until(lambda: session.turn is not None and session.turn.text == "one two ")

    session.stop()
    await until(lambda: not session.is_running)
    half = session.conversation.head
    assert half is not None
    assert (half.message.content, half.status) == ("one two ", "interrupted")

    engine.hang_at = None
    engine.script = words("three four")
    assert session.continue_(half)
    await until(lambda: not session.is_running)

    whole = session.conversation.head
    assert whole is not None
    assert whole.message.content == "one two three four"
    assert engine.requests[-1].continue_final
    assert session.conversation.place(whole) == (2, 2)
    assert contents(await reopened(session)) == contents(session.conversation)


async def test_a_stopped_answer_has_the_receipt_that_it_has_after_reopening(tmp_path: Path) -> None:
    engine = FakeEngine(words("one two three four"), hang_at=2)
    session = make_session(tmp_path, engine)
    session.send(waiting("count"))
    await until(lambda: session.turn is not None and session.turn.text == "one two ")

    session.stop()
    await until(lambda: not session.is_running)

    half, kept = session.conversation.path[-1], (await reopened(session)).path[-1]
    assert half.receipt is not None
    assert (half.receipt_id, half.receipt) == (kept.receipt_id, kept.receipt)


async def test_the_end_of_a_stopped_answer_is_waited_for_where_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(hang_at=1)
    session = make_session(tmp_path, engine)
    read, early = session.store.chat, iter((True, True))

    async def read_late(chat_id: str) -> tuple[Chat, dict[str, Receipt], Mapping[str, Any]]:
        chat, receipts, notes = await read(chat_id)
        if next(early, False):
            unwritten = [replace(each, status="running", receipt_id=None) for each in chat.messages]
            chat = replace(chat, messages=tuple(unwritten))
        return chat, receipts, notes

    monkeypatch.setattr(session.store, "chat", read_late)
    session.send(waiting("count"))
    await until(lambda: session.turn is not None and session.turn.text)
    session.stop()
    await until(lambda: not session.is_running)

    assert session.conversation.path[-1].receipt is not None


async def test_what_waited_follows_an_answer_that_was_stopped_before_it_began(tmp_path: Path) -> None:
    engine = FakeEngine(hang_at=0)
    session = make_session(tmp_path, engine)
    session.send(waiting("one"))
    await until(lambda: engine.running)
    session.send(waiting("two"))
    session.stop()
    await until(lambda: not session.is_running)
    engine.hang_at = None

    session.go_on()
    await until(lambda: not session.is_running)

    for conversation in (session.conversation, await reopened(session)):
        assert [node.message.content for node in conversation.path] == ["one", "", "two", "Hello, world!"]
        assert {conversation.place(node) for node in conversation.path} == {(1, 1)}


async def test_a_chat_that_was_stopped_at_its_first_answer_goes_on_as_the_same_chat(tmp_path: Path) -> None:
    engine = FakeEngine(hang_at=0)
    session = make_session(tmp_path, engine)
    session.send(waiting("first"))
    await until(lambda: engine.running)
    session.stop()
    await until(lambda: not session.is_running)
    chat_id = session.chat_id

    engine.hang_at = None
    await ask(session, "second")

    assert session.chat_id == chat_id
    assert len(await session.store.chats()) == 1


async def test_what_is_sent_meanwhile_waits_and_is_asked_in_order(tmp_path: Path) -> None:
    engine = FakeEngine(lambda request: words(f"re {request.messages[-1].content}"), decode_s=0.01)
    session = make_session(tmp_path, engine)

    for text in ("one", "two", "three"):
        session.send(waiting(text))
    await until(lambda: not session.is_running)

    assert [node.message.content for node in session.conversation.path] == [
        "one", "re one", "two", "re two", "three", "re three",
    ]  # fmt: skip


async def test_stopped_while_an_answer_is_read_back_what_waits_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    session = make_session(tmp_path, engine)
    reading = asyncio.Event()

    async def read_never(chat_id: str) -> None:
        reading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(session.store, "chat", read_never)
    session.send(waiting("one"))
    session.send(waiting("two"))
    await reading.wait()
    session.stop()
    await until(lambda: not session.is_running or len(engine.requests) > 1)

    assert len(engine.requests) == 1
    assert [prompt.typed for prompt in session.queue] == ["two"]


async def test_a_prompt_that_waits_can_be_taken_back(tmp_path: Path) -> None:
    engine = FakeEngine(hang_at=0)
    session = make_session(tmp_path, engine)
    session.send(waiting("one"))
    await until(lambda: engine.running)
    session.send(waiting("two"))

    taken = session.unqueue()

    assert taken is not None
    assert taken.typed == "two"
    assert session.unqueue() is None
    await session.aclose()


async def test_after_a_failure_the_queue_waits_for_the_user(tmp_path: Path) -> None:
    engine = FakeEngine(fail_at=0, error=UpstreamError("The pool is away: try again."))
    session = make_session(tmp_path, engine)
    session.send(waiting("one"))
    session.send(waiting("two"))
    await until(lambda: not session.is_running)

    failed = session.conversation.head
    assert failed is not None
    assert (failed.status, failed.error) == ("failed", "The pool is away: try again.")
    assert [prompt.typed for prompt in session.queue] == ["two"]

    engine.fail_at = None
    session.go_on()
    await until(lambda: not session.is_running)
    assert [message.content for message in engine.requests[-1].messages] == ["one", "two"]


async def test_a_bug_of_ours_is_one_sentence_in_the_chat(tmp_path: Path) -> None:
    session = make_session(tmp_path, FakeEngine(fail_at=0, error=ValueError("a secret detail")))

    answer = await ask(session, "one")

    assert answer.error is not None
    assert "secret" not in answer.error


async def test_an_empty_reply_is_an_answer_that_says_so(tmp_path: Path) -> None:
    # cases: TA9
    session = make_session(tmp_path, FakeEngine([]))

    answer = await ask(session, "one")

    assert (answer.message.content, answer.status) == ("", "complete")


async def test_another_answer_stands_beside_the_first(tmp_path: Path) -> None:
    engine = FakeEngine()
    session = make_session(tmp_path, engine)
    first = await ask(session, "hi")

    assert session.regenerate(first, Route(model="fake"))
    assert not session.regenerate(first), "one is coming"
    await until(lambda: not session.is_running)

    assert session.conversation.place(first) == (1, 2)
    assert engine.requests[-1].fresh
    kept = await reopened(session)
    assert kept.place(kept.path[-1]) == (2, 2)


async def test_a_question_in_other_words_is_a_branch(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    await ask(session, "first")
    question = (await ask(session, "second")).parent
    assert question is not None

    assert session.edit(question, waiting("second, in other words"))
    await until(lambda: not session.is_running)

    assert [node.message.content for node in session.conversation.path if node.role == "user"] == [
        "first",
        "second, in other words",
    ]
    kept = await reopened(session)
    assert [kept.place(node) for node in kept.path] == [(1, 1), (1, 1), (2, 2), (1, 1)]


async def test_preferences_are_sent_and_kept(tmp_path: Path) -> None:
    engine = FakeEngine()
    session = make_session(tmp_path, engine, preferences=Preferences(system="be brief", temperature=0.5))
    await ask(session, "hi")
    await session.set_preferences(Preferences(system="be long", private=True))
    await ask(session, "and now")

    first, second = engine.requests
    assert [message.role for message in first.messages] == ["system", "user"]
    assert first.sampling.temperature == 0.5
    assert second.messages[0].content == "be long"
    assert second.private
    assert session.chat_id is not None
    assert Preferences.of((await session.store.chat(session.chat_id))[2]) == session.preferences


async def test_a_new_chat_fifty_times_is_empty_fifty_times(tmp_path: Path) -> None:
    # cases: TC7
    session = make_session(tmp_path)
    for number in range(50):
        session = Session(session.gateway, session.store)
        assert session.conversation.path == []
        await ask(session, f"question {number}")

    assert len(await session.store.chats()) == 50
    assert [len(node.children) for node in session.conversation.path] == [1, 0]


async def test_without_a_database_the_answer_is_still_there_and_one_warning(tmp_path: Path) -> None:
    # cases: TC4
    (tmp_path / "edgecloud.db").mkdir()
    session = make_session(tmp_path)

    answer = await ask(session, "hi")
    warning, session.warning = session.warning, None
    again = await ask(session, "hi")

    assert answer.message.content == again.message.content == "Hello, world!"
    assert warning is not None
    assert "not kept" in warning
    assert session.warning is None


async def test_a_database_deleted_in_the_middle_is_made_again(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    await ask(session, "one")
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"edgecloud.db{suffix}").unlink(missing_ok=True)

    answer = await ask(session, "two")

    assert answer.status == "complete"
    assert [node.message.content for node in (await reopened(session)).path] == [
        "one", "Hello, world!", "two", "Hello, world!",
    ]  # fmt: skip


async def test_what_waits_is_kept_the_moment_it_waits_until_it_is_asked(tmp_path: Path) -> None:
    engine = FakeEngine(hang_at=0)
    session = make_session(tmp_path, engine)

    async def kept() -> list[str]:
        _, _, notes = await session.store.chat(str(session.chat_id))
        return [each.typed for each in restored(notes)[1]]

    for text in ("one", "two", "three"):
        session.send(waiting(text))
    await until(lambda: engine.running)
    assert await kept() == ["two", "three"]

    session.unqueue()
    await asyncio.sleep(0)
    assert await kept() == ["two"]

    await session.aclose()
    assert await kept() == ["two"]
    session.go_on()
    await until(lambda: engine.running and not session.queue)
    assert await kept() == []
    await session.aclose()


def test_what_waited_comes_back_with_who_was_asked_and_what_lost_its_file_as_the_draft() -> None:
    queue = [waiting("one", route=Route("small", "cheap")), waiting("see @/nowhere/at-all.png")]
    notes = {"draft": "typed", NOTED: [*noted(queue), {"typed": 7}, "another version's"]}

    preferences, back = restored(notes)

    assert [(each.typed, each.route) for each in back] == [("one", Route("small", "cheap"))]
    assert preferences.draft == "see @/nowhere/at-all.png\ntyped"


async def test_a_chat_that_was_removed_elsewhere_begins_anew(tmp_path: Path) -> None:
    engine = FakeEngine()
    session = make_session(tmp_path, engine)
    await ask(session, "a secret")
    removed = session.chat_id
    assert removed is not None
    await session.store.remove(removed)

    answer = await ask(session, "and now?")

    assert [message.content for message in engine.requests[-1].messages] == ["and now?"]
    assert session.warning is not None
    assert "removed" in session.warning
    assert session.chat_id != removed
    assert [node.message.content for node in session.conversation.path] == ["and now?", "Hello, world!"]
    assert answer.id is not None
    kept = await session.store.chats()
    assert [(chat.id, chat.num_messages) for chat in kept] == [(session.chat_id, 2)]


async def test_asking_again_in_a_removed_chat_asks_that_question_alone(tmp_path: Path) -> None:
    engine = FakeEngine()
    session = make_session(tmp_path, engine)
    await ask(session, "a secret")
    answer = await ask(session, "and now?")
    assert session.chat_id is not None
    await session.store.remove(session.chat_id)

    assert session.regenerate(answer)
    await until(lambda: not session.is_running)

    assert contents(await reopened(session)) == contents(session.conversation)
    assert [message.content for message in engine.requests[-1].messages] == ["and now?"]
