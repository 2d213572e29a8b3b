"""The chat as it is used: keys, commands, what is typed and sent, what is chosen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.events import DescendantFocus, Paste, Resize
from textual.widgets import Input, TextArea

from edgecloud.errors import BadRequest
from edgecloud.settings import Settings

from .chat_view import ChatView
from .commands import HANDLERS
from .commands.judging import shown
from .commands.turns import BUSY
from .draft import DraftFile
from .keys import bound
from .ports import Gateway, Store
from .session import Session
from .state import frame
from .state.attachments import gather
from .state.commands import COMMANDS, parse, unescaped
from .state.keys import KEYS
from .state.preferences import Preferences
from .state.waiting import HERE, Waiting
from .widgets.code import CodeBlock
from .widgets.prompt import PromptArea
from .widgets.sidebar import ChatList, Sidebar
from .widgets.transcript import Transcript

LIST_S = 15.0
"""How often the list of chats is read again: other programs write to it too."""

SEARCH_PAUSE_S = 0.15
"""How long nobody types before what stands there is searched for."""

QUIT_S = 1.0
"""A second Ctrl+C within this time leaves."""

SIDEBAR_FROM = 110
"""Columns from which the list of chats stands beside the chat without being asked for."""

NARROW = 80
"""Columns below which it stands over the chat, for as long as it is used."""


class ChatScreen(ChatView):
    """Begins with a new chat, or with `open_chat`; `prompt` stands in the prompt then."""

    HELP = """
## edgecloud

Ask, and the answer comes from this machine or from a pool; the line under it says from where. **Tab** goes
from the prompt to the messages and the chats. **{chat.palette}** finds every command, `/` begins one in
the prompt. Every key can be changed in `config.toml`: the ids are in the documentation.
"""

    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012  (as Textual declares it)
        (0, "-narrow"),
        (NARROW, "-roomy"),
    ]

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            bound(f"chat.{command.name}", f"command('{command.name}')", command.help)
            for command in COMMANDS
            if command.where != "answer" and command.key and command.name not in ("quit", "stop")
        ),
        bound("chat.stop", "escape", "stop, or back to the prompt"),
        bound("chat.interrupt", "interrupt", "copy, stop, leave"),
    ]

    def __init__(
        self,
        gateway: Gateway,
        store: Store,
        settings: Settings,
        *,
        preferences: Preferences,
        open_chat: str | None = None,
        prompt: str = "",
        draft: DraftFile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(gateway, store, settings, preferences=preferences, draft=draft, clock=clock)
        self.desk.ended = self._session_ended
        self._open_chat = open_chat
        self.desk.given = prompt
        self._interrupted_at = -QUIT_S

    async def on_mount(self) -> None:
        # Textual calls the base class's handler by itself, after this one.
        self.set_interval(LIST_S, self._reload_chats)
        self.prompt.take_back = self._take_back
        self.query_one(Sidebar).display = self.app.size.width >= SIDEBAR_FROM and not self.app.is_inline
        if text := self.desk.given or ("" if self._open_chat else self.desk.take_draft()):
            self.prompt.put(text)
        self.prompt.focus()
        await self.show()
        self.do(self._begin())

    async def _begin(self) -> None:
        """What takes time, once the screen is there."""
        if self._open_chat is not None:
            await self.open(self._open_chat)
            if self.desk.given:
                self.prompt.give_back(self.desk.given)
            if said := self.desk.preferences.noted():  # on the command line, for this chat too
                chosen = Preferences.of({**self.session.preferences.noted(), **said})
                await self.session.set_preferences(chosen)
                await self.look()
        await self.load_chats()
        for prompt in await self.store.prompts():
            self.prompt.earlier.add(prompt)
        await self.load_models()
        if unknown := sorted(set(self.settings.chat.keys) - set(KEYS)):
            self.say(
                f"chat.keys names {', '.join(unknown)}, which there is not: the ids are in docs/chat.md.",
                "warning",
            )

    # ------------------------------------------------------------------------------------------- commands

    def run_command(self, name: str, argument: str = "") -> None:
        """Do what a command says."""
        self.forget_trouble()
        self.do(HANDLERS[name](self, argument))

    def action_command(self, name: str) -> None:
        self.run_command(name)

    def action_chat_command(self, name: str) -> None:
        """A command for the chat under the cursor of the list."""
        chosen = self.query_one(ChatList).chosen
        if chosen is not None:
            self.do(HANDLERS[name](self, "", chosen))

    def action_escape(self) -> None:
        self.forget_trouble()
        if self.session.is_running:
            self.session.stop()
        elif self.pulling is not None:
            self.pulling.stop()
        else:
            if self.editing is not None and self.focused is self.prompt:
                self.prompt.clear_all()
                self.leave_edit()
            self.transcript.leave_cursor()
            self.prompt.focus()
        self.do(self.look())

    def _take_back(self) -> str | None:
        waiting = self.session.unqueue()
        self.show_bars()
        return waiting.typed if waiting is not None else None

    def action_interrupt(self) -> None:
        """Ctrl+C: copy what is selected, else stop the answer, else leave at the second press."""
        selected = self.get_selected_text() or self._selected_in_field()
        if selected:
            self.app.copy_to_clipboard(selected)
            self.clear_selection()
        elif self.session.is_running:
            self.session.stop()
        elif self.clock() - self._interrupted_at < QUIT_S:
            self.run_command("quit")
        else:
            self._interrupted_at = self.clock()
            self.say(self.keys.fill("{chat.interrupt} again leaves; what was typed is kept."))

    def _selected_in_field(self) -> str:
        focused = self.focused
        return focused.selected_text if isinstance(focused, (TextArea, Input)) else ""

    def action_scroll(self, pages: int) -> None:
        if pages < 0:
            self.transcript.scroll_page_up(animate=False)
        else:
            self.transcript.scroll_page_down(animate=False)

    # ------------------------------------------------------------------------------------------- messages

    @on(PromptArea.Submitted)
    async def submitted(self, event: PromptArea.Submitted) -> None:
        event.stop()
        await self.submit(event.text)

    async def submit(self, text: str) -> None:
        """Do what was typed: a command, a prompt, or with nothing typed what waits."""
        self.forget_trouble()
        if not text.strip():
            self.session.go_on()
            await self.look()
            return
        try:
            if (typed := parse(text)) is not None:
                self.run_command(typed.command.name, typed.argument)
                return
            prompt = gather(unescaped(text))
            self.foresight.check(prompt, self.route.model or self.session.preferences.model)
        except BadRequest as error:
            self.prompt.give_back(text)
            self.say(error.message, "error")
            return
        waiting = Waiting(text, prompt, self.route)
        if self.editing is None:
            self.session.send(waiting)
        else:
            before = next(iter(self.editing.children[-1:]), None)
            if not self.session.edit(self.editing, waiting):
                self.say(self.keys.fill(BUSY), "warning")
                self.prompt.give_back(text)
                return
            self.do(shown(self, before, "edited"))
            self.leave_edit()
        self.prompt.earlier.add(text)
        self.route = HERE
        self.desk.watch(self.session)
        self.transcript.action_end()
        await self.look()

    def _session_ended(self, session: Session) -> None:
        if self.is_attached:
            self.do(self._after(session))

    async def _after(self, session: Session) -> None:
        if session is self.session:
            await self.look()
            if session.chat_id is not None:
                await self.store.mark_read(session.chat_id)
        elif session.title:
            head = session.conversation.head
            is_answered = head is not None and head.status == "complete"
            self.say(f"{'Answered' if is_answered else 'No whole answer came'} in “{session.title}”.")
        await self.load_models()  # what was asked is loaded now
        await self.load_chats()

    def make_room(self) -> None:
        """The help comes: where three do not fit beside each other, the list of chats goes."""
        sidebar = self.query_one(Sidebar)
        if sidebar.display and self.app.size.width < SIDEBAR_FROM:
            sidebar.display = False
            self.prompt.focus()

    @on(DescendantFocus)
    def focus_moved(self) -> None:
        sidebar = self.query_one(Sidebar)
        if self.has_class("-narrow") and self.focused is not None and sidebar not in self.focused.ancestors:
            sidebar.display = False

    def on_resize(self, event: Resize) -> None:
        if event.size.width < NARROW:
            self.focus_moved()

    @on(TextArea.Changed, "#prompt")
    def prompt_changed(self) -> None:
        if not self.is_mounted:
            return  # the screen is being put together or taken down
        self.keep_draft()
        if self.prompt.full_text != self._trouble_over:
            self.forget_trouble()
        self.show_hint("#suggestions", frame.suggestions(self.prompt.text))
        self.look_ahead()

    @on(PromptArea.Offered)
    def names_offered(self, event: PromptArea.Offered) -> None:
        self.show_hint("#suggestions", frame.offers(event.names))

    @on(Transcript.Typed)
    def typed_elsewhere(self, event: Transcript.Typed) -> None:
        # At once: the letters behind it are meant for the prompt too.
        self.set_focus(self.prompt)
        self.prompt.insert(event.character)

    def on_paste(self, event: Paste) -> None:
        """What nothing else took is meant for the prompt."""
        event.stop()
        self.set_focus(self.prompt)
        self.prompt.paste(event.text)

    @on(Transcript.TopReached)
    async def top_reached(self) -> None:
        await self.transcript.show_earlier()

    @on(Sidebar.Opened)
    def chat_opened(self, event: Sidebar.Opened) -> None:
        self.do(self.open(event.chat_id, event.message_id))

    @on(Sidebar.Searched)
    def words_typed(self, event: Sidebar.Searched) -> None:
        event.stop()
        self.search_chats(SEARCH_PAUSE_S)

    @on(CodeBlock.CopyRequested)
    def copy_requested(self, event: CodeBlock.CopyRequested) -> None:
        self.app.copy_to_clipboard(event.code)

    def _reload_chats(self) -> None:
        sidebar = self.query_one(Sidebar)
        if sidebar.display and not sidebar.words:
            self.do(self.load_chats())
