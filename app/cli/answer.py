"""Running one answer from the shell: signals cancel it, time limits it, and it is closed whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

from edgecloud.errors import DeadlineExceeded, EdgeCloudError
from edgecloud.types import ChatRequest, Notice

from .ending import Interrupted
from .shell import State, note, warn
from .waiting import PATIENCE_S, WaitingLine

if TYPE_CHECKING:
    from edgecloud.settings import Settings

    from ..client import GatewayClient
    from ..gateway import Gateway
    from .printers import Printer


def answer(state: State, settings: Settings, request: ChatRequest, printer: Printer, *, quiet: bool) -> None:
    """Show one answer. Raises `EdgeCloudError` for what went wrong, `Interrupted` after a signal."""
    asyncio.run(_answer(state, settings, request, printer, quiet=quiet))


async def _answer(
    state: State, settings: Settings, request: ChatRequest, printer: Printer, *, quiet: bool
) -> None:
    """Show the answer. Whatever ends it, the generator is closed, so that nothing keeps computing."""
    failure: EdgeCloudError | None = None
    losses: list[str] = []
    try:
        with _signals_cancel():
            await _stream(state, settings, request, printer, losses, quiet=quiet)
    except TimeoutError:
        failure = DeadlineExceeded(f"No complete answer within {request.deadline_s:g} s.")
    except EdgeCloudError as error:
        failure = error
    printer.end(failure)
    for lost in losses:
        warn(lost)
    if failure is not None:
        raise failure


async def _stream(
    state: State,
    settings: Settings,
    request: ChatRequest,
    printer: Printer,
    losses: list[str],
    *,
    quiet: bool,
) -> None:
    """Show the events. What could not be written down is put into `losses`."""
    asked = "the model" if request.model == "auto" else request.model
    with WaitingLine(f"waiting for {asked} …", quiet=quiet) as waiting:
        clock = asyncio.get_running_loop().time
        began = clock()
        gateway = await _opened(state, settings, request)
        if gateway.aside:
            note(f"edgecloud: {gateway.aside}", quiet=quiet)
        left_s = request.deadline_s
        if left_s is not None:
            # Half of it at least: the first thing a gateway does is to write the question down.
            left_s = max(left_s / 2, left_s - (clock() - began))
        try:
            async with asyncio.timeout(left_s), aclosing(gateway.chat(request)) as events:
                async for event in events:
                    if isinstance(event, Notice) and event.kind == "loading":
                        waiting.show(event.text)
                        continue
                    waiting.clear()
                    printer.see(event)
        finally:
            if lost := await _closed(gateway, quiet=quiet):
                losses.append(lost)


async def _opened(state: State, settings: Settings, request: ChatRequest) -> Gateway | GatewayClient:
    """The gateway; one of our own where a server that is silent would take half of the time there is."""
    # Not in that time: on a cold disk this takes longer than to be answered.
    from ..client import Silent
    from ..open import build_gateway

    if request.deadline_s is None:
        return await state.open_gateway(settings)
    try:
        async with asyncio.timeout(request.deadline_s / 2):
            return await state.open_gateway(settings)
    except TimeoutError:
        gateway = build_gateway(settings)
        gateway.aside = Silent(request.deadline_s / 2).message
        return gateway


async def _closed(gateway: Gateway | GatewayClient, *, quiet: bool) -> str:
    """Let everything be written down; returns what to tell of what could not be."""
    closing = asyncio.ensure_future(gateway.aclose())
    done, _ = await asyncio.wait([closing], timeout=PATIENCE_S)
    if not done:
        note("\nedgecloud: still writing this down; Ctrl-C leaves it …", quiet=quiet)
    return await closing


@contextmanager
def _signals_cancel() -> Iterator[None]:
    """The first signal cancels the answer, which keeps the partial; the second ends the process at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def receive(number: int) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, receive, number)
    try:
        yield
    except asyncio.CancelledError:
        if not received:
            raise
        raise Interrupted(received[0]) from None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
