"""A person's verdict on an answer, from its id to what the router learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgecloud.errors import NotFound
from edgecloud.types import Capabilities

from ..router.world import EngineView

if TYPE_CHECKING:
    from .chats import Asked
    from .journal import Journal
    from .lessons import Lessons
    from .routing import Routing


async def give(
    lessons: Lessons,
    journal: Journal | None,
    routing: Routing | None,
    answer: str,
    verdict: str,
    *,
    over: Sequence[str] = (),
    tenant: str | None = None,
) -> None:
    """Record it, and that the answers `over` which it was preferred were passed by.

    What is no longer in memory is read from `journal`; `routing` knows the engines that are not on this
    machine.
    """
    for name, each in [(answer, verdict), *((other, "passed") for other in over)]:
        request_id = name
        if not lessons.remembers(name):
            asked = await _recall(journal, name)
            if asked is not None:
                request_id = asked.request_id
                if not lessons.remembers(request_id):
                    await _remember(lessons, routing, asked, tenant)
        await lessons.verdict(request_id, each, tenant=tenant)


async def _recall(journal: Journal | None, name: str) -> Asked | None:
    if journal is None:
        return None
    return await journal.read(lambda history: history.asked(name))


async def _remember(lessons: Lessons, routing: Routing | None, asked: Asked, tenant: str | None) -> None:
    if tenant is not None:
        # History does not say whose key an answer was for; only what is in memory is known to be this one's.
        raise NotFound(f"There is no answer {asked.request_id[:80]!r} to have a verdict on.")
    upstreams = await routing.engines.all() if routing is not None else {}
    upstream = upstreams.get(asked.engine)
    if upstream is not None:
        view = upstream.view(0.0)
    else:
        view = EngineView(asked.engine, "local", True, asked.model, Capabilities(context=1))
    await lessons.recall(asked.request_id, asked.chat_id, asked.messages, view)
