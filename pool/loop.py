"""The step loop: the one thread that owns the scheduler and the runner, and serves any number of event loops.

submit ─▶ arrivals ─▶ │ take in · errands · turn │ ─▶ one parcel of messages per event loop
cancel ─▶ errands  ─▶ │  the thread, over and over │
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from edgecloud.errors import Overloaded, Unavailable

from .costs import StepCosts
from .metrics import PoolMetrics, PoolStats
from .runner import Runner
from .scheduler import Scheduler
from .slo import Slo
from .stepper import Stepper
from .ticket import Ask, Closed, Ticket

log = logging.getLogger("edgecloud.pool")

T = TypeVar("T")

RETRY_AFTER_S = 5.0


class StepLoop:
    """Runs asks from now on until `close`, which closes the runner too.

    `make_scheduler` may be called again, should a bug have broken the scheduler's books. `watchdog_s` is how
    many seconds one step may take before the engine counts as stuck.
    """

    def __init__(
        self,
        runner: Runner,
        make_scheduler: Callable[[StepCosts], Scheduler],
        *,
        slo: Slo | None = None,
        watchdog_s: float = 30.0,
    ) -> None:
        self.watchdog_s = watchdog_s
        self._runner = runner
        self._stepper = Stepper(runner, make_scheduler, slo or Slo())
        self._arrivals: deque[Ticket] = deque()
        self._errands: deque[Callable[[], None]] = deque()
        self._entering = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="edgecloud-pool", daemon=True)
        self._thread.start()

    @property
    def metrics(self) -> PoolMetrics:
        return self._stepper.metrics

    @property
    def stats(self) -> PoolStats:
        """As of the last step boundary."""
        return self._stepper.stats

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, those included that came since the last step boundary."""
        return len(self._arrivals) + self._stepper.scheduler.num_waiting

    @property
    def is_alive(self) -> bool:
        """The thread runs."""
        return self._thread.is_alive()

    @property
    def stalled_s(self) -> float:
        """Seconds since there was work and no step finished; 0 when idle."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def has_heartbeat(self) -> bool:
        """The thread lives, and no step has been under way for longer than the watchdog allows."""
        return self.is_alive and self.stalled_s < self.watchdog_s

    @property
    def is_sick(self) -> bool:
        """One step after the other fails, whoever is in it."""
        return self._stepper.is_sick

    def submit(self, ask: Ask) -> Ticket:
        """Queue an ask. Its first message is `Accepted`, or `Closed` with the error that refuses it. Call on
        the event loop that will receive.

        Raises at once `Overloaded` when the queue is full, and `Unavailable` when nobody would serve it.
        """
        ticket = Ticket(ask, self._cancel)
        with self._entering:
            if self._closing:
                raise stopped()
            if not self.has_heartbeat:
                self.metrics.rejected["stuck"] += 1
                raise Unavailable(
                    f"The engine has finished no step for {self.stalled_s:.0f} s: try another replica.",
                    code="engine_stuck",
                    retry_after=RETRY_AFTER_S,
                )
            num_waiting = self.num_waiting
            if num_waiting >= self._stepper.scheduler.config.max_waiting:
                self.metrics.rejected["queue_full"] += 1
                seconds = self._seconds_to_a_place()
                raise Overloaded(
                    f"The queue is full ({num_waiting} requests): try again in {seconds:.0f} s.",
                    retry_after=seconds,
                )
            self._arrivals.append(ticket)
        self._wake.set()
        return ticket

    async def ask(self, question: Callable[[Scheduler], T]) -> T:
        """What `question` says of the scheduler between two steps, asked in the thread that owns it."""
        future: Future[T] = Future()

        def answer() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(question(self._stepper.scheduler))
                except Exception as error:
                    future.set_exception(error)

        with self._entering:
            if self._closing:
                raise stopped()
            self._errands.append(answer)
        self._wake.set()
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End every request, stop the thread and close the runner. Blocks for at most a step."""
        with self._entering:
            self._closing = True
        self._wake.set()
        self._thread.join()

    # ------------------------------------------------------------------------------------------------- inside

    def _cancel(self, ticket: Ticket) -> None:
        self._errands.append(partial(self._stepper.abort, ticket))
        self._wake.set()

    def _seconds_to_a_place(self) -> float:
        """As long as an answer takes, shared by those that run."""
        answers = self.metrics.inference
        mean_s = answers.sum / answers.total if answers.total else 1.0
        return min(max(mean_s / max(self.stats.running, 1), 1.0), 60.0)

    def _run(self) -> None:
        stepper = self._stepper
        try:
            while not self._closing:
                if not (self._arrivals or self._errands or stepper.scheduler.has_work):
                    self._busy_since = None
                    self._wake.wait()
                    self._busy_since = time.monotonic()
                self._wake.clear()
                stepper.guard(self._boundary)
                stepper.guard(stepper.turn)
                stepper.publish()
                stepper.outbox.send()
                self._busy_since = time.monotonic()
        except BaseException:
            log.exception("the step loop has ended")
        with self._entering:
            self._closing = True
        stepper.guard(self._boundary)
        stepper.end_all(stopped())
        stepper.publish()
        stepper.outbox.send()
        self._runner.close()
        self._busy_since = None

    def _boundary(self) -> None:
        """What happens between two steps: who came is taken in, who left is let go."""
        while self._arrivals:
            ticket = self._arrivals.popleft()
            if self._closing:
                self._stepper.outbox.post(ticket, Closed(None, stopped()))
            else:
                self._stepper.take_in(ticket)
        while self._errands:
            self._errands.popleft()()


def stopped() -> Unavailable:
    """What a request is told that the engine's end has caught."""
    return Unavailable("The engine is stopping.", code="server_stopping", retry_after=RETRY_AFTER_S)
