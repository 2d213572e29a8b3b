"""A gateway for this process: the running server's where its version and settings are ours, else our own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edgecloud.folders import data_dir
from edgecloud.settings import Settings

from .databases import BUSY_S, open_answers, open_outcomes

if TYPE_CHECKING:
    from edgecloud.engine import Embedder

    from ..router.ledger import Ledger
    from .client import GatewayClient
    from .gateway import Gateway
    from .history import History
    from .lessons import Lessons


def build_gateway(settings: Settings) -> Gateway:
    """A gateway in this process, over the real engines and the user's history."""
    # Else a second thread of numpy's waits for work in a busy loop, for milliseconds after every product.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from .books import Books
    from .catalog import Catalog
    from .embedding import Once
    from .gateway import Gateway
    from .journal import Journal
    from .memory import Memory

    retention_days = settings.history.retention_days

    def tidy(history: History) -> None:
        from .forgetting import forget_expired

        forget_expired(history, retention_days)
        if retention_days:
            # Verdicts that are as old go when they are opened.
            open_outcomes(settings).close()

    def open_history() -> History:
        from .history import History

        history = History(data_dir() / "edgecloud.db")
        history.recover()
        tidy(history)
        return history

    def open_ledger() -> Ledger:
        from ..router.ledger import Ledger

        path = data_dir() / "edgecloud.db"
        return Ledger(path, currency=settings.budget.currency, busy_s=BUSY_S)

    catalog = Catalog(settings)

    async def find_embedder() -> Embedder:
        return await catalog.embedder("auto", listed_only=False)

    embedder = Once(find_embedder)

    def make_lessons() -> Lessons:
        from .lessons import Lessons

        keeps = settings.history.enabled
        outcomes = (lambda: open_outcomes(settings)) if keeps else None
        return Lessons(embedder, outcomes, begin_vector=embedder.begin)

    # Who keeps all has nothing to do every hour.
    journal = Journal(open_history, tidy if retention_days else None) if settings.history.enabled else None
    # Who keeps no questions wants no answers kept either.
    memory = None
    if settings.history.enabled:
        memory = Memory(settings, lambda: open_answers(settings), embedder, embedder.has, embedder.expects)
    return Gateway(settings, catalog, journal, Books(open_ledger), memory, make_lessons)


async def open_gateway(settings: Settings) -> Gateway | GatewayClient:
    """The running server of this version and these settings through its private socket, or a gateway of our
    own, whose `aside` then says why.
    """
    from .client import Unusable, connect

    try:
        client = await connect(settings)
    except Unusable as why:
        gateway = build_gateway(settings)
        gateway.aside = why.message
        return gateway
    return client if client is not None else build_gateway(settings)
