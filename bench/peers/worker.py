"""What every batch worker does: a JSON job a line on stdin, a JSON result a line on stdout, until stdin ends.

`{"prompts": [text, …], "max_tokens": n}` answers all prompts at once, greedy, exactly n tokens each, and
gives `{"seconds": …}`. `{"arrivals": [[second, text], …], …}` lets requests arrive at these times, and says
whether the answers kept their pace; only workers that can be stepped know it. Needs nothing, so that it runs
in any peer's venv.
"""

import json
import os
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
    submit: Callable[[str, int], object],
    step: Callable[[], Iterable[object]],
    abort: Callable[[list[object]], object],
    is_busy: Callable[[], bool],
) -> Callable[[Job], Job]:
    """`submit` gives a request's id, `step` the ids of those that got a token.

    The trace is kept up with if of the times between two tokens of one answer at most 1 in 100 is longer
    than `gap_s`, and of the times to a first token at most half are longer than `first_s`: without the
    second an engine that lets them queue up for ever, and answers a few well, would pass. A try that can no
    longer succeed is cut short. Idle seconds are waited for, as in life.
    """

    def run(job: Job) -> Job:
        trace = list(reversed(job["arrivals"]))
        num_late = num_slow = 0
        most_late = 0.01 * len(trace) * (job["answer"] - 1)
        most_slow = 0.5 * len(trace)
        arrived: dict[object, float] = {}
        last: dict[object, float] = {}
        gaps: list[float] = []
        firsts: list[float] = []
        start = time.perf_counter()
        while (trace or is_busy()) and num_late <= most_late and num_slow <= most_slow:
            while trace and trace[-1][0] <= time.perf_counter() - start:
                due, text = trace.pop()
                # From when it was due: what waits for a step to end waits for the engine.
                arrived[submit(text, job["answer"])] = start + due
            if not is_busy():
                time.sleep(0.001)
                continue
            served = list(step())
            now = time.perf_counter()
            for each in served:
                if each in last:
                    gaps.append(now - last[each])
                    num_late += gaps[-1] > job["gap_s"]
                else:
                    firsts.append(now - arrived[each])
                    num_slow += firsts[-1] > job["first_s"]
                last[each] = now
            # Who still waits is slow already.
            waiting = sum(now - at > job["first_s"] for each, at in arrived.items() if each not in last)
            if num_slow + waiting > most_slow:
                num_slow += waiting
        kept = num_late <= most_late and num_slow <= most_slow
        abort(list(arrived))
        while is_busy():
            step()
        return {
            "kept": kept,
            "seconds": time.perf_counter() - start,
            "gap_s": sorted(gaps)[int(0.99 * (len(gaps) - 1))] if gaps else 0.0,
            "first_s": sorted(firsts)[len(firsts) // 2] if firsts else 0.0,
        }

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
