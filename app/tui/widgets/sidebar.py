"""The list of chats, with a search through the words of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key
from textual.message import Message
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from ...chats import OWN_DOORS, ChatSummary, Hit
from ..keys import bound, keys_of
from .label import Label, visible


class ChatList(OptionList):
    """Chats, or what a search found."""

    HELP = """
## Chats

**Enter** opens one, letters search the words of all of them, **{chats.rename}** renames, **{chats.delete}**
removes a chat with all that was derived from it, once you say so.
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        bound("chats.search", "screen.command('search')", "search"),
        bound("chats.rename", "screen.chat_command('rename')", "rename"),
        bound("chats.delete", "screen.chat_command('delete')", "delete"),
    ]

    class Typed(Message):
        """Somebody types who believes to be elsewhere, or who wants to search."""

        def __init__(self, character: str) -> None:
            super().__init__()
            self.character = character

    @property
    def chosen(self) -> str | None:
        """The chat under the cursor."""
        if self.highlighted is None:
            return None
        id = self.get_option_at_index(self.highlighted).id
        return id.split("/")[0] if id else None

    def on_key(self, event: Key) -> None:
        # No letter acts here: who types a prompt and is in the list by mistake would delete chats.
        if event.is_printable and event.character and event.key not in self.screen.active_bindings:
            event.stop()
            event.prevent_default()
            self.post_message(self.Typed(event.character))


class Sidebar(Vertical):
    """Posts `Opened` for a chat that was chosen, `Searched` when the words changed."""

    class Opened(Message):
        """A chat was chosen, from a search with the message that was found."""

        def __init__(self, chat_id: str, message_id: str | None) -> None:
            super().__init__()
            self.chat_id = chat_id
            self.message_id = message_id

    class Searched(Message):
        """Other words are to be searched for; none means all chats."""

    def __init__(self) -> None:
        super().__init__()
        self._found_for: str | None = None
        """The words whose hits are listed; None while those of others are, or all chats."""
        self._opens_for: str | None = None
        """The words at whose first hit Enter was pressed before it was there."""
        self._is_left = False
        """Whether somebody was elsewhere since the words were typed: other letters are another search."""

    def compose(self) -> ComposeResult:
        yield Input(placeholder="search all chats", id="search", compact=True, select_on_focus=False)
        yield ChatList(id="chats", markup=False, compact=True)
        yield Label("", id="doors")

    @property
    def words(self) -> str:
        """What is searched for; empty while chats are listed."""
        return self.query_one("#search", Input).value

    def show_chats(
        self, chats: Sequence[ChatSummary], unread: frozenset[str], current: str | None, *, all_doors: bool
    ) -> None:
        """List the chats, the last used first; `all_doors` is whether those of programs are among them."""
        self._found_for = None
        options = [Option(_chat_line(chat, chat.id in unread), id=chat.id) for chat in chats]
        hint = "{chat.all} hides programs’ chats" if all_doors else "{chat.all} shows programs’ chats too"
        self.query_one("#doors", Label).show(keys_of(self).fill(hint))
        self._fill(options or [Option("  no chats yet", disabled=True)], current)

    def show_hits(self, hits: Sequence[Hit], words: str) -> None:
        """List what a search for these words found, a message a line pair."""
        self._found_for = words if hits else None
        # One message may be found once only: ids of options are unique.
        by_id = {f"{hit.chat_id}/{hit.message_id}": hit for hit in hits}
        options = [
            Option(
                Content.assemble(
                    f" {visible(hit.title)}", "\n", (f"  {visible(hit.excerpt)}", "$foreground-muted")
                ),
                id=id,
            )
            for id, hit in by_id.items()
        ]
        self._fill(options or [Option("  nothing found", disabled=True)], None)
        if self._opens_for == words and options:
            self._open_first()
        self._opens_for = None

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
        self._opens_for = None
        self.post_message(self.Searched())

    @on(Input.Submitted, "#search")
    def search_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        # What is listed until the hits of just these words are there was not meant.
        if not event.value.strip():
            self.query_one(ChatList).focus()
        elif event.value == self._found_for:
            self._open_first()
        else:
            self._opens_for = event.value

    def _open_first(self) -> None:
        listed = self.query_one(ChatList)
        listed.highlighted = 0
        listed.action_select()

    def begin(self) -> None:
        """Somebody comes to the list: all chats, and no words from last time."""
        self.query_one("#search", Input).value = ""
        self.query_one(ChatList).focus()

    def on_descendant_blur(self) -> None:
        # Not when the focus moved between the field and the list.
        self.call_later(self._look_away)

    def _look_away(self) -> None:
        focused = self.screen.focused
        self._is_left = focused is None or self not in focused.ancestors

    @on(ChatList.Typed)
    def typed_in_list(self, event: ChatList.Typed) -> None:
        event.stop()
        field = self.query_one("#search", Input)
        self.screen.set_focus(field)  # at once: the letters behind it are meant for it too
        if self._is_left:
            self._is_left, field.value = False, ""
        field.cursor_position = len(field.value)
        field.insert_text_at_cursor(event.character)

    @on(OptionList.OptionSelected)
    def option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option.id:
            chat_id, _, message_id = event.option.id.partition("/")
            self.post_message(self.Opened(chat_id, message_id or None))


def _chat_line(chat: ChatSummary, is_unread: bool) -> Content:
    mark = "● " if is_unread else "… " if chat.status == "running" else "  "
    door = "" if chat.door in OWN_DOORS else f"{chat.door}: "
    return Content.assemble(
        (mark, "$text-accent"),
        (door, "$foreground-muted"),
        (visible(chat.title) or "untitled", "bold" if is_unread else ""),
    )
