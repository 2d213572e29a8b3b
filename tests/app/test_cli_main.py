"""The command line as a whole: what it imports, what it lists, how it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgecloud.app.cli.main import COMMANDS, edgecloud, run
from edgecloud.app.cli.shell import State, print_table
from edgecloud.app.gateway import Gateway
from edgecloud.app.open import build_gateway
from edgecloud.app.tui import terminal
from edgecloud.errors import BadRequest
from edgecloud.settings import Settings

from .shell import COMMAND, environment
from .shell import edgecloud as edgecloud_process

HEAVY = {"textual", "torch", "llama_cpp", "onnxruntime", "fastapi", "huggingface_hub"}
HEAVY |= {"pydantic", "numpy", "asyncio", "sqlite3"}


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["ask", "--help"], ["history", "--help"]])
def test_help_and_version_import_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    script = f"""
import sys
from edgecloud.app.cli.main import run
try:
    run({arguments!r})
finally:
    print({HEAVY!r} & sys.modules.keys(), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(tmp_path)
    )

    assert done.stderr == "set()\n"
    assert done.stdout


def test_the_version_is_the_packages(tmp_path: Path) -> None:
    done = edgecloud_process(tmp_path, "--version")

    assert re.fullmatch(rb"edgecloud \d+\.\d+\.\d+\S*\n", done.stdout)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("aks", "No such command 'aks'. Did you mean 'ask'? (see 'edgecloud --help')."),
        ("histroy", "No such command 'histroy'. Did you mean 'history'? (see 'edgecloud --help')."),
        ("xyzzy", "No such command 'xyzzy' (see 'edgecloud --help')."),
    ],
)
def test_a_misspelt_command_is_told_which_one_it_may_be(tmp_path: Path, typed: str, told: str) -> None:
    done = edgecloud_process(tmp_path, typed)

    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, b"", f"edgecloud: {told}\n")


def test_no_command_of_a_group_is_told_half(tmp_path: Path) -> None:
    for group in ("cache", "history", "models", "pool", "route", "serve"):
        told = edgecloud_process(tmp_path, group, "--help").stdout.decode()
        assert "..." not in told.split("Commands:")[1]
    assert "-922" not in edgecloud_process(tmp_path, "ask", "--help").stdout.decode()


def test_without_a_command_and_a_terminal_the_way_out_is_told(tmp_path: Path) -> None:
    done = edgecloud_process(tmp_path)

    assert (done.returncode, done.stdout) == (2, b""), "a script did not get what it came for"
    assert done.stderr == (
        b"edgecloud: The chat needs a terminal: use `edgecloud ask` in scripts; "
        b"`edgecloud --help` tells the rest.\n"
    )


def test_a_terminal_that_draws_nothing_is_told_of_the_plain_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "is_there", lambda: True)
    monkeypatch.setenv("TERM", "dumb")

    with pytest.raises(BadRequest, match="--plain"):
        edgecloud.main(["chat"], standalone_mode=False, obj=State())


@pytest.mark.parametrize(
    ("bare", "whole"),
    [
        (["cache"], ["cache", "list"]),
        (["history", "-n", "3"], ["history", "list", "-n", "3"]),
        (["models", "--json"], ["models", "list", "--json"]),
        (["pool"], ["pool", "list"]),
        (["route", "--json"], ["route", "history", "--json"]),
        (["config"], ["config", "show"]),
    ],
)
def test_a_group_alone_lists_what_there_is(tmp_path: Path, bare: list[str], whole: list[str]) -> None:
    done, expected = edgecloud_process(tmp_path, *bare), edgecloud_process(tmp_path, *whole)

    assert (done.returncode, done.stdout) == (0, expected.stdout), done.stderr


def test_a_long_cell_moves_its_own_row_only(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([("a", "x" * 400, "1"), ("bb", "yy", "2")])

    assert capsys.readouterr().out == f"a   {'x' * 400}  1\nbb  yy  2\n"


def test_on_a_terminal_the_last_column_goes_on_below_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")

    print_table([("one", "words that do not fit in what is left"), ("three", "few")])

    assert capsys.readouterr().out.splitlines() == [
        "one    words that do not fit",
        "       in what is left",
        "three  few",
    ]


def test_no_control_character_gets_into_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([("a\0b\x1b[2J", "c\x07d"), ("e", "f")])

    assert capsys.readouterr().out == "a␀b␛[2J  c␇d\ne        f\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run([name, "--help"])

    assert not ended.value.code
    assert f"Usage: edgecloud {name}" in capsys.readouterr().out


def test_the_help_of_ask_and_its_page_document_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["ask", "--help"])

    help_text = capsys.readouterr().out
    page = (Path(__file__).parents[2] / "docs" / "ask.md").read_text()
    for code in ("0", "1", "2", "3", "4", "5", "130", "141"):
        assert re.search(rf"(^|\s){code}  \w", help_text, re.MULTILINE), code
        assert f"| {code} |" in page, code


@pytest.mark.parametrize(
    "arguments", [["nope"], ["--nope"], ["ask", "--nope"], ["config", "nope"], ["config", "set"]]
)
def test_wrong_usage_is_one_line_and_code_2(tmp_path: Path, arguments: list[str]) -> None:
    done = edgecloud_process(tmp_path, *arguments)

    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"edgecloud: ")
    assert done.stderr.count(b"\n") == 1
    assert b"--help" in done.stderr


async def _in_process(settings: Settings) -> Gateway:
    return build_gateway(settings)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("ask hi -m nope", 2),
        ("ask hi -m /nope.gguf", 2),
        ("ask hi -m HOME/broken.gguf", 2),
        ("ask hi -m HOME/notes.txt", 2),
        ("ask hi -m hf:a/b-GGUF:Q4_0", 2),
        ("ask hi -m minilm", 2),
        ("ask -f /nope hi", 2),
        ("ask hi --schema /nope", 2),
        ("ask hi --temperature 9", 2),
        ("ask -c hi", 2),
        ("config show nope", 2),
        ("config set nope 1", 2),
        ("config set server.port many", 2),
        ("config set embedder smollm2", 2),
        ("models info nope", 2),
        ("models info /nope.gguf", 2),
        ("models info HOME/broken.gguf", 2),
        ("models rm smollm2", 2),
        ("models rm HOME/broken.gguf", 2),
        ("history show chat-nope", 2),
        ("history rm chat-nope", 2),
        ("serve status", 1),
        ("doctor", 1),
        ("--offline models pull hf:a/b-GGUF:Q4_0", 3),
    ],
)
def test_the_exit_code_says_whose_fault_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, code: int
) -> None:
    """2 is what was typed: it is wrong, or names what is not there."""
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    (tmp_path / "notes.txt").write_text("no model")
    for name, value in environment(tmp_path, EDGECLOUD_LOCAL__CHAT_TEMPLATE="/nope").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdin", None)

    with pytest.raises(SystemExit) as ended:
        run(arguments.replace("HOME", str(tmp_path)).split(), State(open_gateway=_in_process))
    assert ended.value.code == code


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(tmp_path: Path, shell: str) -> None:
    done = edgecloud_process(tmp_path, "completion", shell)

    assert done.returncode == 0
    assert b"_EDGECLOUD_COMPLETE" in done.stdout


def test_completion_completes(tmp_path: Path) -> None:
    def complete(words: str) -> list[str]:
        extra = {"_EDGECLOUD_COMPLETE": "bash_complete", "COMP_WORDS": words}
        done = edgecloud_process(tmp_path, **extra, COMP_CWORD=str(len(words.split()) - 1))
        assert done.returncode == 0
        return [line.partition(",")[2] for line in done.stdout.decode().splitlines()]

    assert complete("edgecloud co") == ["completion", "config"]
    assert complete("edgecloud ask --max") == ["--max-tokens"]


def test_every_command_is_listed_where_it_can_be_found() -> None:
    assert edgecloud.name == "edgecloud"
    for name, place in COMMANDS.items():
        assert place.help.endswith("."), name


@pytest.mark.parametrize("arguments", ["config show", "config path", "history list --json", "doctor --json"])
def test_a_closed_reader_is_code_141(tmp_path: Path, arguments: str) -> None:
    command = " ".join(COMMAND)
    script = f"set -o pipefail; {{ sleep 0.1; {command} {arguments}; }} | true"

    done = subprocess.run(["bash", "-c", script], capture_output=True, env=environment(tmp_path))
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", ["config path", "doctor --json", "--help", "--version", "history"])
def test_what_is_printed_to_a_closed_stdout_is_no_success(tmp_path: Path, arguments: str) -> None:
    script = f"{' '.join(COMMAND)} {arguments} >&-"

    done = subprocess.run(["bash", "-c", script], capture_output=True, env=environment(tmp_path))
    told = b"" if arguments == "history" else b"edgecloud: The output goes nowhere: stdout is closed.\n"
    assert (done.returncode, done.stderr) == (1 if told else 0, told)


@pytest.mark.parametrize(
    "arguments", [["config", "show"], ["history", "list"], ["history", "show"], ["--help"]]
)
def test_no_command_writes_escape_codes_into_a_pipe(tmp_path: Path, arguments: list[str]) -> None:
    done = edgecloud_process(tmp_path, *arguments)

    assert b"\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["history", "list", "-n", "abc"], ["stats", "--days", "abc"], ["ask", "--max-tokens", "abc"]],
)
def test_an_option_s_number_that_is_none_is_told_as_such(tmp_path: Path, arguments: list[str]) -> None:
    done = edgecloud_process(tmp_path, *arguments)
    assert done.returncode == 2
    assert b"'abc' is not a valid whole number" in done.stderr


@pytest.mark.parametrize("command", [["history", "list"], ["stats"], ["why"]])
def test_every_command_tells_of_a_setting_in_the_environment_that_is_wrong(
    tmp_path: Path, command: list[str]
) -> None:
    done = edgecloud_process(tmp_path, *command, EDGECLOUD_SERVER__PORT="abc")
    assert (done.returncode, b"EDGECLOUD_SERVER__PORT" in done.stderr) == (2, True)
    told = edgecloud_process(tmp_path, *command, EDGECLOUD_FOO="1").stderr
    assert told.count(b"EDGECLOUD_FOO is no setting") == 1
