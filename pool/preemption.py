"""Who gives way when a sequence of higher rank needs blocks, and how: whatever costs least.

The price of a victim is the harm of pre-empting it, in seconds, for each second that it would otherwise have
held its blocks:

    price = (seconds to restore it + seconds by which that makes it miss its deadline) / seconds it has left

State size is in the first term, deadline slack in the second, remaining work is the divisor. At a price of 1
or more it is better to let the victim finish: the other one waits for that long instead.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from enum import Enum
from typing import Literal, NamedTuple

from .blocks import BlockPool
from .costs import StepCosts
from .sequence import Sequence

PreemptionMode = Literal["auto", "swap", "recompute"]


class Remedy(Enum):
    SWAP = "swap"  # the victim's blocks go to host memory
    RECOMPUTE = "recompute"  # the victim's blocks are dropped and computed again later
    KEEP = "keep"  # the victim stays, being almost done; the needy waits
    REFUSE = "refuse"  # nobody ranks lower; the needy waits


class Choice(NamedTuple):
    remedy: Remedy
    victim: Sequence | None = None


class Preemption:
    """`mode` auto weighs everything; swap and recompute always take blocks, that way (swap falls back to
    recompute when the host is full).
    """

    def __init__(
        self,
        pool: BlockPool,
        costs: StepCosts,
        mode: PreemptionMode,
        seconds_left: Callable[[Sequence], float],
    ) -> None:
        self._pool = pool
        self._costs = costs
        self._mode = mode
        self._seconds_left = seconds_left

    def choose(self, needy: Sequence, running: Many[Sequence], now: float) -> Choice:
        """The remedy for one sequence that lacks a block. Only strictly lower ranks are looked at."""
        lower = [other for other in running if other.rank > needy.rank]
        if not lower:
            return Choice(Remedy.REFUSE)
        # One that holds nothing for itself frees nothing; it may still spare the needy a copy.
        victim = min(
            lower,
            key=lambda other: (
                not self._pool.num_exclusive(other.table),
                self.price(other, now),
                -other.rank[0],
                -other.id,
            ),
        )
        if self._should_keep(needy, victim, now):
            return Choice(Remedy.KEEP, victim)
        return Choice(self._way(victim), victim)

    def price(self, victim: Sequence, now: float) -> float:
        left = max(self._seconds_left(victim), self._costs.step_s, 1e-9)
        restore = self._restore_seconds(victim)
        deadline = victim.request.job.deadline
        late = 0.0 if deadline is None else max(0.0, now + left + restore - deadline)
        return (restore + late) / left

    def _should_keep(self, needy: Sequence, victim: Sequence, now: float) -> bool:
        if self._mode != "auto" or self.price(victim, now) < 1:
            return False
        # Waiting for one that may itself be stuck for a block could wait for ever.
        if victim.num_pending != 1 or self._pool.num_missing(victim.table, victim.num_computed):
            return False
        deadline = needy.request.job.deadline
        wait = self._seconds_left(victim)
        return deadline is None or now + wait + self._seconds_left(needy) <= deadline

    def _way(self, victim: Sequence) -> Remedy:
        if self._mode == "recompute" or not self._pool.can_swap_out(victim.num_computed):
            return Remedy.RECOMPUTE
        if self._mode == "swap" or self._swap_seconds(victim) <= self._recompute_seconds(victim):
            return Remedy.SWAP
        return Remedy.RECOMPUTE

    def _restore_seconds(self, victim: Sequence) -> float:
        swapped = self._way(victim) is Remedy.SWAP
        return self._swap_seconds(victim) if swapped else self._recompute_seconds(victim)

    def _swap_seconds(self, victim: Sequence) -> float:
        return self._costs.swap_seconds(self._pool.blocks_for(victim.num_computed))

    def _recompute_seconds(self, victim: Sequence) -> float:
        return self._costs.compute_seconds(victim.num_computed)
