"""One step after another over a context: compute a batch, draw tokens, end answers, live with failures."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from edgecloud.errors import DeadlineExceeded, EdgeCloudError, EngineFailure
from edgecloud.inbox import Outbox

from .filling import Work, fill
from .kv import KvMemory
from .limit import QueueLimit
from .lineup import Lineup
from .llama import ABORTED, INVALID_BATCH, NO_KV_SLOT, Candidates, Context, Model
from .pacing import PrefillPacer
from .sampler import raw_logprob
from .sequence import Closed, Drawn, Ended, Message, Scored, Sequence, Ticket
from .threads import ThreadGovernor

log = logging.getLogger("edgecloud.batcher")


@dataclass(slots=True)
class BatcherStats:
    """Counters since the start, and gauges of now. Cells are tokens of KV memory."""

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
    parked_bytes: int = 0
    saved: int = 0
    saved_bytes: int = 0
    restored: int = 0
    restored_bytes: int = 0
    threads: int = 0


class Stepper:
    """Advances the sequences of `lineup`. All calls come from the thread that owns the context."""

    def __init__(
        self,
        model: Model,
        context: Context,
        make_context: Callable[[], Context],
        *,
        n_ctx: int,
        kv: KvMemory,
        lineup: Lineup,
        limit: QueueLimit,
        pacer: PrefillPacer,
        governor: ThreadGovernor | None,
    ) -> None:
        self._n_ctx = n_ctx
        self._context = context
        self._make_context = make_context
        self._kv = kv
        self._lineup = lineup
        self._limit = limit
        self._pacer = pacer
        self._governor = governor
        self._scratch = Candidates(model.n_vocab)
        # Halved while steps find no room.
        self._most_prefill = context.batch.capacity
        self.outbox: Outbox[Message] = Outbox()
        self.stats = BatcherStats(cells=context.n_ctx, threads=governor.threads if governor else 0)

    def step(self) -> None:
        """Let go, admit, compute once, draw."""
        self._reap()
        for sequence in self._lineup.admit():
            ticket = sequence.ticket
            if ticket.started_at is None:
                ticket.started_at = time.monotonic()
                ticket.cached_tokens = sequence.num_computed
                self.stats.cached_tokens += sequence.num_computed
        if not self._lineup.running:
            return
        self._lineup.make_room()
        batch = self._context.batch
        batch.clear()
        works = fill(
            batch,
            self._lineup.running,
            self._pacer,
            most_prefill=self._most_prefill,
            free_cells=self._kv.free_cells,
        )
        if not works:
            return
        started, cpu_started = time.perf_counter(), time.process_time()
        code = self._context.decode()
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        if code != 0:
            self._recover(code, works)
            return
        self._most_prefill = batch.capacity
        self.stats.steps += 1
        if batch.size > len(works):
            self._pacer.observe(batch.size, seconds)
        if self._governor is not None and self._governor.observe(seconds, cpu_seconds):
            self._context.set_threads(self._governor.threads)
            self.stats.threads = self._governor.threads
        for work in works:
            # A sibling's failure earlier in this loop ends the whole job.
            if work.sequence.seq_id >= 0:
                self._advance(work)

    def fail(self, sequences: Iterable[Sequence], error: EdgeCloudError) -> None:
        """End the jobs of these sequences, all their answers, with an error."""
        tickets = {id(sequence.ticket) for sequence in sequences}
        for sequence in self._lineup.everyone:
            if id(sequence.ticket) in tickets:
                self._retire(sequence, keep=False, error=error)

    def refuse(self, ticket: Ticket, error: EdgeCloudError) -> None:
        """End a job of which no sequence was made."""
        for _ in range(ticket.num_open):
            self._limit.leave()
        ticket.num_open = 0
        self.outbox.post(ticket, Closed(error))

    def start_over(self) -> None:
        """Replace a context that can't be trusted. Those who ran wait again.

        Raises `EdgeCloudError` where no other can be made; then nobody holds cells any more.
        """
        self._context.close()
        self._lineup.send_all_back()
        self._context = self._make_context()
        self._kv.reset(self._context)

    def close(self) -> None:
        self._context.close()

    def _reap(self) -> None:
        """Let go of what was cancelled, stopped or is past its deadline."""
        now = time.monotonic()
        expired: list[Sequence] = []
        for sequence in self._lineup.everyone:
            ticket = sequence.ticket
            if ticket.cancelled or sequence.index in ticket.stopped:
                self._retire(sequence, keep=True)
            elif ticket.job.deadline is not None and now >= ticket.job.deadline:
                expired.append(sequence)
        self.fail(expired, DeadlineExceeded("The time allowed for this answer is over."))

    def _advance(self, work: Work) -> None:
        """Account a computed slice and draw the next token if the sequence has caught up."""
        sequence = work.sequence
        if work.scored:
            self._score(work)
        if sequence.num_computed < sequence.num_prompt:
            self.stats.prefill_tokens += work.size
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
            self.fail([sequence], error)
            return
        except Exception:
            # Computing went well, and whoever else is in this step has a token to draw from it.
            log.exception("a token could not be drawn")
            self.fail([sequence], EngineFailure("The next token could not be drawn: this answer is lost."))
            return
        if token is None or token in job.stop_ids:
            self._end(sequence, "stop")
            return
        logprob = None
        if job.logprobs is not None:
            logprob = raw_logprob(self._context.logits(work.last), token, job.logprobs)
        sequence.tokens.append(token)
        self.stats.decoded_tokens += 1
        self.outbox.post(ticket, Drawn(sequence.index, token, logprob))
        if sequence.num_generated >= job.max_tokens or len(sequence.tokens) >= self._n_ctx:
            self._end(sequence, "length")

    def _score(self, work: Work) -> None:
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
            self.outbox.post(sequence.ticket, Scored(scores))

    def _recover(self, code: int, works: list[Work]) -> None:
        """A failed decode hurts only the sequences of its batch, and those as little as can be."""
        self.stats.failed_steps += 1
        sequences = [work.sequence for work in works]
        size = self._context.batch.size
        if code == NO_KV_SLOT:
            # Nothing was changed: the next step tries again with less to place.
            if self._most_prefill > 1 and size > len(works):
                self._most_prefill = max(1, self._most_prefill // 2)
            elif len(self._lineup.running) > 1:
                self._lineup.preempt_youngest()
            else:
                self.fail(
                    sequences,
                    EngineFailure("The KV memory has no room for this answer, though nothing else runs."),
                )
        elif code == ABORTED:
            for sequence in sequences:
                self._kv.trim(sequence)
                if sequence.seq_id < 0:
                    self._lineup.send_back(sequence)
        elif code == INVALID_BATCH:
            log.error("llama.cpp refused a batch of %d tokens", size)
            self.fail(
                sequences, EngineFailure("The model refused this step; the answer is lost, others go on.")
            )
        else:
            log.error("decode of %d tokens failed with %d; making a new context", size, code)
            self.fail(
                sequences, EngineFailure("A step of the model failed; this answer is lost, others go on.")
            )
            self.start_over()

    def _end(self, sequence: Sequence, reason: Literal["stop", "length"]) -> None:
        self.outbox.post(sequence.ticket, Ended(sequence.index, reason))
        self._retire(sequence, keep=True)

    def _retire(self, sequence: Sequence, *, keep: bool, error: EdgeCloudError | None = None) -> None:
        """Take a sequence out, wherever it is; with the last one of a job the ticket closes."""
        if sequence.seq_id >= 0:
            self._kv.release(sequence, keep=keep)
        self._lineup.remove(sequence)
        sequence.state = None
        sequence.sampler.close()
        self._limit.leave()
        ticket = sequence.ticket
        ticket.num_open -= 1
        if ticket.num_open == 0:
            self._limit.learn(time.monotonic() - ticket.submitted_at)
            self.outbox.post(ticket, Closed(error))
