"""Answers on the screen: streamed, followed, found again, and copied as they were."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Static

from edgecloud.app.tui.render.lines import Line
from edgecloud.app.tui.widgets.code import CodeBlock
from edgecloud.app.tui.widgets.flow import Flow
from edgecloud.app.tui.widgets.label import Label
from edgecloud.app.tui.widgets.receipt import ReceiptLine
from edgecloud.app.tui.widgets.turns import AnswerView, TurnView
from edgecloud.errors import UpstreamError
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Done,
    EngineEvent,
    Loading,
    Notice,
    Start,
    TextDelta,
    Usage,
)
from tests.support.fake_engine import FakeEngine

from .chatting import Driven, driven, make_app, until, words

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


async def test_a_stopped_answer_says_why_and_opens_its_receipt(tmp_path: Path) -> None:
    engine = FakeEngine(words("one two three"), hang_at=2)
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("hi", wait=False)
        await until(lambda: "one two" in user.screen_text())
        await user.pilot.press("escape")
        await user.settled()

        await user.do("/receipt")
        assert user.chat.query_one(ReceiptLine).is_open
        user.chat.run_command("why")
        await until(lambda: len(user.app.screen_stack) > 1)
        await user.pilot.pause()
        assert "answered by  fake" in user.screen_text()
        await user.pilot.press("escape")


async def test_at_80_columns_no_receipt_and_no_preview_is_cut(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path, FakeEngine(name="a-model-with-a-long-name")), (80, 24)) as user:
        await user.ask("hi")
        receipt = next(line for line in user.screen_text().splitlines() if "▸" in line)
        assert "free" in receipt
        assert "…" not in receipt

        await user.type("a question " * 30)
        foot = user.screen_text().splitlines()[-1]
        assert "on this machine" in foot
        assert "…" not in foot


async def test_a_model_on_its_way_into_memory_is_named(tmp_path: Path) -> None:
    engine = FakeEngine(load_s=1e9)
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("hi", wait=False)
        await until(lambda: "loading fake · 0 s" in user.screen_text())


async def test_a_load_shows_how_far_it_is_and_typing_goes_on(tmp_path: Path) -> None:
    # cases: TB10
    engine = FakeEngine(name="qwen")
    engine.loaded, engine.loading = asyncio.Event(), Loading("qwen", 1_200_000_000, 2_790_000_000)
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("hi", wait=False)
        await until(lambda: "loading qwen · 43 % · 1.20 of 2.79 GB · " in user.screen_text())
        await user.ask("and then?", wait=False)
        assert "1 waits · ↑ takes back: and then?" in user.screen_text()
        await user.type("half a th")
        engine.loading = Loading("qwen", 2_790_000_000, 2_790_000_000)
        await until(lambda: "loading qwen · 2.79 GB read, getting ready · " in user.screen_text())
        assert user.chat.prompt.text == "half a th"

        engine.loaded.set()
        await user.settled()
        assert "loading" not in user.screen_text()
        assert [request.messages[-1].content for request in engine.requests] == ["hi", "and then?"]


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


async def test_an_error_is_a_sentence_in_the_chat(tmp_path: Path) -> None:
    engine = FakeEngine(refuse=UpstreamError("[/] The pool is away: try again later."))
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("hi")

        assert "[/] The pool is away: try again later. · Tab, r asks again" in user.screen_text()


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


async def test_the_end_is_followed_unless_somebody_scrolled_up(tmp_path: Path) -> None:
    engine = FakeEngine(words("\n\n".join(f"paragraph {number}" for number in range(40))))
    async with driven(make_app(tmp_path, engine), size=(80, 24)) as user:
        await user.ask("one")
        transcript = user.chat.transcript
        assert transcript.is_at_end

        engine.decode_s = 0.05  # long enough to scroll meanwhile, on a busy machine too
        await user.ask("two", wait=False)
        await until(lambda: user.session.turn is not None and user.session.turn.num_tokens > 3)
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


SEAM = Notice("continued", "gpu-box fell over. smollm2 goes on from here.")


class Handed(FakeEngine):
    """An engine whose answer is handed over in the middle, as a router tells it; it waits before the last
    part for `go_on`.
    """

    def __init__(self, *parts: str) -> None:
        super().__init__()
        self.parts = parts
        self.go_on = asyncio.Event()

    async def generate(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        yield Start("gpu-box", "big", 3)
        first, rest, last = self.parts
        if first:
            yield TextDelta(first)
        yield SEAM
        yield TextDelta(rest)
        await self.go_on.wait()
        yield TextDelta(last)
        yield ChoiceDone(0, "stop")
        yield Done(Usage(3, 3))


def rows_of(user: Driven) -> list[str]:
    """The rows of the answer."""
    rows = [row.strip() for row in user.screen_text().splitlines()]
    return [row for row in rows if any(word in row for word in ("⚡", "egg", "boil"))]


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        (("The egg ", "must boil", " long."), ["The egg", f"╌╌ ⚡ {SEAM.text}", "must boil long."]),
        (("```\nx = 1  # egg\n", "boil()", "\n```\n"), ["x = 1  # egg", "boil()", f"╌╌ ⚡ {SEAM.text}"]),
        (("", "The egg must boil", "."), [f"╌╌ ⚡ {SEAM.text}", "The egg must boil."]),
    ],
    ids=["prose", "code", "before"],
)
async def test_a_seam_stands_where_another_went_on_and_is_no_part_of_the_answer(
    tmp_path: Path, parts: tuple[str, str, str], shown: list[str]
) -> None:
    # cases: TE5
    engine = Handed(*parts)
    async with driven(make_app(tmp_path, engine)) as user:
        await user.ask("hi", wait=False)
        await until(lambda: "boil" in user.screen_text())
        engine.go_on.set()
        await user.settled()
        assert rows_of(user) == shown

        # The same once it is read from the history, which may lag behind a disk that stands still.
        journal = user.app.gateway.journal
        await until(lambda: not journal.is_behind)
        assert user.session.chat_id is not None
        await user.chat.open(user.session.chat_id)
        await user.pilot.pause()
        assert rows_of(user) == shown

        user.chat.run_command("copy")
        await user.settled()
        assert user.app.clipboard == "".join(parts)
