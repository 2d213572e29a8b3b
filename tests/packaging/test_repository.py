"""A true map of the repository, and nothing in it that only the machine it was written on knows."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from .conftest import ROOT

ARCHITECTURE = ROOT / "docs" / "architecture.md"
# `path`: what it is for
LINE = re.compile(r"^- `(?P<path>[\w./]+\.py)`: \S", re.MULTILINE)
HEADING = re.compile(r"^#+ `(?P<folder>[\w./]+)/`", re.MULTILINE)


def sources(rooms: dict[str, Path]) -> list[Path]:
    return [path for folder in rooms.values() for path in folder.rglob("*.py")]


def first_sentence(source: Path) -> str:
    docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def test_the_architecture_page_has_one_line_for_every_file(rooms: dict[str, Path]) -> None:
    listed = LINE.findall(ARCHITECTURE.read_text())
    # A folder's heading speaks for its __init__.py.
    files = {path.relative_to(ROOT).as_posix() for path in sources(rooms) if path.name != "__init__.py"}

    missing = [f"- `{name}`: {first_sentence(ROOT / name)}" for name in sorted(files - set(listed))]
    assert missing == [], "add these lines to docs/architecture.md:\n" + "\n".join(missing)
    assert sorted(set(listed) - files) == [], "in docs/architecture.md, but gone"
    assert len(listed) == len(set(listed))


def test_the_architecture_page_has_a_heading_for_every_folder(rooms: dict[str, Path]) -> None:
    folders = {path.parent.relative_to(ROOT).as_posix() for path in sources(rooms)}

    assert set(HEADING.findall(ARCHITECTURE.read_text())) == folders | {"tests", "bench", "docs"}


def test_every_folder_of_tests_is_a_package() -> None:
    """Two `test_client.py` in folders that are not packages are one module to pytest."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}

    assert sorted(str(folder) for folder in folders if not (folder / "__init__.py").exists()) == []


def tracked_files() -> list[Path]:
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.decode().split("\0") if name]


# Split, so that this file does not find itself.
PRIVATE = re.compile(
    "|".join(
        [
            r"(?<![\w.])/wo" + r"rk/",
            r"(?<![\w./])/ro" + r"ot\b",
            r"\.lib" + r"rary/",
            r"sub" + r"agents?\b",
            r"pypi" + r"\.org",
            r"npm" + r"js\.",
            r"deb" + r"ian\.org",
        ]
    ),
    re.IGNORECASE,
)


def test_no_file_speaks_of_the_machine_it_was_written_on() -> None:
    found = []
    for path in tracked_files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        found += [
            f"{path.relative_to(ROOT)}:{at}" for at, line in enumerate(lines, 1) if PRIVATE.search(line)
        ]

    assert found == []
