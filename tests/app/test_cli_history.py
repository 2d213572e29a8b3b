"""`edgecloud history`."""

from __future__ import annotations

import json
import sqlite3
import stat
from pathlib import Path
from typing import Any, cast

import pexpect
import pytest

from edgecloud.app import forgetting
from edgecloud.app.chat_files import import_chat
from edgecloud.app.cli.main import run
from edgecloud.app.history import History
from edgecloud.storage import DiskFull
from edgecloud.types import ChatRequest, Message

from .shell import COMMAND, edgecloud, environment


@pytest.fixture
def chats(tmp_path: Path) -> list[str]:
    """Two chats, the older first."""
    history = History(tmp_path / "data" / "edgecloud.db")
    ids = []
    for prompt, answer in (
        ("why is the sky blue?", "Light scatters.\x1b[2J"),
        ("and the sea?", "It reflects."),
    ):
        turn = history.begin(ChatRequest((Message("user", prompt),), door="ask"))
        history.append(turn, 0, answer)
        history.finish(turn, None, {0: "stop"}, {}, "complete")
        ids.append(turn.chat_id)
    history.close()
    return ids


def test_list(tmp_path: Path, chats: list[str]) -> None:
    lines = edgecloud(tmp_path, "history", "list").stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == chats[::-1]
    assert lines[1].endswith("2  ask  complete  why is the sky blue?")

    (only,) = json.loads(edgecloud(tmp_path, "history", "list", "-n", "1", "--json").stdout)
    assert (only["id"], only["title"]) == (chats[1], "and the sea?")

    assert edgecloud(tmp_path, "history", "list", "--door", "http").stdout == b""
    assert (
        len(edgecloud(tmp_path, "history", "list", "--door", "http", "--door", "ask").stdout.splitlines())
        == 2
    )


def test_show_the_last_or_the_named_chat(tmp_path: Path, chats: list[str]) -> None:
    last = edgecloud(tmp_path, "history", "show").stdout.decode()
    assert last.endswith("## assistant (auto)\n\nIt reflects.\n")

    first = edgecloud(tmp_path, "history", "show", chats[0][:12])
    assert b"Light scatters." in first.stdout
    assert b"\x1b" not in first.stdout


def test_show_counts_what_stands_in_other_branches(tmp_path: Path, chats: list[str]) -> None:
    history = History(tmp_path / "data" / "edgecloud.db")
    turn = history.begin(ChatRequest((Message("user", "and the sea?"),), door="chat", chat_id=chats[1]))
    history.append(turn, 0, "It is deep.")
    history.finish(turn, None, {0: "stop"}, {}, "complete")
    history.close()

    shown = edgecloud(tmp_path, "history", "show", chats[1]).stdout.decode()

    assert "It is deep." in shown
    assert "It reflects." not in shown
    assert shown.splitlines()[-1].startswith("(1 more message stands in other branches: `edgecloud history")


def test_a_title_rings_no_bell_in_a_pipe_either(tmp_path: Path, chats: list[str]) -> None:
    history = History(tmp_path / "data" / "edgecloud.db")
    history.rename(chats[1], "ding\x07 dong\x08")
    history.close()

    assert edgecloud(tmp_path, "history", "show", chats[1]).stdout.startswith("# ding␇ dong␈".encode())


def test_search(tmp_path: Path, chats: list[str]) -> None:
    done = edgecloud(tmp_path, "history", "search", "sky", "blue")

    assert done.stdout.decode().split()[0] == chats[0]
    nothing = edgecloud(tmp_path, "history", "search", "absent")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (1, b"", b"")
    assert edgecloud(tmp_path, "history", "search", "").returncode == 2
    assert json.loads(edgecloud(tmp_path, "history", "search", "absent", "--json").stdout) == []


def test_a_search_that_finds_nothing_says_so_to_a_person(tmp_path: Path, chats: list[str]) -> None:
    shown = pexpect.run(
        " ".join([*COMMAND, "history", "search", "absent"]), env=cast(Any, environment(tmp_path)), timeout=30
    )

    assert shown == b"No message holds that.\r\n"


def test_export_to_a_private_file_that_is_new(tmp_path: Path, chats: list[str]) -> None:
    file = tmp_path / "chat.json"
    done = edgecloud(tmp_path, "history", "export", chats[0], "--json", "-o", str(file))

    assert (done.returncode, done.stdout) == (0, b"")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text())["summary"]["id"] == chats[0]
    again = edgecloud(tmp_path, "history", "export", chats[0], "-o", str(file))
    assert again.returncode == 2
    assert b"is there already: name another file." in again.stderr
    edgecloud(tmp_path, "history", "export", chats[0], "-o", str(tmp_path / "chat.md"))
    written = edgecloud(tmp_path, "history", "export", chats[0]).stdout
    assert written.decode().replace("␛", "\x1b") == (tmp_path / "chat.md").read_text()
    assert import_chat(str(tmp_path / "chat.md")).messages


def test_rm_removes_the_named_and_leaves_no_trace(tmp_path: Path, chats: list[str]) -> None:
    done = edgecloud(tmp_path, "history", "rm", chats[0])

    assert done.stdout == b"Removed 1 chat with 2 messages.\n"
    files = list((tmp_path / "data").glob("edgecloud.db*"))
    assert not [file for file in files if b"scatters" in file.read_bytes()]
    assert b"the sea" in edgecloud(tmp_path, "history", "list").stdout


@pytest.mark.slow
def test_rm_tells_if_text_could_not_be_wiped_yet(tmp_path: Path, chats: list[str]) -> None:
    reader = sqlite3.connect(tmp_path / "data" / "edgecloud.db")
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM messages").fetchone()

    done = edgecloud(tmp_path, "history", "rm", *chats)
    assert b"they are wiped when edgecloud next starts" in done.stdout
    reader.close()
    edgecloud(tmp_path, "history", "list")

    files = list((tmp_path / "data").glob("edgecloud.db*"))
    assert not [file for file in files if b"scatters" in file.read_bytes()]


def test_rm_of_everything_needs_a_yes(tmp_path: Path, chats: list[str]) -> None:
    refused = edgecloud(tmp_path, "history", "rm", "--all", stdin=b"n\n")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"--yes" in refused.stderr
    assert edgecloud(tmp_path, "history", "list").stdout.count(b"\n") == 2

    asked = pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], "history", "rm", "--all"],
        env=environment(tmp_path),
        dimensions=(24, 80),
        timeout=30,
    )
    asked.expect_exact("Remove every chat: 2 chats with 4 messages?")
    asked.sendline("n")
    asked.expect(pexpect.EOF)
    asked.close()
    assert edgecloud(tmp_path, "history", "rm", "--all", "-y").stdout.startswith(b"Removed 2 chats")
    assert edgecloud(tmp_path, "history", "list").stdout == b""


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["rm"], 2, "Name the chats"),
        (["rm", "--all", "chat-1"], 2, "Name the chats"),
        (["rm", "chat-nope"], 2, "There is no chat 'chat-nope'"),
        (["show", "chat-nope"], 2, "There is no chat 'chat-nope'"),
        (["show"], 2, "There are no chats yet"),
        (["search"], 2, "WORDS"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path: Path, arguments: list[str], code: int, part: str) -> None:
    done = edgecloud(tmp_path, "history", *arguments)

    assert (done.returncode, done.stdout) == (code, b"")
    assert part.encode() in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_damaged_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "edgecloud.db").write_bytes(b"not a database, and long enough to be sure" * 100)

    done = edgecloud(tmp_path, "history", "list")
    assert done.returncode == 1
    database = tmp_path / "data" / "edgecloud.db"
    told = f"edgecloud: {database} is damaged; move it away and a fresh one is made.\n"
    assert done.stderr.decode() == told


def test_on_a_full_disk_what_can_be_computed_again_makes_room_for_removing_everything(
    tmp_path: Path, chats: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "data" / "prefixes.db"
    really = forgetting.forget_chats

    def forget_chats(names: list[str]) -> bool:
        if kept.exists():
            raise DiskFull("The disk with edgecloud.db is full; free some space and try again.")
        return really(names)

    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    kept.write_bytes(bytes(1000))
    monkeypatch.setattr(forgetting, "forget_chats", forget_chats)

    with pytest.raises(SystemExit) as named:
        run(["history", "rm", *chats])
    assert (named.value.code, kept.exists()) == (1, True)
    with pytest.raises(SystemExit) as ended:
        run(["history", "rm", "--all", "--yes"])
    assert (ended.value.code, capsys.readouterr().out) == (0, "Removed 2 chats with 4 messages.\n")

    monkeypatch.setattr("edgecloud.app.forgetting.drop_kept", lambda: None)
    kept.write_bytes(bytes(1000))
    with pytest.raises(SystemExit):
        run(["history", "rm", "--all", "--yes"])
    assert "delete " in capsys.readouterr().err
