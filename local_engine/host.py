"""Many local models within one memory budget: loaded when asked, the least recently used one unloaded when
idle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edgecloud.errors import ModelLoadError
from edgecloud.models import ModelFile
from edgecloud.settings import Settings
from edgecloud.units import MB, megabytes

from .engine import LocalEngine
from .fit import available_memory, minimum, plan_memory, room

if TYPE_CHECKING:
    from .saved import SavedPrefixes

log = logging.getLogger("edgecloud.local")


class ModelHost:
    """Gives out one `LocalEngine` per model file and decides which of them are in memory.

    A model that is answering is never unloaded: who needs its room waits until it is idle. `saved` keeps
    what they computed on disk, and is closed with the host.
    """

    def __init__(self, settings: Settings, saved: SavedPrefixes | None = None) -> None:
        self._settings = settings.local
        self._saved = saved
        self._engines: dict[tuple[str, Path], LocalEngine] = {}
        # One load at a time, or two could be promised the same memory.
        self._placing = asyncio.Lock()
        self._became_idle = asyncio.Event()

    def engine(self, file: ModelFile) -> LocalEngine:
        """The engine of a file, always the same one; nothing is loaded yet. Raises `ModelLoadError` for a
        damaged file.
        """
        key = (file.name, file.path)
        if key not in self._engines:
            engine = LocalEngine(file, self._settings, room=self._room, saved=self._saved)
            engine.on_idle = self._became_idle.set
            self._engines[key] = engine
        return self._engines[key]

    @property
    def loaded(self) -> tuple[LocalEngine, ...]:
        """The engines in memory, least recently used first."""
        engines = (engine for engine in self._engines.values() if engine.is_loaded)
        return tuple(sorted(engines, key=lambda engine: engine.last_used))

    @property
    def _budget(self) -> int:
        """Bytes that all models together may take."""
        if self._settings.memory_budget_mb:
            return self._settings.memory_budget_mb * MB
        return available_memory() + sum(engine.footprint for engine in self._engines.values())

    async def aclose(self) -> None:
        for engine in self._engines.values():
            await engine.aclose()
        if self._saved is not None:
            await asyncio.to_thread(self._saved.close)

    @asynccontextmanager
    async def _room(self, engine: LocalEngine) -> AsyncIterator[int]:
        """Make room for a model about to be loaded; gives the bytes it may take."""
        async with self._placing:
            yield await self._make_room(engine)

    async def _make_room(self, engine: LocalEngine) -> int:
        budget, name = self._budget, engine.file.name
        # Refuses with the numbers what would not fit even alone.
        wanted = plan_memory(engine.info, self._settings, budget, name=name).total
        least = minimum(engine.info, self._settings).total
        while True:
            self._became_idle.clear()
            free = self._budget - sum(other.footprint for other in self.loaded)
            if free >= wanted:
                return free
            idle = [other for other in self.loaded if not other.is_busy]
            if idle:
                log.info("unloading %s to make room for %s", idle[0].file.name, name)
                await idle[0].unload()
            elif free >= least:
                # Better a smaller context now than waiting for somebody's answer to end.
                return free
            elif not self.loaded:
                raise ModelLoadError(
                    f"{name} needs {megabytes(least)} of memory, and {room(self._settings, free)}."
                )
            else:
                await self._became_idle.wait()
