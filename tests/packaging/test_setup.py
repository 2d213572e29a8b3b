"""`.ci/setup`: what it tells while pip works."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PYTHON = """#!/bin/sh
[ "$1" = -m ] || exit 0
echo "$@" >asked
printf 'Collecting torch\\n  Downloading torch.whl (900.0 MB)\\n'
printf '     \\342\\224\\201%.0s' $(seq 60)
printf '\\r  Building wheel for caf\\303\\251-python (pyproject.toml): started\\n\\n'
touch printed
until [ -e told ]; do :; done
"""
# A second passes at once; the installation ends once a line about it was told.
SLEEP = """#!/bin/sh
until [ -e printed ]; do :; done
echo >>slept
[ "$(wc -l <slept)" -lt 16 ] || touch told
"""


def test_what_pip_does_is_told_in_plain_words(tmp_path: Path) -> None:
    for name, script in ((".venv/bin/python", PYTHON), ("bin/sleep", SLEEP)):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".ci").mkdir()
    shutil.copy(Path(__file__).parents[2] / ".ci/setup", tmp_path / ".ci/setup")

    done = subprocess.run(
        [tmp_path / ".ci/setup", "starter"],
        capture_output=True,
        env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, b"")
    told, installed = done.stdout.decode("ascii").splitlines()
    assert told.split(": ", 1)[1] == "Building wheel for caf-python: started"
    assert installed.startswith("Installed in ")
    assert "--progress-bar off" in (tmp_path / "asked").read_text()
