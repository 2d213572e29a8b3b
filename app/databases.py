"""The databases beside the history, opened as the settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgecloud.folders import data_dir
from edgecloud.settings import Settings
from edgecloud.units import MB

if TYPE_CHECKING:
    from ..cache.answers import AnswerCache
    from ..router.outcomes import Outcomes

BUSY_S = 2.0
"""How long a request that needs money waits for somebody else's transaction, seconds."""


def open_outcomes(settings: Settings, *, for_reading: bool = False) -> Outcomes:
    """The user's verdicts, `for_reading` also where they can't be written. Raises `StorageError`."""
    from ..router.outcomes import Outcomes

    outcomes = Outcomes(data_dir() / "edgecloud.db", busy_s=BUSY_S, for_reading=for_reading)
    if settings.history.retention_days and not for_reading:
        outcomes.prune(settings.history.retention_days)
    return outcomes


def open_answers(settings: Settings, *, for_reading: bool = False) -> AnswerCache:
    """The kept answers, `for_reading` also where they can't be written. Raises `StorageError`."""
    from ..cache.answers import AnswerCache

    cache = settings.cache
    return AnswerCache(
        data_dir() / "cache.db",
        max_wrong_per_100=cache.max_wrong_per_100_requests,
        limit_bytes=int(cache.size_mb * MB),
        for_reading=for_reading,
    )
