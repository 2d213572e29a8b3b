"""What keeps a stored chat on this machine, its switch or what was found in it: so its copies stay."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from edgecloud.folders import data_dir

from .chats import Chat


def with_pin(chat: Chat) -> Chat:
    """The chat, `private` too where something that was found in it keeps it here. Raises `StorageError`.

    A copy is another chat, of which that is not known: of a file in a private place it holds only the text.
    """
    return replace(chat, private=chat.private or _is_bound(chat.summary.id))


def unpinned(chat_id: str | None) -> str:
    """What to say when a person takes the switch of a chat back: their own word is theirs to take, what was
    found in the chat stays. Raises `StorageError`.
    """
    if chat_id is not None and _is_bound(chat_id):
        return "You pin it no longer, but this chat stays on this machine for what was found in it."
    return "You pin it no longer: this chat may leave this machine again."


def _is_bound(chat_id: str) -> bool:
    from ..router.ledger import Ledger

    path = data_dir() / "edgecloud.db"
    if not path.exists():
        return False
    with closing(Ledger(path, for_reading=True)) as ledger:
        kept = ledger.binding(chat_id)
    if kept is None:
        return False
    from .privacy import was_found

    return was_found(kept)
