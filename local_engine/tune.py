"""Which quantisation of a model is fastest on this machine while it still answers like the original.

    original ──quantize──> candidate ──> KL against the original on one text
                                    └──> speed, in turns with the original (A B A B)

Each candidate is made, measured and thrown away unless it leads, so that only two models are ever in memory.
The winner is kept as `tuned/<fingerprint>/QUANT.gguf`, where `models.resolve` finds it; `undo` removes it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil

from edgecloud import gguf
from edgecloud.errors import BadRequest, ModelLoadError, StorageError
from edgecloud.folders import data_dir
from edgecloud.models import ModelFile, tuned_dir
from edgecloud.settings import Settings

from .llama import quantize
from .measure import Divergence, Probe, Speed, divergence
from .threads import choose_threads

CANDIDATES = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0")
KL_BOUND = 0.02
# Below this a lead is weather.
LEAST_GAIN = 1.05
ROUNDS = 5
# Rounds whose gains lie further apart, by quartiles, are repeated, up to so many times as many.
STEADY = 1.25
MOST_ROUNDS = 3
REPORT = "tune.json"

# Bits a weight of each type, scales included, rounded up: for space estimates only.
_BITS = {
    "Q8_0": 8.6,
    "Q6_K": 6.8,
    "Q5_K_M": 6.0,
    "Q5_K_S": 5.8,
    "Q4_K_M": 5.2,
    "Q4_K_S": 4.9,
    "Q4_0": 4.9,
    "Q4_1": 5.3,
}

Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of one file. `gain` is how many times faster than the original it serves a chat's
    turn; `verdict` says what became of it."""

    quant: str
    size: int
    speed: Speed
    divergence: Divergence
    gain: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Tuning:
    """A whole measurement: the first row is the original; `kept` is the winner, or None for the original."""

    rows: tuple[Row, ...]
    kept: str | None
    kl_bound: float
    threads: int
    threads_reason: str
    load: float


def turn_seconds(speed: Speed) -> float:
    """What all is weighed by: seconds of machine time for a chat's turn of 200 new prompt tokens (the rest is
    remembered) and 300 answered ones, a third of them drawn alone and two thirds in company of 8."""
    return 200 / speed.prefill + 100 / speed.alone + 200 / speed.together


def is_better(row: Row, than: Row) -> bool:
    """Faster, or nearer to the original where speed makes no real difference."""
    if max(row.gain, than.gain) < LEAST_GAIN * min(row.gain, than.gain):
        return row.divergence.kl < than.divergence.kl
    return row.gain > than.gain


def tune(
    model: ModelFile,
    settings: Settings,
    *,
    candidates: Sequence[str] = CANDIDATES,
    kl_bound: float = KL_BOUND,
    rounds: int = ROUNDS,
    say: Say = lambda line: None,
) -> Tuning:
    """Measure `model` (resolved with `tuned=False`) and candidates, and keep the fastest within the bound.

    `kl_bound` is in nats a token. Raises `BadRequest` for a model or candidate that can't be tuned,
    `StorageError` without room on the disk, `ModelLoadError` without room in memory. No half file stays.
    """
    if model.kind != "chat":
        raise BadRequest(f"{model.name} is an embedding model; only chat models are tuned.", param="model")
    names = [name.upper() for name in candidates]
    for name in names:
        if name not in _BITS:
            raise BadRequest(
                f"{name} is not a candidate: choose from {', '.join(_BITS)}.", param="candidates"
            )
    info = gguf.read_info(model.path)
    names = [name for name in dict.fromkeys(names) if name != info.file_type]
    _check_room(model, info, names)
    choice = choose_threads(settings.local.threads)
    workshop = data_dir() / "tuned" / f".work-{os.getpid()}"
    _clear_workshops(workshop.parent)
    try:
        workshop.mkdir(parents=True)
        say(f"{model.name}: {info.file_type}, {choice.count} threads ({choice.reason}), load {_load():.2f}")
        if _load() > choice.count / 2:
            say("The machine is busy with other work: what is measured now may not hold later.")
        bench = _Bench(model, info, workshop, choice.count, settings.local.gpu_layers, rounds, say)
        rows, winner = bench.run(names, kl_bound)
        tuning = Tuning(rows, winner.stem if winner else None, kl_bound, choice.count, choice.reason, _load())
        _keep(model, winner, tuning)
        return tuning
    except OSError as error:
        raise StorageError(f"The tuned copy can't be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def as_json(tuning: Tuning) -> dict[str, Any]:
    """The measurement as plain values; tuples by the names of their fields."""
    rows = [
        {**asdict(row), "speed": row.speed._asdict(), "divergence": row.divergence._asdict()}
        for row in tuning.rows
    ]
    return {**asdict(tuning), "rows": rows}


def read_report(copy: Path) -> Row | None:
    """What was measured of a tuned copy when it was kept; None if the report is gone or another version's."""
    try:
        rows = json.loads(copy.with_name(REPORT).read_text())["rows"]
        row = next(row for row in rows if row["quant"] == copy.stem)
        return Row(**{**row, "speed": Speed(**row["speed"]), "divergence": Divergence(**row["divergence"])})
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None


def undo(model: ModelFile) -> bool:
    """Forget the tuned copy of a model (resolved with `tuned=False`); whether there was one."""
    folder = tuned_dir(model.path)
    existed = any(folder.glob("*.gguf"))
    shutil.rmtree(folder, ignore_errors=True)
    return existed


class _Bench:
    """The original, loaded, and what is measured against it one after another."""

    def __init__(
        self,
        model: ModelFile,
        info: gguf.GgufInfo,
        workshop: Path,
        threads: int,
        gpu_layers: int,
        rounds: int,
        say: Say,
    ) -> None:
        self._path = model.path
        self._size = model.size
        self._quant = info.file_type
        self._workshop = workshop
        self._threads = threads
        self._gpu_layers = gpu_layers
        self._rounds = rounds
        self._say = say
        self._pairs: dict[str, list[tuple[Speed, Speed]]] = {}
        """Rounds of the original and each candidate, in turns."""

    def run(self, names: Sequence[str], kl_bound: float) -> tuple[tuple[Row, ...], Path | None]:
        original = self._probe(self._path)
        measured: list[Row] = []
        winner: tuple[Row, Path] | None = None
        try:
            for name in names:
                try:
                    path = self._quantized(name)
                    row = self._measured(name, path, original, kl_bound)
                except ModelLoadError as error:
                    self._say(error.message)
                    continue
                measured.append(row)
                if row.verdict == "" and (winner is None or is_better(row, winner[0])):
                    if winner is not None:
                        winner[1].unlink()
                    winner = (row, path)
                else:
                    path.unlink()
        finally:
            original.close()
        if not measured:
            raise ModelLoadError(
                f"{self._path.name} can't be requantised on this machine: it stays as it is."
            )
        kept = winner[1] if winner else None
        base = _median([before for pairs in self._pairs.values() for before, _ in pairs])
        first = Row(self._quant, self._size, base, Divergence(0.0, 1.0), 1.0, "original" if kept else "kept")
        rows = []
        for row in measured:
            speed, gain = _beside(base, self._pairs[row.quant])
            rows.append(replace(row, speed=speed, gain=gain, verdict=_verdict(row, kept)))
        return (first, *rows), kept

    def _quantized(self, name: str) -> Path:
        target = self._workshop / f"{name}.gguf"
        self._say(f"{name}: requantising")
        try:
            _aside(lambda: quantize(self._path, target, name, threads=self._threads))
        except ModelLoadError:
            if shutil.disk_usage(self._workshop).free < 1 << 20:
                raise StorageError("The disk is full: make room and tune again.") from None
            raise
        gguf.read_info(target)
        return target

    def _measured(self, name: str, path: Path, original: Probe, kl_bound: float) -> Row:
        self._say(f"{name}: measuring in turns with {self._quant}")
        candidate = self._probe(path)
        try:
            distance = divergence(original, candidate)
            pairs: list[tuple[Speed, Speed]] = []
            while len(pairs) < self._rounds or (_disagree(pairs) and len(pairs) < MOST_ROUNDS * self._rounds):
                pairs.append((original.round(), candidate.round()))
        finally:
            candidate.close()
        self._pairs[name] = pairs
        speed, gain = _beside(_median([before for before, _ in pairs]), pairs)
        low, _, high = _quartiles(pairs)
        if _disagree(pairs):
            self._say(
                f"{name}: between {low:.2f} and {high:.2f} times as fast, because other work is going on: "
                "tune again when the machine is quiet."
            )
        verdict = ""
        if not distance.kl <= kl_bound:  # NaN is no closeness either
            verdict = f"too far from the original (bound {kl_bound:g})"
        elif gain < LEAST_GAIN:
            verdict = "no faster"
        elif low < 1:
            verdict = "not surely faster"
        return Row(name, path.stat().st_size, speed, distance, gain, verdict)

    def _probe(self, path: Path) -> Probe:
        probe = _aside(lambda: Probe(path, threads=self._threads, gpu_layers=self._gpu_layers))
        probe.round()  # pages come in and buffers are made
        return probe


def _aside(work: Callable[[], T]) -> T:
    """Do it in a thread, so that Ctrl-C need not wait for llama.cpp, nor gets lost in one of its calls back,
    out of which nothing can be raised.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="tune", daemon=True).start()
    return done.result()


def _verdict(row: Row, kept: Path | None) -> str:
    if row.verdict:
        return row.verdict
    return "kept" if kept is not None and kept.stem == row.quant else "not as good as the one kept"


def _median(speeds: Sequence[Speed]) -> Speed:
    return Speed(*(statistics.median(column) for column in zip(*speeds, strict=True)))


def _beside(base: Speed, pairs: Sequence[tuple[Speed, Speed]]) -> tuple[Speed, float]:
    """The speed of a candidate where the original's is `base`, and the gain: what else the machine did in a
    round fell on both.
    """
    ratios = _median([Speed(*(b / a for a, b in zip(before, after, strict=True))) for before, after in pairs])
    speed = Speed(*(own * ratio for own, ratio in zip(base, ratios, strict=True)))
    return speed, turn_seconds(base) / turn_seconds(speed)


def _quartiles(pairs: Sequence[tuple[Speed, Speed]]) -> list[float]:
    """Of the gains of single rounds."""
    gains = [turn_seconds(before) / turn_seconds(after) for before, after in pairs]
    return statistics.quantiles(gains, n=4, method="inclusive") if len(gains) > 1 else 3 * gains


def _disagree(pairs: Sequence[tuple[Speed, Speed]]) -> bool:
    low, _, high = _quartiles(pairs)
    return high > STEADY * low


def _keep(model: ModelFile, winner: Path | None, tuning: Tuning) -> None:
    """Replace the tuned copy by the winner, whole or not at all; without a winner there is none any more."""
    folder = tuned_dir(model.path)
    if winner is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with winner.open("rb") as written:
        os.fsync(written.fileno())
    (folder / REPORT).write_text(json.dumps(as_json(tuning), indent=1))
    os.replace(winner, folder / winner.name)
    for other in folder.glob("*.gguf"):
        if other.name != winner.name:
            other.unlink()


def _check_room(model: ModelFile, info: gguf.GgufInfo, names: Sequence[str]) -> None:
    sizes = sorted((int(info.n_params * _BITS[name] / 8) for name in names), reverse=True)
    if not sizes:
        raise BadRequest(
            f"{model.name} is {info.file_type} already and there is no other candidate.", param="candidates"
        )
    (data_dir() / "tuned").mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(data_dir()).free
    if (needed := sum(sizes[:2])) > free:  # the one that leads and the one that is measured
        raise StorageError(f"Tuning needs {needed / 1e9:.2f} GB of disk and {free / 1e9:.2f} GB are free.")
    memory = psutil.virtual_memory().available
    if (needed := model.size + sizes[0]) > memory:
        raise ModelLoadError(
            f"Tuning needs {needed / 1e9:.2f} GB of memory and {memory / 1e9:.2f} GB are free."
        )


def _clear_workshops(folder: Path) -> None:
    """Remove what tunings that were killed left behind."""
    for left in folder.glob(".work-*"):
        pid = left.name.removeprefix(".work-")
        if not pid.isdigit() or int(pid) == os.getpid() or not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _load() -> float:
    return os.getloadavg()[0]
