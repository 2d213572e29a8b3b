"""Types are checked on what is shipped, where no folder of the repository can stand in for a missing file."""

from __future__ import annotations

import pytest

from .conftest import ROOT, Run


@pytest.mark.timeout(600)
def test_the_wheel_passes_mypy_strict(run_on_wheel: Run) -> None:
    report = run_on_wheel(
        "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir",
        str(ROOT / ".mypy_cache" / "wheel"), "-p", "edgecloud",
    )  # fmt: skip

    assert report.returncode == 0, report.stdout + report.stderr
