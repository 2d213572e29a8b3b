"""The chat: messages, the prompt, and around them what holds and what would happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input, TextArea

from edgecloud.errors import BadRequest, EdgeCloudError
from edgecloud.settings import Settings

from ..commands import HANDLERS
from ..commands.judging import shown
from ..commands.pulling import Pull
from ..commands.turns import BUSY
from ..desk import Desk
from ..draft import DraftFile
from ..foresight import Foresight
from ..ports import Gateway, Store
from ..session import HERE, Route, Session, Waiting
from ..state import frame
from ..state.attachments import gather
from ..state.commands import COMMANDS, parse, unescaped
from ..state.conversation import Node
from ..state.preferences import Preferences
from ..state.preview import Preview
from ..widgets.bars import FootBar, TitleBar
from ..widgets.code import CodeBlock
from ..widgets.label import Label, plain
from ..widgets.prompt import PromptArea
from ..widgets.sidebar import ChatList, Sidebar
from ..widgets.transcript import Transcript
from ..widgets.welcome import Welcome

LOOKS_PER_S = 12
"""How often a running answer is drawn. Tokens come faster than eyes and terminals take them."""

ROUTER_PAUSE_S = 0.4
"""How long nobody types before the router is asked what it would do."""

LIST_S = 15.0
"""How often the list of chats is read again: other programs write to it too."""

QUIT_S = 1.0
"""A second Ctrl+C within this time leaves."""

SIDEBAR_FROM = 110
"""Columns from which the list of chats stands beside the chat without being asked for."""


class ChatScreen(Screen[None]):
    """One session is shown; others that still answer go on behind it."""

    HELP = """
## edgecloud

Ask, and the answer comes from this machine or from a pool; the line under it says from where. **Tab** goes
from the prompt to the messages and the chats. **Ctrl+P** finds every command, `/` begins one in the prompt.
Every key can be changed in `config.toml`: the ids are in the documentation.
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(
                command.key, f"command('{command.name}')", command.help, id=f"chat.{command.name}", show=False
            )
            for command in COMMANDS
            if command.where != "answer" and command.key and command.name not in ("quit", "stop")
        ),
        Binding("escape", "escape", "stop, or back to the prompt", id="chat.stop", show=False),
        Binding("ctrl+c,super+c", "interrupt", "copy, stop, leave", id="chat.interrupt", show=False),
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
        super().__init__()
        self.desk = Desk(gateway, store, settings, preferences=preferences, draft=draft, clock=clock)
        self.desk.ended = self._session_ended
        self.foresight = Foresight(gateway)
        self.gateway = gateway
        self.store = store
        self.settings = settings
        self.clock = clock
        self.route: Route = HERE
        self.editing: Node | None = None
        self.pulling: Pull | None = None
        self._open_chat = open_chat
        self._first_prompt = prompt
        self._version = -1
        self._looking = asyncio.Lock()
        self._looks: Timer | None = None
        self._asking: Timer | None = None
        self._interrupted_at = -QUIT_S

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Sidebar()
            with Vertical(id="main"):
                yield TitleBar()
                yield Welcome()
                yield Transcript()
                yield Label("", id="work")
                yield Label("", id="queue")
                yield Label("", id="suggestions")
                yield PromptArea(clock=self.clock)
                yield FootBar()

    async def on_mount(self) -> None:
        self.set_interval(LIST_S, self._reload_chats)
        self._looks = self.set_interval(1 / LOOKS_PER_S, self.look, pause=True)
        self._asking = self.set_interval(ROUTER_PAUSE_S, self._ask_router, pause=True)
        self.query_one(PromptArea).focus()
        self.prompt.take_back = self._take_back
        self.query_one(Sidebar).display = self.app.size.width >= SIDEBAR_FROM
        if text := self._first_prompt or self.desk.take_draft():
            self.prompt.put(text)
        await self.show()
        self.do(self._begin())

    async def _begin(self) -> None:
        """What takes time, once the screen is there."""
        if self._open_chat is not None:
            await self.open(self._open_chat)
            if said := self.desk.preferences.noted():  # on the command line, for this chat too
                chosen = Preferences.of({**self.session.preferences.noted(), **said})
                await self.session.set_preferences(chosen)
                await self.look()
        await self.load_chats()
        for prompt in await self.store.prompts():
            self.prompt.earlier.add(prompt)
        await self.load_models()
        if unknown := sorted(set(self.settings.chat.keys) - binding_ids()):
            self.say(
                f"chat.keys names {', '.join(unknown)}, which there is not: the ids are in docs/chat.md.",
                "warning",
            )

    # ------------------------------------------------------------------------------------------ the session

    @property
    def session(self) -> Session:
        """The chat that is shown."""
        return self.desk.session

    @property
    def prompt(self) -> PromptArea:
        return self.query_one(PromptArea)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def node(self) -> Node | None:
        """The message that a command means: the one under the cursor, else the latest."""
        return self.transcript.cursor or self.session.conversation.head

    @property
    def answer(self) -> Node | None:
        """The answer that a command means."""
        node = self.node
        if node is not None and node.role != "assistant":
            return node.children[-1] if node.children else None
        return node

    async def open(self, chat_id: str, message_id: str | None = None) -> None:
        """Show a chat from the history. Raises `NotFound`, `StorageError`."""
        session = await self.desk.load(chat_id)
        await self.store.mark_read(chat_id)
        await self.switch(session, at=message_id)

    async def switch(self, session: Session, *, at: str | None = None) -> None:
        """Show another session."""
        # Now, and not when the news of the last change arrives: a command that was typed is no draft.
        self.session.keep_draft(self.prompt.full_text)
        await self.desk.hold(session)
        self.editing, self.route = None, HERE
        self.prompt.put(session.preferences.draft)
        await self.show(at=at)
        self.prompt.focus()
        await self.load_chats()

    async def show(self, *, at: str | None = None) -> None:
        """Show the session from the start."""
        path = self.session.conversation.path
        node = next((node for node in path if node.id == at), None) if at else None
        async with self._looking:
            await self.transcript.open(self.session.conversation, at=node)
        if node is not None:
            self.transcript.focus()
        self._version = -1
        await self.look()

    # ------------------------------------------------------------------------------------------- looking

    async def look(self) -> None:
        """Show what changed since the last look."""
        async with self._looking:  # a timer looks, and so does whoever changed something
            session = self.session
            if session.version != self._version:
                self._version = session.version
                await self.transcript.sync()
                self.look_ahead()
            if session.turn is not None and session.answering is not None:
                self.transcript.look(session.answering, session.turn, self.clock())
            if session.warning:
                self.say(session.warning, "warning")
                session.warning = None
            if self._looks is not None:
                if session.is_running:
                    self._looks.resume()
                else:
                    self._looks.pause()

    def show_bars(self) -> None:
        """Show what holds, what waits, and what a prompt would do."""
        session, chosen, would = self.session, self.session.preferences, self.would()
        self.query_one(TitleBar).show(session.title, frame.badges(self.settings, chosen))
        waiting = frame.queue([each.typed for each in session.queue], is_running=session.is_running)
        self._show_hint("#queue", waiting)
        self.query_one(Welcome).display = session.is_fresh
        self.query_one(Welcome).show(frame.welcome(self.settings))
        self.transcript.display = not session.is_fresh
        self.query_one(FootBar).show(would.line())
        turn, is_editing = self.route.model or self.route.mode or "", self.editing is not None
        title = frame.frame(self.settings, chosen, would, turn=turn, is_editing=is_editing)
        # As content: a model's name is no markup.
        self.prompt.border_title = plain(title)
        self.set_class(self.settings.offline, "-offline")
        self.set_class(chosen.private, "-private")

    def would(self) -> Preview:
        """What would happen if the prompt were sent now, as far as is known without asking."""
        return self.foresight.preview(self.session, self.route, self.prompt.text)

    def look_ahead(self) -> None:
        """Show what is known at once, and ask the router once nobody has typed for a moment; without pools
        it decides nothing.
        """
        self.foresight.forget()
        self.show_bars()
        if self.settings.pool and self._asking is not None:
            self._asking.reset()
            self._asking.resume()

    async def _ask_router(self) -> None:
        if self._asking is not None:
            self._asking.pause()
        await self.foresight.ask(self.session, self.route, self.prompt.full_text)
        self.show_bars()

    def _show_hint(self, id: str, text: str) -> None:
        label = self.query_one(id, Label)
        label.display = bool(text)
        label.show(text)

    # ------------------------------------------------------------------------------------------- commands

    def do(self, work: Coroutine[None, None, object]) -> None:
        """Run something that takes time; an error that a user can meet is said, any other is a bug."""

        async def guarded() -> None:
            try:
                await work
            except EdgeCloudError as error:
                self.say(error.message, "error")
            except NoMatches:
                # What waited for the disk may come back to a screen that is being taken down.
                if self.app.is_running:
                    raise

        self.run_worker(guarded())

    def say(self, sentence: str, severity: str = "information") -> None:
        """A sentence in a corner, for a while."""
        self.notify(sentence, severity=severity, markup=False)  # type: ignore[arg-type]

    def run_command(self, name: str, argument: str = "") -> None:
        """Do what a command says."""
        self.do(HANDLERS[name](self, argument))

    def action_command(self, name: str) -> None:
        self.run_command(name)

    def action_chat_command(self, name: str) -> None:
        """A command for the chat under the cursor of the list."""
        chosen = self.query_one(ChatList).chosen
        if chosen is not None:
            self.do(HANDLERS[name](self, "", chosen))

    def action_escape(self) -> None:
        if self.session.is_running:
            self.session.stop()
        elif self.pulling is not None:
            self.pulling.stop()
        elif self.focused is not self.prompt or self.transcript.cursor is not None:
            self.transcript.leave_cursor()
            self.prompt.focus()
        elif self.editing is not None:
            self.editing = None
            self.prompt.clear_all()
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
            self.say("Ctrl+C again leaves; what was typed is kept.")

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
        if not text.strip():
            self.session.go_on()
            await self.look()
            return
        try:
            if (typed := parse(text)) is not None:
                self.prompt.clear_all()
                self.run_command(typed.command.name, typed.argument)
                return
            prompt = gather(unescaped(text))
        except BadRequest as error:
            self.say(error.message, "error")
            return
        waiting = Waiting(text, prompt, self.route)
        if self.editing is None:
            self.session.send(waiting)
        else:
            before = next(iter(self.editing.children[-1:]), None)
            if not self.session.edit(self.editing, waiting):
                self.say(BUSY, "warning")
                return
            self.do(shown(self, before, "edited"))
        self.prompt.clear_all()
        self.prompt.earlier.add(text)
        self.editing, self.route = None, HERE
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
            self.say(f"Answered in “{session.title}”.")
        await self.load_chats()

    @on(TextArea.Changed, "#prompt")
    def prompt_changed(self) -> None:
        if not self.is_mounted:
            return  # the screen is being put together or taken down
        self.session.keep_draft(self.prompt.full_text)
        self._show_hint("#suggestions", frame.suggestions(self.prompt.text))
        self.look_ahead()

    @on(Transcript.TopReached)
    async def top_reached(self) -> None:
        await self.transcript.show_earlier()

    @on(Sidebar.Opened)
    def chat_opened(self, event: Sidebar.Opened) -> None:
        self.do(self.open(event.chat_id, event.message_id))

    @on(Sidebar.Searched)
    def chats_searched(self, event: Sidebar.Searched) -> None:
        self.do(self.load_chats(event.words))

    @on(CodeBlock.CopyRequested)
    def copy_requested(self, event: CodeBlock.CopyRequested) -> None:
        self.app.copy_to_clipboard(event.code)

    # -------------------------------------------------------------------------------------------- loading

    async def load_chats(self, words: str | None = None) -> None:
        """Fill the list of chats, or what a search for words found."""
        sidebar = self.query_one(Sidebar)
        words = self.query_one("#search", Input).value if words is None else words
        if words.strip():
            sidebar.show_hits(await self.store.search(words))
        else:
            chats, unread = await self.store.chats(), await self.store.unread()
            sidebar.show_chats(chats, unread, self.session.chat_id)

    async def load_models(self) -> None:
        """Ask which models there are; without an answer the preview says less."""
        self.foresight.cards = await self.gateway.models()
        self.show_bars()

    def _reload_chats(self) -> None:
        if self.query_one(Sidebar).display:
            self.do(self.load_chats())


def binding_ids() -> frozenset[str]:
    """Every id that `chat.keys` may name."""
    named = (ChatScreen, PromptArea, Transcript, ChatList)
    bindings = [binding for node in named for binding in node.BINDINGS if isinstance(binding, Binding)]
    return frozenset(binding.id for binding in bindings if binding.id) | {"chat.quit"}
