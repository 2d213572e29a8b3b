"""Which chat is held, and those that still answer behind it; nothing typed or coming is lost between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from edgecloud.settings import Settings

from .draft import DraftFile
from .ports import Gateway, Store
from .session import Session
from .state.conversation import Conversation
from .state.preferences import Preferences
from .state.waiting import Waiting, restored

KEEP_S = 2.0
"""How long the way out waits for the disk, in seconds."""


class Desk:
    """`session` is the chat that is shown. `ended` is called with every session whose answer has ended."""

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
        self.gateway = gateway
        self.store = store
        self.settings = settings
        self.preferences = preferences
        self.clock = clock
        self.ended: Callable[[Session], None] = lambda session: None
        self.given = ""
        """The prompt of the command line, which is nobody's draft: the shell has it."""
        self._draft = draft
        self._before: str | None = None
        """A draft that is kept and that nobody has seen, since another prompt was given."""
        self._is_written = False
        """Whether the file has what was typed into the chat that is shown."""
        self._watched: set[Session] = set()
        self._keeping: asyncio.Future[None] | None = None
        self.session = self.new()

    def new(self) -> Session:
        """A chat in which nothing was said yet."""
        return self._session(preferences=self.preferences)

    async def load(self, chat_id: str) -> Session:
        """A chat from the history, or as it is held while it answers. Raises `NotFound`, `StorageError`."""
        for held in (self.session, *self._watched):
            if held.chat_id == chat_id and held.is_running:
                return held
        chat, receipts, notes = await self.store.chat(chat_id)
        preferences, queue = await asyncio.to_thread(restored, notes)
        return self._session(
            chat_id=chat_id,
            title=chat.summary.title,
            conversation=Conversation.of(chat, receipts),
            preferences=preferences,
            queue=queue,
        )

    async def hold(self, session: Session) -> None:
        """Show another chat; what was typed stays with the one that is left."""
        await self.write_draft()
        self.session, self._is_written = session, False
        if session.chat_id is None and not session.preferences.draft:
            session.keep_draft(self.take_draft())

    def watch(self, session: Session) -> None:
        """Notice when its answer ends, whatever is shown then."""
        session.ended = self._session_ended
        self._watched.add(session)

    async def drop(self, chat_id: str) -> bool:
        """Stop what runs in a chat that is being deleted; True if it is the one that is shown."""
        for session in [*self._watched, self.session]:
            if session.chat_id == chat_id:
                await session.aclose()
        return self.session.chat_id == chat_id

    async def write_draft(self) -> None:
        """Write down what is typed and not sent: a crash comes without a word."""
        if self.session.chat_id is None:
            self._keep_draft()
            return
        if self._draft is not None and self._is_written:
            self._draft.keep(self._before or "")  # it was sent
            self._is_written = False
        if self.session.noted_draft != self.session.preferences.draft:
            await self.session.note()

    def take_draft(self) -> str:
        """What was typed into a new chat and left there, once."""
        self._before = ""
        return self._draft.take() if self._draft is not None else ""

    async def keep(self) -> None:
        """Stop what runs so that its partial is kept, and keep what was typed and not sent; but a disk that
        does not answer is waited for a moment only.
        """
        if self._keeping is not None and not self._keeping.done():
            return  # it was waited for
        self._keeping = asyncio.ensure_future(self._keep())
        await asyncio.wait([self._keeping], timeout=KEEP_S)
        if self._keeping.done():
            self._keeping.result()

    async def _keep(self) -> None:
        if self.session.chat_id is None:
            self._keep_draft()
        for session in {*self._watched, self.session}:
            await session.aclose()
        if self.session.chat_id is not None:
            await self.write_draft()

    def _keep_draft(self) -> None:
        """Keep what was typed into a new chat; behind what was before, which a prompt that was given left."""
        if self._draft is None:
            return
        draft = self.session.preferences.draft
        if self.given and self._before is None:
            self._before = self._draft.take()
        new = "" if draft.strip() == self.given.strip() else draft
        self._draft.keep("\n".join(filter(None, [self._before, new])))
        self._is_written = True

    def _session_ended(self, session: Session) -> None:
        if not session.queue:
            self._watched.discard(session)
        self.ended(session)

    def _session(
        self,
        *,
        preferences: Preferences,
        chat_id: str | None = None,
        title: str = "",
        conversation: Conversation | None = None,
        queue: Sequence[Waiting] = (),
    ) -> Session:
        return Session(
            self.gateway,
            self.store,
            chat_id=chat_id,
            title=title,
            conversation=conversation,
            preferences=preferences,
            queue=queue,
            offline=self.settings.offline,
            clock=self.clock,
        )
