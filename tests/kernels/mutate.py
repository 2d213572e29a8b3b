"""Runs the tests of the kernels against one mutant after another: `python -m tests.kernels.mutate [part of
a name]`.

Each mutant is a copy of `kernels/` with one change, imported under our name in a fork of this process,
which has loaded torch and triton already. Prints what killed each; the exit code says whether any survived.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import importlib.util
import shutil
import sys
import tempfile
import types
from pathlib import Path

import hypothesis  # noqa: F401
import pytest
import torch
import triton.language  # noqa: F401

from .mutants import MUTANTS, TESTS

ROOT = Path(__file__).parents[2]
WORKERS = 2


def import_from(folder: Path) -> None:
    """Make `edgecloud.kernels` the package in `folder`."""
    spec = importlib.util.spec_from_file_location(
        "edgecloud.kernels", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package: types.ModuleType = importlib.util.module_from_spec(spec)
    sys.modules["edgecloud.kernels"] = package
    spec.loader.exec_module(package)


def run_mutant(name: str, log: Path) -> int:
    """In a fork: the exit code of pytest, 0 if the mutant survived."""
    file, old, new = MUTANTS[name]
    source = (ROOT / "kernels" / file).read_text()
    if old not in source:
        log.write_text(f"E   {old!r} is not in {file}: mend the mutant")
        return 9
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "kernels"
        shutil.copytree(ROOT / "kernels", copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / file).write_text(source.replace(old, new))
        import_from(copy)
        with log.open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        paths = [f"{ROOT}/tests/kernels/test_{each}.py" for each in TESTS[file]]
        # Slow ones too, but for the large matrix.
        options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "-m", "", "-k", "not every_shape"]
        return int(pytest.main([*options, *paths]))


def reason(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("E  ")]
    return lines[-1][1:].strip()[:90] if lines else ""


def main(parts: list[str]) -> int:
    torch.set_num_threads(1)
    names = [name for name in MUTANTS if not parts or any(part in name for part in parts)]
    waiting, running, survivors = list(names), {}, []
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < WORKERS:
                name = waiting.pop(0)
                log = Path(folder) / f"{len(waiting)}.log"
                if (child := os.fork()) == 0:
                    code = 8
                    try:
                        code = run_mutant(name, log)
                    finally:
                        os._exit(code)
                running[child] = (name, log)
            child, status = os.wait()
            name, log = running.pop(child)
            code = os.waitstatus_to_exitcode(status)
            # pytest's 1: tests failed. A crash of the interpreter is a death too.
            is_dead = code == 1 or code < 0
            print("killed  " if is_dead else f"SURVIVED ({code})", name, "|", reason(log), flush=True)
            if not is_dead:
                survivors.append(name)
    print(f"{len(names) - len(survivors)} of {len(names)} killed")
    return len(survivors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
