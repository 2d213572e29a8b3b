"""The real gateway over scripted engines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgecloud.app.books import Books
from edgecloud.app.gateway import Gateway
from edgecloud.engine import Embedder, Engine
from edgecloud.errors import BadRequest, ModelNotFound
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import EmbedResult, ModelCard

from .fake_engine import FakeEngine


class FakeEmbedder:
    """Vectors that depend on nothing but the input."""

    name = "fake-embedder"
    dimensions = 4
    fingerprint = "fake"

    async def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> EmbedResult:
        vectors = []
        for value in inputs:
            seed = sum(value.encode() if isinstance(value, str) else value)
            raw = [math.sin(seed + place) for place in range(self.dimensions)]
            norm = math.hypot(*raw)
            vectors.append(tuple(number / norm for number in raw))
        num_truncated = sum(len(value) > 1000 for value in inputs)
        return EmbedResult(tuple(vectors), self.name, sum(len(value) for value in inputs), num_truncated)

    async def aclose(self) -> None: ...


class FakeCatalog:
    """What a gateway needs of a catalog; the first engine is what `auto` means, `alias` another name for
    it. A pool's addresses are the engine of its name and those that its replicas' urls name.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        embedder: Embedder | None = None,
        pools: Sequence[PoolEntry] = (),
    ) -> None:
        self.engines = {engine.name: engine for engine in engines}
        self.default = engines[0].name
        self.fake_embedder = embedder
        self.pools = pools

    async def engine(self, name: str, *, listed_only: bool) -> Engine:
        name = self.default if name in ("auto", "alias") else name
        if name not in self.engines:
            raise ModelNotFound(name, list(self.engines))
        return self.engines[name]

    async def embedder(self, name: str, *, listed_only: bool) -> Embedder:
        if self.fake_embedder is None or name in self.engines:
            raise BadRequest(f"{name} gives no embeddings.", param="model")
        if name not in ("auto", self.fake_embedder.name):
            raise ModelNotFound(name, [self.fake_embedder.name])
        return self.fake_embedder

    async def cards(self) -> list[ModelCard]:
        cards = [ModelCard("auto", "auto", detail=self.default)]
        for engine in self.engines.values():
            aliases = ("alias",) if engine.name == self.default else ()
            can = await engine.capabilities()
            cards.append(ModelCard(engine.name, "chat", engine.name, aliases, can.context, images=can.images))
        if self.fake_embedder is not None:
            cards.append(ModelCard(self.fake_embedder.name, "embedding"))
        return cards

    def pool(self, name: str) -> PoolEntry | None:
        name = self.default if name == "auto" else name
        return next((entry for entry in self.pools if entry.name == name), None)

    def replicas(self, entry: PoolEntry) -> list[Engine]:
        return [self.engines[name] for name in (entry.name, *(each.url for each in entry.replicas))]

    def loaded(self) -> list[Engine]:
        return list(self.engines.values())

    def embedders(self) -> list[Embedder]:
        return [self.fake_embedder] if self.fake_embedder is not None else []

    async def aclose(self) -> None:
        for engine in self.engines.values():
            await engine.aclose()


def fake_gateway(
    *engines: Engine,
    settings: Settings | None = None,
    embedder: Embedder | None = None,
    books: Books | None = None,
) -> Gateway:
    """A gateway over `engines`, without history. Those that `settings.pool` names are pools."""
    settings = settings or Settings()
    catalog = FakeCatalog(engines or (FakeEngine(),), embedder or FakeEmbedder(), settings.pool)
    return Gateway(settings, catalog, books=books)
