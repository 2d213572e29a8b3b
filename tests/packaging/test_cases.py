"""The page of cases names tests that exist, and knows every test that says which case it holds."""

from __future__ import annotations

import re
from pathlib import Path

from .conftest import ROOT

PAGE = ROOT / "tests" / "CASES.md"
ROW = re.compile(r"^\| (T?[A-EPR]\d+) \|.*\| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
FUNCTION = re.compile(r"^\s*(?:async )?def (test_\w+)")
TAG = re.compile(r"# cases: (.+)$")


def rows() -> dict[str, str]:
    """What holds each case: tests, or the reason why none does."""
    found = ROW.findall(PAGE.read_text())
    assert len(dict(found)) == len(found) > 150
    return dict(found)


def functions_of(path: Path) -> set[str]:
    return {match[1] for line in path.read_text().splitlines() if (match := FUNCTION.match(line))}


def tagged(path: Path) -> set[tuple[str, str]]:
    """Pairs of case and test: a tag above a test speaks of it, one inside of the test that it is in."""
    pairs: set[tuple[str, str]] = set()
    waiting: set[str] = set()
    current = ""
    for line in path.read_text().splitlines():
        if match := FUNCTION.match(line):
            current = match[1]
            pairs |= {(case, current) for case in waiting}
            waiting = set()
        if match := TAG.search(line):
            cases = set(re.findall(r"\bT?[A-EPR]\d+", match[1]))
            if line.startswith("#"):
                waiting |= cases
            else:
                pairs |= {(case, current) for case in cases}
    return pairs


def test_every_test_that_the_page_names_exists() -> None:
    named = [(file, name) for held in rows().values() for file, name in NAMED.findall(held)]
    functions = {file: functions_of(ROOT / file) for file, _ in named if (ROOT / file).exists()}

    assert [f"{file}::{name}" for file, name in named if name not in functions.get(file, ())] == []


def test_every_case_is_held_by_a_test_or_says_why_not() -> None:
    silent = [case for case, held in rows().items() if not NAMED.search(held) and len(held.split()) < 3]

    assert silent == []


def test_the_page_knows_every_test_that_says_what_it_holds() -> None:
    held = rows()
    missing = [
        f"{case}: `{path.relative_to(ROOT).as_posix()}::{test}`"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for case, test in sorted(tagged(path))
        if f"`{path.relative_to(ROOT).as_posix()}::{test}`" not in held.get(case, "")
    ]

    assert missing == [], "add these to tests/CASES.md:\n" + "\n".join(missing)
