"""The script for a GPU machine runs as far as it can on one without, from a wheel that nobody installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.packaging.conftest import ROOT, pyproject, rooms, source_copy, wheel  # noqa: F401

pytestmark = pytest.mark.slow


def run_on_gpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "bench" / "gpu.sh", *arguments],
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_it_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")

    result = run_on_gpu()

    assert (result.returncode, result.stdout) == (2, "")
    assert "torch sees no CUDA GPU here" in result.stderr


def test_from_a_checkout_the_kernels_asked_for_are_checked() -> None:
    result = run_on_gpu("--dry-run", "--only", "merge")

    assert result.returncode == 0, result.stdout + result.stderr
    assert "merge 64 x 16 parts" in result.stdout


def test_from_a_wheel_every_case_is_right_and_the_engine_answers(wheel: Path) -> None:  # noqa: F811
    result = run_on_gpu(str(wheel), "--dry-run")

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(" ok\n") > 30
    assert "float32: ok\n4-bit: ok\n" in result.stdout
