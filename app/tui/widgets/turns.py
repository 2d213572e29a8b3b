"""A question and an answer as they stand in the transcript."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from edgecloud.units import count

from ...chats import Seam
from ..keys import keys_of
from ..render.lines import plain_lines
from ..state.attachments import shown
from ..state.conversation import Node
from ..state.keys import Keys
from ..state.turn import Turn
from .flow import Flow
from .growing import Growing
from .label import Label, visible
from .markdown import MarkdownText
from .reasoning import Reasoning
from .receipt import ReceiptLine

TOO_LONG = "and the context holds"
"""What `ContextLengthExceeded` says and nothing else does; of a failure only its sentence is kept."""


class TurnView(Vertical, Growing):
    """What question and answer have in common: their node, and their place among its alternatives."""

    def __init__(self, node: Node, place: tuple[int, int]) -> None:
        super().__init__()
        self.node = node
        self.place = place

    def set_place(self, place: tuple[int, int]) -> None:
        """Show which of how many alternatives this is."""
        if place != self.place:
            self.place = place
            for mark in self.query(".branch").results(Static):
                mark.update(branch_mark(place))
                mark.display = place[1] > 1

    def branch(self) -> Static:
        mark = Static(branch_mark(self.place), classes="branch", markup=False)
        mark.display = self.place[1] > 1
        return mark


class QuestionView(TurnView):
    """What the user asked, with the files that went along by name."""

    def compose(self) -> ComposeResult:
        text, files = shown(self.node.message.content)
        yield self.branch()
        yield Flow(plain_lines(visible(text)), classes="question")
        for name, num_lines in files:
            yield Label(f"+ {name}, {count(num_lines, 'line')}", classes="file")
        for number in range(len(self.node.message.images)):
            yield Label(f"+ image {number + 1}", classes="file")


class AnswerView(TurnView):
    """What came back. `look` while it comes, `settle` when it is over."""

    def compose(self) -> ComposeResult:
        node = self.node
        yield self.branch()
        if node.message.reasoning:
            yield Reasoning(node.message.reasoning)
        is_running = node.status == "running"
        yield MarkdownText() if is_running else MarkdownText(node.message.content, node.seams)
        if is_running:
            yield Label("", classes="state")
        yield from self._ending() if not is_running else ()

    def on_mount(self) -> None:
        self._shown = 0
        self._num_marked = 0

    def look(self, turn: Turn, now: float) -> None:
        """Show what has come since the last look."""
        if not self.is_mounted:
            return
        if turn.reasoning:
            self._show_reasoning(turn)
        self._show_text(turn.text, turn.seams)
        for label in self.query(".state").results(Label):
            label.show(turn.state(now))

    def settle(self) -> None:
        """Show how it ended; the receipt of an answer that was stopped is known a moment later."""
        if not self.is_mounted:
            return
        if not self.query(".state"):
            if self.node.receipt is not None and not self.query(ReceiptLine):
                self.mount(ReceiptLine(self.node.receipt))
            return
        self._show_text(self.node.message.content, self.node.seams)
        self.query_one(MarkdownText).finish()
        for reasoning in self.query(Reasoning):
            reasoning.show(self.node.message.reasoning or "", thinking=False)
        self.query(".state").remove()
        self.mount(*self._ending())

    def toggle(self, kind: type[ReceiptLine] | type[Reasoning]) -> bool:
        """Open or close a part; False if there is none."""
        for part in self.query(kind):
            part.is_open = not part.is_open
            return True
        return False

    def _show_text(self, text: str, seams: Sequence[Seam]) -> None:
        """Show what is not shown yet of the text, and its seams at their places."""
        body = self.query_one(MarkdownText)
        for seam in seams[self._num_marked :]:
            if seam.position > self._shown:
                body.append(text[self._shown : seam.position])
                self._shown = seam.position
            body.mark(seam.text)
            self._num_marked += 1
        if len(text) > self._shown:
            body.append(text[self._shown :])
            self._shown = len(text)

    def _show_reasoning(self, turn: Turn) -> None:
        thinking = not turn.text
        found = self.query(Reasoning)
        if found:
            found.first().show(turn.reasoning, thinking=thinking)
        else:
            self.mount(Reasoning(turn.reasoning, thinking=thinking), before=self.query_one(MarkdownText))

    def _ending(self) -> list[Widget]:
        node = self.node
        widgets: list[Widget] = [
            Label(f"→ {call.name}({call.arguments})", classes="call") for call in node.message.tool_calls
        ]
        if sentence := how_it_ended(node, keys_of(self)):
            widgets.append(Label(sentence, classes="failed" if node.status == "failed" else "ended"))
        if node.receipt is not None:
            widgets.append(ReceiptLine(node.receipt))
        return widgets


def branch_mark(place: tuple[int, int]) -> Content:
    """Which of how many alternatives; nothing where there is one."""
    number, count = place
    return Content(f"‹ {number} of {count} ›" if count > 1 else "")


def how_it_ended(node: Node, keys: Keys) -> str:
    """What to say of an answer that did not simply end, with the next step."""
    again = keys.fill("{chat.regenerate} asks again")
    goes_on = keys.fill("Tab, {chat.continue} goes on")
    if node.status == "failed" and TOO_LONG in (node.error or ""):
        # Asked again it would be refused again.
        is_first = node.parent is None or node.parent.parent is None
        other = keys.fill("Tab, {chat.edit} asks in fewer words")
        return f"{node.error} · {other if is_first else '/shorten goes on with the latest turns'}"
    if node.status == "failed":
        step = f"{goes_on}, {again}" if node.message.content else f"Tab, {again}"
        return f"{node.error or 'The answer failed.'} · {step}"
    if node.status == "interrupted":
        return f"stopped · {goes_on}, {again}" if node.message.content else "stopped before it began"
    if node.status == "running":
        return "still being written by another process"
    if node.finish_reason == "length":
        return f"cut at its longest · {goes_on}"
    if not node.message.content and not node.message.tool_calls:
        return f"an empty reply · Tab, {again}"
    return ""
