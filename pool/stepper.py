"""What the step loop does between two waits: take requests in, carry a step out, tell who asked.

    take in ─▶ schedule ─▶ execute ─▶ cut at stops ─▶ commit ─▶ tell
                             │
                             └ a fault ─▶ fail: the requests of this step end, everyone else goes on

Owned by one thread, which is not its own: nothing here waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from edgecloud.errors import DeadlineExceeded, EdgeCloudError, EngineFailure, InternalError
from edgecloud.inbox import Outbox
from edgecloud.vocabulary import TokenScore

from .cost_meter import CostMeter
from .costs import StepCosts
from .metrics import PoolMetrics, PoolStats
from .plan import Drawn, StepPlan
from .runner import Runner, StepOutput
from .scheduler import Scheduler
from .sequence import Ended, Progress
from .slo import Slo
from .speculative import NgramProposer
from .stops import StopFinder
from .ticket import Accepted, Closed, Message, Scores, Ticket, Tokens

log = logging.getLogger("edgecloud.pool")

# Failed steps in a row after which it is no longer one request's fault.
SICK_AFTER = 3
# Rows that a step may have at little more than the cost of one, as long as it waits for the weights.
CHEAP_ROWS, CHEAP_GPU_ROWS = 8, 64

ChoiceKey = tuple[int, int]


class Stepper:
    """`make_scheduler` gives the scheduler over costs that are corrected as steps are measured, and a fresh
    one should its books ever be wrong. `stats` is what other threads may read: replaced as a whole after each
    turn.
    """

    def __init__(self, runner: Runner, make_scheduler: Callable[[StepCosts], Scheduler], slo: Slo) -> None:
        self._costs = CostMeter(StepCosts())
        self.scheduler = make_scheduler(self._costs.costs)
        self.stats = PoolStats()
        self.metrics = PoolMetrics(runner.facts, self.scheduler.config, slo, lambda: self.stats)
        self.outbox: Outbox[Message] = Outbox()
        self.num_failed_in_row = 0
        self._proposer = NgramProposer(
            max_rows=CHEAP_ROWS if runner.facts.device == "cpu" else CHEAP_GPU_ROWS
        )
        self._runner = runner
        self._make_scheduler = make_scheduler
        self._num_failed = 0
        self._tickets: dict[int, Ticket] = {}
        self._ids: dict[Ticket, int] = {}
        self._finders: dict[ChoiceKey, StopFinder] = {}
        self._last_token: dict[ChoiceKey, float] = {}

    @property
    def is_sick(self) -> bool:
        """One step after the other fails, whoever is in it."""
        return self.num_failed_in_row >= SICK_AFTER

    def take_in(self, ticket: Ticket) -> None:
        """Submit what a ticket asks, and say whether it is accepted."""
        if ticket.cancelled_at is not None:
            return
        job = ticket.ask.job
        try:
            request_id = self.scheduler.submit(job, ticket.submitted_at)
        except EdgeCloudError as error:
            self.metrics.rejected[error.code or error.type] += 1
            self.outbox.post(ticket, Closed(None, error))
            return
        self._tickets[request_id] = ticket
        self._ids[ticket] = request_id
        if ticket.ask.counted:
            self.metrics.accept(job)
        self.outbox.post(ticket, Accepted())
        try:
            self._runner.begin(request_id, job.prompt, ticket.ask.drawing)
        except EdgeCloudError as error:
            self._fail(request_id, error)
        except Exception:
            log.exception("a request could not begin")
            self._fail(request_id, EngineFailure("The model could not take this request; others go on."))

    def abort(self, ticket: Ticket) -> None:
        """End a request at the wish of its asker, who no longer listens."""
        request_id = self._ids.get(ticket)
        if request_id is None or ticket.cancelled_at is None:
            return
        now = time.monotonic()
        end = self.scheduler.abort(request_id, now)
        if end is not None:
            self.metrics.cancel.observe(now - ticket.cancelled_at)
            self._close(end, None)

    def turn(self) -> None:
        """One step, if there is work for one."""
        if self.scheduler.has_work:
            self._proposer.propose(self.scheduler)
            plan = self.scheduler.schedule(time.monotonic())
            for end in plan.ended:
                self._close(end, DeadlineExceeded("The time allowed for this answer is over."))
            if not plan.is_empty:
                self._step(plan)

    def guard(self, action: Callable[[], None]) -> None:
        """Do something with the scheduler, and start over if that shows its books to be wrong.

        Only a bug does that; whoever comes next is served all the same.
        """
        try:
            action()
        except Exception:
            log.exception("the scheduler's books are wrong: starting over")
            self._num_failed += 1
            self.end_all(InternalError())
            self.scheduler = self._make_scheduler(self._costs.costs)

    def publish(self) -> None:
        """Let other threads see the state of now."""
        scheduler, counters = self.scheduler, self.scheduler.counters
        pool = scheduler.pool
        self.stats = PoolStats(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            used_blocks=pool.num_used,
            cached_blocks=pool.num_cached,
            host_blocks=pool.num_host_blocks - pool.num_host_available,
            steps=counters.steps,
            failed_steps=self._num_failed,
            swapped=counters.swapped,
            recomputed=counters.recomputed,
            kept=counters.kept,
            refused=counters.refused,
            length_coverage=scheduler.planner.estimate.coverage,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            output_tokens=counters.output_tokens,
            recomputed_tokens=counters.wasted_tokens,
            drafted_tokens=counters.drafted_tokens,
            accepted_tokens=counters.accepted_tokens,
        )

    def end_all(self, error: EdgeCloudError) -> None:
        """Tell everyone that it is over."""
        for request_id in list(self._tickets):
            ticket = self._forget(request_id)
            if ticket is not None:
                self.metrics.finished["error"] += 1
                self.outbox.post(ticket, Closed(None, error))

    # ----------------------------------------------------------------------------------------------- one step

    def _step(self, plan: StepPlan) -> None:
        began = time.monotonic()
        try:
            output = self._runner.execute(plan)
        except Exception as error:
            self._lose(plan, error)
            return
        now = time.monotonic()
        for request_id, refusal in output.failed.items():
            self._fail(request_id, refusal)
        drawn, scores = self._read(plan, output)
        try:
            committed = self.scheduler.commit(plan, drawn, now)
        except ValueError as error:
            self._lose(plan, error)
            return
        self.num_failed_in_row = 0
        self.metrics.iteration.observe(len(plan.tokens))
        self._costs.observe(plan, now - began)
        for request_id, of_prompt in output.scores.items():
            if of_prompt and request_id in self._tickets:
                self.outbox.post(self._tickets[request_id], Scores(of_prompt))
        for progress in committed.progress:
            self._tell(progress, scores.get((progress.request_id, progress.choice), ()), now)
        for end in committed.ended:
            self._close(end, None)

    def _lose(self, plan: StepPlan, error: Exception) -> None:
        tickets = (self._tickets.get(item.request_id) for item in plan.items)
        names = ", ".join({ticket.ask.job.label: None for ticket in tickets if ticket is not None})
        log.error("step %d failed; lost with it: %s", plan.id, names, exc_info=error)
        self._num_failed += 1
        self.num_failed_in_row += 1
        lost = EngineFailure("A step of the model failed; this answer is lost, others go on.")
        for end in self.scheduler.fail(plan, time.monotonic()):
            self._close(end, lost)

    def _read(
        self, plan: StepPlan, output: StepOutput
    ) -> tuple[dict[int, tuple[Drawn, ...]], dict[ChoiceKey, tuple[TokenScore, ...]]]:
        """What to commit, by sequence, and the scores of what was drawn, by choice; both up to a stop."""
        drawn: dict[int, tuple[Drawn, ...]] = {}
        scores: dict[ChoiceKey, tuple[TokenScore, ...]] = {}
        for item in plan.items:
            ticket = self._tickets.get(item.request_id)
            draws = output.draws.get(item.sequence_id, ())
            if ticket is None or not draws:
                continue
            if ticket.ask.stops:
                draws = tuple(
                    self._finder((item.request_id, choice), ticket).cut(draw)
                    for choice, draw in enumerate(draws, item.choice)
                )
            drawn[item.sequence_id] = tuple(Drawn(draw.tokens, draw.stop) for draw in draws)
            if ticket.ask.drawing.logprobs is not None:
                for choice, draw in enumerate(draws, item.choice):
                    scores[item.request_id, choice] = draw.scores
        return drawn, scores

    def _finder(self, key: ChoiceKey, ticket: Ticket) -> StopFinder:
        if key not in self._finders:
            ask = ticket.ask
            self._finders[key] = StopFinder(ask.stops, ask.spell, ask.drawing.min_tokens)
        return self._finders[key]

    def _tell(self, progress: Progress, scores: tuple[TokenScore, ...], now: float) -> None:
        ticket = self._tickets[progress.request_id]
        key = (progress.request_id, progress.choice)
        if progress.tokens:
            last = self._last_token.get(key)
            if last is not None:
                self.metrics.inter_token.observe(now - last)
            elif progress.choice == 0 and ticket.ask.counted:
                self.metrics.ttft.observe(now - ticket.submitted_at)
            self._last_token[key] = now
        ticket.stopped = progress.stopped
        self.outbox.post(ticket, Tokens(progress.choice, progress.tokens, scores, progress.stopped))

    # ----------------------------------------------------------------------------------------------- the ends

    def _fail(self, request_id: int, error: EdgeCloudError) -> None:
        """End one request in whatever state, for a reason of its own."""
        end = self.scheduler.abort(request_id, time.monotonic())
        if end is not None:
            self._close(end._replace(reason="error"), error)

    def _close(self, end: Ended, error: EdgeCloudError | None) -> None:
        ticket = self._forget(end.request_id)
        if ticket is not None:
            if ticket.ask.counted:
                self.metrics.end(end, ticket.stopped)
            self.outbox.post(ticket, Closed(end, error))

    def _forget(self, request_id: int) -> Ticket | None:
        self._runner.end(request_id)
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None:
            del self._ids[ticket]
            for choice in range(ticket.ask.job.n):
                self._finders.pop((request_id, choice), None)
                self._last_token.pop((request_id, choice), None)
        return ticket
