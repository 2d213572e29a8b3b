"""How far a load is before llama.cpp says a word of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecloud.local_engine import progress
from edgecloud.local_engine.progress import Progress
from edgecloud.types import Loading


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the system counts, as Linux writes it."""
    path = tmp_path / "io"
    path.write_text("rchar: 5\nread_bytes: 1000\nwrite_bytes: 7\n")
    monkeypatch.setattr(progress, "_IO", path)
    return path


def test_what_is_read_counts_until_tensors_are_told_of(counted: Path) -> None:
    load = Progress("qwen", 400)
    assert load.loading == Loading("qwen", 0, 400)

    counted.write_text("read_bytes: 1300\n")
    assert load.loading == Loading("qwen", 300, 400)

    assert load(0.5), "still wanted"
    assert load.loading == Loading("qwen", 300, 400)

    load(0.9)
    assert load.loading == Loading("qwen", 360, 400)


def test_only_who_loads_knows_that_all_is_there(counted: Path) -> None:
    load = Progress("qwen", 400)
    counted.write_text("read_bytes: 90000\n")
    assert load.loading == Loading("qwen", 399, 400)

    load(1.0)
    assert load.loading == Loading("qwen", 400, 400)


@pytest.mark.parametrize("text", [None, "", "nonsense"])
def test_where_nothing_is_counted_nothing_is_said(counted: Path, text: str | None) -> None:
    if text is None:
        counted.unlink()
    else:
        counted.write_text(text)

    assert Progress("qwen", 400).loading == Loading("qwen", 0, 400)
