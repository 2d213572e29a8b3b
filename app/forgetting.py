"""What is deleted with a chat beside its messages: all that was derived from it and belongs to no other."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import closing
from typing import TYPE_CHECKING

from edgecloud.config.loading import load
from edgecloud.errors import StorageError
from edgecloud.folders import data_dir

if TYPE_CHECKING:
    from .history import History

log = logging.getLogger(__name__)


def forget_expired(history: History, retention_days: int) -> None:
    """Delete the chats that nobody used for so many days, with all that was derived from them; 0 keeps all.

    Where that can't be deleted now the chats stay too: they are what it is found by the next time.
    """
    old = history.expired(retention_days)
    if not old:
        return
    try:
        forget_chats(old)
    except StorageError as error:
        log.warning("old chats are kept for now: %s", error.message)
        return
    history.remove(old)


def drop_kept() -> None:
    """Throw away all kept answers and computed prefixes as the files that they are, which takes no room:
    what a running server holds open is gone when it ends.
    """
    for name in ("cache.db", "prefixes.db"):
        for suffix in ("", "-wal", "-shm"):
            (data_dir() / f"{name}{suffix}").unlink(missing_ok=True)


def forget_chats(chat_ids: Collection[str]) -> bool:
    """Delete decisions, what bound a chat to this machine, kept answers and computed prefixes; what was spent
    stays counted.

    False while another process keeps old pages of those files readable. Raises `StorageError`.
    """
    from ..router.ledger import Ledger
    from ..router.outcomes import Outcomes
    from .databases import open_answers
    from .prefixes import open_prefixes

    with closing(Ledger(data_dir() / "edgecloud.db")) as ledger:
        ledger.forget_chats(list(chat_ids))
    with closing(Outcomes(data_dir() / "edgecloud.db")) as outcomes:
        outcomes.delete_chats(list(chat_ids))
    settings = load()
    purged = []
    if (data_dir() / "cache.db").exists():
        with closing(open_answers(settings)) as answers:
            purged.append(answers.delete_chats(chat_ids).purged)
    if settings.cache.prefix_mb or (data_dir() / "prefixes.db").exists():
        # Also where nothing is saved yet: a server that runs has it in memory, and must not save it later.
        with closing(open_prefixes(settings)) as prefixes:
            purged.append(prefixes.delete_chats(chat_ids).purged)
    return all(purged)
