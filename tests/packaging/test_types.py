"""Types are checked on what is shipped, where no folder of the repository can stand in for a missing file."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import ROOT, Run


@pytest.mark.timeout(600)
def test_the_wheel_passes_mypy_strict(run_on_wheel: Run, tmp_path: Path) -> None:
    # A cache from another unpacked wheel reports what was wrong with that one.
    cache = str(tmp_path / "cache")
    config = str(ROOT / "pyproject.toml")

    report = run_on_wheel(
        "-m", "mypy", "--strict", "--config-file", config, "--cache-dir", cache, "-p", "edgecloud"
    )

    assert report.returncode == 0, report.stdout + report.stderr
