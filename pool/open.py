"""From settings to a running engine: which model, in what memory, behind which scheduler."""

from __future__ import annotations

from edgecloud.errors import NotSupported
from edgecloud.settings import Settings

from .engine import PoolEngine


def open_engine(settings: Settings) -> PoolEngine:
    """Load the model that the settings name and start its engine. Takes seconds to minutes."""
    raise NotSupported("This version of the pool has no models yet.")
