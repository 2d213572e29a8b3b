"""What machines do to a user: kills, full and broken disks, servers in the way.

The answer comes, or one clear sentence with the right exit code, and nothing that was written is lost.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.requests import chat, client, frames

from .house import STORY, House, answers, comes_to_rest, read_until, wait_for

SHORT = ("--max-tokens", "8", "--temperature", "0")
LONG = (STORY, "--max-tokens", "2000", "--temperature", "0")


def shown(home: House, *arguments: str) -> list[dict[str, Any]]:
    """The last chat's messages as `history show` prints them."""
    done = home.run("history", "show", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    return [{**stored, **stored["message"]} for stored in json.loads(done.stdout)["messages"]]


def one_sentence(done: subprocess.CompletedProcess[bytes] | tuple[bytes, bytes]) -> str:
    stderr = done[1] if isinstance(done, tuple) else done.stderr
    text = stderr.decode()
    assert text.startswith("edgecloud: "), text
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    return text


# ----------------------------------------------------------------------------------------------------- kills


def test_a_killed_server_leaves_the_partial_and_the_chat_goes_on(home: House) -> None:
    server = home.serve()
    assert server.url
    asking = home.start("ask", *LONG)
    seen = read_until(asking, 200)
    time.sleep(0.6)  # what was shown is written within a quarter of a second
    server.process.kill()
    rest, stderr = asking.communicate()

    assert asking.returncode == 1
    assert "went away" in one_sentence((rest, stderr))
    prompt, answer = shown(home)
    assert prompt["content"] == STORY
    assert answer["status"] == "interrupted"
    assert answer["content"].startswith(seen.strip()[:100])
    listed = home.run("history", "list").stdout.decode()
    assert "interrupted" in listed

    more = home.run("ask", "-c", "Go on.", *SHORT)
    assert (more.returncode, more.stderr) == (0, b"")
    assert more.stdout.strip()
    assert [message["role"] for message in shown(home)] == ["user", "assistant", "user", "assistant"]


def test_a_killed_server_leaves_the_partial_of_an_http_client(home: House) -> None:
    server = home.serve()
    streaming = Streaming(server.url, 2000)
    wait_for(lambda: streaming.text.count('"content"') > 40)
    time.sleep(0.6)
    server.process.kill()
    streaming.join(60)

    assert streaming.failure
    _, answer = shown(home)
    assert answer["status"] == "interrupted"
    assert len(answer["content"]) > 40
    lines = [line for line in streaming.text.split("\n\n") if line.startswith("data: {") and line[-1] == "}"]
    seen = "".join(_content(line) for line in lines)
    assert seen.startswith(answer["content"]) or answer["content"].startswith(seen)


def _content(line: str) -> str:
    return json.loads(line[6:])["choices"][0]["delta"].get("content") or ""


def test_a_killed_ask_stops_the_server_and_keeps_what_it_got(home: House) -> None:
    server = home.serve()
    assert server.url
    asking = home.start("ask", *LONG)
    seen = read_until(asking, 100)
    asking.kill()
    asking.wait()
    comes_to_rest(server.url)

    _, answer = shown(home)
    assert answer["status"] == "interrupted"
    assert answer["content"].startswith(seen.strip()[:50])


def test_a_frozen_server_does_not_freeze_ask(home: House) -> None:
    """A suspended laptop process still accepts connections: the kernel does."""
    server = home.serve()
    assert server.url
    server.signal(signal.SIGSTOP)
    try:
        done = home.run("ask", "Say hello.", *SHORT)
        late = home.run("ask", STORY, "--max-tokens", "4000", "--timeout", "4")
        told = home.run("serve", "status")
    finally:
        server.signal(signal.SIGCONT)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.strip()
    # Without the server, which would have taken all of that time.
    assert late.returncode == 5
    assert late.stdout.strip()
    assert told.returncode == 1
    assert "it hangs, so end its process" in one_sentence(told)


# ----------------------------------------------------------------------------------------------------- disks


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A small file system of its own; needs root."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    if done.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


@pytest.fixture(params=["full", "read-only"])
def broken_home(home: House, request: pytest.FixtureRequest) -> Iterator[House]:
    data = home.home / "data"
    with mounted(data, "size=1m,mode=700"):
        if request.param == "full":
            fill(data)
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(data)], check=True)
        yield home
        home.close()


def test_ask_answers_where_nothing_can_be_written(broken_home: House) -> None:
    done = broken_home.run("ask", "Say hello.", *SHORT)
    assert done.returncode == 0
    assert "warning: This answer is not kept" in one_sentence(done)
    assert done.stdout.strip()


def test_the_server_answers_where_nothing_can_be_written(broken_home: House) -> None:
    server = broken_home.serve()
    answers(server.url)
    answers(server.url)
    done = broken_home.run("ask", "Say hello.", *SHORT)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.strip()
    assert "Traceback" not in server.text
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


@pytest.mark.parametrize("broken_home", ["full"], indirect=True)
@pytest.mark.parametrize("command", [["history", "list"], ["history", "show"], ["ask", "-c", "more"]])
def test_what_needs_the_history_says_why_it_cannot(broken_home: House, command: list[str]) -> None:
    done = broken_home.run(*command)
    assert done.returncode == 1
    assert done.stdout == b""
    one_sentence(done)


def test_a_read_only_disk_is_read(home: House) -> None:
    data = home.home / "data"
    reading = (["history", "list"], ["history", "show"], ["stats"], ["why"], ["cache", "list"])
    with mounted(data, "size=20m,mode=700"):
        assert home.run("ask", "Say hello.", *SHORT).returncode == 0
        told = [home.run(*command).stdout for command in reading]
        subprocess.run(["mount", "-o", "remount,ro", str(data)], check=True)
        for command, before in zip(reading, told, strict=True):
            done = home.run(*command)
            assert (done.returncode, done.stdout, done.stderr) == (0, before, b""), command
        one_sentence(home.run("history", "rm", "--all", "--yes"))
        home.close()


def test_doctor_names_what_is_broken(broken_home: House) -> None:
    done = broken_home.run("doctor")
    assert b"Traceback" not in done.stdout + done.stderr
    assert b"broke down" not in done.stdout


def test_a_disk_that_fills_up_in_mid_answer_costs_the_history_only(home: House) -> None:
    data = home.home / "data"
    with mounted(data, "size=2m,mode=700"):
        # Nothing else that is written there, or the room that it gives back at the end is enough.
        alone = {"EDGECLOUD_CACHE__ENABLED": "false", "EDGECLOUD_CACHE__PREFIX_MB": "0"}
        asking = home.start("ask", STORY, "--max-tokens", "300", "--temperature", "0", **alone)
        # Enough text for a slice of it to have been written down.
        first = read_until(asking, 400)
        fill(data)
        rest, stderr = asking.communicate()
        assert asking.returncode == 0
        assert "The history lacks the end of an answer" in one_sentence((rest, stderr))
        assert len(first) + len(rest) > 600
        (data / "filler").unlink()
        prompt, answer = shown(home)
        assert prompt["content"] == STORY
        assert answer["content"]
        home.close()


# ------------------------------------------------------------------------------------------------- databases


def make_database(home: House) -> Path:
    """A history with one chat in it."""
    done = home.run("ask", "The first question.", *SHORT)
    assert (done.returncode, done.stderr) == (0, b"")
    return home.home / "data" / "edgecloud.db"


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another program holds the database and does not let go."""
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.rollback()
        other.close()


def test_a_database_that_is_locked_from_the_start_costs_neither_answer_nor_history(home: House) -> None:
    database = make_database(home)
    with locked(database):
        assert "The first question." in home.run("history", "show").stdout.decode()
        asking = home.start("ask", "-c", "Say hello.", *SHORT)
        first = read_until(asking, 1)
    rest, stderr = asking.communicate()
    assert (asking.returncode, stderr) == (0, b"")
    told = [message["content"].strip() for message in shown(home)]
    assert told[0] == "The first question."
    assert told[2:] == ["Say hello.", (first + rest.decode()).strip()]


def test_what_a_locked_database_never_took_is_told(home: House) -> None:
    database = make_database(home)
    with locked(database):
        done = home.run("ask", "Say hello.", *SHORT)
    assert done.returncode == 0
    assert "warning: The history lacks a question: edgecloud.db is locked" in one_sentence(done)
    assert done.stdout.strip()
    assert shown(home)[0]["content"] == "The first question."


@pytest.mark.parametrize("tokens", [40, 400])
def test_a_lock_taken_in_mid_answer_and_let_go_leaves_no_hole(home: House, tokens: int) -> None:
    """Whether the answer ends while the lock is held, as a short one does, or after it."""
    database = make_database(home)
    asking = home.start("ask", STORY, "--max-tokens", str(tokens), "--temperature", "0")
    first = read_until(asking, 20)
    with locked(database):
        time.sleep(12)  # longer than a statement waits for a lock, shorter than the end of the program does
    rest, stderr = asking.communicate()
    assert (asking.returncode, stderr) == (0, b"")
    answer = shown(home)[-1]
    assert answer["content"].strip() == (first + rest.decode()).strip()
    assert answer["status"] == "complete"


def test_what_a_server_could_not_write_under_a_lock_is_written_when_it_is_gone(home: House) -> None:
    database = make_database(home)
    server = home.serve()
    streaming = Streaming(server.url, 40)
    wait_for(lambda: streaming.text.count('"content"') > 5)
    with locked(database):
        streaming.join(60)
        assert streaming.text.rstrip().endswith("[DONE]")
        time.sleep(12)  # the first try has failed
    said = "".join(_content(line) for line in streaming.text.split("\n\n") if line.startswith("data: {"))
    wait_for(lambda: shown(home)[-1]["status"] == "complete")
    assert shown(home)[-1]["content"] == said


def test_a_server_goes_on_under_a_locked_database(home: House) -> None:
    database = make_database(home)
    server = home.serve()
    answers(server.url)
    with locked(database):
        with client(server.url) as http:
            answer = http.post("/v1/chat/completions", json=chat("in the dark", max_tokens=4), timeout=120)
        assert answer.status_code == 200
    answers(server.url)
    assert "Traceback" not in server.text


def damage(database: Path) -> None:
    with database.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(0)
        file.write(b"\xa5" * size)


def test_a_damaged_database_costs_the_history_only(home: House) -> None:
    database = make_database(home)
    damage(database)
    before = database.read_bytes()

    done = home.run("ask", "Say hello.", *SHORT)
    assert done.returncode == 0
    assert "warning: This answer is not kept" in one_sentence(done)
    assert done.stdout.strip()
    listed = home.run("history", "list")
    assert listed.returncode == 1
    assert "damaged" in one_sentence(listed)
    server = home.serve()
    answers(server.url)
    assert "Traceback" not in server.text
    # Perhaps somebody can still read something in it.
    assert database.read_bytes() == before


def test_a_database_damaged_under_a_running_server_is_no_end(home: House) -> None:
    database = make_database(home)
    server = home.serve()
    answers(server.url)
    damage(database)
    for _ in range(3):
        answers(server.url)
    assert server.process.poll() is None
    assert "Traceback" not in server.text


def test_a_database_deleted_under_a_running_server_is_made_anew(home: House) -> None:
    database = make_database(home)
    server = home.serve()
    answers(server.url)
    for file in database.parent.glob("edgecloud.db*"):
        file.unlink()
    done = home.run("ask", "What comes after.", *SHORT)
    assert (done.returncode, done.stderr) == (0, b"")
    assert server.process.poll() is None
    assert shown(home)[0]["content"] == "What comes after."


# --------------------------------------------------------------------------------------------------- servers


class Streaming(threading.Thread):
    """An HTTP client that reads one stream to its end."""

    def __init__(self, url: str, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self.url, self.max_tokens, self.text = url, max_tokens, ""
        self.failure: httpx.TransportError | None = None
        self.start()

    def run(self) -> None:
        try:
            self._read()
        except httpx.TransportError as error:
            self.failure = error

    def _read(self) -> None:
        body = chat(STORY, stream=True, max_tokens=self.max_tokens, ignore_eos=True)
        with (
            client(self.url) as http,
            http.stream("POST", "/v1/chat/completions", json=body, timeout=300) as answer,
        ):
            for piece in answer.iter_text():
                self.text += piece


# cases: C177
def test_while_it_drains_streams_finish_and_new_asks_run_by_themselves(home: House) -> None:
    server = home.serve(drain_s=300)
    streaming = Streaming(server.url, 300)
    asking = home.start("ask", STORY, "--max-tokens", "150", "--temperature", "0")
    read_until(asking, 20)
    wait_for(lambda: streaming.text.count('"content"') > 5)
    server.signal(signal.SIGTERM)
    wait_for(lambda: _refuses(server.url))

    done = home.run("ask", "Say hello.", *SHORT)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.strip()
    _, stderr = asking.communicate()
    assert (asking.returncode, stderr) == (0, b"")
    streaming.join(300)
    assert frames(streaming.text)[-2]["choices"][0]["finish_reason"] == "length"
    assert server.wait() == 0
    chats = json.loads(home.run("history", "list", "--json").stdout)
    assert [kept["status"] for kept in chats] == ["complete"] * 3


def _refuses(url: str) -> bool:
    try:
        with client(url) as http:
            return http.get("/health/ready").status_code == 503
    except httpx.ConnectError:
        return True


# cases: C177
def test_a_second_signal_ends_all_at_once_with_a_word_to_each(home: House) -> None:
    server = home.serve(drain_s=300)
    streaming = Streaming(server.url, 3000)
    asking = home.start("ask", *LONG)
    read_until(asking, 20)
    wait_for(lambda: streaming.text.count('"content"') > 5)
    server.signal(signal.SIGTERM)
    wait_for(lambda: _refuses(server.url))
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    streaming.join(60)
    assert frames(streaming.text)[-2]["error"]["code"] == "server_stopping"
    rest = asking.communicate()
    assert asking.returncode == 1
    one_sentence(rest)
    chats = json.loads(home.run("history", "list", "--json").stdout)
    assert "running" not in [kept["status"] for kept in chats]
    assert len(chats) == 2
    assert "Traceback" not in server.text


def test_a_port_in_use_is_one_sentence_and_the_first_server_stays(home: House) -> None:
    server = home.serve()
    port = server.url.rpartition(":")[2]
    second = home.run("serve", "--port", port)
    assert second.returncode == 2
    assert server.url in one_sentence(second)
    answers(server.url)


def test_of_two_servers_the_first_serves_ask_and_the_second_takes_over_nothing(home: House) -> None:
    first = home.serve()
    assert first.url
    second = home.serve()
    answers(second.url)
    assert "another edgecloud serve" in second.text
    done = home.run("ask", "Say hello.", *SHORT)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.strip()
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    # The second left the socket of the first alone.
    status = home.run("serve", "status")
    assert first.url.encode() in status.stdout
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    alone = home.run("ask", "Say hello.", *SHORT)
    assert (alone.returncode, alone.stderr) == (0, b"")


def test_what_a_dead_server_left_is_in_nobodys_way(home: House) -> None:
    server = home.serve()
    assert server.url
    server.process.kill()
    server.process.wait()
    assert any((home.home / "run").iterdir())
    done = home.run("ask", "Say hello.", *SHORT)
    assert (done.returncode, done.stderr) == (0, b"")
    status = home.run("serve", "status")
    assert status.returncode == 1
    assert "No edgecloud server is running" in one_sentence(status)
    again = home.serve()
    assert again.url
    assert home.run("serve", "status").returncode == 0


def too_long(folder: Path) -> Path:
    return folder / ("x" * 120)


def under_a_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "run"


@pytest.mark.parametrize("where", [too_long, under_a_file])
def test_without_a_private_socket_all_but_that_works(
    home: House, tmp_path: Path, where: Callable[[Path], Path]
) -> None:
    home.extra["EDGECLOUD_RUNTIME"] = str(where(tmp_path))
    server = home.serve()
    answers(server.url)
    assert "no private socket" in server.text
    assert "Traceback" not in server.text
    done = home.run("ask", "Say hello.", *SHORT)
    assert (done.returncode, done.stderr) == (0, b"")
    for command in (["serve", "status"], ["serve", "stop"]):
        assert "No edgecloud server is running" in one_sentence(home.run(*command))
