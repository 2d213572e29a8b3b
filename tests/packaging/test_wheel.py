"""The wheel holds every file of the rooms, nothing else, and works where the repository is not."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

from .conftest import NOT_SHIPPED, ROOT, Run, build_wheel


def shipped(wheel: Path) -> set[str]:
    names = zipfile.ZipFile(wheel).namelist()
    return {name for name in names if not name.split("/")[0].endswith(".dist-info")}


def files_of_rooms(rooms: dict[str, Path], tmp_path: Path) -> set[str]:
    """Every file of the working tree that must be in the wheel, under the name it has there."""
    expected = set()
    for package, folder in rooms.items():
        copy = shutil.copytree(folder, tmp_path / package, ignore=NOT_SHIPPED)
        inside = (path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file())
        expected |= {f"{package.replace('.', '/')}/{name}" for name in inside}
    return expected


def test_the_wheel_holds_every_file_of_the_rooms_and_no_other(
    wheel: Path, rooms: dict[str, Path], tmp_path: Path
) -> None:
    expected = files_of_rooms(rooms, tmp_path)

    missing = sorted(expected - shipped(wheel))
    assert missing == [], (
        "add the sub-package to `packages` or the data file to `package-data` in pyproject.toml"
    )
    assert sorted(shipped(wheel) - expected) == []


def test_the_wheel_puts_nothing_but_edgecloud_into_site_packages(wheel: Path) -> None:
    top_level = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}

    assert {name for name in top_level if not name.endswith(".dist-info")} == {"edgecloud"}


def test_the_wheel_carries_license_and_notice(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.rsplit("/", 1)[1] for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}


def test_every_top_level_package_is_mapped(rooms: dict[str, Path]) -> None:
    packages = {path.parent for path in ROOT.glob("*/__init__.py")} - {ROOT / "tests", ROOT / "bench"}

    assert packages == set(rooms.values())


def test_the_comparison_sees_a_missing_sub_package_and_a_stale_file(
    source_copy: Path, rooms: dict[str, Path], tmp_path: Path
) -> None:
    broken = shutil.copytree(source_copy, tmp_path / "broken")
    pyproject = broken / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('    "edgecloud.wire",\n', ""))
    stale = broken / "build" / "lib" / "edgecloud" / "deleted_long_ago.py"
    shutil.rmtree(broken / "build", ignore_errors=True)
    stale.parent.mkdir(parents=True)
    stale.touch()

    names = shipped(build_wheel(broken, tmp_path / "wheel"))
    expected = files_of_rooms(rooms, tmp_path / "rooms")

    assert "edgecloud/wire/__init__.py" in expected - names
    assert names - expected == {"edgecloud/deleted_long_ago.py"}


def test_the_laptop_install_has_no_torch_in_it(pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    laptop = [*project["dependencies"], *project["optional-dependencies"]["starter"]]

    assert [line for line in laptop if line.startswith(("torch", "triton"))] == []
    assert [line for line in project["optional-dependencies"]["pool"] if line.startswith("triton")] == []


def test_the_command_works_from_the_unpacked_wheel(run_on_wheel: Run, unpacked: Path) -> None:
    (entry_points,) = unpacked.glob("*.dist-info/entry_points.txt")
    assert "edgecloud = edgecloud.__main__:main" in entry_points.read_text()

    where = run_on_wheel(
        "-c", "import edgecloud, edgecloud.app.cli as cli; print(edgecloud.__file__, cli.__file__)"
    )
    version = run_on_wheel("-m", "edgecloud", "--version")

    assert where.stdout.split() == [
        str(unpacked / "edgecloud" / "__init__.py"),
        str(unpacked / "edgecloud" / "app" / "cli" / "__init__.py"),
    ]
    assert (version.returncode, version.stderr) == (0, "")
    assert "0.1.0" in version.stdout


def test_the_editable_install_resolves_rooms_to_their_folders(run_on_wheel: Run, elsewhere: Path) -> None:
    where = run_on_wheel(
        "-c", "import edgecloud.wire as w, edgecloud.pool as p; print(w.__file__, p.__file__)", path=elsewhere
    )

    assert where.stdout.split() == [
        str(ROOT / "edgecloud" / "wire" / "__init__.py"),
        str(ROOT / "pool" / "__init__.py"),
    ]
