"""The chat as a process on a terminal of its own: signals, crashes, odd keys, and what is left behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest

from edgecloud.app.chats import Chat
from edgecloud.app.history import History
from tests.app.shell import environment

PATIENCE_S = 60
SWITCHES = {"alternate screen": 1049, "mouse": 1000, "pastes": 2004, "focus": 1004}


class Terminal:
    """A chat on a pty, read as it goes."""

    def __init__(self, home: Path, *arguments: str, size: tuple[int, int] = (24, 80), **extra: str) -> None:
        self.home = home
        command = ["-m", "tests.support.chat_process", *arguments]
        self.child = pexpect.spawn(
            sys.executable, command, env=environment(home, **extra), dimensions=size, timeout=PATIENCE_S
        )
        self.before = termios.tcgetattr(self.child.child_fd)
        self.seen = b""

    def expect(self, text: str) -> None:
        """Wait for a text to be drawn, whatever escape codes stand between its words."""
        between = rb"(?:\x1b\[[\d;?]*[A-Za-z]|[ \r\n])+"
        self.child.expect(between.join(re.escape(word.encode()) for word in text.split()))
        self.seen += self.child.before + self.child.after

    def send(self, keys: str | bytes) -> None:
        self.child.send(keys)

    def wait(self) -> int:
        """Read to the end; the exit code, 128 and the number for a signal that was not handled."""
        self.child.expect(pexpect.EOF)
        self.seen += self.child.before
        self.child.close()
        if self.child.exitstatus is not None:
            return int(self.child.exitstatus)
        return 128 + int(self.child.signalstatus)

    def left_on(self) -> list[str]:
        """What was switched on and not off again."""
        return [
            name
            for name, number in SWITCHES.items()
            if self.seen.rfind(f"\x1b[?{number}h".encode()) > self.seen.rfind(f"\x1b[?{number}l".encode())
        ]

    def chats(self) -> list[Chat]:
        history = History(self.home / "data" / "edgecloud.db")
        history.recover()
        return [history.show(chat.id) for chat in history.list()]


@contextmanager
def terminal(home: Path, *arguments: str, ready: str = "Ask anything", **extra: str) -> Iterator[Terminal]:
    """A chat that is ready for the first key; ended with the test."""
    opened = Terminal(home, *arguments, **extra)
    try:
        opened.expect(ready)
        yield opened
    finally:
        opened.child.close(force=True)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGQUIT, 131, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_it_with_its_code_and_the_terminal_as_it_was(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    # cases: TC9
    with terminal(tmp_path, FAKE_HANG_AT="2") as chat:
        chat.send("tell me\r")
        chat.expect("Hello from")
        echo = chat.before[3] & termios.ECHO
        chat.child.kill(number)

        assert chat.wait() == code
        assert chat.left_on() == []
        assert echo
        (kept,) = chat.chats()
        assert [(m.message.content, m.status) for m in kept.messages] == [
            ("tell me", "complete"),
            ("Hello from", "interrupted"),
        ]


@pytest.mark.slow
def test_a_suspended_chat_leaves_the_terminal_and_is_drawn_again(tmp_path: Path) -> None:
    with terminal(tmp_path) as chat:
        chat.child.kill(signal.SIGTSTP)
        chat.expect("\x1b[?1004l")
        assert chat.left_on() == []

        chat.child.kill(signal.SIGCONT)
        chat.expect("Enter sends,")
        chat.expect("Ask anything")
        chat.send("/suspend\r")
        chat.expect("There is no shell to go back to here.")
        chat.send("hi\r")
        chat.expect("Hello from here.")
        chat.send("\x11")
        assert chat.wait() == 0


def test_what_is_lost_at_the_end_is_told_when_the_screen_is_gone(tmp_path: Path) -> None:
    with terminal(tmp_path, FAKE_LOST="The history lacks the end of an answer.") as chat:
        chat.send("\x11")

        assert chat.wait() == 0
        assert chat.left_on() == []
        lost = chat.seen.rfind(b"edgecloud: warning: The history lacks the end of an answer.")
        assert lost > chat.seen.rfind(b"\x1b[?1049l")


def test_leaving_is_code_0_and_nothing_native_was_drawn(tmp_path: Path) -> None:
    # cases: TC9
    with terminal(tmp_path) as chat:
        chat.send("hi\r")
        chat.expect("Hello from here.")
        chat.send("\x11")

        assert chat.wait() == 0
        assert chat.left_on() == []
        assert b"native library" not in chat.seen
        assert "native library" in (tmp_path / "data" / "logs" / "edgecloud.log").read_text()


def test_a_crash_is_code_1_one_sentence_and_no_secret(tmp_path: Path) -> None:
    # cases: TC9, TC10, TE1
    chat = Terminal(tmp_path, FAKE_CRASH="canary-key-123")

    assert chat.wait() == 1
    assert chat.left_on() == []
    last = chat.seen.rpartition(b"\x1b[?1049l")[2]
    assert b"edgecloud: Something went wrong inside edgecloud (ValueError)" in last
    assert last.count(b"\n") == 1
    assert b"canary" not in chat.seen
    log = (tmp_path / "data" / "logs" / "edgecloud.log").read_text()
    assert "ValueError" in log
    assert "canary" not in log


@pytest.mark.slow
def test_keys_of_every_terminal_do_what_they_say(tmp_path: Path) -> None:
    # cases: TB1, TB9, TB11
    with terminal(tmp_path) as chat:
        for newline in ("\n", "\x1b[13;2u", "\x1b[27;2;13~"):  # Ctrl+J, and Shift+Enter of two protocols
            chat.send(f"a{newline}")
        chat.send("END\x1b[1~>\x1b[4~<\x1bOHx")  # Home and End as tmux sends them, Home as xterm does
        chat.send("\x1b[<32;NaN;NaNM")
        chat.expect("x>END<")
        chat.send("\x1b[4~")
        chat.send("\r")
        chat.expect("Hello from here.")
        chat.send("\x11")
        assert chat.wait() == 0

        (kept,) = chat.chats()
        assert kept.messages[0].message.content == "a\na\na\nx>END<"


@pytest.mark.parametrize(
    ("term", "pieces"),
    [
        ("xterm-256color", ["first line\rsecond line\rthird line\r"]),
        pytest.param(
            "xterm-256color", ["the first line\r", "second line\r", "third\r"], marks=pytest.mark.slow
        ),
        pytest.param("linux", ["a\rb\r"], marks=pytest.mark.slow),
    ],
)
def test_a_paste_without_marks_is_not_sent_in_halves(tmp_path: Path, term: str, pieces: list[str]) -> None:
    # cases: TB3
    with terminal(tmp_path, TERM=term) as chat:
        for piece in pieces:
            os.write(chat.child.child_fd, piece.encode())  # pexpect pauses before it sends
        last = pieces[-1].split("\r")[-2]
        chat.expect(last)
        assert chat.chats() == []

        chat.send("\x7f\r")
        chat.expect("Hello from here.")
        chat.send("\x11")
        assert chat.wait() == 0

        (kept,) = chat.chats()
        assert kept.messages[0].message.content == "".join(pieces).rstrip("\r").replace("\r", "\n")


@pytest.mark.slow
def test_words_that_come_at_once_while_a_message_is_focused_are_typed(tmp_path: Path) -> None:
    with terminal(tmp_path) as chat:
        chat.send("one\r")
        chat.expect("first word")
        chat.send("\t")
        chat.expect("who")
        os.write(chat.child.child_fd, b"hey explore more")
        chat.expect("hey explore more")
        chat.send("\r")
        chat.expect("▌ hey explore more")
        chat.expect("first word")
        chat.send("\x11")
        assert chat.wait() == 0

        (kept,) = chat.chats()
        asked = [stored.message.content for stored in kept.messages if stored.message.role == "user"]
        assert asked == ["one", "hey explore more"]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["kill", "\x11"])
def test_what_waits_is_back_after_the_end_and_sent_when_it_is_said(tmp_path: Path, key: str) -> None:
    with terminal(tmp_path, FAKE_HANG_AT="1") as chat:
        chat.send("one\r")
        chat.expect("answers")
        chat.send("two two\r")
        chat.send("three three\r")
        chat.expect("2 wait")
        if key == "kill":
            chat.child.kill(signal.SIGKILL)
        else:
            chat.send(key)
        chat.wait()

    with terminal(tmp_path, "chat", "-c", ready="2 wait") as chat:
        (kept,) = chat.chats()
        assert [stored.message.content for stored in kept.messages if stored.message.role == "user"] == [
            "one"
        ]
        chat.send("\r")
        chat.expect("▌ three three")
        chat.expect("first word")
        chat.send("\x11")
        assert chat.wait() == 0
        (kept,) = chat.chats()
        asked = [stored.message.content for stored in kept.messages if stored.message.role == "user"]
        assert asked == ["one", "two two", "three three"]

    with terminal(tmp_path, "chat", "-c", ready="three three") as chat:
        chat.send("\x11")
        chat.wait()
        assert b"wait" not in chat.seen


@pytest.mark.slow
def test_two_prompts_sent_at_once_wait_for_each_other(tmp_path: Path) -> None:
    with terminal(tmp_path, TERM="xterm-256color", FAKE_DECODE_S="0.1") as chat:
        chat.send("one\rtwo\r")
        chat.expect("▌ two")
        chat.expect("Hello from here.")
        chat.send("\x11")
        assert chat.wait() == 0

        (kept,) = chat.chats()
        roles = [stored.message.role for stored in kept.messages]
        assert roles == ["user", "assistant", "user", "assistant"]
        assert [stored.message.content for stored in kept.messages[:3]] == ["one", "Hello from here.", "two"]


def test_without_a_terminal_it_says_what_to_use(tmp_path: Path) -> None:
    from tests.app.shell import edgecloud

    done = edgecloud(tmp_path, "chat")

    assert done.returncode == 2
    assert b"edgecloud ask" in done.stderr
    assert done.stdout == b""


def test_a_chat_that_is_not_there_is_one_line_on_an_untouched_screen(tmp_path: Path) -> None:
    chat = Terminal(tmp_path, "chat", "--chat", "abcd")

    assert chat.wait() == 2
    assert b"\x1b" not in chat.seen
    assert b"edgecloud: There is no chat 'abcd'" in chat.seen


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--plain",), ("--inline",), ("--web",)])
def test_a_model_that_is_not_there_is_one_line_too(tmp_path: Path, how: tuple[str, ...]) -> None:
    chat = Terminal(tmp_path, "chat", "-m", "nosuch", *how, "a prompt")

    assert chat.wait() == 2
    assert b"\x1b" not in chat.seen
    assert b"edgecloud: There is no model named 'nosuch'" in chat.seen


@pytest.mark.slow
def test_alone_on_a_terminal_it_is_the_chat(tmp_path: Path) -> None:
    with terminal(tmp_path) as chat:
        chat.send("\x11")
        assert chat.wait() == 0


@pytest.mark.slow
def test_stderr_in_a_file_is_not_drawn_into(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    command = f"{sys.executable} -m tests.support.chat_process chat 2>{errors}"
    child = pexpect.spawn(
        "sh", ["-c", command], env=environment(tmp_path), dimensions=(24, 80), timeout=PATIENCE_S
    )
    child.expect("Ask")
    child.send("\x11")
    child.expect(pexpect.EOF)
    child.close()

    assert child.exitstatus == 0
    assert errors.read_bytes() == b""


def test_with_no_color_it_draws_without_colours(tmp_path: Path) -> None:
    with terminal(tmp_path, "chat", NO_COLOR="1") as chat:
        chat.send("hi\r")
        chat.expect("Hello from here.")
        chat.send("\x11")

        assert chat.wait() == 0
        attributes = {
            code
            for sequence in re.findall(rb"\x1b\[([\d;:]*)m", chat.seen)
            for code in re.split(rb"[;:]", sequence)
        }
        coloured = {code for code in attributes if code and (30 <= int(code) <= 49 or 90 <= int(code) <= 107)}
        assert coloured - {b"39", b"49"} == set()


def test_inline_it_draws_below_the_last_command(tmp_path: Path) -> None:
    with terminal(tmp_path, "chat", "--inline") as chat:
        chat.send("hi\r")
        chat.expect("Hello from here.")
        chat.send("\x11")

        assert chat.wait() == 0
        assert b"\x1b[?1049h" not in chat.seen


def test_plain_it_writes_no_escape_and_stops_with_ctrl_c(tmp_path: Path) -> None:
    child = Terminal(tmp_path, "chat", "--plain", FAKE_HANG_AT="2", TERM="dumb").child
    child.expect("you> ")
    child.sendline("hi")
    child.expect("Hello from")
    seen = child.before + child.after
    child.sendintr()
    child.expect("-- stopped")
    seen += child.before
    child.expect("you> ")
    child.sendeof()
    child.expect(pexpect.EOF)
    child.close()

    assert child.exitstatus == 0
    assert b"\x1b[3" not in seen
    assert b"\x1b[?1049h" not in seen
