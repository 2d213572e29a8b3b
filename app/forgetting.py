"""What is deleted with a chat beside its messages: all that was derived from it and belongs to no other."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from edgecloud.settings import data_dir, load


def forget_chats(chat_ids: Collection[str]) -> bool:
    """Delete decisions, what bound a chat to this machine, and kept answers; what was spent stays counted.

    False while another process keeps old pages of the kept answers readable. Raises `StorageError`.
    """
    from ..router.ledger import Ledger
    from ..router.outcomes import Outcomes
    from .open import open_answers

    with closing(Ledger(data_dir() / "edgecloud.db")) as ledger:
        ledger.forget_chats(list(chat_ids))
    with closing(Outcomes(data_dir() / "edgecloud.db")) as outcomes:
        outcomes.delete_chats(list(chat_ids))
    if not (data_dir() / "cache.db").exists():
        return True
    with closing(open_answers(load())) as answers:
        return all([answers.delete_chat(chat_id).purged for chat_id in chat_ids])
