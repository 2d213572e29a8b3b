"""What an API key may use: which engines, and how many tokens are left of its day."""

from __future__ import annotations

from datetime import datetime

from edgecloud.errors import NoPermittedRoute, StorageError
from edgecloud.http.keys import tenant_of
from edgecloud.settings import KeyEntry, Settings

from ..router.world import KeyLimits
from .books import Books


class KeyDesk:
    """Knows the limits of every key in the config, by the short hash that requests carry of it."""

    def __init__(self, settings: Settings, books: Books | None) -> None:
        self._books = books
        self._entries: dict[str, KeyEntry] = {
            tenant_of(entry.key.get_secret_value().encode()): entry for entry in settings.server.keys
        }

    async def limits_of(self, tenant: str | None) -> KeyLimits | None:
        """The limits of a key; None for one without any, and where no key was needed."""
        entry = self._entries.get(tenant or "")
        if entry is None or tenant is None:
            return None
        left = await self._left(tenant, entry, f"{datetime.now():%Y-%m-%d}")
        return KeyLimits(entry.name, entry.engines or None, left)

    async def permit(self, tenant: str | None, engine: str) -> None:
        """Raises `NoPermittedRoute` if a key may not use this engine, or has used up its day."""
        limits = await self.limits_of(tenant)
        if limits is None:
            return
        if limits.engines is not None and engine not in limits.engines:
            raise NoPermittedRoute(
                f"{engine} is not among the engines of the key {limits.name}: ask for another one.",
                param="model",
            )
        if limits.tokens_left is not None and limits.tokens_left <= 0:
            raise NoPermittedRoute(f"The key {limits.name} has no tokens left today: come back tomorrow.")

    async def _left(self, tenant: str, entry: KeyEntry, day: str) -> int | None:
        if entry.tokens_per_day is None:
            return None
        if self._books is None:
            return 0
        try:
            used = await self._books.do(lambda ledger: ledger.tokens_on(tenant, day))
        except StorageError:
            return 0  # nobody can say what is left
        return max(0, entry.tokens_per_day - used)
