"""The first command of the README, as a stranger runs it. Downloads; compiles where no wheel is cached."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    return tmp_path / "clone"


def run(clone: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EDGECLOUD_")}
    home = {"EDGECLOUD_HOME": str(clone / "home"), "EDGECLOUD_RUNTIME": str(clone / "run")}
    return subprocess.run(
        command,
        cwd=clone,
        env={**inherited, **home, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_one_command_sets_up_and_answers_and_the_second_time_only_answers(clone: Path) -> None:
    first = run(clone, "make", "ask", Q="""Say "it's $5" to me.""")
    second = run(clone, "make", "ask")

    assert first.returncode == 0, first.stdout + first.stderr
    setup, _, answer = first.stdout.partition("Installed in ")
    assert "llama-cpp-python is compiled" in setup
    assert len(answer.splitlines()) > 1
    assert second.returncode == 0, second.stderr
    assert second.stdout.strip()
    assert "nstall" not in second.stdout


@pytest.mark.parametrize("variable", ["CC", "CXX"])
def test_without_a_compiler_it_names_the_package_before_it_downloads(clone: Path, variable: str) -> None:
    stopped = run(clone, "make", "ask", **{variable: "no-such-compiler"})

    assert stopped.returncode != 0
    assert "build-essential" in stopped.stderr
    assert "xcode-select --install" in stopped.stderr
    assert not (clone / ".venv" / "install.log").exists()


def test_with_an_old_python_only_it_says_which_one_is_needed(clone: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("dirname", "sh", "make"):
        found = subprocess.run(["sh", "-c", f"command -v {name}"], capture_output=True, text=True, check=True)
        (tools / name).symlink_to(found.stdout.strip())
    old = tools / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)

    stopped = run(clone, "make", "ask", PATH=str(tools))

    assert stopped.returncode != 0
    assert "Python 3.11 or newer" in stopped.stderr
