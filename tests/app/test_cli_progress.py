"""The line of a pull: as wide as the terminal, as often as an eye can follow."""

from __future__ import annotations

import pytest

from edgecloud.app.cli import progress
from edgecloud.app.cli.progress import PullLine, pull_line

NAME = "Qwen2.5-1.5B-Instruct-Q4_K_M.gguf"


@pytest.mark.parametrize("width", [8, 20, 40, 79, 119])
def test_the_line_fits_whatever_is_wide(width: int) -> None:
    line = pull_line(1_234_567_890, 2_790_000_000, NAME, 3_200_000, width)
    assert len(line) <= width


def test_the_bar_goes_first_and_the_numbers_never() -> None:
    facts = "1.23 of 2.79 GB, 3 MB/s, 8 min left"
    bar = "█" * 13 + "░" * 17
    assert pull_line(1_234_567_890, 2_790_000_000, NAME, 3_200_000, 119) == f"{NAME}  {bar}  {facts}"
    assert pull_line(1_234_567_890, 2_790_000_000, NAME, 3_200_000, 79) == f"{NAME}  {facts}"
    assert pull_line(1_234_567_890, 2_790_000_000, NAME, 3_200_000, 50) == f"{NAME[:12]}…  {facts}"


@pytest.mark.parametrize(
    ("left", "words"), [(0, "0 s"), (90, "90 s"), (150, "2 min"), (3500, "58 min"), (9000, "2.5 h")]
)
def test_the_time_that_is_left_is_said_in_its_own_unit(left: int, words: str) -> None:
    assert pull_line(1000, 1000 + left, "a", 1.0, 200).endswith(f"/s, {words} left")


def test_it_is_written_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(progress, "write", lambda stream, text: written.append(text))
    clock = iter(number * 0.001 for number in range(2000))
    line = PullLine(clock=lambda: next(clock))
    for done in range(1000):
        line(done * 10_000, 9_990_000, NAME)

    assert len(written) == 11
    assert "10 MB/s" in written[5]
    assert "10 of 10 MB" in written[-1]


def test_the_speed_is_that_of_the_last_seconds_and_of_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(progress, "write", lambda stream, text: written.append(text))
    now = 0.0
    line = PullLine(clock=lambda: now)
    for second in range(20):
        now = float(second)
        # What an earlier pull got was not got now; after ten seconds it comes at a tenth of the speed.
        line(50_000_000 + min(second, 10) * 10_000_000 + max(0, second - 10) * 1_000_000, 10**9, "one")
    assert "10 MB/s" in written[9]
    assert "1 MB/s" in written[-1]
    now = 20.0
    line(0, 10**9, "two")
    assert "/s" not in written[-1]
