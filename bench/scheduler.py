"""What the scheduler alone costs: `python bench/scheduler.py [--seconds 2] [--context 1000]`.

Schedules and commits with no model behind it, at 8, 64 and 256 running sequences with contexts around
`--context` tokens, decoding with a queue that is never empty. Prints steps and tokens per second of CPU time
of this one Python thread, the median and the 99th percentile of a step; then a simulated Poisson load under
each policy; then, for answers of several kinds, the share that was no longer than expected at its admission,
beside what was expected on average, in mean lengths.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable

from edgecloud.pool.config import PoolConfig
from edgecloud.pool.costs import StepCosts
from edgecloud.pool.estimate import Growing, LengthEstimate
from edgecloud.pool.plan import Drawn
from edgecloud.pool.policy import PolicyName
from edgecloud.pool.scheduler import Scheduler
from edgecloud.pool.sequence import Job
from edgecloud.pool.simulate import Arrival, simulate

POLICIES: tuple[PolicyName, ...] = ("fcfs", "deadline", "sjf", "priority", "fair")
BLOCK = 16
# Output tokens of an answer, from a source and how much of the trace is behind it, 0 to 1.
LENGTHS: dict[str, Callable[[random.Random, float], float]] = {
    "lognormal": lambda source, _: source.lognormvariate(3.5, 0.7),
    "exponential": lambda source, _: source.expovariate(1 / 60),
    "short and long": lambda source, _: source.choice((7, 7, 7, 7, 7, 300)) + source.random() * 20,
    "heavy tail": lambda source, _: 10 * source.paretovariate(1.1),
    "seven times longer": lambda source, at: source.expovariate(1 / (20 if at < 0.5 else 140)),
    "seven times shorter": lambda source, at: source.expovariate(1 / (140 if at < 0.5 else 20)),
}


class Counted(LengthEstimate):
    """Notes what was expected of every answer that came to its end, and what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[int, int]] = []
        self._expected: dict[int, int] = {}

    def begin(self, answer: Growing, max_tokens: int) -> int:
        expected = self._expected[answer.id] = super().begin(answer, max_tokens)
        return expected

    def end(self, answer: Growing, *, cut: bool) -> None:
        self.noted.append((self._expected.pop(answer.id), answer.num_output))
        super().end(answer, cut=cut)

    @property
    def covered(self) -> float:
        return sum(length <= expected for expected, length in self.noted) / len(self.noted)

    @property
    def generosity(self) -> float:
        return sum(expected for expected, _ in self.noted) / sum(length for _, length in self.noted)


def busy_scheduler(num_running: int, context: int, source: random.Random) -> Scheduler:
    """`num_running` sequences past their prompts, and as many that wait."""
    num_blocks = num_running * (context + 600) // BLOCK * 2
    scheduler = Scheduler(PoolConfig(num_blocks, BLOCK, context=10**6, max_running=num_running))
    for _ in range(2 * num_running):
        arrive(scheduler, context, source, 0.0)
    while sum(sequence.num_output > 0 for sequence in scheduler.planner.running) < num_running:
        advance(scheduler, context, source, 0.0)
    return scheduler


def arrive(scheduler: Scheduler, context: int, source: random.Random, now: float) -> None:
    length = source.randint(context // 2, context * 3 // 2)
    prompt = tuple(source.randrange(50_000) for _ in range(length))
    scheduler.submit(Job(prompt, source.randint(100, 500)), now)


def advance(scheduler: Scheduler, context: int, source: random.Random, now: float) -> tuple[float, int]:
    """One step, and a new arrival for each that ended. Seconds in the scheduler, tokens in the batch."""
    start = time.thread_time()
    plan = scheduler.schedule(now)
    scheduled = time.thread_time()
    drawn = {item.sequence_id: (Drawn((7,)),) * item.num_samples for item in plan.items}
    executed = time.thread_time()
    ended = scheduler.commit(plan, drawn, now).ended
    committed = time.thread_time()
    for _ in ended:
        arrive(scheduler, context, source, now)
    return scheduled - start + committed - executed, len(plan.tokens)


def bench_steps(num_running: int, context: int, seconds: float) -> None:
    source = random.Random(0)
    scheduler = busy_scheduler(num_running, context, source)
    # As a server does once it is warm: what lives for long is not walked again at every collection.
    gc.freeze()
    taken: list[float] = []
    num_tokens = 0
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        step_seconds, step_tokens = advance(scheduler, context, source, float(len(taken)))
        taken.append(step_seconds)
        num_tokens += step_tokens
    scheduler.check()
    total = sum(taken)
    print(
        f"{num_running:>8} {len(taken) / total:>10.0f} {num_tokens / total:>12.0f} "
        f"{statistics.median(taken) * 1e6:>10.0f} {statistics.quantiles(taken, n=100)[98] * 1e6:>10.0f}"
    )


def bench_policies(count: int, rate: float) -> None:
    costs = StepCosts()
    for policy in POLICIES:
        source, now, trace = random.Random(0), 0.0, []
        for number in range(count):
            now += source.expovariate(rate)
            length = min(int(source.lognormvariate(5.2, 0.9)) + 1, 2000)
            prompt = (*range(64), *(source.randrange(100, 50_000) for _ in range(length)))
            num_output = min(int(source.lognormvariate(3.5, 0.7)) + 1, 512)
            job = Job(prompt, 512, priority=int(number % 10 == 0), tenant=str(number % 4), deadline=now + 30)
            trace.append(Arrival(now, job, num_output))
        config = PoolConfig(1500, BLOCK, 1000, max_running=128, max_chunk=512, max_waiting=count)
        estimate = Counted()
        scheduler = Scheduler(config, policy, costs=costs, estimate=estimate)
        start = time.process_time()
        report = simulate(scheduler, trace, costs)
        counters = scheduler.counters
        print(
            f"{policy:>9} {report.ttft.p50:>8.3f} {report.ttft.p99:>8.3f} {report.tpot.p50 * 1e3:>8.1f} "
            f"{report.gap.p99 * 1e3:>8.1f} {report.goodput:>8.2f} {report.fairness:>8.3f} "
            f"{estimate.covered:>8.3f} {counters.swapped + counters.recomputed:>8} "
            f"{time.process_time() - start:>8.1f}"
        )


def bench_lengths(count: int) -> None:
    for name, draw in LENGTHS.items():
        cells = []
        for num_running in (16, 128):
            source, trace = random.Random(0), []
            for number in range(count):
                length = min(int(draw(source, number / count)) + 1, 1024)
                prompt = tuple(source.randrange(50_000) for _ in range(50))
                trace.append(Arrival(number * 1e-3, Job(prompt, 1024), length))
            config = PoolConfig(num_running * 80, BLOCK, max_running=num_running, max_waiting=count)
            estimate = Counted()
            simulate(Scheduler(config, estimate=estimate), trace, StepCosts())
            cells.append(f"{estimate.covered:>14.3f} {estimate.generosity:>10.1f}")
        print(f"{name:>20} " + " ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each number of sequences")
    parser.add_argument("--context", type=int, default=1000, help="tokens, on average")
    parser.add_argument("--requests", type=int, default=2000, help="of the simulated load")
    parser.add_argument("--rate", type=float, default=100.0, help="arrivals per simulated second")
    args = parser.parse_args()
    print(f"{'running':>8} {'steps/s':>10} {'tokens/s':>12} {'median µs':>10} {'p99 µs':>10}")
    for num_running in (8, 64, 256):
        bench_steps(num_running, args.context, args.seconds)
    print()
    columns = (
        "ttft p50",
        "ttft p99",
        "tpot ms",
        "gap ms",
        "goodput",
        "fairness",
        "covered",
        "preempt",
        "cpu s",
    )
    print(f"{'policy':>9} " + " ".join(f"{column:>8}" for column in columns))
    bench_policies(args.requests, args.rate)
    print(f"\n{'answers':>20} {'covered, of 16':>14} {'expected':>10} {'of 128':>14} {'expected':>10}")
    bench_lengths(args.requests)


if __name__ == "__main__":
    main()
