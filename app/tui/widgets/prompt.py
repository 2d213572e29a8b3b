"""Where the prompt is typed: grows with its text, sends with Enter, and never sends half of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.binding import BindingType
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from ..keys import bound, keys_of
from ..state.attachments import as_mentions
from ..state.commands import matching
from ..state.completion import Completion, complete
from ..state.prompt_history import PromptHistory
from ..state.typing import Chips, enter_sends

LONGEST_EDITED = 20_000
"""Characters."""


class PromptArea(TextArea):
    """Posts `Submitted` with the text as it is to be sent, pastes unfolded, and is empty then."""

    HELP = """
## The prompt

Enter sends, **{prompt.newline}** is a new line. Enter is a new line too inside of an open code fence and
in the middle of several lines.

- `@path` attaches a file, and **Tab** completes its name; so does dropping one on the terminal
- `/` begins a command, which **Tab** completes; `//` a text that begins with a slash
- **{prompt.earlier}** on the first line brings earlier prompts back
- **{chat.stop}** stops an answer; what you send meanwhile waits its turn
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        bound("prompt.newline", "newline", "new line"),
        bound("prompt.earlier", "up", "earlier prompt"),
        bound("prompt.later", "down", "later prompt"),
        bound("chat.interrupt", "screen.interrupt"),
        # A text area would select the line with it.
        bound("chat.compare", "screen.command('compare')"),
        bound("prompt.page_up", "screen.scroll(-1)", "scroll up"),
        bound("prompt.page_down", "screen.scroll(1)", "scroll down"),
    ]

    class Submitted(Message):
        """Enter was pressed to send; `text` has the pastes in it."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Offered(Message):
        """Names that what is half typed may become; none where that is clear, or where there is none."""

        def __init__(self, names: tuple[str, ...]) -> None:
            super().__init__()
            self.names = names

    def __init__(self) -> None:
        super().__init__(id="prompt", soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False)
        self.placeholder = "Ask anything"
        self.earlier = PromptHistory()
        self.take_back: Callable[[], str | None] = lambda: None
        """Gives back the prompt that waits last, if one does."""
        self._chips = Chips()
        self._recalled: str | None = None

    def on_mount(self) -> None:
        # What the user chose a key for is done here too, whatever a text area does with it.
        for key in keys_of(self).chosen:
            ours = [binding for binding in self._bindings.key_to_bindings.pop(key, []) if binding.id]
            if ours:
                self._bindings.key_to_bindings[key] = ours

    @property
    def full_text(self) -> str:
        """What would be sent, pastes unfolded."""
        return self._chips.unfold(self.text)

    def take(self) -> str:
        """The text to send; the prompt is empty then."""
        text = self.full_text
        self.clear_all()
        return text

    def put(self, text: str) -> None:
        """Show a text to be edited, the cursor at its end; one that nobody edits by hand as pasted."""
        self._chips.clear()
        self.load_text(text if len(text) <= LONGEST_EDITED else self._chips.put(text))
        self.move_cursor(self.document.end)

    def give_back(self, text: str) -> None:
        """Show again what was sent and not taken, before what was typed since."""
        since = self.full_text
        self.put(f"{text}\n{since}" if since else text)

    def clear_all(self) -> None:
        self._chips.clear()
        self.load_text("")
        self.earlier.leave()

    async def _on_key(self, event: Key) -> None:
        if event.key in ("shift+\r", "shift+enter"):  # as xterm's modifyOtherKeys arrives
            event.stop()
            event.prevent_default()
            self.action_newline()
        elif event.key == "enter":
            event.stop()
            event.prevent_default()
            if not enter_sends(self.text, is_at_end=self.cursor_location == self.document.end):
                self.action_newline()
            else:
                self._submit()
        elif event.key == "tab" and (commands := matching(self.text)):
            event.stop()
            event.prevent_default()
            self.put(f"/{commands[0].name} ")
        elif event.key == "tab" and (found := self._mention()) is not None:
            event.stop()
            event.prevent_default()
            row, column = self.cursor_location
            self._replace_via_keyboard(found.text, (row, found.start), (row, column))
            self.post_message(self.Offered(found.names))
        elif event.is_printable or not await self._act_now(event):
            await super()._on_key(event)

    def _mention(self) -> Completion | None:
        row, column = self.cursor_location
        return complete(self.document.get_line(row)[:column]) if self.selection.is_empty else None

    async def _act_now(self, event: Key) -> bool:
        """Move or delete at once. Textual does it after the keys behind it in the queue, which on a slow line
        are letters that then stand in the wrong place.
        """
        for binding in self._bindings.key_to_bindings.get(event.key, ()):
            if not binding.id:  # ours can be remapped, and are looked up where that is known
                event.stop()
                event.prevent_default()
                await self.run_action(binding.action)
                return True
        return False

    async def _on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
        self.paste(event.text)

    def paste(self, text: str) -> None:
        """Insert what was pasted, as a word if it is long, as mentions if it is paths."""
        pasted = text.replace("\r\n", "\n").replace("\r", "\n")
        shown = as_mentions(pasted) or self._chips.put(pasted)
        if result := self._replace_via_keyboard(shown, *self.selection):
            self.move_cursor(result.end_location)

    def _submit(self) -> None:
        # Now, and not when the message is read: the letters behind Enter are the next prompt's.
        self.post_message(self.Submitted(self.take()))

    def action_newline(self) -> None:
        self._replace_via_keyboard("\n", *self.selection)

    def action_up(self) -> None:
        if not self.text and (waiting := self.take_back()) is not None:
            self.put(waiting)
            return
        if self.cursor_at_first_line and self._recall(self.earlier.earlier(self.text)):
            return
        self.action_cursor_up()

    def action_down(self) -> None:
        if self.cursor_at_last_line and self._recall(self.earlier.later()):
            return
        self.action_cursor_down()

    def _recall(self, prompt: str | None) -> bool:
        """Show an earlier prompt, if the text is not one that was changed meanwhile."""
        if prompt is None:
            return False
        self._recalled = prompt
        self.load_text(prompt)
        self.move_cursor(self.document.end)
        return True

    def on_text_area_changed(self) -> None:
        if self._recalled is not None and self.text != self._recalled:
            self._recalled = None
            self.earlier.leave()
