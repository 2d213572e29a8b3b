"""Two answers to one question, side by side; one of them goes on."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Click
from textual.screen import Screen

from ..keys import bound, keys_of
from ..race import Lane, Race
from ..widgets.label import Label
from ..widgets.turns import AnswerView

LOOKS_PER_S = 12


class Column(Vertical):
    """One of the answers, under the name of who gives it."""

    def __init__(self, lane: Lane, side: str) -> None:
        super().__init__()
        self.lane = lane
        self.side = side

    def compose(self) -> ComposeResult:
        key = keys_of(self).name(f"compare.{self.side}")
        yield Label(f"{key}  {self.lane.route.model or self.lane.route.mode}", classes="heading")
        with VerticalScroll(can_focus=True):
            yield AnswerView(self.lane.node, (1, 1))

    def look(self, now: float) -> None:
        """Show what came."""
        view, scroll = self.query_one(AnswerView), self.query_one(VerticalScroll)
        # From the top, and at the end once it is longer: an anchor alone would hold it at the bottom.
        if scroll.virtual_size.height > scroll.size.height and not scroll.is_anchored:
            scroll.anchor()
        if self.lane.task.done():
            view.settle()
        else:
            view.look(self.lane.turn, now)


class CompareScreen(Screen[Lane | None]):
    """Returns the lane that was picked; None if the user left both as branches."""

    HELP = """
## Side by side

**{compare.left}** goes on with the left answer, **{compare.right}** with the right one; the other stays
a branch.
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        bound("compare.left", "pick(0)", "the left one"),
        bound("compare.right", "pick(1)", "the right one"),
        bound("compare.leave", "leave", "stop, or leave both"),
        bound("chat.interrupt", "leave"),
    ]

    def __init__(self, race: Race, question: str) -> None:
        super().__init__()
        self.race = race
        self.question = question

    def compose(self) -> ComposeResult:
        yield Label(self.question, classes="question")
        with Horizontal():
            for lane, side in zip(self.race.lanes, ("left", "right"), strict=True):
                yield Column(lane, side)
        hint = "{compare.left} or {compare.right} goes on with that answer, the other stays a branch"
        yield Label(keys_of(self).fill(hint + " · {compare.leave} stops"), classes="hint")

    def on_mount(self) -> None:
        self.set_interval(1 / LOOKS_PER_S, self.look)

    def look(self) -> None:
        for column in self.query(Column):
            column.look(self.race.session.clock())

    def action_pick(self, number: int) -> None:
        self.dismiss(self.race.lanes[number])

    def action_leave(self) -> None:
        if self.race.is_running:
            self.race.stop()
        else:
            self.dismiss(None)

    @on(Click)
    def column_clicked(self, event: Click) -> None:
        """A click on the name of an answer picks it."""
        if isinstance(event.widget, Label) and isinstance(event.widget.parent, Column):
            self.dismiss(event.widget.parent.lane)
