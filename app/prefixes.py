"""Saved prefixes as the settings want them: the file, and the threads that models share."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from edgecloud.folders import data_dir
from edgecloud.settings import Settings
from edgecloud.units import MB

if TYPE_CHECKING:
    from ..cache.prefix import PrefixStore
    from ..local_engine.saved import SavedPrefixes

_DAY_S = 86_400.0
MOST_REMEMBERED = 1000
"""Saved states that are looked at, the last used first."""


def open_prefixes(settings: Settings, *, for_reading: bool = False) -> PrefixStore:
    """The saved states, `for_reading` also where they can't be written. Raises `StorageError`."""
    from ..cache.prefix import PrefixStore
    from ..cache.seal import encrypted, plain

    cache = settings.cache
    days = cache.lifetime_days
    if settings.history.retention_days:
        # A chat that goes by its age takes no command that could delete what was computed for it.
        days = min(days, settings.history.retention_days)
    key = cache.prefix_key
    return PrefixStore(
        data_dir() / "prefixes.db",
        limit_bytes=int(cache.prefix_mb * MB),
        lifetime_s=days * _DAY_S,
        make_seal=encrypted(key.get_secret_value()) if key is not None else plain,
        for_reading=for_reading,
    )


def saved_tokens(settings: Settings) -> dict[tuple[str, str], int]:
    """How many tokens of each chat each model has on disk, by chat and model. Raises `StorageError`."""
    if not (data_dir() / "prefixes.db").exists():
        return {}
    found: dict[tuple[str, str], int] = {}
    with closing(open_prefixes(settings)) as prefixes:
        for entry in prefixes.entries(limit=MOST_REMEMBERED):
            for chat_id in entry.chats:
                at = chat_id, entry.model
                found[at] = max(found.get(at, 0), entry.num_tokens)
    return found


def saved_prefixes(settings: Settings) -> SavedPrefixes | None:
    """What local models keep their prefixes with; None where they keep none on disk."""
    # Who keeps no questions wants nothing kept that they could be read from.
    if not settings.cache.prefix_mb or not settings.history.enabled:
        return None
    from ..local_engine.saved import SavedPrefixes

    return SavedPrefixes(lambda: open_prefixes(settings))
