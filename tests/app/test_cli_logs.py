"""Where the talk goes that no user asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgecloud.app.visible import neutral

from .shell import COMMAND, environment

NOISE = """
import logging, os, sys, warnings
from edgecloud.app.logs import redirect_native_output
redirect_native_output()
os.write(2, b"native noise\\n")
logging.getLogger("edgecloud").warning("log with sk-canary-canary-canary and plain-canary")
logging.getLogger("edgecloud").info("chatter")
print("what the user sees", file=sys.stderr)
"""


def run_script(home: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(home)
    )


def test_native_noise_and_log_records_go_to_the_log_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[server]\napi_keys = ["plain-canary"]\n')

    done = run_script(tmp_path, NOISE)

    log = (tmp_path / "data" / "logs" / "edgecloud.log").read_text()
    assert done.stderr == "what the user sees\n"
    assert log.startswith("native noise\n")
    assert "log with [redacted] and [redacted]" in log
    assert "chatter" not in log


def test_a_long_log_starts_over(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "logs"
    folder.mkdir(parents=True)
    (folder / "edgecloud.log").write_bytes(b"old\n" * 2**19)

    run_script(tmp_path, NOISE)

    assert (folder / "edgecloud.log").read_text().startswith("native noise")
    assert (folder / "edgecloud.log.1").read_bytes().startswith(b"old")


def test_without_a_log_the_noise_is_lost_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file in the way")

    done = run_script(tmp_path, NOISE)
    assert (done.returncode, done.stderr) == (0, "what the user sees\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", ["config show", "history list", "ask -m nope hi", "history show"])
def test_streams_that_are_closed_harm_nothing(tmp_path: Path, closed: str, arguments: str) -> None:
    script = f"{' '.join(COMMAND)} {arguments} {closed}"

    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, stdin=subprocess.DEVNULL, env=environment(tmp_path)
    )
    # What was to be read and could not be written is no success.
    unread = int(">&-" in closed.split())
    expected = {"ask -m nope hi": 2, "history show": 2, "config show": unread}
    assert done.returncode == expected.get(arguments, 0)
    assert b"Traceback" not in done.stderr
    assert done.stderr.count(b"\n") <= 1


def test_control_characters_are_shown_and_not_obeyed() -> None:
    hostile = "a\x1b]0;title\x07\x1b[2J\x08\x9b1m\x7f\ttab\nline\rover"

    assert neutral(hostile, is_terminal=True) == "a␛]0;title␇␛[2J␈\ufffd1m␡\ttab\nlineover"
    assert neutral("a\x1b[2J\x07\r\n", is_terminal=False) == "a␛[2J\x07\r\n"


FULL_DISK = """
import logging, os
from edgecloud.app.logs import redirect_native_output
redirect_native_output()
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
logging.getLogger("anyone").warning("said where nothing more fits")
print("it goes on")
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_log_on_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    done = run_script(tmp_path, FULL_DISK)
    assert (done.returncode, done.stdout, done.stderr) == (0, "it goes on\n", "")
