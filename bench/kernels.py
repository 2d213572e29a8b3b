"""The kernels on a GPU: right, repeatable, and how near the floor. `bench/gpu.sh` runs this.

For each kernel: its result at a small size against fp64; 50 runs at the large size, which must be equal bit
for bit; then the median time of replayed CUDA graphs, its share of the floor, and the peers' times. The
floor is max(bytes / bandwidth, flops / throughput) with both ceilings measured first, on this GPU: a large
copy, and a bf16 product of random 8192 x 8192 matrices. What would fit the L2 cache is run over several
copies of its inputs.

Cases run in a process beside this one (`guard.py`): one that crashes or hangs leaves the others their turn.

`--dry-run` needs no GPU: every case at its small size, by the CPU forms.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from guard import each
from kernel_cases import Call, Case, Work, cases

from edgecloud.kernels.dispatch import INTERPRETED

REPEATS = 50
LIMIT_S = 75.0
"""For one case: its kernel and its peers are compiled and run in a fraction of that."""
L2_BYTES = 200e6
"""More than any L2 there is: copies of the inputs are made until they are that large together."""


def row_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest |a - e| / |e| of a row; infinite if anything is NaN."""
    actual, expected = actual.double().cpu(), expected.double().cpu()
    if actual.dim() < 2:
        return 0.0 if torch.equal(actual, expected) else float("inf")
    norms = expected.norm(dim=-1).clamp_min(1e-30)
    return float(((actual - expected).norm(dim=-1) / norms).nan_to_num(float("inf")).max())


def tensors(result: object) -> Sequence[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)  # type: ignore[call-overload]


def error_of(case: Case, device: torch.device) -> float:
    work = case.make(device, True)
    assert work.reference is not None
    results = zip(tensors(work.run()), tensors(work.reference()), strict=True)
    return max(row_error(actual, expected) for actual, expected in results)


def repeats_differ(work: Work) -> int:
    """How many of 50 runs are not what the first was: a race."""
    first = [each.clone() for each in tensors(work.run())]
    return sum(
        any(not torch.equal(a, b) for a, b in zip(tensors(work.run()), first, strict=True))
        for _ in range(REPEATS)
    )


def microseconds(calls: Sequence[Call]) -> float:
    """Of one call: the median over replays of a graph that makes all of them once."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    for _ in range(3):
        graph.replay()
    taken = []
    began = time.perf_counter()
    while len(taken) < 5 or (len(taken) < REPEATS and time.perf_counter() - began < 0.5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) * 1e3 / len(calls))
    del kept
    return statistics.median(taken)


def ceilings() -> tuple[float, float]:
    """Bytes per second of a copy, flops per second of a bf16 product."""
    source, target = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    copied = 2 * source.numel() / microseconds([lambda: target.copy_(source)]) * 1e6
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return copied, 2 * 8192**3 / microseconds([lambda: a @ b]) * 1e6


def by_name(name: str) -> Case:
    torch.manual_seed(0)
    return next(case for case in cases() if case.name == name)


def ceilings_of(_: str) -> tuple[str, float, float]:
    return (torch.cuda.get_device_name(), *ceilings())


def error_here(name: str) -> float:
    return error_of(by_name(name), torch.device("cpu"))


def measure(name: str, bandwidth: float, throughput: float) -> dict[str, object]:
    case = by_name(name)
    measured = {"error": error_of(case, torch.device("cuda")), **time_case(case, bandwidth, throughput)}
    gc.collect()
    torch.cuda.empty_cache()
    return measured


def time_case(case: Case, bandwidth: float, throughput: float) -> dict[str, object]:
    device = torch.device("cuda")
    works = [case.make(device, False)]
    differing = repeats_differ(works[0])
    while len(works) < 16 and len(works) * works[0].moved < L2_BYTES:
        works.append(case.make(device, False))
    taken = microseconds([work.run for work in works])
    floor = max(works[0].moved / bandwidth, works[0].flops / throughput) * 1e6
    peers: dict[str, object] = {}
    for name in works[0].peers:
        try:
            peers[name] = microseconds([work.peers[name] for work in works])
        except Exception as problem:  # A peer that this torch or GPU lacks is no failure of ours.
            peers[name] = f"{type(problem).__name__}: {str(problem).splitlines()[0][:60]}"
    return {"us": taken, "floor_us": floor, "differing": differing, "peers": peers}


def print_case(name: str, timed: dict[str, object]) -> None:
    error, taken, floor = (float(str(timed[part])) for part in ("error", "us", "floor_us"))
    line = (
        f"{name:<34} {error:>8.1e} {timed['differing']:>4} {taken:>9.1f} {floor:>9.1f} {floor / taken:>6.0%}"
    )
    for peer, other in dict(timed["peers"]).items():  # type: ignore[call-overload]
        line += f"   {peer} " + (f"{other:.1f} ({other / taken:.2f}x)" if isinstance(other, float) else other)
    print(line, flush=True)


def dry_run(chosen: Sequence[Case]) -> int:
    print("No GPU, no times: the CPU forms, at small sizes.")
    failed = 0
    tolerances = {case.name: case.tolerance for case in chosen}
    for name, error, why in each(list(tolerances), error_here, limit_s=LIMIT_S):
        is_right = not why and error <= tolerances[name]
        failed += not is_right
        print(f"{name:<34} " + (why or f"{error:>8.1e} {'ok' if is_right else 'WRONG'}"), flush=True)
    return int(failed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--minutes", type=float, default=7.0, help="no case is begun after that")
    parser.add_argument("--json", type=Path, help="write the numbers to this file too")
    parser.add_argument("--dry-run", action="store_true", help="check the small sizes here, without a GPU")
    args = parser.parse_args()
    chosen = [case for case in cases() if args.only in case.name]
    if not chosen:
        parser.error(f"no case has {args.only!r} in its name")
    if INTERPRETED:
        # The tests mend it, and are the place for that.
        parser.error("Triton's interpreter multiplies bf16 wrongly: unset TRITON_INTERPRET")
    if args.dry_run:
        return dry_run(chosen)
    if not torch.cuda.is_available():
        print(
            "torch sees no CUDA GPU here: run bench/gpu.sh on a machine that has one, or use --dry-run.",
            file=sys.stderr,
        )
        return 2
    until = time.monotonic() + 60 * args.minutes
    [(_, found, why)] = each(["ceilings"], ceilings_of, limit_s=LIMIT_S)
    if why:
        print(f"The GPU can't copy 1 GiB or multiply: {why}", file=sys.stderr)
        return 1
    device, bandwidth, throughput = found
    print(f"{device}, torch {torch.__version__}: copies {bandwidth / 1e12:.2f} TB/s, "
          f"bf16 products {throughput / 1e12:.0f} TFLOP/s")  # fmt: skip
    print(
        f"{'kernel':<34} {'error':>8} {'diff':>4} {'us':>9} {'floor':>9} {'share':>6}   peers (time / ours)"
    )
    failed, numbers = 0, {}
    tolerances = {case.name: case.tolerance for case in chosen}
    task = partial(measure, bandwidth=bandwidth, throughput=throughput)
    for name, timed, why in each(list(tolerances), task, limit_s=LIMIT_S, until=until):
        if why:
            failed += 1
            print(f"{name:<34} {why}", flush=True)
            continue
        failed += timed["error"] > tolerances[name] or bool(timed["differing"])
        print_case(name, timed)
        numbers[name] = timed
        if args.json:
            args.json.write_text(json.dumps(numbers, indent=1))
    print(
        "all right, and the same each time"
        if not failed
        else f"{failed} wrong, unsteady, failed or not begun"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
