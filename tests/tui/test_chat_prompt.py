"""The prompt and the keys: what is typed is sent whole, kept, and never does what was not meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual import events

from edgecloud.app.tui.commands.words import edited
from edgecloud.app.tui.draft import DraftFile
from edgecloud.app.tui.state.commands import COMMANDS
from edgecloud.app.tui.state.preferences import Preferences
from edgecloud.app.tui.widgets.help import Help
from edgecloud.app.tui.widgets.label import Label
from edgecloud.app.tui.widgets.sidebar import ChatList
from edgecloud.app.tui.widgets.turns import AnswerView
from edgecloud.errors import BadRequest
from edgecloud.models import STARTER_EMBEDDER
from edgecloud.settings import ChatSettings, Settings
from tests.support.fake_engine import FakeEngine

from .chatting import driven, make_app, until

ROOT = Path(__file__).parents[2]


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
                if command.name == "quit":
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


async def test_where_there_is_no_terminal_to_lend_no_editor_is_begun(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.do("/editor")
        assert user.toasts()[-1].startswith("There is no terminal to lend to an editor here")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("an 'editor", r"The editor an 'editor can't be started \(No closing quotation\): set \$EDITOR."),
        ("no-such-editor", r"no-such-editor cannot be started \(No such file or directory\): set \$EDITOR."),
        ("false", "false ended with 1; the prompt is as it was"),
        ("rm", "rm removed its file; the prompt is as it was"),
    ],
)
def test_an_editor_that_fails_leaves_the_prompt_as_it_was(
    monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    monkeypatch.setenv("VISUAL", command)
    with pytest.raises(BadRequest, match=said):
        edited("half a thought")


async def test_a_key_for_nothing_is_told(tmp_path: Path) -> None:
    settings = Settings(chat=ChatSettings(keys={"chat.nwe": "ctrl+g", "chat.new": "ctrl+g"}))
    async with driven(make_app(tmp_path, settings=settings)) as user:
        assert [toast for toast in user.toasts() if "chat.nwe" in toast]


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

        assert order == ["prompt", "transcript", "search", "chats", "prompt"]


async def test_tab_completes_a_command_and_else_leaves_the_prompt(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        await user.ask("hi")
        await user.type("/regen")
        await user.pilot.press("tab")
        assert user.chat.prompt.text == "/regenerate "
        await user.pilot.press("tab")
        assert user.app.focused is not user.chat.prompt


async def test_tab_completes_a_files_name_and_shows_which_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("notes.md", "notes.txt"):
        (tmp_path / name).write_text("x")
    async with driven(make_app(tmp_path)) as user:
        await user.type("read @no")
        await user.pilot.press("tab")
        await user.pilot.pause()
        assert user.chat.prompt.text == "read @notes."
        assert "notes.md   notes.txt" in user.screen_text()

        await user.pilot.press("m", "tab", *"now")
        assert user.chat.prompt.text == "read @notes.md now"
        assert user.app.focused is user.chat.prompt


async def test_keys_can_be_changed_by_their_id(tmp_path: Path) -> None:
    # cases: TB8
    async with driven(make_app(tmp_path, keys={"chat.new": "ctrl+g"})) as user:
        await user.ask("one")
        await user.pilot.press("ctrl+g")
        await user.settled()

        assert user.session.conversation.path == []


async def test_no_key_of_a_command_is_taken_by_the_prompt(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        in_prompt = user.chat.prompt._bindings.key_to_bindings
        taken = [
            command.key
            for command in COMMANDS
            if command.where == "anywhere" and any(not each.id for each in in_prompt.get(command.key, ()))
        ]
        await user.pilot.press("f6")
        await user.settled()

        assert taken == []
        assert [toast for toast in user.toasts() if "there is one model here" in toast]


async def test_a_name_that_nobody_has_is_refused_when_it_is_chosen(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        for command in ("/model nope", "/route nope", "/compare fake nope"):
            await user.do(command)
            assert user.toasts()[-1] == "There is no model named 'nope'. Known: auto, fake."

        await user.do(f"/model {STARTER_EMBEDDER}")
        assert "embedding model" in user.toasts()[-1]

        assert user.session.preferences.model == "auto"
        assert not user.chat.route.is_set
        await user.do("/model alias")
        assert user.session.preferences.model == "alias"


async def test_two_sentences_stand_at_most_none_twice_and_escape_puts_them_away(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        for sentence in ("one", "two", "three", "two"):
            user.chat.say(sentence)
        await user.pilot.pause()
        assert user.toasts() == ["three", "two"]

        user.chat.run_command("route")
        await until(lambda: len(user.app.screen_stack) > 1)
        user.chat.say("two")
        await user.pilot.pause()
        assert not user.app._notifications, "nothing stands over a dialog"
        await user.pilot.press("escape")
        await user.settled()
        assert user.toasts() == []
        assert len(user.app.screen_stack) == 1, "and Esc does what it did"


async def test_a_paste_counts_for_as_long_as_it_is(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), (140, 36)) as user:
        user.app.post_message(events.Paste("four\n" * 3_000))
        await until(lambda: user.chat.prompt.text)

        assert user.chat.would().tokens > 3_000


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


async def test_help_leaves_room_for_the_chat_and_closes_with_escape(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(80, 40)) as user:
        await user.pilot.press("ctrl+o")
        await user.pilot.press("f1")
        await user.settled()
        assert "Esc close this" in user.screen_text()
        assert "cursor" not in user.screen_text().lower(), "how a text area moves is no news"
        assert user.chat.query_one("#main").size.width > 40

        await user.pilot.press("escape")
        await user.settled()
        assert "Esc close this" not in user.screen_text()


async def test_help_has_a_small_terminal_to_itself(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(40, 12)) as user:
        await user.type("half a question")
        before = user.screen_text()
        width = user.chat.query_one("#main").size.width
        await user.pilot.press("f1")
        await user.settled()
        assert user.chat.query_one(Help).size.width >= 36
        assert "Esc close this" in user.screen_text()
        assert "half a question" not in user.screen_text()
        assert user.chat.query_one("#main").size.width == width

        await user.pilot.press("escape")
        await user.settled()
        assert user.screen_text() == before


async def test_tokens_are_counted_by_who_is_in_memory_and_guessed_by_that(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path)) as user:
        foresight = user.chat.foresight
        foresight.cards = [replace(card, loaded=True) for card in foresight.cards]
        await user.type("one two three")
        await user.chat._ask_router()
        exact = await user.app.gateway.count_tokens(
            foresight.request(user.session, user.chat.route, "one two three")
        )
        assert f"about {exact} tokens" in user.screen_text()


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


async def test_a_draft_of_a_new_chat_stays_with_new_chats(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path, draft=DraftFile(tmp_path / "draft.md"))) as user:
        await user.ask("one")
        chat_id = user.session.chat_id or ""
        await user.do("/new")
        await user.type("half a thought")
        await user.chat.open(chat_id)
        assert user.chat.prompt.text == ""
        await user.pilot.press("ctrl+n")
        await user.settled()
        assert user.chat.prompt.text == "half a thought"
        await user.chat.open(chat_id)
    async with driven(
        make_app(tmp_path, draft=DraftFile(tmp_path / "draft.md"), open_chat=chat_id, prompt="given")
    ) as user:
        assert user.chat.prompt.text == "given"
    async with driven(make_app(tmp_path, draft=DraftFile(tmp_path / "draft.md"))) as user:
        assert user.chat.prompt.text == "half a thought"


async def test_what_is_typed_is_written_down_in_a_pause_and_no_more_once_it_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "draft.md"
    async with driven(make_app(tmp_path, draft=DraftFile(path))) as user:
        await user.type("half a thought")
        await user.chat._write_draft()
        assert path.read_text() == "half a thought"

        await user.ask("")
        await user.chat._write_draft()
        assert not path.exists()
        await user.type("and another")
        await user.chat._write_draft()
        _, _, notes = await user.app.store.chat(user.session.chat_id or "")
        assert notes["draft"] == "and another"


async def test_the_prompt_of_the_command_line_is_no_draft_of_later_chats(tmp_path: Path) -> None:
    draft = DraftFile(tmp_path / "draft.md")
    draft.keep("from before")
    async with driven(make_app(tmp_path, draft=draft, prompt="write a haiku")) as user:
        assert user.chat.prompt.text == "write a haiku"
        await user.chat.desk.keep()
    assert draft.take() == "from before"

    draft.keep("from before")
    async with driven(make_app(tmp_path, draft=draft, prompt="write a haiku")) as user:
        await user.type(" in May")
        await user.chat.desk.keep()
    assert draft.take() == "from before\nwrite a haiku in May"


async def test_the_terminals_cursor_is_where_the_text_goes(tmp_path: Path) -> None:
    # cases: TB6
    async with driven(make_app(tmp_path)) as user:
        for text, columns in (("ab", 2), ("日", 4), ("\n", 0)):
            await user.type(text)
            await user.pilot.pause()
            area = user.chat.prompt
            assert user.app.cursor_position.x - area.content_region.x == columns


async def test_what_the_gateway_has_to_say_is_said_at_the_start(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path, aside="It is [red]so[/].")) as user:
        assert user.toasts() == ["It is [red]so[/]."]
    async with driven(make_app(tmp_path)) as user:
        assert user.toasts() == []


async def test_an_image_goes_only_to_who_takes_it_and_the_prompt_stays(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 20)
    blind, seeing = FakeEngine(name="blind"), FakeEngine(name="seeing")
    seeing.images = True
    async with driven(make_app(tmp_path, blind, seeing)) as user:
        await user.ask(f"@{picture} what is this")
        said = "blind takes no images: choose a model that does with /model, or leave them out."
        assert user.toasts() == [said]
        assert user.chat.prompt.text == f"@{picture} what is this"
        assert blind.requests == []

        user.chat.prompt.clear_all()
        await user.do(f"/attach {picture}")
        assert user.toasts() == [said]
        assert user.chat.prompt.text == ""

        await user.do("/model seeing")
        await user.ask(f"@{picture} what is this")
        assert seeing.requests[-1].messages[-1].images[0].startswith("data:image/png;base64,")
        assert seeing.requests[-1].files == (str(picture),)
        assert "+ image 1" in user.screen_text()


async def test_side_by_side_too_an_image_goes_only_to_who_takes_it(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 20)
    blind, seeing = FakeEngine(name="blind"), FakeEngine(name="seeing")
    seeing.images = True
    async with driven(make_app(tmp_path, blind, seeing)) as user:
        await user.type(f"@{picture} what is this")
        await user.pilot.press("f6")
        await user.settled()

        assert any("blind takes no images" in said for said in user.toasts())
        assert user.chat.prompt.text == f"@{picture} what is this"
        assert blind.requests == seeing.requests == []


async def test_a_letter_has_nothing_but_itself_drawn_while_an_answer_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(hang_at=2)
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("hi", wait=False)
        await until(lambda: engine.generated == 2)
        await user.type("a")
        changed: list[str | None] = []
        monkeypatch.setattr(Label, "update", lambda self, *_, **__: changed.append(self.id))
        for _ in range(5):
            await user.pilot.press("b")
        await user.pilot.pause()

        # A new text in any of them has the whole screen laid out. What the answer itself says has no id.
        assert [id for id in changed if id is not None] == []


async def test_a_paste_goes_into_the_prompt_from_the_messages_and_the_chats(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path), size=(120, 30)) as user:
        await user.ask("one")
        for number, elsewhere in enumerate((user.chat.transcript, user.chat.query_one(ChatList)), start=1):
            elsewhere.focus()
            await user.pilot.pause()
            user.app.post_message(events.Paste("several words\n"))
            await user.pilot.pause()

            assert user.chat.prompt.text == "several words\n" * number
            assert user.app.focused is user.chat.prompt
