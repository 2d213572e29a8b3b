"""The rules of the house hold on the unpacked wheel, and each of them can fail."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, Run

LINT = (
    "-c",
    "from importlinter.cli import lint_imports_command; lint_imports_command()",
    str(ROOT / ".importlinter"),
)

# One offence a contract: the module that commits it and the import that it must not have.
OFFENCES = {
    "Nothing imports app but the entry point": ("edgecloud.settings_planted", "edgecloud.app"),
    "Only app imports router": ("edgecloud.pool.planted", "edgecloud.router"),
    "Only app imports local_engine": ("edgecloud.router.planted", "edgecloud.local_engine"),
    "Only app imports pool": ("edgecloud.local_engine.planted", "edgecloud.pool"),
    "Only app and local_engine import cache": ("edgecloud.http.planted", "edgecloud.cache"),
    "Only app and pool import kernels": ("edgecloud.cache.planted", "edgecloud.kernels"),
    "No circles, at any depth": ("edgecloud.wire.planted", "edgecloud.http"),
    "Only local_engine/llama touches llama.cpp": ("edgecloud.local_engine.planted_llama", "llama_cpp"),
    "Only edgecloud/schemas.py touches llguidance": (
        "edgecloud.local_engine.planted_schemas",
        "llguidance",
    ),
    "torch and triton only under kernels and pool": ("edgecloud.planted_torch", "torch"),
    "The remote engine needs no torch, whatever it imports": ("edgecloud.pool.patience_planted", "triton"),
    "textual only under app/tui": ("edgecloud.app.cli.planted", "textual"),
    "FastAPI only where HTTP is served": ("edgecloud.app.planted", "fastapi"),
    "SQL only where tables live": ("edgecloud.app.planted_sql", "sqlite3"),
    "pydantic only in settings and where bodies are parsed": ("edgecloud.planted_pydantic", "pydantic"),
}


def module_file(root: Path, module: str) -> Path:
    return root / Path(*module.split(".")).with_suffix(".py")


def test_the_house_keeps_its_contracts(run_on_wheel: Run) -> None:
    report = run_on_wheel(*LINT, "--no-cache")

    assert report.returncode == 0, report.stdout + report.stderr


def test_every_contract_can_be_broken(run_on_wheel: Run, unpacked: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(unpacked, tmp_path / "copy")
    for importer, imported in OFFENCES.values():
        module_file(copy, importer).write_text(f"import {imported}\n")
    with module_file(copy, "edgecloud.pool.client").open("a") as client:
        client.write("import edgecloud.pool.patience_planted\n")
    module_file(copy, "edgecloud.http.planted_back").write_text("import edgecloud.wire\n")

    report = run_on_wheel(*LINT, "--no-cache", path=copy)

    kept = [name for name in OFFENCES if f"{name} BROKEN" not in report.stdout]
    assert report.returncode == 1
    assert kept == []
    assert " KEPT" not in report.stdout, "a contract without an offence in OFFENCES"
    links = [f"{importer} -> {imported}" for importer, imported in OFFENCES.values()]
    links[links.index("edgecloud.wire.planted -> edgecloud.http")] = ".wire -> .http"
    assert [link for link in links if link not in report.stdout] == []


def imported_roots(source: Path) -> set[str]:
    """First names of absolute imports, at any depth of the file; of relative ones, the dots."""
    roots = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add("." * node.level or (node.module or "").split(".")[0])
    return roots


def test_the_package_itself_imports_nothing(unpacked: Path) -> None:
    assert imported_roots(unpacked / "edgecloud" / "__init__.py") == set()


def test_kernels_import_only_torch_and_triton(unpacked: Path) -> None:
    foreign = {
        source.name: names
        for source in (unpacked / "edgecloud" / "kernels").rglob("*.py")
        if (names := imported_roots(source) - sys.stdlib_module_names - {"torch", "triton", "."})
    }

    assert foreign == {}


WATCH = """
import importlib.abc, sys

class Watch(importlib.abc.MetaPathFinder):
    seen = set()
    def find_spec(self, name, path=None, target=None):
        self.seen.add(name.split(".")[0])

sys.meta_path.insert(0, Watch())
"""


def test_neither_the_pool_package_nor_its_client_reaches_for_torch_at_import(run_on_wheel: Run) -> None:
    probe = run_on_wheel(
        "-c", WATCH + "import edgecloud.pool, edgecloud.pool.client; print(Watch.seen & {'torch', 'triton'})"
    )

    assert (probe.stdout, probe.stderr) == ("set()\n", "")


HEAVY = ("textual", "torch", "llama_cpp", "onnxruntime", "fastapi", "huggingface_hub")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["ask", "--help"]], ids=" ".join)
def test_nothing_heavy_is_imported_before_it_is_needed(run_on_wheel: Run, arguments: list[str]) -> None:
    probe = run_on_wheel(
        "-c",
        f"""
import sys
sys.argv = ["edgecloud", *{arguments!r}]
from edgecloud.__main__ import main
try:
    main()
finally:
    print("loaded:", *sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)
""",
    )

    assert (probe.returncode, probe.stderr) == (0, "loaded:\n")
    assert "edgecloud" in probe.stdout.lower()
