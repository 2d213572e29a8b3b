"""What every batch worker does: a JSON job a line on stdin, a JSON result a line on stdout, until stdin ends.

`{"prompts": [text, …], "max_tokens": n}` answers all prompts at once, greedy, exactly n tokens each, and
gives `{"seconds": …}`. `{"rate": r, "seconds": s, …}` lets requests arrive at random, r a second, and gives
the P99 of the time between two tokens of one answer; only workers that can be stepped know it. Needs nothing,
so that it runs in any peer's venv.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable

Job = dict


def batch(generate: Callable[[list[str], int], None]) -> Callable[[Job], Job]:
    def run(job: Job) -> Job:
        started = time.perf_counter()
        generate(job["prompts"], job["max_tokens"])
        return {"seconds": time.perf_counter() - started}

    return run


def arrivals(
    submit: Callable[[str, int], object], step: Callable[[], Iterable[object]], is_busy: Callable[[], bool]
) -> Callable[[Job], Job]:
    """`submit` gives a request's id, `step` the ids of those that got a token."""

    def run(job: Job) -> Job:
        rng = random.Random(job["seed"])
        due, start = 0.0, time.perf_counter()
        waiting = []
        while (due := due + rng.expovariate(job["rate"])) < job["seconds"]:
            waiting.append((due, " ".join(rng.choices(job["words"], k=job["prompt"]))))
        waiting.reverse()
        last: dict[object, float] = {}
        gaps = []
        while waiting or is_busy():
            while waiting and waiting[-1][0] <= time.perf_counter() - start:
                submit(waiting.pop()[1], job["answer"])
            if not is_busy():
                time.sleep(0.001)
                continue
            served = list(step())
            now = time.perf_counter()
            gaps += [now - last[each] for each in served if each in last]
            last |= dict.fromkeys(served, now)
        gaps.sort()
        return {"gap": gaps[int(0.99 * (len(gaps) - 1))] if gaps else 0.0}

    return run


def serve(**kinds: Callable[[Job], Job]) -> None:
    """Jobs by the key that tells their kind; batch jobs have `prompts`."""
    # What libraries print would break the protocol.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kinds["prompts"]({"prompts": ["Hello there."], "max_tokens": 2})
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        kind = next(kinds[key] for key in kinds if key in job)
        print(json.dumps(kind(job)), file=answers, flush=True)
