"""The plan of one step: who computes how many tokens, in which blocks, and who gives way or starts.

A step spends a budget of tokens: first on running sequences that lack one token (decodes), then on running
ones that lack more (prompt chunks), then on admissions, and on no admission in a step that pre-empted.
"""

from __future__ import annotations

from bisect import insort

from .admission import Admission, Case, Growth, Level, Verdict, projected_peak
from .blocks import BlockPool
from .config import PoolConfig
from .costs import StepCosts
from .counters import Counters
from .estimate import LengthEstimate
from .forecast import Forecast
from .plan import StepBuilder
from .policy import Policy, PolicyName, policy_named
from .preemption import Preemption, Remedy
from .prefix import ChainHash, PrefixNode
from .sequence import Sequence

# Candidates looked at in one step when the watermarks refuse them one after the other.
LOOKAHEAD = 8
# Steps between two looks at what the prefix cache would spare those who wait.
REFRESH_STEPS = 32


class Planner:
    """Owns the block pool and the places of sequences: waiting in the policy, or running, best rank first."""

    def __init__(
        self,
        config: PoolConfig,
        policy: PolicyName | Policy,
        costs: StepCosts,
        estimate: LengthEstimate,
        chain: ChainHash,
    ) -> None:
        self.config = config
        self.estimate = estimate
        self.pool = BlockPool(
            config.num_blocks, config.block_size, config.num_host_blocks, caching=config.caching, chain=chain
        )
        self.forecast = Forecast(self.pool, costs, estimate)
        self.policy = policy_named(policy, self.forecast.seconds_left) if isinstance(policy, str) else policy
        self.admission = Admission(config.watermarks, config.num_blocks)
        self.preemption = Preemption(self.pool, costs, config.preemption, self.forecast.seconds_left)
        self.counters = Counters()
        self.running: list[Sequence] = []
        self._peak = 0
        self._peak_for = (-1, -1)
        self._seen_version = 0
        self._refresh_at = 0

    @property
    def num_running(self) -> int:
        """Choices with blocks; a request whose prompt is not done counts for all of its own."""
        return sum(sequence.width for sequence in self.running)

    def plan(self, now: float) -> StepBuilder:
        step = StepBuilder(self.counters.steps, self.config.token_budget)
        self._make_room(step, now)
        self._continue_running(step, now)
        if not step.preempted:
            self._admit(step, now)
        return step

    def enter(self, sequence: Sequence) -> None:
        """Into the queue, with the prefix hit that it would have now."""
        sequence.num_hit = self._hit_tokens(sequence)
        self.policy.push(sequence)

    def run(self, sequence: Sequence) -> None:
        sequence.running = True
        insort(self.running, sequence, key=lambda other: other.rank)

    def leave(self, sequence: Sequence) -> None:
        """Out of wherever it is; blocks that a step in flight still writes stay until it has landed."""
        if sequence.running:
            self.running.remove(sequence)
            sequence.running = False
        else:
            self.policy.remove(sequence)
        self.pool.release_host(sequence.host)
        if not sequence.in_flight:
            self.pool.release(sequence.table)

    def drop_state(self, sequence: Sequence) -> None:
        """Forget what is computed of a sequence that does not run; it starts again from its tokens."""
        self.pool.release(sequence.table)
        self.pool.release_host(sequence.host)
        sequence.num_computed = 0

    # ------------------------------------------------------------------------------------ running sequences

    def _continue_running(self, step: StepBuilder, now: float) -> None:
        decodes: list[Sequence] = []
        chunks: list[Sequence] = []
        for sequence in self.running:
            (decodes if sequence.num_pending == 1 else chunks).append(sequence)
        num_spare = self._spare_for_drafts(step, len(decodes), chunks)
        for sequence in decodes:
            if sequence.running:
                num_drafts = 0
                if sequence.drafts:
                    # A prompt that is only scored lacks one token too, and has none to draw.
                    num_drafts = max(min(len(sequence.drafts), num_spare, sequence.num_left - 1), 0)
                    num_spare -= num_drafts
                self._extend(step, sequence, 1 + num_drafts, now)
        for sequence in chunks:
            if sequence.running and step.budget:
                self._extend(step, sequence, self._chunk(sequence, step), now)

    def _spare_for_drafts(self, step: StepBuilder, num_decodes: int, chunks: list[Sequence]) -> int:
        """Tokens of the step that drafts may take: what is left when everyone who runs has its own, and none
        where the blocks that they would hold leave fewer than the first watermark.
        """
        if not any(sequence.drafts for sequence in self.running):
            return 0
        if self.admission.level(self.pool.num_available - self._num_reserved()) > Level.FREE:
            return 0
        num_prompt = sum(min(sequence.num_pending, self.config.max_chunk) for sequence in chunks)
        return max(step.budget - num_decodes - num_prompt, 0)

    def _extend(self, step: StepBuilder, sequence: Sequence, num_tokens: int, now: float) -> None:
        """Give a running sequence the blocks for its next tokens, or for as many of them as there is room."""
        start = sequence.num_computed
        if self.pool.is_writable(sequence.table, start, start + num_tokens):
            step.add(sequence, num_tokens, None)
            return
        room = self.pool.room(sequence.table, start)
        while room <= 0:
            if not self._make_way(step, sequence, now):
                return
            room = self.pool.room(sequence.table, start)
        num_tokens = min(num_tokens, room)
        step.add(sequence, num_tokens, self.pool.grow(sequence.table, start, start + num_tokens))

    def _chunk(self, sequence: Sequence, step: StepBuilder) -> int:
        return min(sequence.num_pending, step.budget, self.config.max_chunk)

    # ------------------------------------------------------------------------------------------ pre-emption

    def _make_way(self, step: StepBuilder, needy: Sequence, now: float) -> bool:
        """Take one victim's blocks for `needy`; False when it has to wait instead."""
        choice = self.preemption.choose(needy, self.running, now)
        if choice.remedy is Remedy.REFUSE or choice.victim is None:
            self.counters.refused += 1
            return False
        if choice.remedy is Remedy.KEEP:
            self.counters.kept += 1
            return False
        self._preempt(step, choice.victim, choice.remedy)
        return True

    def _preempt(self, step: StepBuilder, victim: Sequence, remedy: Remedy) -> None:
        content = step.take_back(victim)
        self.running.remove(victim)
        victim.running = False
        copies = []
        if remedy is Remedy.SWAP:
            moved = self.pool.swap_out(victim.table, victim.num_computed)
            copies = [copy._replace(source=content(copy.source)) for copy in moved]
            victim.host = [copy.target for copy in copies]
            self.counters.swapped += 1
        else:
            self.counters.recomputed += 1
            self.counters.wasted_tokens += victim.num_computed
            self.drop_state(victim)
        step.preempt(victim, copies)
        self.policy.restore(victim)

    def _make_room(self, step: StepBuilder, now: float) -> None:
        """Pre-empt for the first in the queue, where the level says so; it is admitted in a later step."""
        if not self.policy or not self.running or self.num_running >= self.config.max_running:
            return
        num_left = self.pool.num_available - self._num_reserved()
        if self.admission.level(num_left) < Level.GUARDED:
            return
        first = self.policy.pop()
        case = self._case(first, self._match(first), num_left, [], now)
        if self.admission.may_preempt(case):
            lower = [sequence for sequence in self.running if sequence.rank > first.rank]
            could_free = sum(self.pool.num_exclusive(sequence.table) for sequence in lower)
            num_lacking = case.num_needed - case.num_left
            while num_lacking > 0 and could_free >= num_lacking:
                before = self.pool.num_available
                if not self._make_way(step, first, now):
                    break
                num_lacking -= self.pool.num_available - before
        self.policy.restore(first)

    # -------------------------------------------------------------------------------------------- admission

    def _admit(self, step: StepBuilder, now: float) -> None:
        if not self.policy or not step.budget:
            return
        self._refresh_hits()
        num_places = self.config.max_running - self.num_running
        growths: list[Growth] = []
        skipped: list[Sequence] = []
        while self.policy and step.budget and num_places and len(skipped) < LOOKAHEAD:
            sequence = self.policy.pop()
            hit = self._match(sequence)
            verdict = Verdict.WAIT
            if sequence.width <= num_places:
                verdict = self._verdict(sequence, hit, growths, now)
            if verdict is Verdict.SKIP:
                skipped.append(sequence)
                continue
            if verdict is Verdict.WAIT:
                self.policy.restore(sequence)
                break
            self._start(step, sequence, hit, now)
            num_places -= sequence.width
            if growths:
                growths.extend(self.forecast.growths(sequence))
            for other in skipped:
                other.num_overtaken += 1
        for sequence in skipped:
            self.policy.restore(sequence)

    def _verdict(
        self, sequence: Sequence, hit: list[PrefixNode], growths: list[Growth], now: float
    ) -> Verdict:
        if not self.running:
            # Alone it fits, or it would have been refused when it was submitted.
            return Verdict.ADMIT
        num_left = self.pool.num_available - self._num_reserved()
        return self.admission.verdict(self._case(sequence, hit, num_left, growths, now))

    def _case(
        self, sequence: Sequence, hit: list[PrefixNode], num_left: int, growths: list[Growth], now: float
    ) -> Case:
        """`growths` of the running sequences are worked out at most once for a step's candidates."""
        job = sequence.request.job
        marks = self.config.watermarks
        urgent = job.priority >= marks.urgent_priority
        if job.deadline is not None and not urgent:
            urgent = job.deadline - now - self.forecast.seconds_left(sequence) < marks.urgent_slack_s

        def peak() -> int:
            # It only sinks when blocks are given back: no need to work it out again at every step of a wait.
            known_for = (sequence.id, self.pool.num_releases)
            if self._peak_for != known_for:
                if not growths:
                    growths.extend(
                        growth for other in self.running for growth in self.forecast.growths(other)
                    )
                expected = [*growths, *self.forecast.growths(sequence)]
                self._peak = projected_peak(self.pool.num_used, expected, self.config.block_size)
                self._peak_for = known_for
            return self._peak

        return Case(
            num_left=num_left,
            num_needed=self.pool.num_needed(hit, sequence.num_tokens),
            num_expected=self.forecast.num_blocks(sequence),
            peak=peak,
            urgent=urgent,
            resumed=sequence.admitted,
            num_overtaken=sequence.num_overtaken,
        )

    def _start(self, step: StepBuilder, sequence: Sequence, hit: list[PrefixNode], now: float) -> None:
        request = sequence.request
        num_hit = len(hit) * self.config.block_size
        if sequence.host:
            step.swap_in(self.pool.swap_in(sequence.table, sequence.host, hit))
        else:
            self.pool.share(sequence.table, hit)
        sequence.num_computed = max(sequence.num_computed, num_hit)
        if not sequence.admitted:
            sequence.admitted = True
            sequence.num_hit = request.num_cached = num_hit
            sequence.predicted = self.estimate.begin(sequence, request.job.max_tokens)
            request.admitted_at = now
            self.counters.prompt_tokens += len(request.job.prompt)
            self.counters.cached_tokens += num_hit
            self.policy.charge(sequence, len(request.job.prompt) - num_hit, 0)
        self.run(sequence)
        self._extend(step, sequence, self._chunk(sequence, step), now)

    # --------------------------------------------------------------------------------------------- privates

    def _match(self, sequence: Sequence) -> list[PrefixNode]:
        if not sequence.request.job.read_prefix:
            return []
        return self.pool.match(sequence.table, sequence.tokens)

    def _hit_tokens(self, sequence: Sequence) -> int:
        return len(self._match(sequence)) * self.config.block_size

    def _num_reserved(self) -> int:
        return self.forecast.num_reserved(self.running)

    def _refresh_hits(self) -> None:
        if self._seen_version != self.pool.prefix.version and self.counters.steps >= self._refresh_at:
            self._seen_version = self.pool.prefix.version
            self._refresh_at = self.counters.steps + REFRESH_STEPS
            self.policy.refresh(self._hit_tokens)
