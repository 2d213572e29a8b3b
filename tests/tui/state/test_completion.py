"""How the name of a file is completed after an `@`."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecloud.app.tui.state.completion import complete
from edgecloud.app.tui.state.ticks import round_amount, round_marks, short


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("notes.md", "notes.txt", "my long report.pdf", ".hidden", "src/main.py", "src/my file.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("before", "text", "names"),
    [
        ("@n", "@notes.", ("notes.md", "notes.txt")),
        ("see @notes.m", "@notes.md ", ()),
        ("@s", "@src/", ()),
        ("@src/ma", "@src/main.py ", ()),
        ("@my", '@"my long report.pdf" ', ()),
        ('@"my long', '@"my long report.pdf" ', ()),
        ("@src/my", '@"src/my file.py" ', ()),
        ("@~/notes.t", "@~/notes.txt ", ()),
        ("@.h", "@.hidden ", ()),
        ("@nothing", "@nothing", ()),
        ("@no/such/folder", "@no/such/folder", ()),
    ],
)
def test_a_name_goes_on_as_far_as_it_is_clear(before: str, text: str, names: tuple[str, ...]) -> None:
    found = complete(before)

    assert found is not None
    assert (before[: found.start] + found.text, found.names) == (before[: before.index("@")] + text, names)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("before", ["", "notes", "me@notes", "@notes.md ", '@"my long report.pdf"'])
def test_elsewhere_nothing_is_completed(before: str) -> None:
    assert complete(before) is None


@pytest.mark.parametrize(
    ("highest", "marks"),
    [(0, [0]), (3, [0, 1, 2, 3]), (29392, [0, 10000, 20000, 30000]), (0.21, [0, 0.1, 0.2, 0.3])],
)
def test_axes_are_marked_at_round_numbers(highest: float, marks: list[float]) -> None:
    assert round_marks(highest) == pytest.approx(marks)


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        ("$0.0400", "$0.04"),
        ("$1.00", "$1"),
        ("0.0015 CHF", "0.0015 CHF"),
        ("10.00 CHF", "10 CHF"),
        ("free", "free"),
    ],
)
def test_an_amount_on_an_axis_has_no_zeros_at_its_end(amount: str, said: str) -> None:
    assert round_amount(amount) == said


def test_large_numbers_are_short() -> None:
    assert [short(number) for number in (0, 950, 1500, 20000, 3e6)] == ["0", "950", "1.5k", "20k", "3M"]
