"""Finding out that an address is back without risking anybody's request on it."""

from __future__ import annotations

import asyncio

from ..router.breaker import Lease
from .upstreams import IN_PROCESS, Deployment, Turn, Upstream

LOOK_S = 5.0
"""Between two looks at an address whose pause is longer than that. Pauses grow to spare requests, which may
take a minute to fail; a look costs nothing, and an address that is back is needed when the next one fails.
"""


class Prober:
    """Asks addresses that rest for their health: every `LOOK_S` seconds, and at the end of their pause as the
    one probe of their breaker. Those that asked for their pause are left alone until then.

    Only addresses that failed a request are ever asked: that there is no network is learnt, not looked for.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def watch(self, upstream: Upstream) -> None:
        """Look after the addresses of an engine that has just failed."""
        for deployment in upstream.deployments:
            key = (upstream.name, deployment.name)
            if deployment.name != IN_PROCESS and upstream.rests(deployment) and key not in self._tasks:
                task = asyncio.create_task(_until_closed(upstream, deployment))
                self._tasks[key] = task
                task.add_done_callback(lambda _, key=key: self._tasks.pop(key, None))  # type: ignore[misc]

    async def aclose(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_closed(upstream: Upstream, deployment: Deployment) -> None:
    while upstream.rests(deployment):
        rest_s = upstream.rest_s(deployment)
        if rest_s > LOOK_S and upstream.may_wake(deployment):
            await asyncio.sleep(LOOK_S)
            if (await deployment.engine.health()).ok:
                upstream.wake(deployment)
            continue
        await asyncio.sleep(rest_s)
        lease = upstream.probe(deployment)
        if lease is not None:
            await _probe(upstream, deployment, lease)


async def _probe(upstream: Upstream, deployment: Deployment, lease: Lease) -> None:
    turn = Turn(deployment, lease)
    try:
        health = await deployment.engine.health()
    except BaseException:
        upstream.released(turn)
        raise
    if health.ok:
        upstream.answered(turn)
    else:
        upstream.failed(turn, health.detail)
