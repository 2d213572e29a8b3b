"""A person's verdict on an answer, from its id to what the router and the caches learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from edgecloud.errors import NotFound
from edgecloud.types import Capabilities

from ..router.outcomes import check_verdict
from ..router.world import EngineView

if TYPE_CHECKING:
    from .books import Books
    from .chats import Asked
    from .journal import Journal
    from .lessons import Lessons
    from .memory import Memory
    from .routing import Routing

Kept = Literal["no", "its own", "another's"]
"""Whether a kept answer was given or made: to this question, or to one that was taken for it."""


DISLIKED = ("down", "regenerated")
"""Verdicts after which a kept answer is not given again."""


async def give(
    lessons: Lessons,
    journal: Journal | None,
    routing: Routing | None,
    answer: str,
    verdict: str,
    *,
    over: Sequence[str] = (),
    tenant: str | None = None,
    kept: Kept = "no",
) -> None:
    """Record it, and that the answers `over` which it was preferred were passed by.

    What is no longer in memory is read from `journal`; `routing` knows the engines that are not on this
    machine. `kept` is what `retract` found.
    """
    for name, each in [(answer, verdict), *((other, "passed") for other in over)]:
        if name == answer and kept == "another's":
            # Nobody was asked this: the fault was to take it for the question that somebody was asked.
            continue
        request_id = name
        try:
            if not lessons.remembers(name):
                asked = await _recall(journal, name)
                if asked is not None:
                    request_id = asked.request_id
                    if not lessons.remembers(request_id):
                        await _remember(lessons, routing, asked, tenant)
            await lessons.verdict(request_id, each, tenant=tenant)
        except NotFound:
            # It was of use to the caches, if not to the router.
            if name != answer or kept == "no":
                raise


async def retract(
    memory: Memory | None,
    books: Books | None,
    journal: Journal | None,
    answer: str,
    verdict: str,
    *,
    tenant: str | None = None,
) -> Kept:
    """Give an answer no more that a person does not want, be it a kept one or one that was kept since.

    One that was asked for again is gone already, but for that of a similar question. Whether it was a kept
    answer of this question, of another, or none. Raises `BadRequest` for a verdict that there is not,
    whatever the answer, and `StorageError`.
    """
    if verdict != "none":
        check_verdict(verdict)
    if memory is None or books is None or verdict not in DISLIKED:
        return "no"
    asked = await _recall(journal, answer)
    request_id = asked.request_id if asked is not None else answer
    try:
        story = await books.do(lambda ledger: ledger.receipt(request_id, tenant=tenant))
    except NotFound:
        return "no"
    cache = story["receipt"]["cache"]
    if story["id"] != request_id:
        return "no"
    if cache["entry_id"] is None:
        return "its own" if verdict == "down" and await memory.retract(request_id) else "no"
    is_anothers = cache["verdict"] == "semantic" and (cache["similarity"] or 0.0) < 1.0
    if is_anothers or verdict == "down":
        await memory.blame(cache["entry_id"])
    return "another's" if is_anothers else "its own"


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
