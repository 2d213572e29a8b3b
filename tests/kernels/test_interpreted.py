"""The tests of this folder again, with the Triton kernels in place of the CPU forms.

In a process of its own: triton reads `TRITON_INTERPRET` when it is imported.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.packaging.conftest import ROOT

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no triton here"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this is that process"),
]

FORMS = (
    "attention",
    "blocks",
    "kv_write",
    "linear",
    "merge",
    "norms_and_gates",
    "sampling",
    "strictness",
    "verify",
)


def run_interpreted(*options: str) -> None:
    files = [f"tests/kernels/test_{name}.py" for name in FORMS]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *files],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]


# cases: E80
@pytest.mark.slow
def test_the_kernels_pass_what_the_cpu_forms_pass() -> None:
    run_interpreted()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_kernels_pass_the_whole_matrix() -> None:
    run_interpreted("-m", "slow")
