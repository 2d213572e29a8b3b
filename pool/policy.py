"""Who goes next. Every policy turns a request into a virtual arrival time and serves the earliest.

    first come      arrival
    deadline        deadline, or arrival + patience where there is none
    shortest job    arrival + seconds of work / ageing
    priority        arrival - priority * head start
    fair share      tokens that the tenant has been served (virtual token counter)

Ageing needs no clock: a request that gains on others with every second it waits is one whose order was fixed
when it came. So a rank never changes after admission, and pre-emption, which only ever takes from a strictly
lower rank, cannot go round in circles.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Literal

from .sequence import Rank, Sequence

PolicyName = Literal["fcfs", "deadline", "sjf", "priority", "fair"]


class RankedQueue:
    """Sequences by rank; removal from the middle is lazy, so every operation is O(log n)."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, Sequence]] = []
        self._tickets: dict[int, int] = {}
        self._next_ticket = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Sequence]:
        """In no order."""
        return (entry[2] for entry in self._heap if self._is_live(entry))

    def push(self, sequence: Sequence, rank: Rank) -> None:
        self._tickets[sequence.id] = self._next_ticket
        heappush(self._heap, (rank, self._next_ticket, sequence))
        self._next_ticket += 1

    def peek(self) -> Sequence:
        while not self._is_live(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][2]

    def pop(self) -> Sequence:
        sequence = self.peek()
        heappop(self._heap)
        del self._tickets[sequence.id]
        return sequence

    def remove(self, sequence: Sequence) -> None:
        del self._tickets[sequence.id]
        if len(self._heap) > 2 * len(self._tickets) + 16:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapify(self._heap)

    def rank_again(self, rank: Callable[[Sequence], Rank]) -> None:
        live = [entry for entry in self._heap if self._is_live(entry)]
        self._heap = [(rank(sequence), ticket, sequence) for _, ticket, sequence in live]
        heapify(self._heap)

    def _is_live(self, entry: tuple[Rank, int, Sequence]) -> bool:
        return self._tickets.get(entry[2].id) == entry[1]


class Policy(ABC):
    """The waiting sequences, in the order in which they are offered for admission.

    `push` is for a sequence that arrives, `restore` for one that was popped and not admitted, or pre-empted;
    a sequence has its rank from `pop` on, for good once it is admitted.
    """

    @abstractmethod
    def push(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def restore(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def pop(self) -> Sequence: ...

    @abstractmethod
    def remove(self, sequence: Sequence) -> None: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Sequence]: ...

    def refresh(self, hit_tokens: Callable[[Sequence], int]) -> None:
        """The cached prefixes have changed: reorder if that matters."""
        return

    def charge(self, sequence: Sequence, num_prompt: int, num_output: int) -> None:
        """Service given: prompt tokens once, at admission, and output tokens as they come."""
        return


class RankPolicy(Policy):
    """A policy whose virtual arrival time depends on the request alone."""

    def __init__(self) -> None:
        self._queue = RankedQueue()

    @abstractmethod
    def virtual_arrival(self, sequence: Sequence) -> float: ...

    def push(self, sequence: Sequence) -> None:
        sequence.rank = (self.virtual_arrival(sequence), sequence.id)
        self.restore(sequence)

    def restore(self, sequence: Sequence) -> None:
        self._queue.push(sequence, sequence.rank)

    def pop(self) -> Sequence:
        return self._queue.pop()

    def remove(self, sequence: Sequence) -> None:
        self._queue.remove(sequence)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)


class FirstCome(RankPolicy):
    def virtual_arrival(self, sequence: Sequence) -> float:
        return sequence.request.arrival


class EarliestDeadline(RankPolicy):
    """A request without a deadline is content with an answer after `patience_s` seconds."""

    def __init__(self, patience_s: float = 120.0) -> None:
        super().__init__()
        self._patience_s = patience_s

    def virtual_arrival(self, sequence: Sequence) -> float:
        deadline = sequence.request.job.deadline
        return sequence.request.arrival + self._patience_s if deadline is None else deadline


class ShortestJob(RankPolicy):
    """Least work first, in seconds after the prefix hit; each second of waiting outweighs `ageing` seconds of
    work, so nobody is passed by anyone who comes more than `work / ageing` seconds later.
    """

    def __init__(self, work_seconds: Callable[[Sequence], float], ageing: float = 0.02) -> None:
        super().__init__()
        self._work_seconds = work_seconds
        self._ageing = ageing

    def virtual_arrival(self, sequence: Sequence) -> float:
        return sequence.request.arrival + self._work_seconds(sequence) / self._ageing

    def refresh(self, hit_tokens: Callable[[Sequence], int]) -> None:
        def rank(sequence: Sequence) -> Rank:
            if not sequence.admitted:
                sequence.num_hit = hit_tokens(sequence)
                sequence.rank = (self.virtual_arrival(sequence), sequence.id)
            return sequence.rank

        self._queue.rank_again(rank)


class Priority(RankPolicy):
    """One level of priority is worth `head_start_s` seconds of waiting."""

    def __init__(self, head_start_s: float = 60.0) -> None:
        super().__init__()
        self._head_start_s = head_start_s

    def virtual_arrival(self, sequence: Sequence) -> float:
        return sequence.request.arrival - sequence.request.job.priority * self._head_start_s


class FairShare(Policy):
    """The tenant that has been served least goes next (VTC: Sheng et al., "Fairness in Serving LLMs", 2024).

    A prompt token costs 1 and an output token 2, divided by the tenant's weight. A tenant that was away is
    lifted to the least of those who wait, or to who waited last: idle time earns no credit. While two tenants
    both have requests waiting, what they were charged differs by at most one request's admission and the
    output of a batch.
    """

    def __init__(
        self, weights: Mapping[str, float] | None = None, *, prompt_price: float = 1, output_price: float = 2
    ) -> None:
        self.counters: dict[str, float] = {}
        self._weights = weights or {}
        self._prompt_price = prompt_price
        self._output_price = output_price
        self._lanes: dict[str, RankedQueue] = {}
        self._resumed = RankedQueue()
        self._last_tenant = ""

    def push(self, sequence: Sequence) -> None:
        tenant = sequence.request.job.tenant
        if tenant not in self._lanes:
            waiting = [self.counters[other] for other in self._lanes]
            floor = min(waiting) if waiting else self.counters.get(self._last_tenant, 0.0)
            self.counters[tenant] = max(self.counters.get(tenant, 0.0), floor)
        self._enter_lane(sequence)

    def restore(self, sequence: Sequence) -> None:
        if sequence.admitted:
            self._resumed.push(sequence, sequence.rank)
        else:
            self._enter_lane(sequence)

    def pop(self) -> Sequence:
        tenant, rank = self._first_lane()
        # By rank, as pre-emption goes: who gave way must not come back before the one it made way for.
        if self._resumed and self._resumed.peek().rank <= rank:
            return self._resumed.pop()
        sequence = self._lanes[tenant].pop()
        self._leave_lane(tenant)
        sequence.rank = rank
        return sequence

    def remove(self, sequence: Sequence) -> None:
        if sequence.admitted:
            self._resumed.remove(sequence)
        else:
            tenant = sequence.request.job.tenant
            self._lanes[tenant].remove(sequence)
            self._leave_lane(tenant)

    def __len__(self) -> int:
        return len(self._resumed) + sum(map(len, self._lanes.values()))

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._resumed
        for lane in self._lanes.values():
            yield from lane

    def charge(self, sequence: Sequence, num_prompt: int, num_output: int) -> None:
        tenant = sequence.request.job.tenant
        price = num_prompt * self._prompt_price + num_output * self._output_price
        self.counters[tenant] += price / self._weights.get(tenant, 1.0)

    def _first_lane(self) -> tuple[str, Rank]:
        """The tenant who is next, and the rank that its first has now; nobody's where no lane is there."""
        ranks = {tenant: (self.counters[tenant], lane.peek().id) for tenant, lane in self._lanes.items()}
        return min(ranks.items(), key=lambda item: item[1], default=("", (math.inf, 0)))

    def _enter_lane(self, sequence: Sequence) -> None:
        lane = self._lanes.setdefault(sequence.request.job.tenant, RankedQueue())
        lane.push(sequence, (sequence.request.arrival, sequence.id))

    def _leave_lane(self, tenant: str) -> None:
        if not self._lanes[tenant]:
            del self._lanes[tenant]
            self._last_tenant = tenant


def policy_named(name: PolicyName, seconds_left: Callable[[Sequence], float]) -> Policy:
    """A fresh policy; `seconds_left` is the work that a sequence still is, for the one that orders by it."""
    policies: dict[PolicyName, type[Policy]] = {
        "fcfs": FirstCome,
        "deadline": EarliestDeadline,
        "priority": Priority,
        "fair": FairShare,
    }
    return ShortestJob(seconds_left) if name == "sjf" else policies[name]()
