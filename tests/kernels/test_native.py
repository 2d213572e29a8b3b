"""The C form: a multiplication is what its formula says, on any processor, and no row sees another."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest
import torch

from edgecloud.kernels import native

N, K, EPS = 37, 100, 1e-5

pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing of it is Triton's"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]


@pytest.fixture(
    scope="module", params=["-march=native", pytest.param("-march=x86-64", marks=pytest.mark.slow)]
)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """For this processor, and for one without wide vectors, where the compiler has to make do."""
    if request.param == "-march=x86-64" and os.uname().machine != "x86_64":
        pytest.skip("another architecture")
    with pytest.MonkeyPatch.context() as patch:
        flags = tuple(request.param if flag == "-march=native" else flag for flag in native._FLAGS)
        patch.setattr(native, "_FLAGS", flags)
        return native.load_library(tmp_path_factory.mktemp("native"))


def project(
    library: ctypes.CDLL, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, threads: int = 1
) -> torch.Tensor:
    """norm(x) times a weight, int8 `[n, k]` with scales of 1 / 100 or float32."""
    rows, k = x.shape
    n = len(weight)
    norm = torch.linspace(0.5, 1.5, k)
    padded = torch.nn.functional.pad(bias, (0, -n % native.LANES))
    scale = sums = None
    if weight.dtype == torch.int8:
        scale = torch.full((len(padded),), 0.01)
        packed, sums = native.pack_codes(weight), native.group_sums(weight)
    else:
        packed = native.pack_floats(weight)
    linear = native.linear(packed, n, k, padded, scale, sums)
    model = native.Model(hidden=k, threads=threads, eps=EPS)
    inputs, codes = torch.empty(rows, k), torch.empty(rows, k + 3, dtype=torch.uint8)
    scales = torch.empty(rows, k // native.GROUP + 1)
    step = native.Step(rows=rows)
    step.input, step.codes, step.code_scale = inputs.data_ptr(), codes.data_ptr(), scales.data_ptr()
    out = torch.full((rows, n), torch.nan)
    library.project(model, norm.data_ptr(), linear, step, x.data_ptr(), out.data_ptr())
    return out


def normed(x: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(1, keepdim=True) + EPS).sqrt() * torch.linspace(0.5, 1.5, x.shape[1])


def grouped(x: torch.Tensor) -> torch.Tensor:
    """Rounded to 127 steps of the largest of each 64."""
    parts = []
    for start in range(0, x.shape[1], 64):
        part = x[:, start : start + 64]
        scale = part.abs().amax(1, keepdim=True) / 127
        parts.append((part / scale).round() * scale)
    return torch.cat(parts, 1)


@pytest.mark.parametrize(("n", "k"), [(N, K), (16, 64), (130, 256), (5, 7)])
def test_codes_multiply_as_the_formula_says(library: ctypes.CDLL, n: int, k: int) -> None:
    x, bias = torch.randn(9, k) * 3, torch.randn(n)
    x[:, 3] *= 40  # one channel far above the rest
    weight = torch.randint(-127, 128, (n, k), dtype=torch.int8)
    expected = grouped(normed(x)) @ (weight.double() * 0.01).T + bias
    ours = project(library, x, weight, bias)
    error = (ours - expected).norm(dim=1) / expected.norm(dim=1)
    # A value between two steps may be rounded either way; that is all.
    assert error.max() < 2e-3
    assert error.median() < 1e-5


def test_floats_multiply_as_the_formula_says(library: ctypes.CDLL) -> None:
    x, bias, weight = torch.randn(9, K), torch.randn(N), torch.randn(N, K)
    expected = normed(x) @ weight.double().T + bias
    torch.testing.assert_close(project(library, x, weight, bias), expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["codes", "floats"])
def test_a_row_has_the_same_bits_in_any_batch_and_team(library: ctypes.CDLL, kind: str) -> None:
    x, bias, weight = torch.randn(23, K), torch.randn(N), torch.randn(N, K)
    if kind == "codes":
        weight = (weight * 40).clamp(-127, 127).to(torch.int8)
    together = project(library, x, weight, bias, threads=3)
    for count in (1, 2, 3, 5, 8, 13):
        assert torch.equal(project(library, x[:count], weight, bias), together[:count])
    assert torch.equal(project(library, x[7:8], weight, bias), together[7:8])


def test_what_is_no_number_shows_in_its_own_row_only(library: ctypes.CDLL) -> None:
    x, weight = torch.randn(3, K), torch.randint(-127, 128, (N, K), dtype=torch.int8)
    x[1, 5] = torch.nan
    out = project(library, x, weight, torch.zeros(N))
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(native.NativeUnavailable, match="no C compiler"):
        native.load_library(tmp_path)


@pytest.mark.parametrize(
    ("script", "said"), [("echo 'it broke' >&2\nexit 1", "it broke"), ("kill -9 $$", "it ended with -9")]
)
def test_a_compiler_that_fails_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text(f"#!/bin/sh\n{script}\n")
    broken.chmod(0o700)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(native.NativeUnavailable, match=said):
        native.load_library(tmp_path / "made")
    assert list((tmp_path / "made").iterdir()) == []


def test_a_folder_that_nothing_can_be_kept_in_is_told(tmp_path: Path) -> None:
    (tmp_path / "made").write_text("no folder")
    with pytest.raises(native.NativeUnavailable, match="can't be kept"):
        native.load_library(tmp_path / "made")
