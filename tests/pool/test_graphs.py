"""Decode graphs: which sizes there are, which steps they take, and that a replay computes the step."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from edgecloud.pool.models.graphs import sizes_up_to
from tests.packaging.conftest import ROOT


def test_the_sizes_reach_every_batch_and_waste_little() -> None:
    assert sizes_up_to(1) == [1]
    assert sizes_up_to(3) == [1, 2, 3]
    assert sizes_up_to(20) == [1, 2, 4, 8, 16, 24]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no triton here")
def test_a_replay_gives_what_a_plain_step_gives() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.pool.interpreted_graphs"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.strip() == "same", result.stderr[-3000:]
