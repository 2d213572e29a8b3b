"""Which engine holds how much of which conversation, as far as can be told from who answered last."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from edgecloud.types import ChatRequest


@runtime_checkable
class KeepsChats(Protocol):
    """A catalog whose local models keep on disk what they computed of chats."""

    def saved_tokens(self) -> Mapping[tuple[str, str], int]:
        """How many tokens of each chat each model has on disk. Blocks; raises `StorageError`."""


KEPT = 1024
"""Conversations remembered; the one not heard of for longest goes first."""


class Warmth:
    """The tokens that each engine computed for a conversation the last time it answered in it."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, dict[str, int]] = OrderedDict()

    def note(self, session: str | None, engine: str, tokens: int) -> None:
        """The engine has just computed `tokens` of this conversation, its own answer included."""
        if session is None:
            return
        self._tokens.setdefault(session, {})[engine] = tokens
        self._tokens.move_to_end(session)
        while len(self._tokens) > KEPT:
            self._tokens.popitem(last=False)

    def tokens(self, session: str | None, engine: str, prompt_tokens: int) -> int:
        """How many of the prompt's tokens the engine should still have."""
        known = self._tokens.get(session or "", {})
        return min(known.get(engine, 0), prompt_tokens)


def session_of(request: ChatRequest) -> str | None:
    """What a conversation is known by: its chat, else how it began, which every turn of an agent repeats.

    None for one that has no past: its first turn is a prefix of nothing yet that was seen.
    """
    if request.chat_id is not None:
        return request.chat_id
    if not request.is_chat:
        return None
    begun = hashlib.blake2b(digest_size=12)
    for message in request.messages:
        begun.update(f"{message.role}\0{message.content}\0".encode(errors="replace"))
        if message.role == "user":
            return f"{request.tenant or ''}:{begun.hexdigest()}"
    return None
