"""Continuous batching: one thread owns a context and advances every sequence in it, step by step.

A step is one `decode` of one token per answering sequence and a bounded slice of prefill. Sequences join and
leave between steps:

    submit -> waiting -> running -> recent (its prefix may serve others)
                 ^          |
                 +----------+  pre-empted when the KV memory is full, resumed later

Messages of a step go to each event loop in one call. The text of an answer does not depend on what runs
beside it, but for one thing: llama.cpp picks other kernels for other batch shapes, so logits differ in their
last bits, and where two tokens are as good as tied the draw can fall the other way. The same seed draws the
same numbers, alone or in a batch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import psutil

from edgecloud.errors import (
    DeadlineExceeded,
    EdgeCloudError,
    EngineFailure,
    InternalError,
    Overloaded,
    Unavailable,
)

from .kv import KvMemory
from .llama import ABORTED, INVALID_BATCH, NO_KV_SLOT, Candidates, Context, Model
from .pacing import PrefillPacer, split_budget
from .parked import Parked
from .prefix import common_prefix
from .sampler import TokenSampler, raw_logprob
from .saved import Fetch, ModelPrefixes
from .sequence import Closed, Drawn, Ended, Job, Message, Scored, Sequence, Ticket, WakeUp
from .threads import ThreadGovernor

log = logging.getLogger("edgecloud.batcher")

# Prompt positions scored in one step: each needs a row of logits over the whole vocabulary.
SCORED_PER_STEP = 32
# A prefix that another sequence is computing right now is worth waiting for from this many tokens on.
FOLLOW_TOKENS = 64
# Free cells kept for each running sequence when another is admitted, so that it isn't pre-empted at once.
RESERVE_CELLS = 16
# Cells that finished sequences may hold. Every step's attention passes over them: a thousand add a third to
# the cost of a prompt token of the starter model.
RECENT_CELLS = 256
# Prompt tokens that no memory holds, from which on the disk is asked for them.
FETCH_TOKENS = 64
# How often it is looked whether a fetch takes too long.
FETCH_POLL_S = 0.05
# Without work for so long, what is parked is saved, so that a crash or a power cut doesn't take it.
IDLE_S = 60.0


@dataclass(slots=True)
class BatcherStats:
    """Counters since the start, and gauges of now. Cells are tokens of KV memory; `recent_cells` serve only
    finished sequences.
    """

    steps: int = 0
    failed_steps: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    decoded_tokens: int = 0
    preemptions: int = 0
    running: int = 0
    waiting: int = 0
    cells: int = 0
    used_cells: int = 0
    recent_cells: int = 0
    parked_bytes: int = 0
    threads: int = 0


class _Work(NamedTuple):
    """What one sequence does in a step: compute `size` tokens, the last at batch position `last`."""

    sequence: Sequence
    size: int
    last: int
    scored: bool


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
        self._context = context
        self._make_context = make_context
        self._parallel = parallel
        self._capacity = queue_limit + parallel
        self._watchdog_s = watchdog_s
        self._governor = governor
        self._saved = saved if model.can_share_prefixes else None
        self._kv = KvMemory(
            context,
            can_share=model.can_share_prefixes,
            keep_cells=min(RECENT_CELLS, context.n_ctx // 2),
            parked_bytes=prefix_bytes,
            let_go=self._offer,
            unfit=self._reject,
        )
        self._pacer = PrefillPacer(step_s, context.batch.capacity)
        self._scratch = Candidates(model.n_vocab)
        self._batch_limit = context.batch.capacity

        self._arrivals: deque[Ticket] = deque()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._posted: dict[int, Ticket] = {}
        self._num_arrived = 0
        self._mean_answer_s = 1.0

        self._stats = BatcherStats(cells=context.n_ctx, threads=governor.threads if governor else 0)
        self._outstanding = 0
        self._counting = threading.Lock()
        self._wake = WakeUp()
        self._closing = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="edgecloud-batcher", daemon=True)
        self._thread.start()

    # ----------------------------------------------------------------------------- from the event loop's side

    def submit(self, job: Job) -> Ticket:
        """Queue a job. Call on the event loop that will receive its messages.

        Raises `Overloaded` when too many sequences wait already, `Unavailable` after `close`.
        """
        with self._counting:
            if self._closing:
                raise Unavailable("The model is being unloaded; try again in a moment.", retry_after=1)
            if self._outstanding and self._outstanding + job.n > self._capacity:
                seconds = min(60.0, max(1.0, self._mean_answer_s * self._outstanding / self._parallel))
                raise Overloaded(
                    f"{self._outstanding} answers are running or waiting and the limit is {self._capacity}: "
                    f"try again in {seconds:.0f} s.",
                    retry_after=round(seconds),
                )
            self._outstanding += job.n
        ticket = Ticket(job, self._wake)
        self._arrivals.append(ticket)
        self._wake()
        return ticket

    def stats(self) -> BatcherStats:
        """A copy of the counters and gauges."""
        stats = replace(self._stats)
        stats.waiting = max(0, self._outstanding - stats.running)
        return stats

    @property
    def has_died(self) -> bool:
        """The thread has ended by itself: no new context could be made after a fatal failure."""
        return not self._thread.is_alive()

    @property
    def is_idle(self) -> bool:
        return self._outstanding == 0

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
        with self._counting:
            self._closing = True
        self._wake()
        self._thread.join()

    # -------------------------------------------------------------------------------------- the thread's loop

    def _run(self) -> None:
        is_sound = False
        try:
            self._loop()
            is_sound = True
        except Exception:
            log.exception("the batcher can't go on")
        with self._counting:
            self._closing = True
        gone = Unavailable("The model was unloaded.", retry_after=1)
        self._take_arrivals()
        self._fail([*self._running, *self._waiting], gone)
        self._flush()
        if self._saved is not None:
            if is_sound:
                self._kv.park_all()
            self._save_parked()
        self._context.close()
        self._busy_since = None

    def _loop(self) -> None:
        while not self._closing:
            if not self._has_work():
                self._busy_since = None
                self._rest()
                self._busy_since = time.monotonic()
            try:
                self._step()
            except Exception:
                log.exception("a step failed")
                self._start_over()
                self._fail([*self._running, *self._waiting], InternalError())
            self._busy_since = time.monotonic()
            self._flush()

    def _has_work(self) -> bool:
        is_ready = any(sequence.is_ready for sequence in self._waiting)
        return bool(self._arrivals or self._running or is_ready)

    def _rest(self) -> None:
        """Sleep until there is work: without a limit, or for as long as what is fetched is waited for."""
        if self._waiting:
            self._wake.wait(FETCH_POLL_S)
        elif not self._wake.wait(IDLE_S if self._has_unsaved() else None):
            self._save_parked()

    def _step(self) -> None:
        self._take_arrivals()
        self._reap()
        self._admit()
        if not self._running:
            return
        works = self._fill_batch()
        if not works:
            return
        started, cpu_started = time.perf_counter(), time.process_time()
        code = self._context.decode()
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        if code != 0:
            self._recover(code, works)
            return
        self._batch_limit = self._context.batch.capacity
        self._stats.steps += 1
        size = self._context.batch.size
        if size > len(works):
            self._pacer.observe(size, seconds)
        if self._governor is not None and self._governor.observe(seconds, cpu_seconds):
            self._context.set_threads(self._governor.threads)
            self._stats.threads = self._governor.threads
        for work in works:
            # A sibling's failure earlier in this loop ends the whole job.
            if work.sequence.seq_id >= 0:
                self._advance(work)

    def _take_arrivals(self) -> None:
        while self._arrivals:
            ticket = self._arrivals.popleft()
            job = ticket.job
            for index in range(job.n):
                sampler = TokenSampler(
                    self._model, job.plan, index=index, history=job.prompt, grammar=job.grammar
                )
                self._num_arrived += 1
                sequence = Sequence(
                    ticket, index, sampler, list(job.prompt), len(job.prompt), arrival=self._num_arrived
                )
                if index == 0:
                    fetch = self._fetch(sequence)
                sequence.fetch = fetch
                self._waiting.append(sequence)

    def _reap(self) -> None:
        """Let go of what was cancelled, stopped or is past its deadline."""
        now = time.monotonic()
        expired: list[Sequence] = []
        for sequence in [*self._running, *self._waiting]:
            ticket = sequence.ticket
            if ticket.cancelled or sequence.index in ticket.stopped:
                self._retire(sequence, keep=True)
            elif ticket.job.deadline is not None and now >= ticket.job.deadline:
                expired.append(sequence)
        self._fail(expired, DeadlineExceeded("The time allowed for this answer is over."))

    # ---------------------------------------------------------------------------------------------- admission

    def _admit(self) -> None:
        passed_over: list[Sequence] = []
        while self._waiting and len(self._running) < self._parallel:
            sequence = self._waiting.popleft()
            if not sequence.is_ready or self._must_follow(sequence):
                passed_over.append(sequence)
                continue
            reserve = RESERVE_CELLS * len(self._running)
            if not self._kv.place(sequence, self._running, reserve, force=not self._running):
                # Nobody overtakes who waits for room, or a long prompt would wait for ever.
                self._waiting.appendleft(sequence)
                break
            self._running.append(sequence)
            # What was fetched is in the context now.
            sequence.fetch = None
            ticket = sequence.ticket
            if ticket.started_at is None:
                ticket.started_at = time.monotonic()
                ticket.cached_tokens = sequence.num_computed
                self._stats.cached_tokens += sequence.num_computed
        self._waiting.extendleft(reversed(passed_over))
        self._stats.running = len(self._running)

    def _must_follow(self, sequence: Sequence) -> bool:
        """Whether a running sequence is just computing a prefix that this one needs: the other answers of
        its own job, above all.
        """
        leader = sequence.leader
        if leader is not None:
            if leader.seq_id >= 0 and leader.num_computed < sequence.follow_until:
                return True
            sequence.leader = None
            return False
        if not self._model.can_share_prefixes or sequence.state is not None or sequence.scores_prompt:
            return False
        for other in self._running:
            if other.is_decoding:
                continue
            if other.ticket is sequence.ticket:
                shared, worthwhile = sequence.num_prompt - 1, 1
            else:
                shared, worthwhile = common_prefix(other.tokens, sequence.tokens[:-1]), FOLLOW_TOKENS
            if (
                shared - other.num_computed >= worthwhile
                and shared - self._kv.best_recent(sequence) >= worthwhile
            ):
                sequence.leader, sequence.follow_until = other, shared
                return True
        return False

    # --------------------------------------------------------------------------------------- saved prefixes

    def _fetch(self, sequence: Sequence) -> Fetch | None:
        """Ask the disk for the beginning of a prompt of which memory has too little."""
        if self._saved is None or sequence.scores_prompt:
            return None
        running = (
            min(common_prefix(other.tokens, sequence.tokens), other.num_computed) for other in self._running
        )
        known = max(self._kv.best_recent(sequence), max(running, default=0))
        if len(sequence.tokens) - known < FETCH_TOKENS:
            return None
        return self._saved.fetch(
            sequence.tokens,
            known=known,
            most_tokens=self._kv.num_cells,
            token_s=self._pacer.token_s,
            chat_id=sequence.ticket.job.chat_id,
            wake=self._wake,
        )

    def _offer(self, parked: Parked) -> None:
        if self._saved is not None:
            self._saved.offer(parked, self._pacer.token_s)

    def _reject(self, fetch: Fetch) -> None:
        if self._saved is not None:
            self._saved.reject(fetch)

    def _has_unsaved(self) -> bool:
        saved, token_s = self._saved, self._pacer.token_s
        return saved is not None and any(saved.wants(parked, token_s) for parked in self._kv.parked())

    def _save_parked(self) -> None:
        for parked in self._kv.parked():
            self._offer(parked)

    # ---------------------------------------------------------------------------------------------- one batch

    def _fill_batch(self) -> list[_Work]:
        self._ensure_room()
        batch = self._context.batch
        batch.clear()
        works: list[_Work] = []
        prefilling: list[Sequence] = []
        for sequence in self._running:
            if sequence.is_decoding and not sequence.scores_prompt:
                last = batch.add_one(sequence.tokens[-1], sequence.num_computed, sequence.seq_id)
                works.append(_Work(sequence, 1, last, False))
            else:
                prefilling.append(sequence)
        if prefilling:
            prefilling.sort(key=lambda sequence: sequence.arrival)
            budget = min(
                self._pacer.budget(len(works)),
                batch.room,
                self._batch_limit,
                self._kv.free_cells - len(works),
            )
            shares = split_budget(max(0, budget), [sequence.remaining for sequence in prefilling])
            scorable = SCORED_PER_STEP
            for sequence, share in zip(prefilling, shares, strict=True):
                scored = sequence.scores_prompt
                count = min(share, scorable) if scored else share
                if count == 0:
                    continue
                if scored:
                    scorable -= count
                finishes = count == sequence.remaining
                last = batch.add(
                    sequence.next_tokens(count),
                    sequence.num_computed,
                    sequence.seq_id,
                    last=finishes,
                    every=scored,
                )
                works.append(_Work(sequence, count, last, scored))
        return works

    def _ensure_room(self) -> None:
        """Free at least a cell for each running sequence: first by evicting recent prefixes, then by pre-
        empting the youngest.
        """
        wanted = sum(min(sequence.remaining, self._batch_limit) for sequence in self._running)
        if self._kv.free_cells >= wanted:
            return
        self._kv.evict_recent(wanted)
        while self._kv.free_cells < len(self._running) and len(self._running) > 1:
            self._preempt(max(self._running, key=lambda sequence: sequence.arrival))

    def _preempt(self, sequence: Sequence) -> None:
        self._stats.preemptions += 1
        self._running.remove(sequence)
        # Computing again costs seconds where copying costs milliseconds, as long as there is memory to copy
        # to.
        if self._kv.state_size(sequence) < psutil.virtual_memory().available // 8:
            self._kv.save(sequence)
        else:
            self._kv.forget(sequence)
        self._waiting.appendleft(sequence)

    def _advance(self, work: _Work) -> None:
        """Account a computed slice and draw the next token if the sequence has caught up."""
        sequence = work.sequence
        if work.scored:
            self._score(work)
        if sequence.num_computed < sequence.num_prompt:
            self._stats.prefill_tokens += work.size
        self._kv.grow(sequence, work.size)
        if sequence.remaining:
            return
        ticket = sequence.ticket
        job = ticket.job
        if ticket.prefilled_at is None:
            ticket.prefilled_at = time.monotonic()
        if job.max_tokens == 0:
            self._end(sequence, "length")
            return
        try:
            token = sequence.sampler.draw(self._context, work.last, self._scratch)
        except EdgeCloudError as error:
            self._fail([sequence], error)
            return
        if token is None or token in job.stop_ids:
            self._end(sequence, "stop")
            return
        logprob = None
        if job.logprobs is not None:
            logprob = raw_logprob(self._context.logits(work.last), token, job.logprobs)
        sequence.tokens.append(token)
        self._stats.decoded_tokens += 1
        self._post(ticket, Drawn(sequence.index, token, logprob))
        if sequence.num_generated >= job.max_tokens or len(sequence.tokens) >= self.n_ctx:
            self._end(sequence, "length")

    def _score(self, work: _Work) -> None:
        """The logits after each prompt token are the scores of the one that follows."""
        sequence, job = work.sequence, work.sequence.ticket.job
        first = work.last - work.size + 1
        scores = [
            raw_logprob(
                self._context.logits(first + at),
                sequence.tokens[sequence.num_computed + at + 1],
                job.logprobs or 0,
            )
            for at in range(work.size)
            if sequence.num_computed + at + 1 < sequence.num_prompt
        ]
        if scores:
            self._post(sequence.ticket, Scored(scores))

    # ------------------------------------------------------------------------------------------ when it fails

    def _recover(self, code: int, works: list[_Work]) -> None:
        self._stats.failed_steps += 1
        sequences = [work.sequence for work in works]
        if code == NO_KV_SLOT:
            # Nothing was changed: the next step tries again with more room, then with less to place.
            if self._kv.evict_all():
                return
            if self._batch_limit > 1 and self._context.batch.size > len(works):
                self._batch_limit = max(1, self._batch_limit // 2)
            elif len(self._running) > 1:
                self._preempt(max(self._running, key=lambda sequence: sequence.arrival))
            else:
                self._fail(
                    sequences,
                    EngineFailure("The KV memory has no room for this answer, though nothing else runs."),
                )
        elif code == ABORTED:
            for sequence in sequences:
                self._kv.trim(sequence)
                if sequence.seq_id < 0:
                    self._running.remove(sequence)
                    self._waiting.appendleft(sequence)
        elif code == INVALID_BATCH:
            log.error("llama.cpp refused a batch of %d tokens", self._context.batch.size)
            self._fail(
                sequences, EngineFailure("The model refused this step; the answer is lost, others go on.")
            )
        else:
            log.error(
                "decode of %d tokens failed with %d; making a new context", self._context.batch.size, code
            )
            self._fail(
                sequences, EngineFailure("A step of the model failed; this answer is lost, others go on.")
            )
            self._start_over()

    def _start_over(self) -> None:
        """Replace a context that can't be trusted. Those who ran wait again; their tokens will be computed
        anew.
        """
        self._context.close()
        # Without a context nobody holds cells, whatever happens next.
        for sequence in self._running:
            sequence.seq_id = -1
            sequence.num_computed = 0
        self._context = self._make_context()
        self._kv.reset(self._context)
        self._waiting.extendleft(sorted(self._running, key=lambda sequence: -sequence.arrival))
        self._running.clear()

    # ----------------------------------------------------------------------------------------------- the ends

    def _end(self, sequence: Sequence, reason: Literal["stop", "length"]) -> None:
        self._post(sequence.ticket, Ended(sequence.index, reason))
        self._retire(sequence, keep=True)

    def _fail(self, sequences: list[Sequence], error: EdgeCloudError) -> None:
        """End the jobs of these sequences, all their answers, with an error."""
        tickets = {id(sequence.ticket): sequence.ticket for sequence in sequences}
        for sequence in [*self._running, *self._waiting]:
            if id(sequence.ticket) in tickets:
                self._retire(sequence, keep=False, error=error)

    def _retire(self, sequence: Sequence, *, keep: bool, error: EdgeCloudError | None = None) -> None:
        """Take a sequence out, wherever it is; with the last one of a job the ticket closes."""
        if sequence.seq_id >= 0:
            self._kv.release(sequence, keep=keep)
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.state = None
        sequence.sampler.close()
        ticket = sequence.ticket
        ticket.num_open -= 1
        with self._counting:
            self._outstanding -= 1
        if ticket.num_open == 0:
            self._mean_answer_s += 0.1 * (time.monotonic() - ticket.submitted_at - self._mean_answer_s)
            self._post(ticket, Closed(error))
        self._stats.running = len(self._running)

    def _post(self, ticket: Ticket, message: Message) -> None:
        ticket.outbox.append(message)
        self._posted[id(ticket)] = ticket

    def _flush(self) -> None:
        """Hand all messages of the step over, with one call per event loop."""
        self._stats.used_cells = self._kv.used_cells
        self._stats.recent_cells = self._kv.recent_cells
        self._stats.parked_bytes = self._kv.parked_bytes
        if not self._posted:
            return
        mail: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, list[Message]]]] = {}
        for ticket in self._posted.values():
            mail.setdefault(ticket.loop, []).append((ticket, ticket.outbox))
            ticket.outbox = []
        self._posted.clear()
        for loop, parcels in mail.items():
            try:
                loop.call_soon_threadsafe(_deliver, parcels)
            except RuntimeError:
                # The loop is closed: nobody is left to receive.
                for ticket, _ in parcels:
                    ticket.cancelled = True


def _deliver(parcels: list[tuple[Ticket, list[Message]]]) -> None:
    for ticket, messages in parcels:
        ticket.deliver(messages)
