"""Iteration-level scheduling: every request from `submit` to its one end, step by step.

    submit ──▶ waiting ──▶ running ──▶ Ended         schedule ──▶ a runner ──▶ commit | fail
                  ▲           │
                  └─ preempt ─┘

It has no clock (time comes in as `now`, in seconds), no torch, and does no I/O; one thread calls it. One step
is in flight at a time, and no block that it writes is reused before it has landed. What a step does is
decided in `planner.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from math import ceil
from typing import NamedTuple

from edgecloud.errors import DeadlineExceeded, Overloaded

from .blocks import BlockTable, PoolBroken
from .config import PoolConfig
from .costs import StepCosts
from .estimate import LengthEstimate
from .plan import Drawn, Item, StepPlan
from .planner import Planner
from .policy import Policy, PolicyName
from .prefix import ChainHash, chain_hash
from .sequence import Ended, EndReason, Job, Progress, Request, Sequence


class Committed(NamedTuple):
    progress: list[Progress]
    ended: list[Ended]


class Scheduler:
    """Owns every request from `submit` to its one `Ended`, and the block pool."""

    def __init__(
        self,
        config: PoolConfig,
        policy: PolicyName | Policy = "fcfs",
        *,
        costs: StepCosts | None = None,
        estimate: LengthEstimate | None = None,
        chain: ChainHash = chain_hash,
    ) -> None:
        self.config = config
        self.planner = Planner(config, policy, costs or StepCosts(), estimate or LengthEstimate(), chain)
        self.pool = self.planner.pool
        self.counters = self.planner.counters
        self.requests: dict[int, Request] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._plan: StepPlan | None = None
        self._flight: list[Sequence] = []
        self._next_request = 0
        self._next_sequence = 0

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    @property
    def num_waiting(self) -> int:
        return len(self.planner.policy)

    @property
    def num_running(self) -> int:
        """Choices with blocks; a request whose prompt is not done counts for all of its own."""
        return self.planner.num_running

    # ---------------------------------------------------------------------------------------- in and out

    def submit(self, job: Job, now: float) -> int:
        """Queue a job; returns the engine's own id for it.

        Raises `BadRequest` or `ContextLengthExceeded` for what can never run, `DeadlineExceeded` for what is
        already late, `Overloaded` when the queue is full.
        """
        self.config.refuse_the_impossible(job)
        if job.deadline is not None and job.deadline <= now:
            raise DeadlineExceeded("The deadline had passed before the request was queued.")
        if self.num_waiting >= self.config.max_waiting:
            wait = min(map(self.planner.forecast.seconds_left, self.planner.running), default=0.0)
            raise Overloaded(
                f"The queue is full ({self.num_waiting} requests): try again in a moment.",
                retry_after=max(ceil(wait), 1),
            )
        request = Request(self._next_request, job, now)
        self._next_request += 1
        self.requests[request.id] = request
        sequence = self._new_sequence(request, list(job.prompt), BlockTable(job.namespace))
        if job.deadline is not None:
            heappush(self._deadlines, (job.deadline, request.id))
        self.planner.enter(sequence)
        return request.id

    def abort(self, request_id: int, now: float) -> Ended | None:
        """End a request in whatever state it is; None when it has ended already."""
        request = self.requests.get(request_id)
        return self._end(request, "abort", now) if request else None

    def propose(self, drafts: Mapping[int, tuple[int, ...]]) -> None:
        """Tokens to verify behind the last one of running sequences, by sequence id, as far as the next step
        has room for them. Dropped for a sequence that does not decode.
        """
        for sequence in self.planner.running:
            if sequence.id in drafts and sequence.num_pending == 1 and sequence.width == 1:
                sequence.drafts = drafts[sequence.id]

    # ------------------------------------------------------------------------------------------- one step

    def schedule(self, now: float) -> StepPlan:
        """Plan the next step. It must be committed or failed before the next one, unless it is empty: then
        there is nothing to execute, and while there is work left the next call finds it.
        """
        if self._plan is not None:
            raise RuntimeError(f"step {self._plan.id} is in flight: commit or fail it first")
        ended = self._expire(now)
        step = self.planner.plan(now)
        plan = step.build(self.pool, ended)
        if not plan.is_empty:
            self.counters.steps += 1
            self._plan = plan
            self._flight = list(step.planned)
            for sequence in self._flight:
                sequence.in_flight = True
        elif self.requests and not step.preempted:
            raise PoolBroken(
                f"nothing to do for {len(self.planner.running)} running and {self.num_waiting} waiting "
                f"sequences with {self.pool.num_available} of {self.pool.num_blocks} blocks available"
            )
        return plan

    def commit(self, plan: StepPlan, drawn: Mapping[int, tuple[Drawn, ...]], now: float) -> Committed:
        """Take a step's result: by sequence id, one `Drawn` per sample that its item asked for.

        Raises `ValueError` for a result that does not answer the plan, which stays in flight.
        """
        self._expect(plan)
        for sequence, item in zip(self._flight, plan.items, strict=True):
            if not sequence.request.ended:
                _validate(item, drawn.get(item.sequence_id, ()))
        result = Committed([], [])
        for sequence, item in zip(self._land(), plan.items, strict=True):
            if sequence.request.ended:
                self.pool.release(sequence.table)
                continue
            draws = drawn[item.sequence_id] if item.num_samples else ()
            num_accepted = len(draws[0].tokens) - 1 if item.num_drafts else 0
            sequence.num_computed = item.start + item.num_tokens - item.num_drafts + num_accepted
            self.counters.drafted_tokens += item.num_drafts
            self.counters.accepted_tokens += num_accepted
            self._take(sequence, draws, result, now)
        return result

    def fail(self, plan: StepPlan, now: float) -> list[Ended]:
        """A fault inside the step: its requests end with an error and everyone else goes on."""
        self._expect(plan)
        flight = self._land()
        ended = []
        for sequence in flight:
            if sequence.request.ended:
                self.pool.release(sequence.table)
            else:
                ended.append(self._end(sequence.request, "error", now))
        # What was to be copied to the host may not have arrived there.
        lost = {copy.target for copy in plan.swap_outs}
        if lost:
            for sequence in self.planner.policy:
                if not lost.isdisjoint(sequence.host):
                    self.planner.drop_state(sequence)
        return ended

    def check(self) -> None:
        """Prove that no block, sequence or request is lost or held twice; raise `PoolBroken` if one is."""
        running, waiting = self.planner.running, list(self.planner.policy)
        alive = {s.id for request in self.requests.values() for s in request.sequences if not s.finished}
        placed = sorted(sequence.id for sequence in [*running, *waiting])
        if placed != sorted(alive):
            raise PoolBroken(f"alive {sorted(alive)} but running and waiting {placed}")
        if stray := self.planner.estimate.undecided - alive:
            raise PoolBroken(f"the lengths of {sorted(stray)} are still waited for, of {sorted(alive)} alive")
        for sequence in waiting:
            if sequence.table.blocks or bool(sequence.host) != bool(sequence.num_computed):
                raise PoolBroken(
                    f"waiting sequence {sequence.id} holds {len(sequence.table.blocks)} device and "
                    f"{len(sequence.host)} host blocks for {sequence.num_computed} computed tokens"
                )
        for sequence in running:
            if sequence.num_pending < 1 or sequence.host:
                raise PoolBroken(
                    f"running sequence {sequence.id} has computed {sequence.num_computed} of "
                    f"{sequence.num_tokens} tokens and holds {len(sequence.host)} host blocks"
                )
        leaving = [sequence.table for sequence in self._flight if not sequence.running]
        tables = [sequence.table for sequence in running]
        self.pool.check([*tables, *leaving], [sequence.host for sequence in waiting])

    # ---------------------------------------------------------------------------------------------- results

    def _take(self, root: Sequence, draws: tuple[Drawn, ...], result: Committed, now: float) -> None:
        """Register what a sequence computed and hand each draw to its choice, forking one for each beyond
        the first.
        """
        request = root.request
        self.pool.register(root.table, root.tokens, min(root.num_computed, root.num_tokens))
        branches = [root]
        if len(draws) > 1:
            branches.extend(self._fork(root) for _ in draws[1:])
            root.width = 1
        if draws and request.first_token_at is None:
            request.first_token_at = now
        for sequence, draw in zip(branches, draws, strict=bool(draws)):
            sequence.tokens.extend(draw.tokens)
            sequence.drafts = ()
            sequence.stopped = "stop" if draw.stop else None if sequence.num_left else "length"
            if len(draw.tokens) > 1:
                self.pool.register(sequence.table, sequence.tokens, sequence.num_computed)
            self.counters.output_tokens += len(draw.tokens)
            self.planner.policy.charge(sequence, 0, len(draw.tokens))
            result.progress.append(Progress(request.id, sequence.choice, draw.tokens, sequence.stopped))
            if sequence.num_output > sequence.predicted:
                self.planner.estimate.outgrow(sequence)
            if sequence.stopped:
                self.planner.estimate.end(sequence, cut=sequence.stopped == "length")
                self.planner.leave(sequence)
        if not draws and not root.num_pending:
            # Nothing was to be drawn (max_tokens 0): the prompt was the work.
            root.stopped = "length"
            self.planner.estimate.drop(root)
            self.planner.leave(root)
            result.progress.extend(
                Progress(request.id, choice, (), "length") for choice in range(request.job.n)
            )
        if root.stopped and all(sequence.stopped for sequence in request.sequences):
            result.ended.append(self._end(request, "done", now))

    def _fork(self, root: Sequence) -> Sequence:
        child = self._new_sequence(root.request, list(root.tokens), self.pool.fork(root.table))
        child.num_computed = root.num_computed
        child.num_hit = root.num_computed
        child.rank = (root.rank[0], child.id)
        child.admitted = True
        child.predicted = self.planner.estimate.begin(child, root.request.job.max_tokens)
        self.planner.run(child)
        return child

    def _new_sequence(self, request: Request, tokens: list[int], table: BlockTable) -> Sequence:
        sequence = Sequence(self._next_sequence, request, len(request.sequences), tokens, table)
        self._next_sequence += 1
        request.sequences.append(sequence)
        return sequence

    def _end(self, request: Request, reason: EndReason, now: float) -> Ended:
        del self.requests[request.id]
        for sequence in request.sequences:
            if not sequence.finished:
                self.planner.estimate.drop(sequence)
                self.planner.leave(sequence)
        request.ended = reason
        return Ended(
            request.id,
            reason,
            len(request.job.prompt),
            request.num_cached,
            sum(sequence.num_output for sequence in request.sequences),
            request.arrival,
            request.admitted_at,
            request.first_token_at,
            now,
        )

    def _expect(self, plan: StepPlan) -> None:
        if self._plan is not plan:
            raise RuntimeError(f"step {plan.id} is not in flight; {self._plan and self._plan.id} is")

    def _land(self) -> list[Sequence]:
        flight, self._flight, self._plan = self._flight, [], None
        for sequence in flight:
            sequence.in_flight = False
        return flight

    def _expire(self, now: float) -> list[Ended]:
        ended = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heappop(self._deadlines)
            if request_id in self.requests:
                ended.append(self._end(self.requests[request_id], "deadline", now))
        return ended


def _validate(item: Item, draws: tuple[Drawn, ...]) -> None:
    if item.num_samples and len(draws) != item.num_samples:
        raise ValueError(f"{item.num_samples} draws were asked for and {len(draws)} came: {item}")
    for draw in draws[: item.num_samples]:
        if not 1 <= len(draw.tokens) <= item.num_drafts + 1:
            raise ValueError(f"a draw of {len(draw.tokens)} tokens for {item.num_drafts} drafts: {item}")
