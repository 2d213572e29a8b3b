"""Whether the servers that this machine uses are there: reached, with the key, and with the model, unpaid."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgecloud.errors import EdgeCloudError, NoPermittedRoute, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgecloud.engine import Engine
    from edgecloud.settings import BudgetSettings, PoolEntry, Settings

    from ..catalog import Catalog

PATIENCE_S = 6.0
"""Seconds for all of them together: they are asked at once, and each gives up a little sooner by itself."""


def pool_findings(settings: Settings) -> list[tuple[str, bool, str]]:
    """Name, whether all is well, and what was found, of each `[[pool]]` entry. Only lists of models are asked
    for, so that nothing has to be paid; offline, nothing is asked beyond this machine.
    """
    return asyncio.run(_find(settings)) if settings.pool else []


def no_such_model(entry: PoolEntry, listed: Sequence[str]) -> str:
    """The sentence for a server that lists other models."""
    known = ", ".join(listed[:12])
    return f"{entry.name} has no model {entry.model}: set its model to one that it lists ({known})."


def uncounted(entry: PoolEntry, budget: BudgetSettings) -> str | None:
    """Why nothing is sent to a server whose prices can't be counted; None if they can."""
    if not (entry.price_in or entry.price_out) or entry.currency in (budget.currency, *budget.rates):
        return None
    return (
        f"{entry.name} has prices in {entry.currency} and is not asked until budget.rates says what one "
        f"{entry.currency} is worth in {budget.currency}: "
        f"`edgecloud config set budget.rates.{entry.currency} RATE`."
    )


async def _find(settings: Settings) -> list[tuple[str, bool, str]]:
    from ..catalog import Catalog

    catalog = Catalog(settings)
    try:
        return await asyncio.gather(*(_look(catalog, entry, settings.budget) for entry in settings.pool))
    finally:
        await catalog.aclose()


async def _look(catalog: Catalog, entry: PoolEntry, budget: BudgetSettings) -> tuple[str, bool, str]:
    try:
        told = await asyncio.gather(*(_ask(entry, engine) for engine in catalog.replicas(entry)))
    except NoPermittedRoute:
        return entry.name, True, f"{entry.model} at {entry.url}; not asked, since offline mode is on"
    except EdgeCloudError as error:
        return entry.name, False, error.message
    if (why := uncounted(entry, budget)) is not None:
        return entry.name, False, why
    number = f"all {len(told)} addresses answer" if len(told) > 1 else "answers"
    return entry.name, True, f"{entry.model} at {entry.url}, {number}"


async def _ask(entry: PoolEntry, engine: Engine) -> None:
    """Raises what is wrong with one address."""
    from ...pool.client import RemoteEngine

    assert isinstance(engine, RemoteEngine)
    try:
        async with asyncio.timeout(PATIENCE_S):
            listed = await engine.models()
    except TimeoutError:
        raise UpstreamError(f"{entry.name} ({entry.url}) did not answer for {PATIENCE_S:g} s.") from None
    except UpstreamError as error:
        if error.upstream_status not in (404, 405):
            raise
        return  # it answers, and has no list to look into
    if listed and entry.model not in listed:
        raise UpstreamError(no_such_model(entry, listed))
