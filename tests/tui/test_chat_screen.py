"""The chat as a user drives it, over the real gateway and history and a scripted engine."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Input, OptionList, Static

from edgecloud.app.tui.app import EdgeCloudApp
from edgecloud.app.tui.ports import Store
from edgecloud.app.tui.render.lines import Line
from edgecloud.app.tui.screens.compare import CompareScreen
from edgecloud.app.tui.screens.dialogs import Reader
from edgecloud.app.tui.screens.picker import Picker
from edgecloud.app.tui.state.commands import COMMANDS
from edgecloud.app.tui.state.preferences import Preferences
from edgecloud.app.tui.widgets.code import CodeBlock
from edgecloud.app.tui.widgets.flow import Flow
from edgecloud.app.tui.widgets.label import Label
from edgecloud.app.tui.widgets.receipt import ReceiptLine
from edgecloud.app.tui.widgets.sidebar import ChatList, Sidebar
from edgecloud.app.tui.widgets.turns import AnswerView, TurnView
from edgecloud.errors import UpstreamError
from edgecloud.settings import BudgetSettings, ChatSettings, PoolEntry, Settings, load
from edgecloud.types import CacheInfo
from tests.support.fake_engine import FakeEngine

from .chatting import Driven, driven, make_app, make_gateway, until, words

ROOT = Path(__file__).parents[2]


async def test_an_answer_streams_and_ends_with_its_receipt(tmp_path: Path) -> None:
    engine = FakeEngine(words("# Title\n\nSome **bold** text."), hang_at=3)
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("hi", wait=False)
        await until(lambda: "Some" in user.screen_text())
        assert "answers" in user.screen_text()

        await user.pilot.press("escape")
        await user.settled()

        assert "stopped · Tab, g goes on" in user.screen_text()
        engine.hang_at = None
        await user.ask("again")
        text = user.screen_text()
        assert "Some bold text." in text
        assert "fake · free · first word" in text


async def test_a_fence_streamed_a_character_at_a_time_survives_a_change_of_theme(tmp_path: Path) -> None:
    # cases: TA1
    code = "def f():\n    return 1\n\n\nx = f()"
    engine = FakeEngine([c.encode() for c in f"```python\n{code}\n```\ndone"])
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("hi")
        user.app.theme = "textual-light"
        await user.pilot.pause()

        block = user.chat.query_one(CodeBlock)
        assert block.code == code
        assert block.query_one(Flow).text == code
        assert "return 1" in user.screen_text()


async def test_a_first_run_explains_itself_in_three_lines_above_the_focused_prompt(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(80, 24)) as user:
        text = user.screen_text()

        assert "smollm2 answers here, nothing is sent anywhere; /pull" in text
        assert "Enter sends" in text
        assert user.app.focused is user.chat.prompt


async def test_what_is_typed_while_an_answer_comes_waits_and_can_be_taken_back(tmp_path: Path) -> None:
    # cases: TB10
    engine = FakeEngine(hang_at=0)
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("one", wait=False)
        await until(lambda: engine.running)
        await user.ask("two", wait=False)
        assert "1 waits" in user.screen_text()

        await user.pilot.press("up")
        await user.pilot.pause()

        assert user.chat.prompt.text == "two"
        assert user.session.queue == []


async def test_an_error_is_a_sentence_in_the_chat(tmp_path: Path) -> None:
    engine = FakeEngine(refuse=UpstreamError("[/] The pool is away: try again later."))
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("hi")

        assert "[/] The pool is away: try again later. · Tab, r asks again" in user.screen_text()


@pytest.mark.slow
async def test_no_command_ends_the_app_whatever_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # cases: TC11
    monkeypatch.chdir(tmp_path)  # where /export writes
    async with driven(make_app(tmp_path)) as user:
        await user.ask("hi")
        for command in COMMANDS:
            for argument in ("", "[/] \x1b[31m rubbish /no/such/file 99999999999999999999"):
                if command.name in ("quit", "editor"):
                    continue
                await user.type(f"/{command.name} {argument}")
                await user.pilot.press("enter")
                await user.pilot.pause()
                while len(user.app.screen_stack) > 1:
                    await user.pilot.press("escape")
                    await user.pilot.pause()
                user.chat.prompt.focus()
                await user.pilot.pause()
                assert user.app.is_running, command

        await user.settled()
        assert user.app.is_running


async def test_markup_in_a_toast_is_text(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        user.chat.say("[/")
        user.chat.say("/models/[abc]/x.gguf")
        await user.pilot.pause(0.1)

        assert "/models/[abc]/x.gguf" in user.screen_text()


def test_our_label_shows_what_a_plain_one_chokes_on() -> None:
    with pytest.raises(Exception, match="closing tag"):
        Static("[/]").visual  # noqa: B018
    assert str(Label("[/] \x1b[31m").visual) == "[/] ␛[31m"


async def test_a_thousand_messages_open_with_few_widgets(tmp_path: Path) -> None:
    # cases: TA3
    app = make_app(tmp_path)
    async with driven(app) as user:
        await user.ask("hi")
        messages = list((await app.store.show(user.session.chat_id or "")).messages)
        long = []
        for number in range(1000):
            parent = f"m{number - 1}" if number else None
            long.append(replace(messages[number % 2], id=f"m{number}", parent_id=parent))
        chat_id = await app.store.insert("long", long, "m999")

        await user.chat.open(chat_id)
        await user.settled()
        before = len(user.chat.query("*"))
        assert len(user.chat.session.conversation.path) == 1000
        assert before < 250

        user.chat.transcript.focus()
        await user.pilot.press("home")
        await user.settled()
        assert len(user.chat.query(TurnView)) == 40
        assert user.chat.transcript.scroll_y > 0, "what was read stays where it was"


async def test_a_model_is_pulled_while_one_goes_on_asking_and_esc_keeps_what_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def pull(spec: str, settings: Settings, progress: Callable[[int, int, str], None]) -> None:
        progress(300 * 2**20, 1000 * 2**20, "model.gguf")
        go_on.wait(20)
        progress(400 * 2**20, 1000 * 2**20, "model.gguf")

    monkeypatch.setattr("edgecloud.models.pull", pull)
    async with driven(make_app(tmp_path)) as user:
        await user.type("/pull hf:some/model:Q4")
        await user.pilot.press("enter")
        await until(lambda: "30% of 1,000 MB" in user.screen_text())
        await user.type("hi")
        await user.pilot.press("enter")
        await until(lambda: "Hello, world!" in user.screen_text())

        await user.pilot.press("escape")
        go_on.set()
        await user.settled()
        assert "what came is kept" in user.toasts()[-1]
        assert "MB" not in user.screen_text()


async def test_a_key_for_nothing_is_told(tmp_path: Path) -> None:
    settings = Settings(chat=ChatSettings(keys={"chat.nwe": "ctrl+g", "chat.new": "ctrl+g"}))
    async with driven(make_app(tmp_path, settings=settings)) as user:
        assert [toast for toast in user.toasts() if "chat.nwe" in toast]


async def test_the_end_is_followed_unless_somebody_scrolled_up(tmp_path: Path) -> None:
    engine = FakeEngine(words("\n\n".join(f"paragraph {number}" for number in range(40))), decode_s=0.005)
    async with driven(make_app(tmp_path, engine), size=(80, 24)) as user:
        await user.ask("one")
        transcript = user.chat.transcript
        assert transcript.is_at_end

        await user.ask("two", wait=False)
        await until(lambda: user.session.turn is not None and user.session.turn.num_tokens > 10)
        await user.pilot.press("pageup")
        await user.pilot.pause()
        read = transcript.scroll_y
        await user.settled()
        assert transcript.scroll_y == read

        await user.pilot.press("tab", "end")
        await user.pilot.pause()
        assert transcript.is_at_end


async def test_keys_act_on_the_message_under_the_cursor(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.ask("one")
        await user.ask("two")
        user.chat.transcript.focus()
        await user.pilot.press("up", "up")

        await user.pilot.press("o")
        await user.settled()
        receipts = list(user.chat.query(ReceiptLine))
        assert [receipt.is_open for receipt in receipts] == [True, False]

        await user.pilot.press("r")
        await user.settled()
        assert "‹ 2 of 2 ›" in user.screen_text()
        await user.pilot.press("left")
        await user.settled()
        assert "‹ 1 of 2 ›" in user.screen_text()
        assert [node.message.content for node in user.session.conversation.path if node.role == "user"] == [
            "one",
            "two",
        ]


async def test_a_click_chooses_a_message_and_typing_goes_on_in_the_prompt(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.ask("one")
        await user.ask("two")
        first = user.chat.query(AnswerView).first()
        await user.pilot.click(first)
        await user.pilot.press("r", "e")

        assert user.chat.node is first.node
        assert user.chat.prompt.text == "re"
        await user.pilot.press("escape")
        assert user.chat.node is user.session.conversation.head


async def test_a_question_is_edited_in_the_prompt_and_left_alone_by_escape(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.ask("one")
        await user.do("/edit")
        assert user.chat.prompt.text == "one"

        await user.pilot.press("escape")
        assert user.chat.prompt.text == ""
        await user.do("/edit")
        await user.ask(" more")
        assert [node.message.content for node in user.session.conversation.roots] == ["one", "one more"]


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
        assert any("cannot be written" in toast for toast in user.toasts())
        await user.do(f"/import {path}")

        assert [(node.role, node.message.content) for node in user.session.conversation.path] == before
        assert len(await user.app.store.chats()) == 2


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


async def test_a_paste_of_a_megabyte_is_a_chip_and_is_sent_whole(tmp_path: Path) -> None:
    # cases: TB3
    engine = FakeEngine(context=10**9)
    pasted = "\n".join(f"line {number} of the paste" for number in range(45_000))
    async with driven(make_app(tmp_path, engine)) as user:
        # To the app: posted to the widget, it would be inserted twice.
        user.app.post_message(events.Paste(pasted))
        await until(lambda: user.chat.prompt.text)
        assert user.chat.prompt.text == "[pasted 45,000 lines]"
        assert user.chat.prompt.size.height < 5

        await user.pilot.press("enter")
        await user.settled()
        assert engine.requests[0].messages[0].content == pasted


async def test_the_order_of_tab_is_fixed(tmp_path: Path) -> None:
    # cases: TB7
    async with driven(make_app(tmp_path), size=(120, 36)) as user:
        await user.ask("one")
        await user.ask("two")
        order = []
        for _ in range(5):
            order.append(user.app.focused.id if user.app.focused else None)
            await user.pilot.press("tab")

        assert order == ["prompt", "search", "chats", "transcript", "prompt"]


async def test_tab_completes_a_command_and_else_leaves_the_prompt(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.ask("hi")
        await user.type("/regen")
        await user.pilot.press("tab")
        assert user.chat.prompt.text == "/regenerate "
        await user.pilot.press("tab")
        assert user.app.focused is not user.chat.prompt


async def test_keys_can_be_changed_by_their_id(tmp_path: Path) -> None:
    # cases: TB8
    async with driven(make_app(tmp_path, keys={"chat.new": "ctrl+g"})) as user:
        await user.ask("one")
        await user.pilot.press("ctrl+g")
        await user.settled()

        assert user.session.conversation.path == []


async def test_every_binding_of_ours_has_an_id(tmp_path: Path) -> None:
    # cases: TB8
    async with driven(make_app(tmp_path)) as user:
        ours = [user.app, user.chat, user.chat.prompt, user.chat.transcript, user.chat.query_one(ChatList)]
        bindings = [binding for node in ours for binding in type(node).BINDINGS]

        assert [binding for binding in bindings if not binding.id] == []  # type: ignore[union-attr]


async def test_help_follows_the_focus(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(140, 50)) as user:
        await user.pilot.press("f1")
        await user.pilot.pause()
        await user.pilot.pause()
        assert "The prompt" in user.screen_text()
        user.chat.transcript.display = True
        user.chat.transcript.focus()
        await user.pilot.pause()
        await user.pilot.pause()
        assert "Messages" in user.screen_text()


async def test_ctrl_c_stops_and_only_twice_at_rest_leaves(tmp_path: Path) -> None:
    # cases: TC2
    engine = FakeEngine(hang_at=0)
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("one", wait=False)
        await until(lambda: engine.running)
        await user.pilot.press("ctrl+c")
        await until(lambda: not user.session.is_running)
        assert user.app.is_running
        assert user.session.conversation.path[-1].status == "interrupted"

        await user.pilot.press("ctrl+c")
        await user.pilot.pause()
        assert user.app._exit is False
        await user.pilot.press("ctrl+c")
        await until(lambda: user.app._exit)
        assert user.app.return_code == 0


async def test_what_was_said_on_the_command_line_holds_for_a_chat_that_goes_on(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.do("/system be brief")
        await user.ask("one")
        chat_id = user.session.chat_id
    app = make_app(tmp_path, open_chat=chat_id, preferences=Preferences(private=True))
    async with driven(app) as user:
        assert user.session.preferences == Preferences(system="be brief", private=True)


async def test_a_long_question_can_be_edited_as_it_is(tmp_path: Path) -> None:
    question = "\n".join(f"line {number}" for number in range(60))
    async with driven(make_app(tmp_path)) as user:
        user.app.post_message(events.Paste(question))
        await until(lambda: user.chat.prompt.text)
        await user.pilot.press("enter")
        await user.settled()
        await user.do("/edit")

        assert user.chat.prompt.text == question


async def test_a_draft_is_kept_with_its_chat(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.ask("one")
        chat_id = user.session.chat_id
        await user.type("half a thought")
        user.chat.run_command("new")
        await user.settled()
        assert user.chat.prompt.text == ""

        await user.chat.open(chat_id or "")
        assert user.chat.prompt.text == "half a thought"


async def test_text_selected_over_wrapped_lines_is_copied_without_their_breaks(tmp_path: Path) -> None:
    prose = "word " * 60
    async with driven(make_app(tmp_path, FakeEngine(words(prose))), size=(60, 24)) as user:
        await user.ask("hi")
        flow = next(flow for flow in user.chat.query_one(AnswerView).query(Flow) if "word" in flow.text)
        assert flow.size.height > 3

        from textual.selection import SELECT_ALL

        assert flow.get_selection(SELECT_ALL) == (prose.strip(), "\n")


async def test_a_copy_says_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # cases: TE13
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    async with driven(make_app(tmp_path)) as user:
        await user.ask("hi")
        await user.do("/copy")

        assert user.app.clipboard == "Hello, world!"
        assert any("to the terminal to copy" in toast for toast in user.toasts())


async def test_the_foot_says_who_would_answer(tmp_path: Path) -> None:
    settings = Settings(pool=(PoolEntry(name="away", url="http://pool.example", model="m"),))
    async with driven(make_app(tmp_path, FakeEngine(name="fake"), settings=settings)) as user:
        assert "fake on this machine" in user.screen_text()
        await user.type("x" * 400)
        await user.pilot.pause()
        assert "about 100 tokens" in user.screen_text()


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


async def test_the_dashboard_adds_up_what_was_asked(tmp_path: Path) -> None:
    settings = Settings(budget=BudgetSettings(per_day=1.0))
    async with driven(make_app(tmp_path, FakeEngine(name="fake"), settings=settings), size=(160, 50)) as user:
        await user.ask("one")
        await user.ask("two")
        await user.pilot.press("f3")
        await until(lambda: "2 answers" in user.screen_text())

        assert "today free of $1.00" in user.screen_text()
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


async def test_a_cut_answer_keeps_its_partial_and_goes_on(tmp_path: Path) -> None:
    # cases: TC1
    engine = FakeEngine(words("one two three"), fail_at=2, error=UpstreamError("The pool went away."))
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("count")
        assert "one two" in user.screen_text()
        assert "The pool went away." in user.screen_text()

        engine.fail_at, engine.script = None, words("three")
        await user.do("/continue")
        assert user.session.conversation.path[-1].message.content == "one two three"


async def test_three_hundred_messages_lose_and_gain_the_focus_unchanged(
    tmp_path: Path,
) -> None:
    # cases: TA4
    async with driven(make_app(tmp_path, FakeEngine(words("- a\n- b\n\ntext")))) as user:
        await user.ask("hi")
        stored = (await user.app.store.show(user.session.chat_id or "")).messages
        many = [
            replace(stored[number % 2], id=f"m{number}", parent_id=f"m{number - 1}" if number else None)
            for number in range(300)
        ]
        await user.chat.open(await user.app.store.insert("many", many, "m299"))
        await user.settled()
        laid_out = [flow._laid_out for flow in user.chat.query(Flow)]
        for _ in range(10):
            user.app.post_message(events.AppBlur())
            user.app.post_message(events.AppFocus())
        await user.settled()

        assert [flow._laid_out for flow in user.chat.query(Flow)] == laid_out
        assert len(laid_out) < 100


async def test_the_terminals_cursor_is_where_the_text_goes(tmp_path: Path) -> None:
    # cases: TB6
    async with driven(make_app(tmp_path)) as user:
        for text, columns in (("ab", 2), ("日", 4), ("\n", 0)):
            await user.type(text)
            await user.pilot.pause()
            area = user.chat.prompt
            assert user.app.cursor_position.x - area.content_region.x == columns


def test_no_rule_of_style_touches_every_widget() -> None:
    # cases: TA7
    style = (ROOT / "app" / "tui" / "style" / "app.tcss").read_text()

    assert re.findall(r"(?m)^[^/\n{]*\*\s*:[\w-]+[^{\n]*\{", style) == []


async def test_a_line_of_a_growing_list_is_wrapped_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # cases: TA2
    wrapped: list[int] = []
    wrap = Line._rows
    monkeypatch.setattr(Line, "_rows", lambda line, width: wrapped.append(1) or wrap(line, width))
    items = [f"- item {number} with words enough to be wrapped once more or twice\n" for number in range(60)]
    engine = FakeEngine([item.encode() for item in items], decode_s=0.02)
    async with driven(make_app(tmp_path, engine), size=(60, 24)) as user:
        await user.ask("hi")

    assert len(wrapped) < 4 * len(items)


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


async def test_the_screen_is_there_before_anybody_answers(tmp_path: Path) -> None:
    # cases: TE10
    app = make_app(tmp_path)
    app.gateway.models = asyncio.Event().wait  # type: ignore[assignment, method-assign]
    async with app.run_test(size=(80, 24)) as pilot:
        user = Driven(app, pilot)
        await until(lambda: "Ask anything" in user.screen_text())
        await user.type("hi")
        await pilot.press("enter")
        await until(lambda: "Hello, world!" in user.screen_text())
        await app.chat.desk.keep()
    await app.gateway.aclose()
    await app.store.aclose()


async def test_a_reroute_is_a_seam_under_the_answer(tmp_path: Path) -> None:
    # cases: TE5
    async with driven(make_app(tmp_path)) as user:
        await user.ask("hi")
        node = user.session.conversation.path[-1]
        node.seams = ("gpu-box is away, local answers.",)
        await user.chat.show()
        await user.pilot.pause()

        assert "⚡ gpu-box is away, local answers." in user.screen_text()


async def test_with_history_off_one_chats_all_the_same_and_nothing_is_kept(tmp_path: Path) -> None:
    engine = FakeEngine()
    app = EdgeCloudApp(make_gateway(tmp_path, engine), Store(None), Settings(), preferences=Preferences())
    async with driven(app, size=(120, 36)) as user:
        await user.ask("one")
        await user.ask("two")
        await user.do("/regenerate")
        await user.do("/rename x")
        await user.do("/search one")

        assert "History is off" in user.toasts()[-1]
        assert "‹ 2 of 2 ›" in user.screen_text()
        assert [request.journal for request in engine.requests] == [False] * 3
        assert len(engine.requests[-1].messages) == 3
    assert not (tmp_path / "edgecloud.db").exists()
