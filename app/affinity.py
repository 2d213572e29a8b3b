"""Which address of a pool has computed the beginning of this prompt already, by its own account."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from edgecloud.errors import EdgeCloudError, NotSupported
from edgecloud.types import ChatRequest

from .upstreams import Deployment, Upstream

WORTH_ASKING = 1024
"""Prompt tokens from which a warm prefix saves more than the question costs."""

PATIENCE_S = 0.1
"""How long the answers are waited for; who is slower to tell is as good as cold."""


class ReportsPrefixes(Protocol):
    """An engine of ours behind HTTP."""

    async def held_tokens(self, request: ChatRequest) -> tuple[int, int]: ...


async def overlaps(upstream: Upstream, request: ChatRequest, tokens: int) -> dict[str, int]:
    """Prompt tokens held by each address of an engine, for those that tell in time.

    Only to be asked of an engine that may see the request: the question carries its text.
    """
    asked = [each for each in upstream.deployments if each.name not in upstream.silent]
    if tokens < WORTH_ASKING or len(asked) < 2:
        return {}
    tasks = {asyncio.create_task(_held(upstream, each, request)): each.name for each in asked}
    done, late = await asyncio.wait(tasks, timeout=PATIENCE_S)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return {tasks[task]: task.result() for task in done}


async def _held(upstream: Upstream, deployment: Deployment, request: ChatRequest) -> int:
    if not hasattr(deployment.engine, "held_tokens"):
        upstream.silent.add(deployment.name)
        return 0
    try:
        _, cached_tokens = await cast(ReportsPrefixes, deployment.engine).held_tokens(request)
    except NotSupported:
        # vLLM, a hosted API: it will not tell the next time either.
        upstream.silent.add(deployment.name)
        return 0
    except EdgeCloudError:
        return 0
    return cached_tokens
