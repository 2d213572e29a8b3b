"""The tests of the kernels notice every fault that is planted in them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.packaging.conftest import ROOT

from .mutants import MUTANTS


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no triton here")
def test_every_mutant_is_killed() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.kernels.mutate"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "SURVIVED" not in result.stdout, result.stdout
    assert f"{len(MUTANTS)} of {len(MUTANTS)} killed" in result.stdout, result.stdout + result.stderr[-2000:]
