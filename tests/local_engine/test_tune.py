"""Tuning: what is measured, what is kept, and that nothing half done stays."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest

from edgecloud import gguf
from edgecloud.errors import BadRequest, ModelLoadError, StorageError
from edgecloud.local_engine import measure, tune
from edgecloud.local_engine.measure import Divergence, Probe, Speed, divergence
from edgecloud.models import ModelFile, resolve, tuned_dir
from edgecloud.settings import Settings
from tests.ground.gguf_files import write_bert, write_gguf


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class ScriptedProbe:
    """Stands in for a loaded model: its speed is looked up by its file's name."""

    speeds: ClassVar[dict[str, Speed]] = {}
    order: ClassVar[list[str]] = []
    open: ClassVar[set[str]] = set()

    def __init__(self, path: Path, *, threads: int, gpu_layers: int) -> None:
        self.name = path.stem
        self.open.add(self.name)

    def round(self) -> Speed:
        self.order.append(self.name)
        return self.speeds[self.name]

    def close(self) -> None:
        self.open.discard(self.name)


@pytest.fixture
def model(home: Path) -> ModelFile:
    path = write_gguf(home / "models/original.gguf", general__file_type=3)
    return resolve(str(path), Settings())


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, Divergence]:
    """A machine of known speed; candidates are small files, their distances the returned dictionary."""
    distances = {"Q8_0": Divergence(0.006, 0.97), "Q4_0": Divergence(0.24, 0.78)}
    ScriptedProbe.speeds = {
        "original": Speed(256, 107, 192),
        "Q8_0": Speed(480, 89, 246),
        "Q4_0": Speed(612, 136, 359),
    }
    ScriptedProbe.order = []
    ScriptedProbe.open = set()

    def quantize(source: Path, target: Path, ftype: str, *, threads: int) -> None:
        write_gguf(target, seed=len(ftype))

    monkeypatch.setattr(tune, "Probe", ScriptedProbe)
    monkeypatch.setattr(tune, "quantize", quantize)
    monkeypatch.setattr(tune, "divergence", lambda original, candidate: distances[candidate.name])
    return distances


def run(model: ModelFile, candidates: Sequence[str] = ("Q8_0", "Q4_0"), **options: Any) -> tune.Tuning:
    return tune.tune(model, Settings(), candidates=candidates, rounds=2, **options)


def tuned_files(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "tuned").rglob("*") if path.is_file())


# --------------------------------------------------------------------------------------------------- choosing


def test_the_fastest_within_the_bound_is_kept_and_used(
    model: ModelFile, bench: dict[str, Divergence], home: Path
) -> None:
    tuning = run(model)

    assert tuning.kept == "Q8_0"
    assert [(row.quant, row.verdict) for row in tuning.rows] == [
        ("Q4_1", "original"),
        ("Q8_0", "kept"),
        ("Q4_0", "too far from the original (bound 0.02)"),
    ]
    assert tuned_files(home) == ["Q8_0.gguf", "tune.json"]
    used = resolve("original", Settings())
    assert (used.variant, used.path.parent) == ("tuned:Q8_0", tuned_dir(model.path))
    kept = tune.read_report(used.path)
    assert kept == tuning.rows[1]


def test_speed_alone_chooses_when_the_bound_allows_it(model: ModelFile, bench: dict[str, Divergence]) -> None:
    tuning = run(model, kl_bound=0.5)

    assert tuning.kept == "Q4_0"
    assert tuning.rows[1].verdict == "not as good as the one kept"


@pytest.mark.parametrize("order", [("Q8_0", "Q4_0"), ("Q4_0", "Q8_0")])
def test_of_two_that_are_equally_fast_the_nearer_one_is_kept(
    order: tuple[str, ...], model: ModelFile, bench: dict[str, Divergence], home: Path
) -> None:
    ScriptedProbe.speeds["Q4_0"] = Speed(500, 90, 250)

    assert run(model, order, kl_bound=0.5).kept == "Q8_0"
    assert tuned_files(home) == ["Q8_0.gguf", "tune.json"]


def test_without_a_real_gain_the_original_stays(
    model: ModelFile, bench: dict[str, Divergence], home: Path
) -> None:
    run(model)
    ScriptedProbe.speeds["Q8_0"] = Speed(258, 108, 195)

    tuning = run(model)

    assert tuning.kept is None
    assert [row.verdict for row in tuning.rows][:2] == ["kept", "no faster"]
    assert tuned_files(home) == []
    assert resolve("original", Settings()).variant == ""


def test_a_distance_that_is_no_number_is_too_far(model: ModelFile, bench: dict[str, Divergence]) -> None:
    bench["Q8_0"] = Divergence(float("nan"), 0.0)

    assert run(model).kept is None


def test_files_are_measured_in_turns_two_at_a_time(model: ModelFile, bench: dict[str, Divergence]) -> None:
    run(model)

    turns = ["original", "Q8_0", "original", "Q8_0", "original", "Q8_0", "Q4_0", "original", "Q4_0"]
    assert ScriptedProbe.order == [*turns, "original", "Q4_0"]
    assert ScriptedProbe.open == set()


def test_the_gain_is_that_of_a_whole_turn(model: ModelFile, bench: dict[str, Divergence]) -> None:
    before, after = tune.turn_seconds(Speed(256, 107, 192)), tune.turn_seconds(Speed(480, 89, 246))

    assert run(model).rows[1].gain == pytest.approx(before / after)
    assert before == pytest.approx(200 / 256 + 100 / 107 + 200 / 192)


class Weather(ScriptedProbe):
    """A machine where other work slows down whole rounds, or single ones of a candidate."""

    slower: ClassVar[list[float]] = []

    def round(self) -> Speed:
        speed = super().round()
        factor = self.slower.pop(0) if self.slower else 1.0
        return Speed(*(each / factor for each in speed))


def test_work_that_falls_on_both_changes_nothing(
    model: ModelFile, bench: dict[str, Divergence], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "Probe", Weather)
    Weather.slower = [1, 1, 4, 4, 2, 2]
    row = run(model, ["Q8_0"]).rows[1]
    before, after = tune.turn_seconds(Speed(256, 107, 192)), tune.turn_seconds(Speed(480, 89, 246))
    assert row.gain == pytest.approx(before / after)
    assert row.verdict == "kept"


def test_rounds_that_disagree_are_repeated_and_what_is_not_sure_is_not_kept(
    model: ModelFile, bench: dict[str, Divergence], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "Probe", Weather)
    # Warming up, then every other round of the candidate is four times slower.
    Weather.slower = [1, 1, *[1, 1, 1, 4] * 20]
    said: list[str] = []
    tuning = run(model, ["Q8_0"], say=said.append)
    assert ScriptedProbe.order.count("Q8_0") == 1 + 2 * tune.MOST_ROUNDS
    assert tuning.kept is None
    assert tuning.rows[1].verdict in ("no faster", "not surely faster")
    assert any("tune again when the machine is quiet" in line for line in said)


def test_the_columns_and_the_gain_agree(
    model: ModelFile, bench: dict[str, Divergence], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "Probe", Weather)
    # All of the second candidate's rounds are in worse weather.
    Weather.slower = [1] * 6 + [5] * 5
    first, *rows = run(model).rows
    for row in rows:
        gain = tune.turn_seconds(first.speed) / tune.turn_seconds(row.speed)
        assert row.gain == pytest.approx(gain)
    assert rows[0].speed.prefill / first.speed.prefill == pytest.approx(480 / 256)


def test_the_type_that_the_model_has_is_not_tried(model: ModelFile, bench: dict[str, Divergence]) -> None:
    assert [row.quant for row in run(model, ["q4_1", "q8_0", "Q8_0"]).rows] == ["Q4_1", "Q8_0"]
    with pytest.raises(BadRequest, match="no other candidate"):
        run(model, ["Q4_1"])


def test_undo_takes_the_copy_back(model: ModelFile, bench: dict[str, Divergence], home: Path) -> None:
    run(model)

    assert tune.undo(model)
    assert not tune.undo(model)
    assert tuned_files(home) == []
    assert resolve("original", Settings()).variant == ""


# --------------------------------------------------------------------------------------------------- failures


def test_what_cannot_be_tuned_is_refused(model: ModelFile, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="only chat models"):
        run(resolve(str(write_bert(tmp_path / "bert.gguf")), Settings()))
    with pytest.raises(BadRequest, match="Q99 is not a candidate"):
        run(model, ["Q99"])


def test_a_candidate_that_cannot_be_made_is_passed_over(
    model: ModelFile, bench: dict[str, Divergence], monkeypatch: pytest.MonkeyPatch
) -> None:
    def quantize(source: Path, target: Path, ftype: str, *, threads: int) -> None:
        if ftype == "Q4_0":
            raise ModelLoadError("original.gguf can't be requantised to Q4_0: no.")
        write_gguf(target)

    monkeypatch.setattr(tune, "quantize", quantize)
    said: list[str] = []

    assert run(model, say=said.append).kept == "Q8_0"
    assert "original.gguf can't be requantised to Q4_0: no." in said
    with pytest.raises(ModelLoadError, match="stays as it is"):
        run(model, ["Q4_0"])


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interrupted_or_full_disk_leaves_what_was_there(
    failure: BaseException,
    model: ModelFile,
    bench: dict[str, Divergence],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(model)
    before = resolve("original", Settings())

    def fail(*_: object) -> Divergence:
        raise failure

    monkeypatch.setattr(tune, "divergence", fail)
    with pytest.raises(KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else StorageError):
        run(model)

    assert resolve("original", Settings()) == before
    assert tuned_files(home) == ["Q8_0.gguf", "tune.json"]
    assert ScriptedProbe.open == set()


def test_ctrl_c_is_not_lost_while_a_model_is_loaded(
    model: ModelFile, bench: dict[str, Divergence], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def load(path: Path, **_: object) -> None:
        # As ctypes does with what is raised in a call back.
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            over.wait(20)
        raise ModelLoadError("It loaded on as if nothing had been said.")

    monkeypatch.setattr(tune, "Probe", load)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(model)
    finally:
        over.set()


def test_a_half_written_candidate_is_never_measured(
    model: ModelFile, bench: dict[str, Divergence], monkeypatch: pytest.MonkeyPatch
) -> None:
    def quantize(source: Path, target: Path, ftype: str, *, threads: int) -> None:
        target.write_bytes(write_gguf(target).read_bytes()[:-100])

    monkeypatch.setattr(tune, "quantize", quantize)

    with pytest.raises(ModelLoadError):
        run(model)
    assert "Q8_0" not in ScriptedProbe.order


def test_what_a_killed_tuning_left_is_cleared(
    model: ModelFile, bench: dict[str, Divergence], home: Path
) -> None:
    dead = home / "tuned/.work-999999999"
    alive = home / f"tuned/.work-{os.getppid()}"
    for folder in (dead, alive):
        write_gguf(folder / "Q8_0.gguf")

    run(model)

    assert not dead.exists()
    assert alive.exists()


def test_room_on_disk_and_in_memory_is_checked_first(
    model: ModelFile, bench: dict[str, Divergence], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=100)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(StorageError, match="GB of disk"):
            run(model)
    memory = psutil.virtual_memory()._replace(available=100)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pytest.raises(ModelLoadError, match="GB of memory"):
        run(model)
    assert ScriptedProbe.order == []


def test_the_report_of_another_version_is_no_error(home: Path) -> None:
    copy = write_gguf(home / "tuned/x/Q8_0.gguf")
    for content in ("", "[]", json.dumps({"rows": [{"quant": "Q8_0", "what": 1}]})):
        copy.with_name("tune.json").write_text(content)
        assert tune.read_report(copy) is None


# ------------------------------------------------------------------------------------------------- real model


def test_divergence_is_zero_from_oneself_and_known_for_two_coins() -> None:
    even, uneven = np.log(np.array([0.5, 0.5], np.float32)), np.log(np.array([0.25, 0.75], np.float32))

    assert measure._kl(even, even + 3) == pytest.approx(0, abs=1e-7)
    assert measure._kl(even, uneven) == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3), abs=1e-6)


@pytest.mark.slow
@pytest.mark.model
def test_the_starter_is_near_its_q8_copy_and_far_from_its_q4_0_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less of everything than what people are told is measured on: the difference is as plain.
    for name, number in {
        "KL_TOKENS": 96,
        "PREFILL_TOKENS": 64,
        "ALONE_STEPS": 4,
        "TOGETHER_STEPS": 4,
    }.items():
        monkeypatch.setattr(measure, name, number)
    source = resolve("smollm2", Settings(), tuned=False).path
    original = Probe(source, threads=1)
    try:
        found = {}
        for name in ("Q8_0", "Q4_0"):
            tune.quantize(source, tmp_path / f"{name}.gguf", name)
            candidate = Probe(tmp_path / f"{name}.gguf", threads=1)
            found[name] = divergence(original, candidate)
            assert all(rate > 0 for rate in candidate.round())
            candidate.close()
    finally:
        original.close()

    assert 0 < found["Q8_0"].kl < tune.KL_BOUND < 0.1 < found["Q4_0"].kl
    assert found["Q8_0"].same_top > 0.9 > found["Q4_0"].same_top
    assert gguf.read_info(tmp_path / "Q8_0.gguf").file_type == "Q8_0"
