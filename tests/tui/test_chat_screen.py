"""The chat as a user drives it: chats, routes, other screens, over a scripted engine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList

from edgecloud.app.books import Books
from edgecloud.app.tui.app import EdgeCloudApp
from edgecloud.app.tui.ports import Store
from edgecloud.app.tui.screens.compare import CompareScreen
from edgecloud.app.tui.screens.dialogs import AskText, Reader
from edgecloud.app.tui.screens.picker import Picker
from edgecloud.app.tui.state.preferences import Preferences
from edgecloud.app.tui.widgets.receipt import ReceiptLine
from edgecloud.app.tui.widgets.sidebar import ChatList, Sidebar
from edgecloud.config.loading import load
from edgecloud.router.facts import Privacy, PrivacyReason
from edgecloud.router.ledger import Ledger
from edgecloud.settings import BudgetSettings, PoolEntry, Settings
from edgecloud.types import CacheInfo
from edgecloud.units import MB
from edgecloud.wire.native import dump_record
from tests.support.fake_engine import FakeEngine

from .chatting import driven, make_app, make_gateway, until, words

ROOT = Path(__file__).parents[2]


async def test_a_model_is_pulled_while_one_goes_on_asking_and_esc_keeps_what_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def pull(spec: str, settings: Settings, progress: Callable[[int, int, str], None]) -> None:
        progress(300 * MB, 900 * MB, "model.gguf")
        go_on.wait(20)
        progress(400 * MB, 900 * MB, "model.gguf")

    monkeypatch.setattr("edgecloud.models.pull", pull)
    async with driven(make_app(tmp_path)) as user:
        await user.type("/pull hf:some/model:Q4")
        await user.pilot.press("enter")
        await until(lambda: "300 of 900 MB" in user.screen_text())
        await user.type("hi")
        await user.pilot.press("enter")
        await until(lambda: "Hello, world!" in user.screen_text())

        await user.pilot.press("escape")
        go_on.set()
        await user.settled()
        assert "what came is kept" in user.toasts()[-1]
        assert "MB" not in user.screen_text()


async def test_a_fork_is_a_chat_of_its_own(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.ask("one")
        original = user.session.chat_id
        await user.do("/fork")

        assert user.session.chat_id != original
        await user.ask("two")
        chats = {chat.title: chat.num_messages for chat in await user.app.store.chats()}
        assert chats == {"one": 2, "one (fork)": 4}
        assert user.chat.query(ReceiptLine), "the copy has the receipts too"


async def test_a_chat_that_outgrew_the_context_says_so_and_goes_on_shortened(tmp_path: Path) -> None:
    engine = FakeEngine(words("fine thanks"), context=4096)
    async with driven(make_app(tmp_path, engine)) as user:
        for number in range(4):
            await user.ask(f"turn {number} " + "word " * 40)
        engine.context = 180
        await user.do("/model fake")
        assert "of 180 that fit: /shorten" in user.screen_text()
        whole = user.session.chat_id

        await user.ask("and now?")
        assert "/shorten goes on with the latest turns" in " ".join(user.screen_text().split()), (
            user.screen_text()
        )
        assert "asks again" not in user.screen_text()
        await user.do("/shorten")

        assert user.session.chat_id != whole
        assert user.chat.prompt.full_text == "and now?"
        path = user.session.conversation.path
        assert path[0].message.content.startswith("turn 3")
        assert [node.role for node in path] == ["user", "assistant"]
        assert "that fit" not in user.screen_text()
        await user.pilot.press("enter")
        await user.settled()
        assert user.session.conversation.path[-1].message.content == "fine thanks"
        assert len((await user.app.store.show(whole or "")).messages) == 10


async def test_chats_are_found_opened_renamed_and_deleted(tmp_path: Path) -> None:
    # cases: TE14
    async with driven(make_app(tmp_path), size=(120, 36)) as user:
        await user.ask("the [first] question")
        await user.do("/new")
        await user.ask("another one")
        listed = user.chat.query_one(ChatList)
        assert listed.option_count == 2

        await user.do("/search first")
        await until(lambda: listed.option_count == 1)
        listed.focus()
        await user.pilot.press("home", "enter")
        await user.settled()
        assert user.session.title == "the [first] question"

        user.chat.query_one("#search", Input).value = ""
        await user.do("/rename a [/better] title")
        assert [chat.title for chat in await user.app.store.chats()] == ["another one", "a [/better] title"]

        await user.type("/delete")
        await user.pilot.press("enter")
        await until(lambda: len(user.app.screen_stack) == 2)
        await user.pilot.press("y")
        await user.settled()
        assert [chat.title for chat in await user.app.store.chats()] == ["another one"]
        assert user.session.conversation.path == []


@pytest.mark.parametrize("suffix", ["json", "md"])
async def test_a_chat_comes_back_from_its_file(tmp_path: Path, suffix: str) -> None:
    # cases: TE14
    async with driven(make_app(tmp_path)) as user:
        await user.ask("one")
        await user.ask("two\n\n```\n## user\n```")
        path = tmp_path / f"chat.{suffix}"
        await user.do(f"/export {path}")
        assert path.stat().st_mode & 0o777 == 0o600
        before = [(node.role, node.message.content) for node in user.session.conversation.path]

        await user.do(f"/export {path}")
        assert any("is there already" in toast for toast in user.toasts())
        await user.do(f"/import {path}")

        assert [(node.role, node.message.content) for node in user.session.conversation.path] == before
        assert len(await user.app.store.chats()) == 2


async def test_a_fork_of_a_chat_that_something_found_in_it_keeps_here_is_pinned(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.ask("one")
        assert user.session.chat_id is not None
        (tmp_path / "home").mkdir(exist_ok=True)
        with closing(Ledger(tmp_path / "home" / "edgecloud.db")) as ledger:
            found = Privacy(True, (PrivacyReason("path", "it holds a file that stays here"),))
            ledger.bind(user.session.chat_id, dump_record(found))

        await user.do("/fork")

        assert user.session.title == "one (fork)"
        assert user.session.preferences.private


@pytest.mark.parametrize("suffix", ["json", "md"])
async def test_a_pinned_chat_comes_back_pinned(tmp_path: Path, suffix: str) -> None:
    engine = FakeEngine()
    async with driven(make_app(tmp_path, engine)) as user:
        await user.do("/private")
        await user.ask("one")
        path = tmp_path / f"chat.{suffix}"
        await user.do(f"/export {path}")
        await user.do("/private")
        exported = user.session.chat_id

        await user.do(f"/import {path}")
        await user.ask("two")

        assert user.session.chat_id != exported
        assert user.session.preferences.private
        assert [request.private for request in engine.requests] == [True, True]


async def test_an_answer_in_another_chat_goes_on_and_is_told(tmp_path: Path) -> None:
    engine = FakeEngine(words("a b c"), hang_at=1)
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("one", wait=False)
        await until(lambda: engine.generated == 1)
        behind = user.session
        await user.do("/new")
        assert behind.is_running
        assert user.session is not behind

        behind.stop()
        await until(lambda: not behind.is_running)
        await user.pilot.pause()
        assert len(await user.app.store.chats()) == 1


async def test_the_model_is_chosen_for_the_chat_and_for_one_turn(tmp_path: Path) -> None:
    small, big = FakeEngine(name="small"), FakeEngine(name="big")
    async with driven(make_app(tmp_path, small, big)) as user:
        await user.pilot.press("ctrl+t")
        await until(lambda: isinstance(user.app.screen, Picker))
        await until(lambda: user.app.screen.query_one(OptionList).option_count)
        await user.pilot.press(*"big", "enter")
        await user.settled()
        await user.ask("one")
        await user.ask("two")
        assert (len(big.requests), len(small.requests)) == (1, 1)

        await user.do("/model big")
        await user.ask("three")
        assert len(big.requests) == 2


async def test_offline_and_private_are_on_the_frame_and_in_the_request(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with driven(make_app(tmp_path, engine, settings=Settings(offline=True))) as user:
        assert "offline: this machine only" in user.screen_text()
        await user.do("/private")
        assert "private: this machine only" in user.screen_text()
        await user.ask("one")
        assert (engine.requests[0].offline, engine.requests[0].private) == (True, True)


async def test_what_would_be_sent_can_be_read_first(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.do("/system be brief")
        await user.type("hello there")
        user.chat.run_command("preview")
        await until(lambda: isinstance(user.app.screen, Reader))
        await user.pilot.pause()

        assert "be brief" in user.screen_text()
        assert "hello there" in user.screen_text()


async def test_a_system_prompt_that_is_there_is_gone_on_with_at_its_end(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.do("/system be brief")
        user.chat.run_command("system")
        await until(lambda: isinstance(user.app.screen, AskText))

        await user.pilot.press(*",!", "ctrl+j")
        await until(lambda: user.app.screen is user.chat)
        await user.pilot.pause()

        assert user.chat.session.preferences.system == "be brief,!"


async def test_inline_it_leaves_the_last_command_in_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("textual.app.App.is_inline", True)
    async with driven(make_app(tmp_path), size=(80, 24)) as user:
        assert user.app._get_inline_height() == 10
        await user.ask("hi")
        assert user.app._get_inline_height() == 12
        await user.pilot.press("f2")
        await until(lambda: isinstance(user.app.screen, Picker))
        assert user.app._get_inline_height() >= 16, "a list needs the room"


async def test_the_foot_says_who_would_answer(tmp_path: Path) -> None:
    settings = Settings(pool=(PoolEntry(name="away", url="http://pool.example", model="m"),))
    async with driven(make_app(tmp_path, FakeEngine(name="fake"), settings=settings)) as user:
        assert "fake on this machine" in user.screen_text()
        await user.type("word " * 100)
        await user.pilot.pause()
        assert "about 128 tokens" in user.screen_text()


async def test_the_sidebar_comes_and_goes(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(80, 24)) as user:
        sidebar = user.chat.query_one(Sidebar)
        assert not sidebar.display
        await user.pilot.press("ctrl+o")
        await user.settled()
        assert sidebar.display
        await user.pilot.press("ctrl+o")
        await user.settled()
        assert not sidebar.display


async def test_a_theme_that_was_chosen_is_kept(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.do("/theme textual-light")

        assert user.app.theme == "textual-light"
    assert load().chat.theme == "textual-light"


async def test_two_models_answer_side_by_side_and_one_is_picked(tmp_path: Path) -> None:
    small = FakeEngine(words("the small answer"), name="small")
    big = FakeEngine(words("the big answer"), name="big", hang_at=2)
    async with driven(make_app(tmp_path, small, big)) as user:
        await user.type("which one?")
        user.chat.run_command("compare")
        await until(lambda: isinstance(user.app.screen, CompareScreen))
        await until(lambda: "the small answer" in user.screen_text() and "the big" in user.screen_text())
        await user.pilot.pause(0.2)
        assert "small" in user.screen_text()

        await user.pilot.press("1")
        await until(lambda: user.app.screen is user.chat)
        await user.settled()
        assert [node.message.content for node in user.session.conversation.path] == [
            "which one?",
            "the small answer",
        ]
        assert big.cancelled == ["decode"]
        chat, _, _ = await user.app.store.chat(user.session.chat_id or "")
        assert {stored.message.content for stored in chat.messages} == {
            "which one?", "the small answer", "the big ",
        }  # fmt: skip
        assert chat.conversation[-1].message.content == "the small answer"


async def test_two_models_are_named_with_the_question(tmp_path: Path) -> None:
    small, big = FakeEngine(name="small"), FakeEngine(name="big")
    async with driven(make_app(tmp_path, small, big, FakeEngine(name="other"))) as user:
        await user.type("/compare big small Name one gas")
        await user.pilot.press("enter")
        await until(lambda: isinstance(user.app.screen, CompareScreen))
        await user.pilot.press("1")
        await until(lambda: user.app.screen is user.chat)
        await user.settled()
        assert [node.message.content for node in user.session.conversation.path] == [
            "Name one gas",
            "Hello, world!",
        ]
        assert (len(big.requests), len(small.requests)) == (1, 1)

        await user.do("/compare big")
        assert "/compare NAME NAME QUESTION" in user.toasts()[-1]


async def test_why_is_told_while_the_answer_comes(tmp_path: Path) -> None:
    engine = FakeEngine(words("one two three"), name="paid", hang_at=2)
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("count", wait=False)
        await until(lambda: user.session.turn is not None and user.session.turn.num_tokens)
        user.chat.run_command("why")
        await until(lambda: "is answering now" in user.screen_text())
        await user.pilot.press("escape")
        await until(lambda: user.app.screen is user.chat)
        user.session.stop()
        await user.settled()


async def test_the_dashboard_adds_up_what_was_asked(tmp_path: Path) -> None:
    settings = Settings(budget=BudgetSettings(per_day=1.0))
    app = make_app(tmp_path, FakeEngine(name="fake"), settings=settings)
    app.gateway.books = Books(lambda: Ledger(tmp_path / "edgecloud.db"))  # type: ignore[attr-defined]
    async with driven(app, size=(160, 50)) as user:
        await user.ask("one")
        await user.ask("two")
        await user.pilot.press("f3")
        await until(lambda: "2 requests" in user.screen_text())

        assert "today free of $1.00" in user.screen_text()
        for mark in ("20 h ago", "now", "6 d ago", "today", " ms"):
            assert mark in user.screen_text()
        assert "fake" in user.screen_text()
        await user.pilot.press("escape")
        await until(lambda: user.app.screen is user.chat)


async def test_thumbs_and_what_is_done_with_answers_teach_the_router(tmp_path: Path) -> None:
    app = make_app(tmp_path, FakeEngine(name="small"), FakeEngine(name="big"))
    given: list[tuple[str, str, int]] = []

    async def feedback(answer: str, verdict: str, *, over: Sequence[str] = ()) -> None:
        given.append((answer[:4], verdict, len(over)))

    app.gateway.feedback = feedback  # type: ignore[method-assign]
    async with driven(app) as user:
        await user.ask("one")
        user.chat.transcript.focus()
        await user.pilot.press("plus", "minus", "r")
        await user.settled()
        await user.do("/edit")
        await user.ask(" more")
        user.chat.run_command("compare")
        await until(lambda: isinstance(user.app.screen, CompareScreen))
        await until(lambda: len(user.app.screen.query(ReceiptLine)) == 2)
        await user.pilot.press("2")
        await user.settled()

    assert given == [
        ("req-", "up", 0),
        ("req-", "down", 0),
        ("req-", "regenerated", 0),
        ("req-", "edited", 0),
        ("req-", "picked", 1),
    ]


async def test_a_wrong_answer_from_the_cache_is_forgotten(tmp_path: Path) -> None:
    # cases: TE9
    app = make_app(tmp_path)
    blamed: list[str] = []

    async def blame(entry_id: str) -> bool:
        blamed.append(entry_id)
        return True

    app.gateway.blame = blame  # type: ignore[method-assign]
    async with driven(app) as user:
        await user.ask("one")
        await user.do("/forget")
        assert blamed == []

        node = user.session.conversation.path[-1]
        assert node.receipt is not None
        node.receipt = replace(node.receipt, cache=CacheInfo("semantic", 0.97, 60.0, "entry-1"))
        await user.do("/forget")
        assert blamed == ["entry-1"]


async def test_offline_nothing_is_connected_to_and_no_name_is_looked_up(tmp_path: Path) -> None:
    # cases: TE4
    seen: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect"):
            seen.append(f"{event} {arguments}")

    sys.addaudithook(watch)
    try:
        async with driven(make_app(tmp_path, settings=Settings(offline=True))) as user:
            await user.ask("hi")
            await user.pilot.press("f2")
            await until(lambda: isinstance(user.app.screen, Picker))
            await user.pilot.press("escape")
            await user.do(f"/export {tmp_path / 'chat.md'}")
    finally:
        watching = False

    assert seen == []


async def test_with_history_off_one_chats_all_the_same_and_nothing_is_kept(tmp_path: Path) -> None:
    engine = FakeEngine()
    app = EdgeCloudApp(make_gateway(tmp_path, engine), Store(None), Settings(), preferences=Preferences())
    async with driven(app, size=(120, 36)) as user:
        await user.ask("one")
        await user.ask("two")
        await user.do("/regenerate")
        await user.do("/rename x")
        assert "History is off" in user.toasts()[-1]
        await user.do("/search one")

        assert "‹ 2 of 2 ›" in user.screen_text()
        assert [request.journal for request in engine.requests] == [False] * 3
        assert len(engine.requests[-1].messages) == 3
    assert not (tmp_path / "edgecloud.db").exists()
