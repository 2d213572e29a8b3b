"""The real scheduler with a simulated clock: what a pool would do to its users, without a model or a GPU.

Each step takes as long as the cost model says; answers have the lengths that the trace says. Latencies come
out as a user would measure them.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import NamedTuple

from edgecloud.errors import EdgeCloudError

from .costs import StepCosts
from .plan import Drawn, StepPlan
from .scheduler import Scheduler
from .sequence import Ended, EndReason, Job
from .slo import Slo, seconds_per_token


class Arrival(NamedTuple):
    """A job that comes at `time` (seconds); each of its choices ends by itself after `num_output` tokens."""

    time: float
    job: Job
    num_output: int


class Spread(NamedTuple):
    p50: float
    p90: float
    p99: float


def spread(values: Iterable[float]) -> Spread:
    """Nearest-rank percentiles; NaN of nothing."""
    order = sorted(values)
    if not order:
        return Spread(math.nan, math.nan, math.nan)
    return Spread(*(order[max(math.ceil(share * len(order)) - 1, 0)] for share in (0.5, 0.9, 0.99)))


def jain(shares: Iterable[float]) -> float:
    """Jain's index: 1 when all get the same, 1/n when one of n gets everything."""
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else math.nan


@dataclass(slots=True)
class Report:
    """Seconds unless named otherwise. `fairness` is Jain's index over tenants of prompt tokens computed plus
    twice the tokens drawn, while all of them had requests in the system; `goodput` is requests per second
    that met the SLO.
    """

    slo: Slo
    seconds: float = 0.0
    steps: int = 0
    num_rejected: int = 0
    ended: list[Ended] = field(default_factory=list)
    gaps: array[float] = field(default_factory=lambda: array("d"))
    service: Counter[str] = field(default_factory=Counter)

    @property
    def reasons(self) -> Counter[EndReason]:
        return Counter(end.reason for end in self.ended)

    @property
    def ttft(self) -> Spread:
        return spread(
            end.first_token_at - end.arrival for end in self.ended if end.first_token_at is not None
        )

    @property
    def tpot(self) -> Spread:
        return spread(map(seconds_per_token, filter(_is_answered, self.ended)))

    @property
    def gap(self) -> Spread:
        """Between two tokens of one choice as its user sees them."""
        return spread(self.gaps)

    @property
    def goodput(self) -> float:
        return sum(map(self.slo.is_met, self.ended)) / self.seconds if self.seconds else math.nan

    @property
    def fairness(self) -> float:
        return jain(self.service.values())


def simulate(
    scheduler: Scheduler, arrivals: Many[Arrival], costs: StepCosts, slo: Slo | None = None
) -> Report:
    """Serve `arrivals`, which are in order of time, to the last one."""
    return _Run(scheduler, arrivals, costs, Report(slo or Slo())).to_the_end()


class _Run:
    def __init__(
        self, scheduler: Scheduler, arrivals: Many[Arrival], costs: StepCosts, report: Report
    ) -> None:
        self._scheduler = scheduler
        self._arrivals = arrivals
        self._costs = costs
        self._report = report
        self._next = 0
        self._now = arrivals[0].time if arrivals else 0.0
        self._present: dict[int, Arrival] = {}
        self._drawn: Counter[tuple[int, int]] = Counter()
        self._last_token: dict[tuple[int, int], float] = {}
        self._tenants = {arrival.job.tenant for arrival in arrivals}
        self._in_system: Counter[str] = Counter()

    def to_the_end(self) -> Report:
        start = self._now
        while self._next < len(self._arrivals) or self._scheduler.has_work:
            if not self._scheduler.has_work:
                self._now = max(self._now, self._arrivals[self._next].time)
            self._let_in()
            plan = self._scheduler.schedule(self._now)
            self._end(plan.ended)
            if not plan.is_empty:
                self._execute(plan)
        self._report.seconds = self._now - start
        return self._report

    def _let_in(self) -> None:
        while self._next < len(self._arrivals) and self._arrivals[self._next].time <= self._now:
            arrival = self._arrivals[self._next]
            self._next += 1
            try:
                request_id = self._scheduler.submit(arrival.job, arrival.time)
            except EdgeCloudError:
                self._report.num_rejected += 1
                continue
            self._present[request_id] = arrival
            self._in_system[arrival.job.tenant] += 1

    def _execute(self, plan: StepPlan) -> None:
        self._report.steps += 1
        self._now += self._costs.step_seconds(plan)
        contended = all(self._in_system[tenant] for tenant in self._tenants)
        drawn = {}
        for item in plan.items:
            arrival = self._present[item.request_id]
            drawn[item.sequence_id] = tuple(
                self._draw((item.request_id, item.choice + sample), arrival)
                for sample in range(item.num_samples)
            )
            if contended:
                computed = min(item.num_tokens, max(len(arrival.job.prompt) - item.start, 0))
                self._report.service[arrival.job.tenant] += computed + 2 * item.num_samples
        self._end(self._scheduler.commit(plan, drawn, self._now).ended)

    def _draw(self, choice: tuple[int, int], arrival: Arrival) -> Drawn:
        self._drawn[choice] += 1
        if choice in self._last_token:
            self._report.gaps.append(self._now - self._last_token[choice])
        self._last_token[choice] = self._now
        return Drawn((0,), stop=self._drawn[choice] >= arrival.num_output)

    def _end(self, ended: Iterable[Ended]) -> None:
        for end in ended:
            arrival = self._present.pop(end.request_id)
            self._in_system[arrival.job.tenant] -= 1
            self._report.ended.append(end)
            for choice in range(arrival.job.n):
                self._drawn.pop((end.request_id, choice), None)
                self._last_token.pop((end.request_id, choice), None)


def _is_answered(end: Ended) -> bool:
    return end.reason == "done" and end.first_token_at is not None
