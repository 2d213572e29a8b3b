"""The list of chats, with a search through the words of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from ...chats import ChatSummary, Hit
from .label import visible


class ChatList(OptionList):
    """Chats, or what a search found."""

    HELP = """
## Chats

**Enter** opens one, **/** searches all of them, **F2** renames, **Delete** removes a chat with all that was
derived from it.
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "screen.command('search')", "search", id="chats.search"),
        Binding("f2", "screen.chat_command('rename')", "rename", id="chats.rename"),
        Binding("delete,d", "screen.chat_command('delete')", "delete", id="chats.delete"),
        Binding("j", "cursor_down", show=False, id="chats.down"),
        Binding("k", "cursor_up", show=False, id="chats.up"),
    ]

    @property
    def chosen(self) -> str | None:
        """The chat under the cursor."""
        if self.highlighted is None:
            return None
        id = self.get_option_at_index(self.highlighted).id
        return id.split("/")[0] if id else None


class Sidebar(Vertical):
    """Posts `Opened` for a chat that was chosen, `Searched` when the words changed."""

    class Opened(Message):
        """A chat was chosen, from a search with the message that was found."""

        def __init__(self, chat_id: str, message_id: str | None) -> None:
            super().__init__()
            self.chat_id = chat_id
            self.message_id = message_id

    class Searched(Message):
        """Other words are searched for; none means all chats."""

        def __init__(self, words: str) -> None:
            super().__init__()
            self.words = words

    def compose(self) -> ComposeResult:
        yield Input(placeholder="search all chats", id="search", compact=True)
        yield ChatList(id="chats", markup=False, compact=True)

    def show_chats(self, chats: Sequence[ChatSummary], unread: frozenset[str], current: str | None) -> None:
        """List the chats, the last used first."""
        options = [Option(_chat_line(chat, chat.id in unread), id=chat.id) for chat in chats]
        self._fill(options or [Option("no chats yet", disabled=True)], current)

    def show_hits(self, hits: Sequence[Hit]) -> None:
        """List what a search found, a message a line pair."""
        # One message may be found once only: ids of options are unique.
        by_id = {f"{hit.chat_id}/{hit.message_id}": hit for hit in hits}
        options = [
            Option(
                Content.assemble(
                    visible(hit.title), "\n", (f"  {visible(hit.excerpt)}", "$foreground-muted")
                ),
                id=id,
            )
            for id, hit in by_id.items()
        ]
        self._fill(options or [Option("nothing found", disabled=True)], None)

    def _fill(self, options: list[Option], current: str | None) -> None:
        listed = self.query_one(ChatList)
        kept = current or listed.chosen
        listed.clear_options()
        listed.add_options(options)
        ids = [option.id for option in options]
        if kept in ids:
            listed.highlighted = ids.index(kept)

    @on(Input.Changed, "#search")
    def words_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Searched(event.value))

    @on(Input.Submitted, "#search")
    def search_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(ChatList).focus()

    @on(OptionList.OptionSelected)
    def option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option.id:
            chat_id, _, message_id = event.option.id.partition("/")
            self.post_message(self.Opened(chat_id, message_id or None))


def _chat_line(chat: ChatSummary, is_unread: bool) -> Content:
    mark = "● " if is_unread else "… " if chat.status == "running" else "  "
    return Content.assemble(
        (mark, "$text-accent"), (visible(chat.title) or "untitled", "bold" if is_unread else "")
    )
