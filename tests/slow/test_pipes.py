"""What a command prints into a pipe is what it prints on a wide terminal, but for the styling."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pexpect
import pytest

from tests.app.shell import COMMAND, environment

from .house import House, house

STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A home with a chat in it."""
    with house(tmp_path_factory.mktemp("pipes")) as opened:
        done = opened.run("ask", "Name three colours.", "--max-tokens", "8", "--temperature", "0")
        assert done.returncode == 0
        yield opened


def on_a_terminal(opened: House, *arguments: str) -> str:
    # Help is set for the 80 columns that a pipe counts as; tables are wrapped where they don't fit.
    columns = 80 if "--help" in arguments else 300
    child: pexpect.spawn[bytes] = pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], *arguments],
        env=environment(opened.home),  # type: ignore[arg-type]
        timeout=60,
        dimensions=(24, columns),
    )
    child.expect(pexpect.EOF)
    child.close()
    shown: bytes = child.before
    return STYLE.sub("", shown.decode()).replace("\r\n", "\n")


# cases: D2
@pytest.mark.parametrize(
    "command",
    [
        "--version",
        "--help",
        "ask --help",
        "config path",
        "config show",
        "config show --json",
        "history list",
        "history show",
        "history export --json",
        "history search colours",
        "models list",
        "models info smollm2",
        "completion bash",
    ],
)
def test_a_pipe_gets_what_a_terminal_shows(lived_in: House, command: str) -> None:
    piped = lived_in.run(*command.split())
    assert piped.returncode == 0
    assert piped.stdout.strip()
    assert b"\x1b" not in piped.stdout
    assert on_a_terminal(lived_in, *command.split()) == piped.stdout.decode()


# cases: D1, D10
@pytest.mark.parametrize("extra", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_an_answer_is_the_same_everywhere(lived_in: House, extra: dict[str, str]) -> None:
    asking = ("ask", "Name three colours.", "--max-tokens", "60", "--temperature", "0", "--no-history")
    piped = lived_in.run(*asking, **extra)
    assert b"\x1b" not in piped.stdout + piped.stderr
    lines = on_a_terminal(lived_in, *asking, "-q").split("\n")
    assert "\n".join(lines).strip() == piped.stdout.decode().strip()
