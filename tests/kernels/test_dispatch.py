"""Which form runs, and that a torch without triton is enough for the CPU forms."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from edgecloud.kernels import dispatch

# Every file is imported and a kernel runs where `import triton` fails.
WITHOUT_TRITON = """
import importlib, pkgutil, sys
sys.modules["triton"] = None
import torch
import edgecloud.kernels as kernels
names = [module.name for module in pkgutil.iter_modules(kernels.__path__)]
for name in names:
    importlib.import_module(f"edgecloud.kernels.{name}")
x, norm = torch.randn(2, 64), kernels.rms_norm
assert torch.equal(norm.rms_norm(x, torch.ones(64), 1e-5), norm.rms_norm_cpu(x, torch.ones(64), 1e-5))
print(len(names), sorted(name for name in sys.modules if name.startswith("triton")))
"""


def test_everything_imports_and_runs_where_there_is_no_triton() -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    number, loaded = result.stdout.split(maxsplit=1)
    assert int(number) > 15
    assert loaded.strip() == "['triton']"


def test_a_gpu_without_triton_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "triton", None)
    on_gpu = SimpleNamespace(is_cuda=True)

    with pytest.raises(RuntimeError, match="pip install triton"):
        dispatch.on_triton(on_gpu)  # type: ignore[arg-type]


def test_cpu_tensors_take_the_cpu_form() -> None:
    assert not dispatch.on_triton(torch.zeros(1))


@pytest.mark.parametrize(("n", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_tiles_are_powers_of_two(n: int, power: int) -> None:
    assert dispatch.next_power_of_2(n) == power
