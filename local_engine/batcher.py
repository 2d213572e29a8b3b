"""Continuous batching: one thread owns a context and advances every sequence in it, step by step.

A step is one `decode` of one token per answering sequence and a bounded slice of prefill. Sequences join and
leave between steps:

    submit -> waiting -> running -> parked (its prefix may serve others)
                 ^          |
                 +----------+  pre-empted when the KV memory is full, resumed later

Messages of a step go to each event loop in one call. The text of an answer does not depend on what runs
beside it, but for one thing: llama.cpp picks other kernels for other batch shapes, so logits differ in their
last bits, and where two tokens are as good as tied the draw can fall the other way. The same seed draws the
same numbers, alone or in a batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from edgecloud.errors import EdgeCloudError, EngineFailure, InternalError, Unavailable

from .kv import KvMemory
from .limit import QueueLimit
from .lineup import Lineup
from .llama import Context, Model
from .pacing import PrefillPacer
from .sampler import TokenSampler
from .saved import ModelPrefixes
from .saving import Saving
from .sequence import Job, Sequence, Ticket, WakeUp
from .stepping import BatcherStats, Stepper
from .threads import ThreadGovernor

log = logging.getLogger("edgecloud.batcher")

# How often it is looked whether a fetch takes too long.
FETCH_POLL_S = 0.05
# Without work for so long, what is parked is saved, so that a crash or a power cut doesn't take it.
IDLE_S = 60.0


class Batcher:
    """Runs jobs on `context`, which it owns from now on, in a thread of its own until `close`.

    `make_context` gives a fresh one after a fatal failure. `n_ctx` bounds one sequence (prompt and answer),
    `parallel` how many run together, `step_s` is the target time of a step in which prefill and running
    answers meet. `saved` keeps prefixes on disk.
    """

    def __init__(
        self,
        model: Model,
        context: Context,
        make_context: Callable[[], Context],
        *,
        n_ctx: int,
        parallel: int = 8,
        queue_limit: int = 128,
        step_s: float = 0.2,
        watchdog_s: float = 30.0,
        prefix_bytes: int = 512 << 20,
        governor: ThreadGovernor | None = None,
        saved: ModelPrefixes | None = None,
    ) -> None:
        self.n_ctx = min(n_ctx, context.n_ctx)
        self._model = model
        self._watchdog_s = watchdog_s
        self._wake = WakeUp()
        self._limit = QueueLimit(queue_limit + parallel, parallel)
        self._arrivals: deque[Ticket] = deque()
        self._entering = threading.Lock()
        self._num_arrived = 0

        can_share = model.can_share_prefixes
        pacer = PrefillPacer(step_s, context.batch.capacity)
        self._saving = Saving(saved if can_share else None, pacer, self._wake)
        self._kv = KvMemory(
            context,
            can_share=can_share,
            parked_bytes=prefix_bytes,
            let_go=self._saving.offer,
            unfit=self._saving.reject,
        )
        self._lineup = Lineup(self._kv, parallel=parallel, can_share=can_share)
        self._stepper = Stepper(
            model,
            context,
            make_context,
            n_ctx=self.n_ctx,
            kv=self._kv,
            lineup=self._lineup,
            limit=self._limit,
            pacer=pacer,
            governor=governor,
        )
        self._closing = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="edgecloud-batcher", daemon=True)
        self._thread.start()

    # ----------------------------------------------------------------------------- from the event loop's side

    def submit(self, job: Job) -> Ticket:
        """Queue a job. Call on the event loop that will receive its messages.

        Raises `Overloaded` when too many sequences wait already, `Unavailable` after `close`.
        """
        ticket = Ticket(job, self._wake)
        with self._entering:
            self._limit.enter(job.n)
            self._arrivals.append(ticket)
        self._wake()
        return ticket

    def stats(self) -> BatcherStats:
        """A copy of the counters and gauges."""
        running = len(self._lineup.running)
        return replace(
            self._stepper.stats,
            preemptions=self._lineup.num_preemptions,
            running=running,
            waiting=max(0, self._limit.num_inside - running),
            used_cells=self._kv.used_cells,
            parked_bytes=self._kv.parked_bytes,
            saved=self._saving.num_saved,
            saved_bytes=self._saving.saved_bytes,
            restored=self._kv.num_restored,
            restored_bytes=self._kv.restored_bytes,
        )

    @property
    def has_died(self) -> bool:
        """The thread has ended by itself: no new context could be made after a fatal failure."""
        return not self._thread.is_alive()

    @property
    def is_idle(self) -> bool:
        return self._limit.num_inside == 0

    @property
    def stalled_s(self) -> float:
        """Seconds since work is there and no step finished; 0 when idle."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def is_healthy(self) -> bool:
        """It can decode: the thread lives and no step has been under way for longer than the watchdog
        allows.
        """
        return self._thread.is_alive() and self.stalled_s < self._watchdog_s

    def close(self) -> None:
        """End every answer, stop the thread and free the context. Blocks for at most a step."""
        self._stop()
        self._wake()
        self._thread.join()

    # -------------------------------------------------------------------------------------- the thread's loop

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:
            log.exception("the batcher can't go on")
        self._stop()
        self._take_arrivals()
        self._stepper.fail(self._lineup.everyone, Unavailable("The model was unloaded.", retry_after=1))
        self._stepper.outbox.send()
        self._saving.save_parked(self._kv)
        self._stepper.close()
        self._busy_since = None

    def _loop(self) -> None:
        while not self._closing:
            if not (self._arrivals or self._lineup.has_work):
                self._busy_since = None
                self._rest()
                self._busy_since = time.monotonic()
            try:
                self._take_arrivals()
                self._stepper.step()
            except Exception:
                log.exception("a step failed")
                self._stepper.start_over()
                self._stepper.fail(self._lineup.everyone, InternalError())
            self._busy_since = time.monotonic()
            self._stepper.outbox.send()

    def _stop(self) -> None:
        # Who was let in has arrived by then: the thread looks for arrivals once more, and never again.
        with self._entering:
            self._limit.close()
        self._closing = True

    def _rest(self) -> None:
        """Sleep until there is work: without a limit, or for as long as what is fetched is waited for."""
        if self._lineup.waiting:
            self._wake.wait(FETCH_POLL_S)
        elif not self._wake.wait(IDLE_S if self._saving.is_due(self._kv) else None):
            self._saving.save_parked(self._kv)

    def _take_arrivals(self) -> None:
        while self._arrivals:
            ticket = self._arrivals.popleft()
            try:
                self._lineup.waiting.extend(self._sequences(ticket))
            except EdgeCloudError as error:
                self._stepper.refuse(ticket, error)
            except Exception:
                # Nobody else knows of the ticket yet: who asked would wait for ever.
                log.exception("a request could not begin")
                self._stepper.refuse(
                    ticket, EngineFailure("The model could not take this request; others go on.")
                )

    def _sequences(self, ticket: Ticket) -> list[Sequence]:
        """One for each answer of a job; all of them or none."""
        job = ticket.job
        sequences: list[Sequence] = []
        for index in range(job.n):
            sampler = TokenSampler(
                self._model, job.plan, index=index, history=job.prompt, grammar=job.grammar
            )
            self._num_arrived += 1
            sequences.append(
                Sequence(ticket, index, sampler, list(job.prompt), len(job.prompt), arrival=self._num_arrived)
            )
        fetch = self._saving.fetch(sequences[0], self._kv, self._lineup.running)
        for sequence in sequences:
            sequence.fetch = fetch
        return sequences
