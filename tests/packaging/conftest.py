"""One wheel a session, built from a copy of the working tree and unpacked far from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOT_SHIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "build", "dist", "*.egg-info")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def rooms(pyproject: dict[str, Any]) -> dict[str, Path]:
    """Package name to folder: `edgecloud.router` is `router/`."""
    mapping: dict[str, str] = pyproject["tool"]["setuptools"]["package-dir"]
    return {package: ROOT / folder for package, folder in mapping.items()}


@pytest.fixture(scope="session")
def source_copy(tmp_path_factory: pytest.TempPathFactory, rooms: dict[str, Path]) -> Path:
    """What a build needs, without `build/`: setuptools ships whatever an earlier build left there."""
    copy = tmp_path_factory.mktemp("source")
    for folder in rooms.values():
        shutil.copytree(folder, copy / folder.name, ignore=NOT_SHIPPED)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy)
    return copy


def build_wheel(source: Path, into: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(into), str(source)],
        check=True,
        capture_output=True,
        text=True,
    )
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheel(source_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source_copy, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the wheel's content as a site-packages would."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing of the project in or above it."""
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture
def run_on_wheel(unpacked: Path, elsewhere: Path, tmp_path: Path) -> Run:
    """Run a Python command line against the unpacked wheel, from another folder, in an empty home."""

    (tmp_path / "config.toml").touch()

    def run(*arguments: str, path: Path = unpacked, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=elsewhere,
            env={
                **os.environ,
                "PYTHONPATH": str(path),
                "MYPYPATH": str(path),
                "EDGECLOUD_HOME": str(tmp_path / "home"),
                "EDGECLOUD_CONFIG": str(tmp_path / "config.toml"),
                "EDGECLOUD_RUNTIME": str(tmp_path / "runtime"),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run
