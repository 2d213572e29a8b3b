"""What `ask` sends, what it writes where, and how it ends: against a scripted gateway."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from edgecloud.app.cli import prompt
from edgecloud.app.cli.main import run
from edgecloud.app.cli.shell import State
from edgecloud.app.history import History
from edgecloud.errors import (
    BudgetExceeded,
    DeadlineExceeded,
    EdgeCloudError,
    ModelNotFound,
    NoPermittedRoute,
    UpstreamError,
)
from edgecloud.types import (
    CacheInfo,
    ChatRequest,
    ChoiceDone,
    Event,
    Finish,
    Message,
    Notice,
    ReasoningDelta,
    Receipt,
    Start,
    TextDelta,
    Usage,
)

RECEIPT = Receipt(
    "req-1",
    "local",
    "smollm2",
    "",
    "auto",
    "the default model",
    (),
    CacheInfo(),
    3,
    1,
    2,
    0.0,
    0.1,
    0.2,
    10.0,
)
FINISH = Finish(Usage(3, 2, 1), RECEIPT, "chat-1", "msg-1")


class Gate:
    """A gateway that plays events and errors, and remembers what it was asked and whether it was closed."""

    aside = ""
    lost = ""

    def __init__(self, *script: Event | EdgeCloudError | Callable[[], None] | None) -> None:
        self.script = script
        self.requests: list[ChatRequest] = []
        self.cancelled = False
        self.closed = False

    async def open(self, settings: object) -> Gate:
        return self

    async def chat(self, request: ChatRequest) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        try:
            for step in self.script:
                if isinstance(step, EdgeCloudError):
                    raise step
                if step is None:
                    await asyncio.sleep(3600)
                elif callable(step):
                    step()
                    await asyncio.sleep(0)
                else:
                    yield step
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled = True
            raise

    async def aclose(self) -> str:
        self.closed = True
        return self.lost


def answering(*texts: str, finish: Finish = FINISH) -> Gate:
    return Gate(
        Start("local", "smollm2", 3), *(TextDelta(text) for text in texts), ChoiceDone(0, "stop"), finish
    )


class Screen(io.TextIOWrapper):
    """A standard stream that may be a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Ask = Callable[..., Outcome]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in os.environ:
        if name.startswith("EDGECLOUD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv("EDGECLOUD_RUNTIME", str(tmp_path / "run"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return tmp_path / "home"


@pytest.fixture
def ask(home: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    def ask(gate: Gate, *arguments: str, stdin: bytes | None = None, terminal: bool = False) -> Outcome:
        """`stdin` is what is piped in; None is a stdin that was closed."""
        out, err = Screen(terminal), Screen(terminal)
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        if stdin is None:
            monkeypatch.setattr("sys.stdin", None)
        else:
            reading, writing = os.pipe()
            os.write(writing, stdin)
            os.close(writing)
            monkeypatch.setattr("sys.stdin", os.fdopen(reading))
        with pytest.raises(SystemExit) as ended:
            run(["ask", *arguments], State(open_gateway=gate.open))  # type: ignore[arg-type]
        return Outcome(int(ended.value.code or 0), out.text, err.text)

    return ask


# ------------------------------------------------------------------------------------- what is sent


def test_arguments_are_one_prompt(ask: Ask) -> None:
    gate = answering("Because.")

    assert ask(gate, "why", "is", "the sky blue?").out == "Because.\n"
    (request,) = gate.requests
    assert request.messages == (Message("user", "why is the sky blue?"),)
    assert (request.door, request.model, request.journal, request.n) == ("ask", "auto", True, 1)
    assert gate.closed
    assert not gate.cancelled


def test_every_option_arrives_in_the_request(ask: Ask, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    gate = answering("{}")

    flags = "hi -m qwen -s brief --temperature 0 --top-p 0.5 --top-k 3 --min-p 0.1 --max-tokens 9 --seed 7"
    more = f"--stop A --stop B -n 2 --timeout 30 --no-history --offline --schema {schema}"
    outcome = ask(gate, *flags.split(), *more.split())

    assert outcome.code == 0, outcome.err
    (request,) = gate.requests
    assert request.messages == (Message("system", "brief"), Message("user", "hi"))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (
        0,
        0.5,
        3,
        0.1,
        7,
    )
    assert (request.model, request.max_tokens, request.stop, request.n) == ("qwen", 9, ("A", "B"), 2)
    assert (request.deadline_s, request.journal, request.offline) == (30, False, True)
    assert request.constraint is not None
    assert (request.constraint.kind, request.constraint.source) == ("schema", '{"type": "object"}')


@pytest.mark.parametrize("how", ["environment", "file", "flag before", "flag after"])
def test_offline_from_wherever_it_is_said(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    arguments = ["hi"]
    if how == "environment":
        monkeypatch.setenv("EDGECLOUD_OFFLINE", "1")
    elif how == "file":
        (tmp_path / "config.toml").write_text("offline = true")
    else:
        arguments.insert(how == "flag after", "--offline")
    gate = answering("yes")

    assert ask(gate, *arguments).code == 0
    assert gate.requests[0].offline


@pytest.mark.parametrize(
    ("arguments", "stdin", "prompt"),
    [
        (["review this"], b"the diff\n", "review this\n\nthe diff"),
        ([], b"a\nb", "a\nb"),
        (["-"], b"a\r\nb\n", "a\nb"),
        (["before", "-", "and", "after"], b"text\n", "before\n\ntext\n\nand after"),
        (["hi"], b"", "hi"),
        (["hi"], None, "hi"),
        ([], "\ufeffgrüß".encode(), "grüß"),
        ([], "grüß".encode("utf-16"), "grüß"),
    ],
)
def test_what_is_piped_in_joins_the_prompt(
    ask: Ask, arguments: list[str], stdin: bytes | None, prompt: str
) -> None:
    gate = answering("ok")

    assert ask(gate, *arguments, stdin=stdin).code == 0
    assert [request.messages[-1].content for request in gate.requests] == [prompt]


def test_files_come_under_their_names(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    (tmp_path / "b.txt").write_text("beta")
    gate = answering("ok")

    ask(gate, "compare", "-f", str(tmp_path / "a.txt"), "-f", str(tmp_path / "b.txt"), stdin=b"piped")
    assert gate.requests[0].messages[-1].content == (
        "compare\n\n--- a.txt ---\nalpha\n\n--- b.txt ---\nbeta\n\npiped"
    )


def test_files_are_told_to_the_rules_of_privacy_with_what_links_lead_to(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "a.txt").write_text("alpha")
    (tmp_path / "a.txt").symlink_to("clients/a.txt")
    gate = answering("ok")

    ask(gate, "sum up", "-f", str(tmp_path / "a.txt"))
    assert gate.requests[0].files == (f"{tmp_path}/a.txt", f"{tmp_path}/clients/a.txt")


def test_a_pipe_that_stays_silent_does_not_hang_a_prompt(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr("edgecloud.app.cli.prompt.GRACE_S", 0.01)
    gate = answering("ok")
    monkeypatch.setattr("sys.stdin", os.fdopen(reading))
    monkeypatch.setattr("sys.stdout", Screen(False))
    with pytest.raises(SystemExit) as ended:
        run(["ask", "hi"], State(open_gateway=gate.open))  # type: ignore[arg-type]

    assert not ended.value.code
    assert gate.requests[0].messages[-1].content == "hi"
    os.close(writing)


def test_a_terminal_is_not_waited_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, terminal = os.openpty()
    gate = answering("ok")
    monkeypatch.setattr("sys.stdin", os.fdopen(terminal))
    monkeypatch.setattr("sys.stdout", Screen(False))
    monkeypatch.setattr("sys.stderr", Screen(False))
    monkeypatch.setattr("select.select", lambda *_: pytest.fail("waited for the keyboard"))
    codes = []
    for arguments in (["hi"], []):
        with pytest.raises(SystemExit) as ended:
            run(["ask", *arguments], State(open_gateway=gate.open))  # type: ignore[arg-type]
        codes.append(ended.value.code)

    assert codes == [0, 2]
    assert [request.messages[-1].content for request in gate.requests] == ["hi"]
    os.close(keyboard)


def test_the_last_chat_is_continued(ask: Ask, home: Path) -> None:
    history = History(home / "edgecloud.db")
    turn = history.begin(ChatRequest((Message("system", "old"), Message("user", "hi")), door="ask"))
    history.append(turn, 0, "hello")
    history.finish(turn, None, {0: "stop"}, {}, "complete")
    gate = answering("ok")

    assert ask(gate, "-c", "-s", "new", "and more").code == 0
    (request,) = gate.requests
    assert request.chat_id == turn.chat_id
    assert [(m.role, m.content) for m in request.messages] == [
        ("system", "new"),
        ("user", "hi"),
        ("assistant", "hello"),
        ("user", "and more"),
    ]


def test_a_chat_that_is_continued_is_private_as_its_switch_stands_now(ask: Ask, home: Path) -> None:
    history = History(home / "edgecloud.db")
    turn = history.begin(ChatRequest((Message("user", "hi"),), door="chat", private=True))
    history.append(turn, 0, "hello")
    history.finish(turn, None, {0: "stop"}, {}, "complete")
    gate = answering("ok")

    ask(gate, "-c", "and?")
    history.set_notes(turn.chat_id, {})
    ask(gate, "-c", "and?")
    history.set_notes(turn.chat_id, {"private": True})
    ask(gate, "-c", "and?")

    assert [request.private for request in gate.requests] == [True, False, True]


def last_question(home: Path, answer: str, status: Any) -> str:
    """A chat whose last question ended like this; its id."""
    history = History(home / "edgecloud.db")
    turn = history.begin(ChatRequest((Message("user", "why?"),), door="ask"))
    history.append(turn, 0, answer)
    history.finish(turn, None, {}, {}, status)
    history.close()
    return turn.chat_id


def test_a_question_whose_answer_failed_is_asked_along_or_again(ask: Ask, home: Path) -> None:
    chat_id = last_question(home, "Beca", "failed")
    gate = answering("ok")

    along = ask(gate, "-c", "and how?", terminal=True)
    again = ask(gate, "-c")

    assert (along.code, again.code) == (0, 0)
    assert "has no answer; both are asked" in along.err
    assert [[message.content for message in request.messages] for request in gate.requests] == [
        ["why?", "and how?"],
        ["why?"],
    ]
    assert {request.chat_id for request in gate.requests} == {chat_id}


def test_there_is_nothing_to_ask_again_after_an_answer(ask: Ask, home: Path) -> None:
    last_question(home, "Because", "complete")

    outcome = ask(answering("no"), "-c")
    assert outcome.code == 2
    assert "the last question was answered" in outcome.err


# ------------------------------------------------------------------------------------- what is shown


@pytest.mark.parametrize(
    ("texts", "piped", "terminal"),
    [
        (["a"], "a\n", "a\n"),
        (["a\n"], "a\n", "a\n"),
        (["a\n", "\n", "b\n\n"], "a\n\nb\n\n", "a\n\nb\n"),
        ([], "", ""),
        (["\n"], "\n", ""),
        (["tab\tbell\x07 \x1b[31mred\x1b[0m"], "tab\tbell\x07 ␛[31mred␛[0m\n", "tab\tbell␇ ␛[31mred␛[0m\n"),
        (["over\rwrite\x9b2J\x7f"], "over\rwrite\x9b2J\x7f\n", "overwrite\ufffd2J␡\n"),
    ],
)
def test_the_answer_on_stdout(ask: Ask, texts: list[str], piped: str, terminal: str) -> None:
    assert ask(answering(*texts), "hi").out == piped
    assert ask(answering(*texts), "hi", terminal=True).out == terminal
    assert ask(answering(*texts), "hi", "--no-stream").out == piped
    assert ask(answering(*texts), "hi", "--no-stream", terminal=True).out == terminal


THINKING = (
    Start("local", "smollm2", 3),
    Notice("rerouted", "gpu-box is away."),
    ReasoningDelta("hm \x1b[2J"),
    ReasoningDelta("so"),
    TextDelta("Yes"),
    ChoiceDone(0, "stop"),
    FINISH,
)


def test_talk_is_on_stderr_of_a_terminal(ask: Ask) -> None:
    outcome = ask(Gate(*THINKING), "hi", terminal=True)

    assert outcome.out == "Yes\n"
    assert outcome.err == "edgecloud: gpu-box is away.\n\x1b[2mhm ␛[2J\x1b[0m\x1b[2mso\x1b[0m\n"


def loading(*shares: int) -> list[Notice | Callable[[], None]]:
    """A load that is told of so often, with time between for the line to be written."""
    script: list[Notice | Callable[[], None]] = []
    for share in shares:
        script += [Notice("loading", f"loading smollm2 · {share} %"), *[lambda: None] * 5]
    return script


def test_a_long_wait_is_one_line_on_a_terminal_that_goes_when_the_answer_comes(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgecloud.app.cli.waiting.PATIENCE_S", 0.0)
    monkeypatch.setenv("COLUMNS", "40")
    outcome = ask(Gate(*[lambda: None] * 5, *loading(5, 100), *THINKING[3:]), "hi", terminal=True)

    first, second, third = (
        "edgecloud: waiting for the model …",
        "loading smollm2 · 5 %",
        "loading smollm2 · 100 %",
    )
    assert outcome.err.split("\r") == [
        "",
        first,
        f"edgecloud: {second}".ljust(len(first)),
        f"edgecloud: {third}",
        " " * len(f"edgecloud: {third}"),
        "\x1b[2mso\x1b[0m\n",
    ]
    assert outcome.out == "Yes\n"


@pytest.mark.parametrize(("arguments", "terminal"), [((), False), (("-q",), True), (("--json",), False)])
def test_progress_is_talk_and_no_result(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], terminal: bool
) -> None:
    monkeypatch.setattr("edgecloud.app.cli.waiting.PATIENCE_S", 0.0)
    outcome = ask(
        Gate(*loading(5), Start("local", "smollm2", 3), ChoiceDone(0, "stop"), FINISH),
        "hi",
        *arguments,
        terminal=terminal,
    )

    assert "loading" not in outcome.err + outcome.out


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_escape_codes_where_they_are_unwanted(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)

    outcome = ask(Gate(*THINKING), "hi", terminal=True)
    assert "\x1b" not in outcome.out + outcome.err
    assert "so" in outcome.err


@pytest.mark.parametrize(("arguments", "terminal"), [((), False), (("-q",), True)])
def test_no_talk_without_a_terminal_or_when_quiet(
    ask: Ask, arguments: tuple[str, ...], terminal: bool
) -> None:
    outcome = ask(Gate(*THINKING), "hi", *arguments, terminal=terminal)

    assert (outcome.out, outcome.err) == ("Yes\n", "")


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("arguments", [[], ["-q"], ["--json"]])
def test_what_is_lost_is_told_whoever_reads_it(ask: Ask, arguments: list[str], terminal: bool) -> None:
    gate = answering("Blue.")
    gate.lost = "The history lacks the end of an answer: edgecloud.db is locked by another program."

    outcome = ask(gate, "hi", *arguments, terminal=terminal)

    assert outcome.code == 0
    assert "Blue." in outcome.out
    assert outcome.err.splitlines()[-1] == f"edgecloud: warning: {gate.lost}"


def test_several_choices_are_shown_one_after_the_other(ask: Ask) -> None:
    script = (
        Start("local", "smollm2", 3),
        TextDelta("a", 0),
        TextDelta("b", 1),
        TextDelta("c", 2),
        ChoiceDone(1, "stop"),
        TextDelta("A", 0),
        ChoiceDone(0, "stop"),
        TextDelta("C", 2),
        ChoiceDone(2, "length"),
        FINISH,
    )
    for arguments in ((), ("--no-stream",)):
        for terminal in (False, True):
            outcome = ask(Gate(*script), "hi", "-n", "3", *arguments, terminal=terminal)
            assert outcome.out == "aA\n---\nb\n---\ncC\n"

    answer = json.loads(ask(Gate(*script), "hi", "-n", "3", "--json").out)
    assert [(c["text"], c["finish_reason"]) for c in answer["choices"]] == [
        ("aA", "stop"),
        ("b", "stop"),
        ("cC", "length"),
    ]


def test_a_later_choice_that_comes_late_is_set_apart(ask: Ask) -> None:
    script = (
        Start("local", "smollm2", 3),
        ChoiceDone(0, "stop"),
        TextDelta("b", 1),
        ChoiceDone(1, "stop"),
        FINISH,
    )

    assert ask(Gate(*script), "hi", "-n", "2").out == "\n---\nb\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_an_empty_choice_between_others_is_set_apart_too(ask: Ask, terminal: bool) -> None:
    script = (
        Start("local", "smollm2", 3),
        TextDelta("a\n", 0),
        *(ChoiceDone(index, "stop") for index in (0, 1)),
        TextDelta("c", 2),
        ChoiceDone(2, "stop"),
        FINISH,
    )

    assert ask(Gate(*script), "hi", "-n", "3", terminal=terminal).out == "a\n---\n---\nc\n"


def test_json_is_one_object_that_says_everything(ask: Ask) -> None:
    outcome = ask(Gate(*THINKING), "hi", "--json")

    assert outcome.out.count("\n") == 1
    assert json.loads(outcome.out) == {
        "schema_version": 1,
        "id": "req-1",
        "text": "Yes",
        "reasoning": "hm \x1b[2Jso",
        "finish_reason": "stop",
        "model": "smollm2",
        "chat_id": "chat-1",
        "message_id": "msg-1",
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1, "reasoning_tokens": 0},
        "notices": [{"kind": "rerouted", "text": "gpu-box is away."}],
        "receipt": json.loads(
            json.dumps(
                {
                    **{name: getattr(RECEIPT, name) for name in Receipt.__slots__},
                    "cache": {
                        "verdict": "off",
                        "similarity": None,
                        "age_s": None,
                        "entry_id": None,
                        "probability": None,
                    },
                }
            )
        ),
    }
    assert outcome.err == ""


def test_json_stream_is_one_object_an_event(ask: Ask) -> None:
    lines = [json.loads(line) for line in ask(Gate(*THINKING), "hi", "--json", "--stream").out.splitlines()]

    assert [line["type"] for line in lines] == [
        "start",
        "notice",
        "reasoning",
        "reasoning",
        "text",
        "choice_done",
        "finish",
    ]
    assert (lines[0]["schema_version"], lines[0]["model"]) == (1, "smollm2")
    assert lines[4] == {"type": "text", "index": 0, "text": "Yes"}
    assert (lines[-1]["id"], lines[-1]["receipt"]["engine"], lines[-1]["chat_id"]) == (
        "req-1",
        "local",
        "chat-1",
    )


# ------------------------------------------------------------------------------------- how it ends

FAILURES = [
    (UpstreamError("The pool is gone."), 1),
    (ModelNotFound("nope", ["smollm2"]), 2),
    (NoPermittedRoute("Offline."), 3),
    (BudgetExceeded("No money left."), 4),
    (DeadlineExceeded("Too slow."), 5),
]


@pytest.mark.parametrize(("error", "code"), FAILURES)
@pytest.mark.parametrize("arguments", [(), ("--json",), ("--no-stream",)])
def test_a_failure_is_a_code_and_one_line_on_stderr(
    ask: Ask, error: EdgeCloudError, code: int, arguments: tuple[str, ...]
) -> None:
    gate = Gate(error)

    outcome = ask(gate, "hi", "-q", *arguments)
    assert outcome.code == code
    if arguments == ("--json",):
        assert json.loads(outcome.out) == {
            "schema_version": 1,
            "error": {"message": error.message, "code": error.code, "exit": code},
        }
    else:
        assert outcome.out == ""
    assert outcome.err == f"edgecloud: {error.message}\n"
    assert gate.closed


def test_a_failure_half_way_shows_what_came_and_ends_the_line(ask: Ask) -> None:
    script = (Start("local", "m", 1), TextDelta("par"), UpstreamError("Gone."))

    assert ask(Gate(*script), "hi").out == "par"
    assert ask(Gate(*script), "hi", terminal=True).out == "par\n"
    assert ask(Gate(*script), "hi", "--no-stream").out == ""
    last = ask(Gate(*script), "hi", "--json", "--stream").out.splitlines()[-1]
    assert json.loads(last) == {"type": "error", "code": "upstream_failed", "message": "Gone.", "exit": 1}


@pytest.mark.parametrize("arguments", [("--json",), ("--json", "--stream")])
def test_what_is_wrong_before_anything_is_asked_is_an_object_too(
    ask: Ask, arguments: tuple[str, ...]
) -> None:
    outcome = ask(answering("no"), "-f", "/nope", *arguments)

    line = json.loads(outcome.out)
    error = line if "--stream" in arguments else line["error"]
    assert (error["exit"], outcome.code) == (2, 2)
    assert error["message"] == outcome.err.removeprefix("edgecloud: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--nope"], "No such option"),
        (["hi", "--temperature", "3"], "--temperature"),
        (["hi", "--temperature", "nan"], "nan is not a number"),
        (["hi", "--top-p", "0"], "--top-p"),
        (["hi", "-n", "0"], "-n"),
        (["hi", "--max-tokens", "x"], "--max-tokens"),
        (["hi", "--timeout", "-1"], "--timeout"),
        (["hi", "--seed", str(2**64)], "--seed"),
        (["hi", "--stop", ""], "--stop must not be empty"),
        ([], "There is no prompt"),
        (["  "], "There is no prompt"),
        (["-f", "/nonexistent/file", "hi"], "/nonexistent/file cannot be read: No such file"),
        (["-f", "/", "hi"], "cannot be read: Is a directory"),
        (["-f", "/dev/null", "hi"], "/dev/null is empty: leave it out."),
        (["hi", "-"], "Nothing came through the pipe that - stands for."),
        (["--schema", "/nonexistent", "hi"], "/nonexistent cannot be read"),
        (["caf\udce9"], "not UTF-8"),
        (["-c", "hi"], "There is no chat to continue yet"),
    ],
)
def test_wrong_usage_is_one_line(ask: Ask, arguments: list[str], part: str) -> None:
    gate = answering("no")

    outcome = ask(gate, *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("edgecloud: ")
    assert outcome.err.count("\n") == 1
    assert part in outcome.err
    assert gate.requests == []


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"\x7fELF\x00\x00\xff\xff", "is not text"),
        (b"nul\x00", "is not text"),
        ("grüß".encode()[:-1], "ends in the middle of a character"),
        ("grüß und ende".encode("latin-1"), "is not UTF-8 text (byte 2)"),
        (b"x" * (8 * 2**20 + 1), "is larger than 8 MiB"),
    ],
)
def test_what_is_not_text_is_one_line(ask: Ask, tmp_path: Path, content: bytes, part: str) -> None:
    (tmp_path / "file").write_bytes(content)

    outcome = ask(answering("no"), "-f", str(tmp_path / "file"))
    assert outcome.code == 2
    assert part in outcome.err
    if len(content) < 60_000:  # what a pipe holds
        assert f"The piped input {part}" in ask(answering("no"), stdin=content).err


@pytest.mark.parametrize("content", ["{", "[1]", "[" * 100_000])
def test_a_schema_that_is_none_is_one_line(ask: Ask, tmp_path: Path, content: str) -> None:
    (tmp_path / "schema.json").write_text(content)

    outcome = ask(answering("no"), "hi", "--schema", str(tmp_path / "schema.json"))
    assert outcome.code == 2
    assert "schema.json is not" in outcome.err
    assert outcome.err.count("\n") == 1


def test_history_that_is_off_has_no_last_chat(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[history]\nenabled = false\n")

    outcome = ask(answering("no"), "-c", "hi")
    assert outcome.code == 2
    assert "history is off" in outcome.err


def test_a_wrong_setting_is_told_before_anything_is_read(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("prot = 1\n")

    outcome = ask(answering("no"), "-")
    assert outcome.code == 2
    assert "'prot'" in outcome.err


def interrupt(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_cancels_the_answer(ask: Ask, number: int, code: int) -> None:
    gate = Gate(Start("local", "m", 1), TextDelta("par"), interrupt(number), None)

    outcome = ask(gate, "hi", terminal=True)
    assert (outcome.code, outcome.out, outcome.err) == (code, "par\n", "")
    assert gate.cancelled
    assert gate.closed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupted_stream_of_json_says_so(ask: Ask) -> None:
    gate = Gate(Start("local", "m", 1), interrupt(signal.SIGINT), None)

    outcome = ask(gate, "hi", "--json", "--stream")
    last = json.loads(outcome.out.splitlines()[-1])
    assert (last["code"], last["exit"], outcome.code) == ("interrupted", 130, 130)


def test_a_gateway_that_never_answers_is_given_up(ask: Ask) -> None:
    gate = Gate(None)

    outcome = ask(gate, "hi", "--timeout", "0.05")
    assert outcome.code == 5
    assert outcome.err == "edgecloud: No complete answer within 0.05 s.\n"
    assert gate.cancelled
    assert gate.closed


def test_a_reader_that_went_away_cancels_the_answer(
    ask: Ask, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    gate = Gate(Start("local", "m", 1), TextDelta("par"), None)
    monkeypatch.setattr("sys.stdout", os.fdopen(writing, "w"))
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr("os.dup2", lambda *_: None)  # leaves pytest its stdout
    with pytest.raises(SystemExit) as ended:
        run(["ask", "hi"], State(open_gateway=gate.open))  # type: ignore[arg-type]

    assert ended.value.code == 141
    assert gate.cancelled
    assert gate.closed


def test_a_bug_is_one_sentence_and_a_traceback_without_secrets(
    ask: Ask, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text('[server]\napi_keys = ["plain-canary"]\n')

    def break_down() -> None:
        raise RuntimeError("no route with plain-canary or Bearer bearer-canary")

    outcome = ask(Gate(break_down), "hi")
    log = home / "logs" / "edgecloud.log"
    assert outcome.code == 1
    assert outcome.err == (
        f"edgecloud: Something went wrong inside edgecloud (RuntimeError); the details are in {log}.\n"
    )
    assert "break_down" in log.read_text()
    assert "canary" not in log.read_text().replace("plain-canary or", "").split("RuntimeError: ")[1]
    assert log.stat().st_mode & 0o777 == 0o600


def test_debug_shows_the_traceback_of_a_bug(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    gate: Any = Gate(lambda: 1 / 0)  # type: ignore[arg-type]

    with pytest.raises(ZeroDivisionError):
        run(["--debug", "ask", "hi"], State(open_gateway=gate.open))


def test_a_named_pipe_that_is_waited_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said = tmp_path / "words", []
    os.mkfifo(path)

    def tell_and_write(text: str, *, quiet: bool) -> None:
        said.append(text)
        path.write_text("from the pipe")

    monkeypatch.setattr(prompt, "note", tell_and_write)
    monkeypatch.setattr(prompt, "GRACE_S", 0.01)

    asked = prompt.gather_prompt(["what is this?"], [str(path)])

    assert asked == "what is this?\n\n--- words ---\nfrom the pipe"
    assert str(path) in said[0]
