"""What binds a conversation to this machine, remembered for as long as there is the conversation."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from edgecloud.errors import StorageError
from edgecloud.settings import Settings
from edgecloud.types import ChatRequest
from edgecloud.wire.native import dump_record, load_record

from ..router.facts import Privacy
from ..router.privacy import ASKED, PINNED, PUBLIC, UNREAD, judge
from .books import Books
from .warmth import session_of

KEPT = 1024
"""Conversations whose verdict is kept in memory; the others are looked up."""

WISHES = frozenset({ASKED.label, PINNED.label})


class PrivacyDesk:
    """Looks at every request before it is decided who may see it."""

    def __init__(self, settings: Settings, books: Books | None) -> None:
        self._settings = settings
        self._books = books
        self._known: OrderedDict[str, Privacy] = OrderedDict()

    async def look_at(self, request: ChatRequest, *, remember: bool = True) -> Privacy:
        """Whether the request has to stay on this machine, and why; once that is so, for all that follows in
        its conversation, unless it is only looked at (`remember` is False).
        """
        session = session_of(request)
        # Without a chat a conversation is known by how it began, and many begin with "hi".
        begins = request.chat_id is None and not any(each.role == "assistant" for each in request.messages)
        known = PUBLIC if begins else await self._earlier(session)
        # The chat's own switch is in every request; what was found in it is not undone by that.
        has_switch = request.door == "chat" or (request.door == "ask" and request.chat_id is not None)
        earlier = _without_wishes(known or PUBLIC) if has_switch else known or PUBLIC
        privacy = judge(request, self._settings.privacy, paths=request.files, earlier=earlier)
        if known is None and not privacy.local_only:
            # For this turn only: the next one looks again.
            return Privacy(True, (UNREAD,))
        if begins and not privacy.local_only:
            # One that began alike may be bound, and this says nothing of that one.
            return privacy
        if session is not None and remember:
            self._remember(session, privacy, is_news=privacy != known)
        return privacy

    # ------------------------------------------------------------------------------------------------- inside

    async def _earlier(self, session: str | None) -> Privacy | None:
        """What was found before; None where nobody can say."""
        if session is None:
            return PUBLIC
        if session in self._known:
            return self._known[session]
        if self._books is None:
            return PUBLIC
        try:
            kept: Any = await self._books.do(lambda ledger: ledger.binding(session))
        except StorageError:
            # The conversation's own text is looked at again in any case, but a bare wish is nowhere else.
            return None
        if session in self._known:
            # Another request of the conversation was looked at meanwhile: what it found still holds.
            return self._known[session]
        return PUBLIC if kept is None else load_record(Privacy, kept)

    def _remember(self, session: str, privacy: Privacy, *, is_news: bool) -> None:
        self._known[session] = privacy
        self._known.move_to_end(session)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        if is_news and self._books is not None:
            self._books.bind(session, dump_record(privacy))


def was_found(kept: Any) -> bool:
    """Whether a conversation's record in the ledger binds it by more than somebody's wish."""
    return _without_wishes(load_record(Privacy, kept)).local_only


def _without_wishes(privacy: Privacy) -> Privacy:
    reasons = tuple(reason for reason in privacy.reasons if reason.label not in WISHES)
    return Privacy(bool(reasons), reasons)
