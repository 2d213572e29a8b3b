"""Names to engines: local models, pools and embedders, made when first asked for and kept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecloud.engine import Embedder, Engine
from edgecloud.errors import BadRequest, ModelFileError, ModelNotFound
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import ModelCard

if TYPE_CHECKING:
    from edgecloud.models import Kind, ModelFile

    from ..local_engine.host import ModelHost

log = logging.getLogger(__name__)

AUTO = "auto"

LISTING_S = 5.0
"""How long a listing of the model files serves before it is read again."""


class Catalog:
    """Every model this process can answer with.

    Over HTTP (`listed_only`) a name must be one that `cards` lists; from the shell it may also be a path or
    a pulled `hf:` name.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._host: ModelHost | None = None
        self._remotes: dict[tuple[str, str], Engine] = {}
        self._embedders: dict[Path, asyncio.Task[Embedder]] = {}
        self._listed: dict[str, ModelFile] = {}
        self._listed_at = -LISTING_S
        self._listing: asyncio.Task[dict[str, ModelFile]] | None = None

    # ------------------------------------------------------------------------------------------------ lookups

    async def engine(self, name: str, *, listed_only: bool) -> Engine:
        """The engine behind a model name. Raises `ModelNotFound`, `BadRequest` for an embedding model,
        `ModelLoadError`.
        """
        target = self._target(name, self.settings.model)
        if (entry := self._pool_entry(target)) is not None:
            return self._remote(entry)
        file = await self._file(name, target, "chat", listed_only=listed_only)
        if file.kind != "chat":
            raise BadRequest(f"{file.name} is an embedding model: use it with /v1/embeddings.", param="model")
        return self._local(file)

    async def embedder(self, name: str, *, listed_only: bool) -> Embedder:
        """The embedder behind a model name. Raises `ModelNotFound`, or `BadRequest` for a chat model."""
        target = self._target(name, self.settings.embedder)
        if self._pool_entry(target) is not None:
            raise BadRequest(f"{target} is a pool: embeddings are computed on this machine.", param="model")
        file = await self._file(name, target, "embedding", listed_only=listed_only)
        if file.kind != "embedding":
            raise BadRequest(
                f"{file.name} is a chat model and gives no embeddings: ask for {self.settings.embedder!r}.",
                param="model",
            )
        opening = self._embedders.get(file.path)
        if opening is None:
            opening = asyncio.create_task(asyncio.to_thread(self._open_embedder, file))
            self._embedders[file.path] = opening
            opening.add_done_callback(lambda task: self._forget_failed(file.path, task))
        # Who waits may be cancelled; what is opened must then still be there to be closed.
        return await asyncio.shield(opening)

    async def cards(self) -> list[ModelCard]:
        """`auto` first, then chat models with their aliases, pools, and embedding models."""
        files = (await self._files()).values()
        chat = [self._card(file) for file in files if file.kind == "chat"]
        pools = [
            ModelCard(
                id=entry.name,
                kind="chat",
                engine="pool",
                aliases=self._aliases(entry.name),
                detail=entry.model,
                images="images" not in entry.lacks,
                continues=self._continues(entry),
            )
            for entry in self.settings.pool
        ]
        embedding = [self._card(file) for file in files if file.kind == "embedding"]
        continues = any(card.continues for card in (*chat, *pools))
        auto = ModelCard(id=AUTO, kind="auto", detail=self.settings.model, continues=continues)
        return [auto, *chat, *pools, *embedding]

    def pool(self, name: str) -> PoolEntry | None:
        """The pool that a model name means, None if it means something else."""
        return self._pool_entry(self._target(name, self.settings.model))

    def replicas(self, entry: PoolEntry) -> list[Engine]:
        """An engine for each address of a pool, its own url first."""
        others = [entry.model_copy(update={"url": replica.url}) for replica in entry.replicas]
        return [self._remote(entry), *(self._remote(other) for other in others)]

    def loaded(self) -> list[Engine]:
        """Engines that hold something worth asking the health of."""
        return [*(self._host.loaded if self._host else ()), *self._remotes.values()]

    def embedders(self) -> list[Embedder]:
        """Embedders that are loaded."""
        opened = [each for each in self._embedders.values() if each.done() and not each.cancelled()]
        return [each.result() for each in opened if each.exception() is None]

    async def aclose(self) -> None:
        """Close everything, whatever each says."""
        opened = await asyncio.gather(*self._embedders.values(), return_exceptions=True)
        embedders = [each for each in opened if not isinstance(each, BaseException)]
        closers: list[Any] = [*self._remotes.values(), *embedders]
        if self._host is not None:
            closers.append(self._host)
        await asyncio.gather(*(closer.aclose() for closer in closers), return_exceptions=True)

    # ------------------------------------------------------------------------------------------------- inside

    def _target(self, name: str, default: str) -> str:
        return self.settings.meant(default if name == AUTO else name)

    def _pool_entry(self, name: str) -> PoolEntry | None:
        return next((entry for entry in self.settings.pool if entry.name == name), None)

    async def _file(self, asked: str, target: str, kind: Kind, *, listed_only: bool) -> ModelFile:
        files = self._listed if target in self._listed else await self._files()
        self._refresh()
        if target in files:
            return files[target]
        if listed_only and asked != AUTO and asked not in self.settings.aliases:
            pools = [entry.name for entry in self.settings.pool] if kind == "chat" else []
            raise ModelNotFound(
                asked, [AUTO, *(name for name, file in files.items() if file.kind == kind), *pools]
            )
        from edgecloud.models import resolve

        try:
            return await asyncio.to_thread(resolve, target, self.settings, kind=kind)
        except ModelFileError as error:
            if not listed_only:
                raise
            # Where our files are is nothing for a client.
            log.warning("%s: %s", asked, error.message)
            raise ModelFileError(f"The file of {asked} can't be used; the server's log says why.") from None

    async def _files(self) -> dict[str, ModelFile]:
        """Model files by name, as they are now or were a moment ago."""
        listing = self._refresh()
        return self._listed if listing is None else await asyncio.shield(listing)

    def _refresh(self) -> asyncio.Task[dict[str, ModelFile]] | None:
        """Read the listing again if it is old: a header takes tens of milliseconds, so not per request."""
        if self._listing is None and time.monotonic() - self._listed_at >= LISTING_S:
            self._listing = asyncio.create_task(self._list())
        return self._listing

    async def _list(self) -> dict[str, ModelFile]:
        from edgecloud.models import list_models

        try:
            files = await asyncio.to_thread(list_models, self.settings)
            self._listed = {file.name: file for file in files}
            self._listed_at = time.monotonic()
            return self._listed
        finally:
            self._listing = None

    def _card(self, file: ModelFile) -> ModelCard:
        engines = self._host.loaded if self._host is not None else ()
        engine = next((engine for engine in engines if engine.file == file), None)
        created = int(file.path.stat().st_mtime) if file.path.exists() else 0
        return ModelCard(
            id=file.name,
            kind=file.kind,
            engine="local",
            aliases=self._aliases(file.name, str(file.path)),
            # Known once it is loaded: what it was trained for may be more than there is room for.
            context=engine.plan.n_ctx if engine is not None and engine.plan is not None else None,
            created=created,
            loaded=engine is not None,
            detail=file.variant,
            size=file.size,
            memory=engine.footprint if engine is not None else 0,
            parameters=engine.info.n_params if engine is not None else 0,
            continues=file.kind == "chat",
        )

    def _aliases(self, *names: str) -> tuple[str, ...]:
        return tuple(alias for alias in self.settings.aliases if self.settings.meant(alias) in names)

    def _continues(self, entry: PoolEntry) -> bool:
        """As it told, where it was asked."""
        remote = self._remotes.get((entry.name, entry.url))
        return entry.may_continue if remote is None else getattr(remote, "continues", entry.may_continue)

    def _local(self, file: ModelFile) -> Engine:
        if self._host is None:
            from ..local_engine.host import ModelHost
            from .prefixes import saved_prefixes

            self._host = ModelHost(self.settings, saved_prefixes(self.settings))
        return self._host.engine(file)

    def saved_tokens(self) -> Mapping[tuple[str, str], int]:
        """How many tokens of each chat each local model has on disk. Blocks; raises `StorageError`."""
        from .prefixes import saved_tokens

        return saved_tokens(self.settings)

    def _remote(self, entry: PoolEntry) -> Engine:
        key = (entry.name, entry.url)
        if key not in self._remotes:
            from ..pool.client import RemoteEngine

            self._remotes[key] = RemoteEngine(entry, self.settings)
        return self._remotes[key]

    def _forget_failed(self, path: Path, opening: asyncio.Task[Embedder]) -> None:
        if opening.cancelled() or opening.exception() is not None:
            self._embedders.pop(path, None)

    def _open_embedder(self, file: ModelFile) -> Embedder:
        from ..local_engine.embedder import open_embedder

        return open_embedder(file, self.settings)
