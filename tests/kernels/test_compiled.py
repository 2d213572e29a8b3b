"""What the compiler makes of every kernel for sm_90: nothing spills, loads are wide, tensor cores are used,
and registers and shared memory are what they were (`compiled.txt`) for the Triton that `constraints.txt`
names."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.packaging.conftest import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no triton here"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="interpreted kernels have no code"),
]


def lines_of(text: str) -> dict[str, list[str]]:
    """The rows of the table, a list for each case."""
    rows: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines()[1:]:
        case, _, row = line.partition(": ")
        rows[case].append(row)
    return rows


@pytest.fixture(scope="module")
def compiled() -> str:
    """The table of today. In a process of its own, which another test's settings of triton cannot reach."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiled"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def number(row: str, name: str) -> int:
    found = re.search(rf"{name}=(\d+)", row)
    assert found is not None
    return int(found[1])


def test_nothing_spills_and_loads_are_wide(compiled: str) -> None:
    for case, rows in lines_of(compiled).items():
        for row in rows:
            # Two registers: ptxas puts some aside across a loop though it has others left.
            assert number(row, "stack") <= 8, (case, row)
            # Codes that become bf16 on their way are loaded 8 bytes at once, to lie as the tensor core wants.
            if not row.startswith(("verify", "grouped_matmul")):
                assert number(row, "loads128") > 0, (case, row)


def test_chunks_and_wide_products_use_the_tensor_cores_of_hopper(compiled: str) -> None:
    wgmma, mma = (
        {case: sum(number(row, name) for row in rows) for case, rows in lines_of(compiled).items()}
        for name in ("wgmma", " mma")
    )

    wide = [case for case in wgmma if case.startswith("chunk") or case.endswith("512 rows")]
    assert len(wide) > 8
    assert [case for case in wide if wgmma[case] == 0] == []
    assert [case for case in mma if case.startswith("decode") and mma[case] == 0] == []


def test_a_turned_v_is_never_read_by_the_byte(compiled: str) -> None:
    rows = {case: rows[0] for case, rows in lines_of(compiled).items()}

    for case in ("decode int8 turned g4 d128 page16", "decode fp8 turned g4 d128 page16"):
        assert number(rows[case], "loads8_16") == 0
    assert number(rows["decode int8 g4 d128 page16"], "loads8_16") > 0


def test_the_table_is_what_it_was(compiled: str) -> None:
    kept = (ROOT / "tests" / "kernels" / "compiled.txt").read_text()
    if kept.splitlines()[0] != compiled.splitlines()[0]:
        pytest.skip(f"the table is of {kept.splitlines()[0]}, this is {compiled.splitlines()[0]}")

    assert lines_of(compiled) == lines_of(kept), (
        "if it is meant: python -m tests.kernels.compiled > the table"
    )
