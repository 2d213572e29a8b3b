"""Who waits and who runs: admission while the KV memory has room, pre-emption when it has none."""

from __future__ import annotations

from collections import deque

import psutil

from .kv import KvMemory
from .prefix import common_prefix
from .sequence import Sequence

# A prefix that another sequence is computing right now is worth waiting for from this many tokens on.
FOLLOW_TOKENS = 64
# Free cells kept for each running sequence when another is admitted, so that it isn't pre-empted at once.
RESERVE_CELLS = 16


class Lineup:
    """The sequences of one context, at most `parallel` of them running. `can_share` is `KvMemory`'s."""

    def __init__(self, kv: KvMemory, *, parallel: int, can_share: bool) -> None:
        self._kv = kv
        self._parallel = parallel
        self._can_share = can_share
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    @property
    def everyone(self) -> list[Sequence]:
        return [*self.running, *self.waiting]

    @property
    def has_work(self) -> bool:
        """Somebody runs, or could: waiting for a saved prefix is no work."""
        return bool(self.running) or any(sequence.is_ready for sequence in self.waiting)

    def admit(self) -> list[Sequence]:
        """Let those run for whom there is room, in the order of their arrival. Returns them."""
        admitted: list[Sequence] = []
        passed_over: list[Sequence] = []
        while self.waiting and len(self.running) < self._parallel:
            sequence = self.waiting.popleft()
            if not sequence.is_ready or self._must_follow(sequence):
                passed_over.append(sequence)
                continue
            reserve = RESERVE_CELLS * len(self.running)
            if not self._kv.place(sequence, self.running, reserve, force=not self.running):
                # Nobody overtakes who waits for room, or a long prompt would wait for ever.
                self.waiting.appendleft(sequence)
                break
            self.running.append(sequence)
            # What was fetched is in the context now.
            sequence.fetch = None
            admitted.append(sequence)
        self.waiting.extendleft(reversed(passed_over))
        return admitted

    def make_room(self) -> None:
        """Free at least a cell for each running sequence, by pre-empting the youngest."""
        while self._kv.free_cells < len(self.running) and len(self.running) > 1:
            self.preempt_youngest()

    def preempt_youngest(self) -> None:
        """Take the cells of the sequence that came last; it goes on when there is room again."""
        sequence = max(self.running, key=lambda sequence: sequence.arrival)
        # Computing again costs seconds where copying costs milliseconds, as long as there is memory to copy
        # to.
        if self._kv.state_size(sequence) < psutil.virtual_memory().available // 8:
            self._kv.save(sequence)
        else:
            self._kv.forget(sequence)
        self.num_preemptions += 1
        self.send_back(sequence)

    def send_back(self, sequence: Sequence) -> None:
        """A running sequence that lost its cells waits again, before all others."""
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)

    def send_all_back(self) -> None:
        """The context is lost, and with it everybody's cells: they are computed anew."""
        for sequence in self.running:
            sequence.seq_id = -1
            sequence.num_computed = 0
        self.waiting.extendleft(sorted(self.running, key=lambda sequence: -sequence.arrival))
        self.running.clear()

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

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
        if not self._can_share or sequence.state is not None or sequence.scores_prompt:
            return False
        for other in self.running:
            if other.is_decoding:
                continue
            if other.ticket is sequence.ticket:
                shared, worthwhile = sequence.num_prompt - 1, 1
            else:
                shared, worthwhile = common_prefix(other.tokens, sequence.tokens[:-1]), FOLLOW_TOKENS
            if (
                shared - other.num_computed >= worthwhile
                and shared - self._kv.best_parked(sequence) >= worthwhile
            ):
                sequence.leader, sequence.follow_until = other, shared
                return True
        return False
