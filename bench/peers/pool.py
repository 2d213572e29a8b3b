"""Our pool's scheduler and runner, in this process and environment: MODEL THREADS FORM [TOKENS_A_STEP].

Beside `worker.py`'s jobs it takes `{"measure": NAME}` for what only we are asked: see `MEASURES`.
"""

import statistics
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from worker import arrivals, batch, serve

from edgecloud.kernels import native
from edgecloud.pool.config import PoolConfig
from edgecloud.pool.loading import load_runner, plan_model
from edgecloud.pool.plan import Drawn, StepPlan
from edgecloud.pool.runner import Drawing
from edgecloud.pool.scheduler import Scheduler
from edgecloud.pool.sequence import Job
from edgecloud.pool.vocabulary import from_gguf

path, threads, form = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
budget = int(sys.argv[4]) if len(sys.argv) > 4 else 2304
vocabulary = from_gguf(path)
config = PoolConfig(1024, 16, context=4096, token_budget=budget, max_chunk=min(budget, 256), max_running=64)
runner = load_runner(plan_model(path, device="cpu", weights=form), config, threads=threads)  # type: ignore[arg-type]
scheduler = Scheduler(config)
spent: defaultdict[str, float] = defaultdict(float)


def timed(name: str, owner: object, method: str) -> None:
    """Count the seconds spent in a method."""
    inner = getattr(owner, method)

    def outer(*args: object) -> object:
        started = time.perf_counter()
        try:
            return inner(*args)
        finally:
            spent[name] += time.perf_counter() - started

    setattr(owner, method, outer)


timed("layers", runner.decoder, "forward")
timed("logits", runner.decoder, "logits")
timed("draw", runner, "_draw")
timed("schedule", scheduler, "schedule")
timed("commit", scheduler, "commit")


def submit(prompt: list[int], max_tokens: int) -> int:
    request_id = scheduler.submit(Job(tuple(prompt), max_tokens), 0.0)
    runner.begin(request_id, tuple(prompt), Drawing())
    return request_id


def step() -> tuple[StepPlan, set[int]]:
    """One step, and the requests that got a token."""
    plan = scheduler.schedule(0.0)
    output = runner.execute(plan)
    drawn = {
        key: tuple(Drawn(draw.tokens, draw.stop) for draw in draws) for key, draws in output.draws.items()
    }
    committed = scheduler.commit(plan, drawn, 0.0)
    for ended in committed.ended:
        runner.end(ended.request_id)
    return plan, {progress.request_id for progress in committed.progress}


def leave(requests: list[object]) -> None:
    """End those that have not ended."""
    for request_id in requests:
        if scheduler.abort(request_id, 0.0) is not None:  # type: ignore[arg-type]
            runner.end(request_id)  # type: ignore[arg-type]


def generate(prompts: list[str], max_tokens: int) -> None:
    for prompt in prompts:
        submit(vocabulary.tokenize(prompt), max_tokens)
    while scheduler.has_work:
        step()


def words(number: int, count: int) -> list[int]:
    """Distinct prompts of so many tokens."""
    return [(number * 7919 + at * 104729 + at * at) % 40000 + 500 for at in range(count)]


def ttft(prompt: list[int]) -> float:
    started = time.perf_counter()
    submit(prompt, 1)
    while scheduler.has_work:
        step()
    return time.perf_counter() - started


def shared_prefix() -> dict[str, float]:
    """Seconds to the first token behind a prefix of 1,000 tokens, cold and when another has computed it."""
    cold, warm = [], []
    for number in range(3):
        prefix = words(1000 + number, 1000)
        cold.append(ttft(prefix + words(2000 + number, 24)))
        warm.append(ttft(prefix + words(3000 + number, 24)))
    return {"cold": statistics.median(cold), "warm": statistics.median(warm)}


def newcomer() -> dict[str, float]:
    """P99 of the silences of four running answers until a prompt of 2,000 tokens has its first, cut into
    chunks of 64 and whole."""
    global scheduler
    keep, silences = scheduler, {}
    for name, chunk in (("chunked", 64), ("whole", 2304)):
        scheduler = Scheduler(replace(config, max_chunk=chunk))
        for number in range(4):
            submit(words(5000 + number, 32), 120)
        for _ in range(20):
            step()
        newest = submit(words(6000, 2000), 4)
        last = dict.fromkeys(range(newest - 4, newest), time.perf_counter())
        seen: list[float] = []
        while newest not in last:
            _, served = step()
            now = time.perf_counter()
            seen += [now - last[request] for request in served if request in last]
            last |= dict.fromkeys(served, now)
        while scheduler.has_work:
            step()
        seen.sort()
        silences[name] = seen[int(0.99 * (len(seen) - 1))]
    scheduler = keep
    return silences


def kv_waste() -> dict[str, float]:
    """Share of the slots held by running requests that hold no token, on average over the steps."""
    shares = []
    for number in range(8):
        submit(words(7000 + number, 150 + 37 * number), 120)
    while scheduler.has_work:
        step()
        held = sum(len(s.table.blocks) for s in scheduler.planner.running) * config.block_size
        if held:
            shares.append(1 - sum(s.num_computed for s in scheduler.planner.running) / held)
    return {"share": statistics.mean(shares)}


def profile() -> dict[str, float]:
    """Milliseconds of a step of eight decodes, by where they go."""
    for number in range(8):
        submit(words(8000 + number, 40), 130)
    for _ in range(20):
        step()
    spent.clear()
    started = time.perf_counter()
    for _ in range(100):
        step()
    total = time.perf_counter() - started
    parts = {name: seconds * 10 for name, seconds in spent.items()} | {"whole step": total * 10}
    while scheduler.has_work:
        step()
    # Logits are asked for while drawing.
    return parts | {"draw": parts["draw"] - parts["logits"]}


def prefill_profile() -> dict[str, float]:
    """Milliseconds of a prompt of 1,200 tokens, by where they go."""
    parts = torch.zeros(len(native.PARTS), dtype=torch.float64)
    runner.decoder._model.spent = parts.data_ptr()  # type: ignore[attr-defined]
    ttft(words(9000, 1200))
    parts.zero_()
    spent.clear()
    total = sum(ttft(words(9001 + number, 1200)) for number in range(5))
    runner.decoder._model.spent = None  # type: ignore[attr-defined]
    inside = dict(zip(native.PARTS, parts.tolist(), strict=True))
    rest = {
        "embedding and tables": spent["layers"] - sum(inside.values()),
        "outside": total - spent["layers"],
    }
    return {name: seconds * 200 for name, seconds in (inside | rest | {"whole": total}).items()}


MEASURES = {
    "prefix": shared_prefix,
    "newcomer": newcomer,
    "waste": kv_waste,
    "profile": profile,
    "prefill": prefill_profile,
}

if __name__ == "__main__":
    serve(
        prompts=batch(generate),
        arrivals=arrivals(
            lambda prompt, max_tokens: submit(vocabulary.tokenize(prompt), max_tokens),
            lambda: step()[1],
            leave,
            lambda: scheduler.has_work,
        ),
        measure=lambda job: MEASURES[job["measure"]](),
    )
