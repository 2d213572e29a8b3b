"""What a growing answer costs, counted in layouts of the screen and in rows that are drawn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.screen import UPDATE_PERIOD, Screen
from textual.strip import Strip

from edgecloud.app.tui.widgets.flow import Flow
from edgecloud.app.tui.widgets.growing import Growing
from edgecloud.app.tui.widgets.label import Label
from edgecloud.app.tui.widgets.markdown import MarkdownText

from .chatting import until


class Scroll(VerticalScroll, Growing):
    """Follows its end, as the messages of a chat do."""


class Answer(App[None]):
    """An answer with a line below it."""

    CSS = "Label { width: 1fr; } MarkdownText { height: auto; }"

    def compose(self) -> ComposeResult:
        with Scroll():
            yield MarkdownText()
            yield Label("one", id="state")

    @property
    def text(self) -> MarkdownText:
        return self.query_one(MarkdownText)


class Counted:
    """How often the screen was laid out, and rows of the answer drawn, since the last `forget`."""

    def __init__(self, pilot: Pilot[None], monkeypatch: pytest.MonkeyPatch) -> None:
        self.pilot = pilot
        self.layouts = self.rows = 0
        lay_out, draw = Screen._refresh_layout, Flow.render_line

        def laid_out(*arguments: object, **named: object) -> None:
            self.layouts += 1
            lay_out(*arguments, **named)  # type: ignore[arg-type]

        def drawn(flow: Flow, y: int) -> Strip:
            self.rows += 1
            return draw(flow, y)

        monkeypatch.setattr(Screen, "_refresh_layout", laid_out)
        monkeypatch.setattr(Flow, "render_line", drawn)

    async def settled(self) -> None:
        """Wait until everything is drawn: a layout may ask for another."""
        screen = self.pilot.app.screen
        for _ in range(3):
            await self.pilot.pause(2 * UPDATE_PERIOD)
            await until(lambda: not (screen._layout_required or screen._dirty_widgets))

    async def forget(self) -> None:
        await self.settled()
        self.layouts = self.rows = 0


@asynccontextmanager
async def answering(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Answer, Counted]]:
    """A code block that is open, longer than the screen."""
    app = Answer()
    async with app.run_test(size=(40, 10)) as pilot:
        app.query_one(Scroll).anchor()
        app.text.append("```python\n" + "".join(f"line_{number}\n" for number in range(30)))
        counted = Counted(pilot, monkeypatch)
        await counted.forget()
        yield app, counted


async def test_a_token_that_adds_no_row_lays_nothing_out_and_draws_one_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with answering(monkeypatch) as (app, counted):
        app.text.append("last")
        await counted.forget()

        app.text.append(" word")
        app.query_one("#state", Label).show("two")
        await counted.settled()

        assert counted.layouts == 0
        assert counted.rows == 1
        assert "last word" in screen_text(app)
        assert "two" in screen_text(app)


async def test_a_new_row_lays_out_once_and_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(monkeypatch) as (app, counted):
        app.text.append("last\nand one")
        await counted.settled()

        assert counted.layouts == 1
        assert "and one" in screen_text(app)
        assert app.query_one(Scroll).is_vertical_scroll_end


async def test_words_that_need_more_or_fewer_rows_are_given_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(monkeypatch) as (app, counted):
        label = app.query_one("#state", Label)
        heights = []
        for words in ("a b " * 15, "one", "one\ntwo"):
            label.show(words)
            await counted.settled()
            heights.append(label.size.height)

        assert heights == [2, 1, 2]


def screen_text(app: App[None]) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())
