"""What is seen of the chat that is held, kept in step: the messages, and what stands around them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.css.query import NoMatches
from textual.screen import ModalScreen, Screen
from textual.timer import Timer
from textual.widget import Widget

from edgecloud.errors import EdgeCloudError
from edgecloud.settings import Settings

from ..chats import OWN_DOORS
from .desk import Desk
from .draft import DraftFile
from .foresight import Foresight
from .keys import keys_of
from .ports import Gateway, Store
from .pull import Pull
from .session import Session
from .state import frame
from .state.conversation import Node
from .state.keys import Keys
from .state.preferences import Preferences
from .state.preview import Preview
from .state.waiting import HERE, Route
from .widgets.bars import FootBar, TitleBar
from .widgets.label import Label, plain
from .widgets.prompt import PromptArea
from .widgets.sidebar import Sidebar
from .widgets.transcript import Transcript
from .widgets.welcome import Welcome

LOOKS_PER_S = 12
"""How often a running answer is drawn. Tokens come faster than eyes and terminals take them."""

ROUTER_PAUSE_S = 0.4
"""How long nobody types before the router is asked what it would do."""


DRAFT_PAUSE_S = 1.0
"""How long nobody types before what stands there is written down."""

SAID_S = 8.0
"""How long a sentence stands that says what was done."""


MAX_SAID = 2
"""Sentences that stand there at a time, the latest."""


class ChatView(Screen[None]):
    """What commands know of the chat. One session is shown; others that still answer go on behind it."""

    def __init__(
        self,
        gateway: Gateway,
        store: Store,
        settings: Settings,
        *,
        preferences: Preferences,
        draft: DraftFile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.desk = Desk(gateway, store, settings, preferences=preferences, draft=draft, clock=clock)
        self.foresight = Foresight(gateway)
        self.gateway = gateway
        self.store = store
        self.settings = settings
        self.clock = clock
        self.route: Route = HERE
        self.editing: Node | None = None
        self.set_aside = ""
        """What stood in the prompt when an old question came there to be edited."""
        self._trouble_over = ""
        """What stood in the prompt when something went wrong."""
        self.all_doors = False
        """Whether chats of programs are listed too."""
        self.pulling: Pull | None = None
        self._version = -1
        self._looking = asyncio.Lock()
        self._looks: Timer | None = None
        self._asking: Timer | None = None
        self._drafting: Timer | None = None
        self._unsaying: Timer | None = None
        self._said: list[str] = []

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
                yield Label("", id="said")
                yield Label("", id="trouble")
                yield PromptArea()
                yield FootBar()

    async def on_mount(self) -> None:
        self._looks = self.set_interval(1 / LOOKS_PER_S, self.look, pause=True)
        self._asking = self.set_interval(ROUTER_PAUSE_S, self._ask_router, pause=True)
        self._drafting = self.set_interval(DRAFT_PAUSE_S, self._write_draft, pause=True)

    @property
    def focus_chain(self) -> list[Widget]:
        """From the prompt Tab goes to the messages, whose hints count on it, and to the list after them."""
        order: dict[Widget, int] = {self.prompt: 0, self.transcript: 1}
        return sorted(super().focus_chain, key=lambda widget: order.get(widget, 2))

    # ------------------------------------------------------------------------------------------ the session

    @property
    def session(self) -> Session:
        """The chat that is shown."""
        return self.desk.session

    @property
    def keys(self) -> Keys:
        """What the keys are called that hints name."""
        return keys_of(self)

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
            return next((child for child in reversed(node.children) if child.role == "assistant"), None)
        return node

    async def open(self, chat_id: str, message_id: str | None = None) -> None:
        """Show a chat from the history. Raises `NotFound`, `StorageError`."""
        session = await self.desk.load(chat_id)
        await self.store.mark_read(chat_id)
        await self.switch(session, at=message_id)

    async def switch(self, session: Session, *, at: str | None = None) -> None:
        """Show another session."""
        # Now, and not when the news of the last change arrives: a command that was typed is no draft.
        self.keep_draft()
        await self.desk.hold(session)
        self.editing, self.set_aside, self.route = None, "", HERE
        self.prompt.put(session.preferences.draft)
        await self.show(at=at)
        self.prompt.focus()
        await self.load_chats()

    def keep_draft(self) -> None:
        """Remember what was typed for the chat; the draft that an edit put aside before the edit."""
        self.session.keep_draft(self.set_aside or self.prompt.full_text)
        if self._drafting is not None:
            self._drafting.reset()
            self._drafting.resume()

    async def _write_draft(self) -> None:
        if self._drafting is not None:
            self._drafting.pause()
        await self.desk.write_draft()

    def edit(self, question: Node) -> None:
        """Put an old question into the prompt, and what stood there aside."""
        if self.editing is None:
            self.set_aside = self.prompt.full_text
        self.editing = question
        self.prompt.put(question.message.content)
        self.prompt.focus()
        self.show_bars()

    def leave_edit(self) -> None:
        """No old question is edited any more: what was put aside comes back."""
        draft, self.editing, self.set_aside = self.set_aside, None, ""
        if draft:
            self.prompt.give_back(draft)

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
                session.turn.waits_for = self.foresight.waits_for(session.turn.model)
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
        waiting = frame.queue(
            [each.typed for each in session.queue], self.keys, is_running=session.is_running
        )
        self.show_hint("#queue", waiting)
        self.query_one(Welcome).display = session.is_fresh
        self.query_one(Welcome).show(frame.welcome(self.settings, chosen.model))
        self.transcript.display = not session.is_fresh
        self.set_class(not session.is_fresh, "-begun")
        self.query_one(FootBar).show(would)
        turn, is_editing = self.route.model or self.route.mode or "", self.editing is not None
        title = frame.frame(self.settings, chosen, would, turn=turn, is_editing=is_editing)
        # As content: a model's name is no markup.
        self.prompt.border_title = plain(title)
        self.set_class(self.settings.offline, "-offline")
        self.set_class(chosen.private, "-private")

    def would(self) -> Preview:
        """What would happen if the prompt were sent now, as far as is known without asking."""
        return self.foresight.preview(self.session, self.route, self.prompt.full_text)

    def look_ahead(self) -> None:
        """Show what is known at once, and ask the router, the cache and the tokenizer once nobody has typed
        for a moment; without pools the router decides nothing, without words nothing is kept or counted.
        """
        self.foresight.forget()
        self.show_bars()
        cards, is_word = self.foresight.cards, bool(self.prompt.full_text.strip())
        is_told = any(card.loaded or self.settings.cache.enabled for card in cards)
        if (self.settings.pool or (is_word and is_told)) and self._asking is not None:
            self._asking.reset()
            self._asking.resume()

    async def _ask_router(self) -> None:
        if self._asking is not None:
            self._asking.pause()
        await self.foresight.ask(self.session, self.route, self.prompt.full_text)
        self.show_bars()

    def show_hint(self, id: str, text: str) -> None:
        """Show a line above the prompt, or none."""
        label = self.query_one(id, Label)
        label.display = bool(text)
        label.show(text)

    async def load_chats(self) -> None:
        """Fill the list of chats; what a search for words finds comes when it is found."""
        sidebar = self.query_one(Sidebar)
        if sidebar.words.strip():
            self.search_chats()
            return
        doors = () if self.all_doors else OWN_DOORS
        chats, unread = await self.store.chats(doors=doors), await self.store.unread()
        if not sidebar.words.strip():  # else they were typed meanwhile
            sidebar.show_chats(chats, unread, self.session.chat_id, all_doors=self.all_doors)

    def search_chats(self, pause_s: float = 0.0) -> None:
        """Search for the words that stand in the field; a search for others is broken off."""

        async def search() -> None:
            await self._guarded(self._search_chats(pause_s))

        # Not as a coroutine, which would never be awaited if it is broken off before it begins.
        self.run_worker(search, group="search", exclusive=True)  # type: ignore[arg-type]

    async def _search_chats(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        sidebar = self.query_one(Sidebar)
        words = sidebar.words
        if words.strip():
            sidebar.show_hits(await self.store.search(words), words)
        else:
            await self.load_chats()

    async def load_models(self) -> None:
        """Ask which models there are; without an answer the preview says less."""
        self.foresight.cards = await self.gateway.models()
        self.show_bars()

    # ------------------------------------------------------------------------------------------- doing

    def do(self, work: Coroutine[None, None, object]) -> None:
        """Run something that takes time; an error that a user can meet is said, any other is a bug."""
        self.run_worker(self._guarded(work))

    async def _guarded(self, work: Coroutine[None, None, object]) -> None:
        try:
            await work
        except EdgeCloudError as error:
            self.say(error.message, "error")
        except NoMatches:
            # What waited for the disk may come back to a screen that is being taken down.
            if self.app.is_running:
                raise

    def say(self, sentence: str, severity: str = "information") -> None:
        """A sentence above the prompt, where it hides nothing: an error until something else is done, any
        other for a while. On another screen it stands in a corner, and waits for the end of a dialog.
        """
        is_below = isinstance(self.app.screen, ModalScreen) and severity != "error"
        if self.app.screen is not self and not is_below:
            self.notify(sentence, severity=severity, markup=False)  # type: ignore[arg-type]
        elif severity == "error":
            self._trouble_over = self.prompt.full_text
            self.show_hint("#trouble", sentence)
        else:
            self.query_one("#said").set_class(severity == "warning", "-warning")
            self._said = [*(said for said in self._said if said != sentence), sentence][-MAX_SAID:]
            self.show_hint("#said", "\n".join(self._said))
            if self._unsaying is not None:
                self._unsaying.stop()
            self._unsaying = self.set_timer(SAID_S, self.unsay)

    def unsay(self) -> None:
        """What was said was read."""
        self._said = []
        self.show_hint("#said", "")

    def forget_trouble(self) -> None:
        """Say no more what went wrong."""
        self.show_hint("#trouble", "")
