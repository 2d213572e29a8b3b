"""The messages of a chat, the latest at the end, which is followed unless somebody scrolled up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.events import Click, Key
from textual.message import Message
from textual.widgets import Static

from ..keys import bound, keys_of
from ..state.commands import COMMANDS
from ..state.conversation import Conversation, Node
from ..state.turn import Turn
from ..state.window import Window
from .growing import Growing
from .label import Label
from .turns import AnswerView, QuestionView, TurnView


class Transcript(VerticalScroll, Growing):
    """One widget in the order of Tab; a cursor inside of it says which message the keys mean."""

    HELP = """
## Messages

**{messages.up}** and **{messages.down}** choose a message; letters act on it: **{chat.why}** why it came from
where it came, **{chat.regenerate}** answer again, **{chat.continue}** go on, **{chat.edit}** ask in other
words, **{chat.fork}** fork, **{chat.previous}** **{chat.next}** branches, **{chat.copy}** copy,
**{chat.code}** copy code, **{chat.receipt}** the receipt, **{chat.reasoning}** what the model thought,
**{chat.good}** and **{chat.bad}** judge it. Any other goes on in the prompt.
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        bound("messages.up", "cursor(-1)", "previous message"),
        bound("messages.down", "cursor(1)", "next message"),
        bound("messages.home", "home", "first message"),
        bound("messages.end", "end", "last message"),
        bound("messages.receipt", "screen.command('receipt')", "receipt"),
        *(
            bound(f"chat.{command.name}", f"screen.command('{command.name}')", command.help)
            for command in COMMANDS
            if command.where == "answer"
        ),
    ]

    # Who clicks to select a text goes on typing: the letters must not become commands.
    FOCUS_ON_CLICK = False

    class TopReached(Message):
        """Somebody scrolled to the first message that is shown, and there are earlier ones."""

    class Typed(Message):
        """A letter that is no command: somebody goes on writing and believes to be in the prompt."""

        def __init__(self, character: str) -> None:
            super().__init__()
            self.character = character

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self.conversation = Conversation()
        self.window = Window(0, 0)
        self.cursor: Node | None = None

    # ------------------------------------------------------------------------------------------ showing

    async def open(self, conversation: Conversation, *, at: Node | None = None) -> None:
        """Show another chat, at its end or at one of its messages."""
        self.conversation, self.cursor = conversation, at
        path = conversation.path
        self.window = Window.tail(len(path))
        if at in path:
            self.window = self.window.holding(path.index(at))
        await self.remove_children()
        await self.mount(self._more(), *self._views(path[self.window.start :]))
        if at in path:
            self.release_anchor()
            self._mark_cursor()
            self.call_after_refresh(self._show_cursor)
        else:
            self.anchor()

    async def sync(self) -> None:
        """Show the tree as it is now: what is still there stays, with its place and its end."""
        path = self.conversation.path
        self.window = self.window.grown(len(path), at_end=self.is_at_end)
        wanted, views = path[self.window.start :], list(self.query_children(TurnView))
        if views and wanted and views[0].node is not wanted[0] and wanted[0] in [view.node for view in views]:
            first = [view.node for view in views].index(wanted[0])
            for view in views[:first]:
                view.remove()
            views = views[first:]
        same = 0
        while same < min(len(views), len(wanted)) and views[same].node is wanted[same]:
            same += 1
        for view in views[same:]:
            view.remove()
        for view in views[:same]:
            view.set_place(self.conversation.place(view.node))
            if isinstance(view, AnswerView) and view.node.status != "running":
                view.settle()
        if len(wanted) > same:
            await self.mount(*self._views(wanted[same:]))
        self.query_one("#more", Static).display = self.window.start > 0
        if self.cursor is not None and self.cursor not in wanted:
            self.cursor = None
        self._mark_cursor()

    async def show_earlier(self) -> None:
        """Show a batch more at the top; what is read stays where it is."""
        if self.window.start == 0:
            return
        before, self.window = self.window, self.window.earlier()
        earlier = self.conversation.path[self.window.start : before.start]
        height = self.virtual_size.height
        await self.mount(*self._views(earlier), after=self.query_one("#more"))
        self.query_one("#more", Static).display = self.window.start > 0
        self.call_after_refresh(
            lambda: self.scroll_to(y=self.scroll_y + self.virtual_size.height - height, animate=False)
        )

    def look(self, node: Node, turn: Turn, now: float) -> None:
        """Show what has come of the answer that is being written."""
        for view in reversed(list(self.query_children(AnswerView))):
            if view.node is node:
                view.look(turn, now)
                return

    @property
    def is_at_end(self) -> bool:
        return self.scroll_y >= self.max_scroll_y - 1

    def view_of(self, node: Node) -> TurnView | None:
        return next((view for view in self.query_children(TurnView) if view.node is node), None)

    # ------------------------------------------------------------------------------------------- cursor

    def action_cursor(self, by: int) -> None:
        nodes = [view.node for view in self.query_children(TurnView)]
        if not nodes:
            return
        place = len(nodes) - 1 if self.cursor is None else nodes.index(self.cursor) + by
        if place < 0:
            self.post_message(self.TopReached())
            return
        self.cursor = nodes[min(place, len(nodes) - 1)]
        self._mark_cursor()
        self._show_cursor()

    def action_home(self) -> None:
        if self.scroll_y > 0:
            self.scroll_home(animate=False)  # which posts the message below when it is there
        else:
            self.post_message(self.TopReached())

    def action_end(self) -> None:
        self.leave_cursor()
        self.anchor()

    def leave_cursor(self) -> None:
        """No message is meant any more but the latest."""
        self.cursor = None
        self._mark_cursor()

    def on_key(self, event: Key) -> None:
        if event.is_printable and event.character and event.key not in self.screen.active_bindings:
            event.stop()
            event.prevent_default()
            self.post_message(self.Typed(event.character))

    def on_focus(self) -> None:
        if self.cursor is None:
            self.action_cursor(0)

    @on(Click)
    def message_clicked(self, event: Click) -> None:
        view = (
            next((node for node in event.widget.ancestors_with_self if isinstance(node, TurnView)), None)
            if event.widget
            else None
        )
        if view is not None:
            self.cursor = view.node
            self._mark_cursor()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value <= 0 < old_value and self.window.start > 0:
            self.post_message(self.TopReached())

    # ------------------------------------------------------------------------------------------- inside

    def _views(self, nodes: Sequence[Node]) -> list[TurnView]:
        return [
            (AnswerView if node.role == "assistant" else QuestionView)(node, self.conversation.place(node))
            for node in nodes
        ]

    def _more(self) -> Static:
        more = Label(keys_of(self).fill("{messages.up} earlier messages"), id="more")
        more.display = self.window.start > 0
        return more

    def _mark_cursor(self) -> None:
        for view in self.query_children(TurnView):
            view.set_class(view.node is self.cursor, "-cursor")

    def _show_cursor(self) -> None:
        if self.cursor is not None and (view := self.view_of(self.cursor)) is not None:
            view.scroll_visible(animate=False)
