"""What an API key may use: which engines, and how many tokens are left of its day."""

from __future__ import annotations

from datetime import datetime

from edgecloud.errors import NoPermittedRoute, StorageError
from edgecloud.http.keys import tenant_of
from edgecloud.settings import KeyEntry, Settings
from edgecloud.types import ModelCard

from ..router.world import KeyLimits
from .books import Books


class KeyDesk:
    """Knows the limits of every key in the config, by the short hash that requests carry of it, and what is
    set aside of its day for answers that are under way.
    """

    def __init__(self, settings: Settings, books: Books | None) -> None:
        self._books = books
        self._entries: dict[str, KeyEntry] = {
            tenant_of(entry.key.get_secret_value().encode()): entry for entry in settings.server.keys
        }
        self._held: dict[str, tuple[str, int]] = {}  # tenant and tokens, by the request's id

    async def limits_of(self, tenant: str | None) -> KeyLimits | None:
        """The limits of a key; None for one without any, and where no key was needed."""
        entry = self._entries.get(tenant or "")
        if entry is None or tenant is None:
            return None
        left = await self._left(tenant, entry, f"{datetime.now():%Y-%m-%d}")
        return KeyLimits(entry.name, entry.engines or None, left)

    def counts(self, tenant: str | None) -> bool:
        """Whether this key's tokens are counted."""
        entry = self._entries.get(tenant or "")
        return entry is not None and entry.tokens_per_day is not None

    def offers(self, tenant: str | None, card: ModelCard) -> bool:
        """Whether a key may ask for a model of the list; embedders are everybody's."""
        return card.kind != "chat" or self._may_use(tenant, card.id if card.engine == "pool" else card.engine)

    async def permit(self, tenant: str | None, engine: str) -> None:
        """Raises `NoPermittedRoute` if a key may not use this engine, or has used up its day."""
        if not self._may_use(tenant, engine):
            name = self._entries[tenant or ""].name
            raise NoPermittedRoute(
                f"{engine} is not among the engines of the key {name}: ask for another one.",
                param="model",
            )
        await self._check(tenant, 1)

    async def hold(self, request_id: str, tenant: str | None, tokens: int) -> None:
        """Set tokens of the key's day aside until `release`, for a request that needs so many. Raises
        `NoPermittedRoute` where fewer are left.
        """
        if tenant is not None and self.counts(tenant):
            await self._check(tenant, tokens)
            # Nothing was waited for since the sum, so two requests never get the same tokens.
            self._held[request_id] = tenant, tokens

    def release(self, request_id: str) -> None:
        """The request is over, and what it took is written down or will be before anybody reads the sum."""
        self._held.pop(request_id, None)

    def _may_use(self, tenant: str | None, engine: str) -> bool:
        entry = self._entries.get(tenant or "")
        return entry is None or not entry.engines or engine in entry.engines

    async def _check(self, tenant: str | None, tokens: int) -> None:
        limits = await self.limits_of(tenant)
        if limits is None or limits.tokens_left is None or tokens <= limits.tokens_left:
            return
        if not limits.tokens_left:
            raise NoPermittedRoute(f"The key {limits.name} has no tokens left today: come back tomorrow.")
        raise NoPermittedRoute(
            f"The key {limits.name} has {limits.tokens_left} tokens left today, this needs about {tokens}: "
            "ask for a shorter answer, or come back tomorrow."
        )

    async def _left(self, tenant: str, entry: KeyEntry, day: str) -> int | None:
        if entry.tokens_per_day is None:
            return None
        if self._books is None:
            return 0
        try:
            used = await self._books.do(lambda ledger: ledger.tokens_on(tenant, day))
        except StorageError:
            return 0  # nobody can say what is left
        held = sum(tokens for holder, tokens in self._held.values() if holder == tenant)
        return max(0, entry.tokens_per_day - used - held)
