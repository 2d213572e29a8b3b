"""What a hand that believes to be elsewhere must not do, and what a slow disk must not hold up."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Input

from edgecloud.app.chats import Hit
from edgecloud.app.history import History
from edgecloud.app.tui.app import EdgeCloudApp
from edgecloud.app.tui.ports import Store
from edgecloud.app.tui.screens.dialogs import Confirm
from edgecloud.app.tui.state.preferences import Preferences
from edgecloud.app.tui.widgets.sidebar import ChatList, Sidebar
from edgecloud.settings import Settings
from edgecloud.types import ChatRequest, Message
from tests.support.fake_engine import FakeEngine

from .chatting import Driven, driven, make_app, make_gateway, until


class SlowHistory(History):
    """Its searches go on until they are broken off, and nothing else is done when `is_stuck`."""

    def __init__(self, path: Path, *, is_stuck: threading.Event) -> None:
        super().__init__(path)
        self.is_stuck = is_stuck
        self.searched: list[str] = []

    def search(self, query: str, limit: int = 50) -> tuple[Hit, ...]:
        self.searched.append(query)
        with self._reading() as connection:
            connection.execute(
                "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
            ).fetchone()
        return ()

    def set_notes(self, chat_id: str, values: object) -> None:
        if self.is_stuck.is_set():
            threading.Event().wait()


def slow_app(folder: Path, opened: list[SlowHistory], is_stuck: threading.Event) -> EdgeCloudApp:
    def open_history() -> SlowHistory:
        opened.append(SlowHistory(folder / "edgecloud.db", is_stuck=is_stuck))
        return opened[-1]

    store = Store(open_history, forget=lambda chat_ids: True)
    return EdgeCloudApp(make_gateway(folder), store, Settings(), preferences=Preferences())


async def press_at_once(user: Driven, *keys: str) -> None:
    """Keys as a script or an impatient hand sends them: nobody waits for what the one before did."""
    for key in keys:
        user.app.post_message(events.Key(key, key if len(key) == 1 else None))
    await user.pilot.pause()


async def test_no_letter_in_the_list_of_chats_acts_it_is_searched_for(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(120, 36)) as user:
        await user.ask("a dog")
        user.chat.query_one(ChatList).focus()
        await user.pilot.press(*"dog?")
        await user.pilot.pause()

        assert user.app.screen is user.chat
        assert user.chat.query_one("#search", Input).value == "dog?"
        assert len(await user.app.store.chats()) == 1


async def test_who_leaves_the_prompt_with_tab_and_writes_on_is_taken_back(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(120, 36)) as user:
        await user.ask("one")
        await user.type("and why")
        await user.pilot.press("tab", "space", *"please?")

        assert user.chat.prompt.text == "and why please?"
        assert user.app.focused is user.chat.prompt


async def test_deleting_from_the_list_takes_a_y_and_names_the_chat(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(120, 36)) as user:
        await user.ask("a dog")
        user.chat.query_one(ChatList).focus()
        await user.pilot.press("home", "delete")
        await until(lambda: isinstance(user.app.screen, Confirm))
        await user.pilot.pause()
        assert "Delete “a dog”, 2 messages" in user.screen_text()
        await user.pilot.press("enter")
        await user.settled()
        assert len(await user.app.store.chats()) == 1

        await user.pilot.press("delete")
        await until(lambda: isinstance(user.app.screen, Confirm))
        await user.pilot.press("y")
        await user.settled()
        assert await user.app.store.chats() == ()


async def test_enter_in_the_search_waits_for_the_hits_of_its_words(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(120, 36)) as user:
        await user.ask("a dog")
        listed, field = user.chat.query_one(ChatList), user.chat.query_one("#search", Input)
        field.focus()
        await press_at_once(user, *"dog", "enter", "d", "enter")
        assert user.app.focused is field
        field.value = "dog"
        await until(lambda: listed.option_count and (listed.get_option_at_index(0).id or "").count("/"))
        await user.do("/new")
        field.focus()
        await user.pilot.press("enter")
        await until(lambda: user.session.title == "a dog")


async def test_enter_before_the_hits_are_there_opens_the_first_of_them(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(120, 36)) as user:
        await user.ask("a dog")
        await user.do("/new")
        user.chat.query_one("#search", Input).focus()
        await press_at_once(user, *"dog", "enter")
        await until(lambda: user.session.title == "a dog")


async def test_who_comes_back_to_the_search_begins_another(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(120, 36)) as user:
        await user.ask("a dog")
        field, listed = user.chat.query_one("#search", Input), user.chat.query_one(ChatList)
        listed.focus()
        await user.pilot.press(*"dog")
        await user.pilot.press("ctrl+o", "ctrl+o")
        assert (user.app.focused, field.value) == (listed, "")

        await user.pilot.press(*"dog")
        user.chat.prompt.focus()
        await user.pilot.pause()
        listed.focus()
        await user.pilot.press(*"do")
        assert field.value == "do"

        await user.do("/search dog")
        await user.pilot.press(*"a d")
        assert field.value == "a d"


@pytest.mark.slow
async def test_a_search_that_takes_for_ever_holds_nothing_up_and_gives_way_to_the_next(
    tmp_path: Path,
) -> None:
    opened: list[SlowHistory] = []
    app = slow_app(tmp_path, opened, threading.Event())
    async with driven(app, size=(120, 36)) as user:
        await user.ask("one")
        field = user.chat.query_one("#search", Input)
        field.focus()
        await user.pilot.press("d")
        await until(lambda: [history.searched for history in opened if history.searched] == [["d"]])
        await user.pilot.press("o")
        await until(lambda: [history.searched for history in opened if history.searched] == [["d", "do"]])

        await user.pilot.press("ctrl+n")
        await until(lambda: user.app.focused is user.chat.prompt)
        await user.ask("two", wait=False)
        await until(lambda: len(user.session.conversation.path) == 2 and not user.session.is_running)
        await user.pilot.press("ctrl+q")
        await until(lambda: not user.app.is_running)
        assert user.toasts() == []


async def test_a_disk_that_never_answers_does_not_keep_anybody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("desk.KEEP_S", "ports.CLOSE_S"):
        monkeypatch.setattr(f"edgecloud.app.tui.{module}", 0.05)
    monkeypatch.setattr("edgecloud.app.disk_thread.SLOW_S", 0.05)
    opened: list[SlowHistory] = []
    is_stuck = threading.Event()
    app = slow_app(tmp_path, opened, is_stuck)
    async with driven(app) as user:
        await user.ask("one")
        is_stuck.set()
        await user.pilot.press("ctrl+q")
        await until(lambda: not user.app.is_running)


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_what_is_said_under_a_stopped_answer_is_true(tmp_path: Path, size: tuple[int, int]) -> None:
    engine = FakeEngine([b"Hello", b", world!"], hang_at=1)
    async with driven(make_app(tmp_path, engine), size=size) as user:
        await user.ask("one", wait=False)
        await until(lambda: engine.generated == 1)
        await user.pilot.press("escape")
        await user.settled()
        assert "stopped · Tab, g goes on" in user.screen_text()

        await user.pilot.press("tab", "g")
        await until(lambda: user.session.is_running)
        assert len(engine.requests) == 2
        assert engine.requests[1].continue_final


async def test_escape_leaves_an_edit_and_the_draft_comes_back(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.ask("one")
        await user.type("half a thought")
        await user.pilot.press("tab", "e")
        await until(lambda: user.chat.prompt.text == "one")
        await user.pilot.press("escape")
        await user.pilot.pause()
        assert user.chat.prompt.text == "half a thought"
        assert user.chat.editing is None

        await user.pilot.press("tab", "e")
        await until(lambda: user.chat.prompt.text == "one")
        await user.ask(" more")
        assert user.chat.prompt.text == "half a thought"
        assert user.session.conversation.path[0].message.content == "one more"


async def test_two_prompts_sent_at_once_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    engine = FakeEngine()
    async with driven(make_app(tmp_path, engine)) as user:
        await press_at_once(user, *"one", "enter", *"two", "enter")
        await until(lambda: len(user.session.conversation.path) == 4)
        await user.settled()
        assert [message.content for message in engine.requests[1].messages] == ["one", "Hello, world!", "two"]
        assert user.chat.prompt.text == ""


async def test_what_is_refused_comes_back_into_the_prompt_and_is_said_above_it(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(80, 24)) as user:
        await user.ask("/nosuch thing")
        assert user.chat.prompt.text == "/nosuch thing"
        assert "There is no command /nosuch" in user.screen_text()
        assert not user.app._notifications

        await user.pilot.press("x")
        await user.pilot.pause()
        assert "There is no command" not in user.screen_text()


async def test_a_toast_leaves_the_prompt_free(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(60, 12)) as user:
        user.chat.say("word " * 30)
        await user.pilot.pause()
        await user.type("what I type")
        text = user.screen_text()
        assert "word" in text
        assert "what I type" in text


async def test_chats_of_programs_are_listed_when_they_are_asked_for(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(120, 36)) as user:
        await user.ask("mine")
        http = ChatRequest(messages=(Message("user", "a program's"),), door="http")
        async for _ in user.app.gateway.chat(http):
            pass
        await user.chat.load_chats()
        await user.pilot.pause()
        assert "a program" not in user.screen_text()

        await user.pilot.press("f5")
        await user.settled()
        assert "http: a program's" in user.screen_text()
        await user.pilot.press("f5")
        await user.settled()
        assert "a program" not in user.screen_text()


async def test_on_a_narrow_screen_the_list_is_over_the_chat_while_it_is_used(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(60, 20)) as user:
        sidebar = user.chat.query_one(Sidebar)
        width = user.chat.prompt.size.width
        await user.pilot.press("ctrl+o")
        await user.settled()
        assert sidebar.display
        assert user.chat.prompt.size.width == width
        await user.pilot.press("escape")
        await user.pilot.pause()
        assert not sidebar.display

        await user.pilot.resize_terminal(120, 36)
        await user.pilot.press("ctrl+o")
        await user.pilot.press("escape")
        assert sidebar.display
        await user.pilot.resize_terminal(20, 6)
        await user.pilot.pause()
        assert not sidebar.display
        await user.type("hi")
        assert "hi" in user.screen_text()
