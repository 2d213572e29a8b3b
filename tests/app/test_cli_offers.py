"""What a shell offers in the middle of a command line."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete

from edgecloud.app.cli.main import edgecloud
from edgecloud.app.history import History
from edgecloud.types import ChatRequest, Message
from tests.cache.building import keep, make_cache
from tests.ground.gguf_files import write_gguf


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    return tmp_path


def offered(line: str) -> list[CompletionItem]:
    *before, begun = line.split(" ")
    return ShellComplete(edgecloud, {}, "edgecloud", "_EDGECLOUD_COMPLETE").get_completions(before, begun)


def words(line: str) -> list[str]:
    return [item.value for item in offered(line) if item.type == "plain"]


@pytest.mark.parametrize(
    "line",
    [
        *("ask -f no", "ask --schema no", "cache export -o no", "history export --output no"),
        *("ask -m ./no", "models info no", "serve -m no", "config set model no"),
    ],
)
def test_a_file_is_left_to_the_shell(line: str) -> None:
    assert [(item.type, item.value) for item in offered(line)] == [("file", line.split(" ")[-1])]


@pytest.mark.parametrize("line", ["ask -m ", "chat --model ", "models default ", "config set model "])
def test_models_are_offered_by_every_name_that_they_have(home: Path, line: str) -> None:
    (home / "config.toml").write_text(
        "[aliases]\nlittle = 'tiny'\n[[pool]]\nname = 'box'\nurl = 'http://box/v1'\nmodel = 'm'\n"
    )
    (home / "data" / "models").mkdir(parents=True)
    write_gguf(home / "data" / "models" / "tiny.gguf")

    assert {"tiny", "little", "box"} <= set(words(line))
    assert words("pool test ") == ["box"]
    assert words(f"{line}t") == ["tiny"]


def test_settings_are_offered_with_what_they_may_be() -> None:
    assert words("config get server.p") == ["server.port", "server.ping_s"]
    assert offered("config unset server.drain")[0].help == "how long SIGTERM waits for running answers"
    assert words("config set router.mode b") == ["balanced"]
    assert words("config set offline ") == ["true", "false"]
    assert words("config set server.port ") == words("config set nothing ") == []


def test_ids_are_offered_with_what_they_are(home: Path) -> None:
    assert words("history show ") == words("cache forget ") == words("why ") == []
    assert not (home / "data").exists(), "looking makes no database"
    turn = History(home / "data" / "edgecloud.db").begin(ChatRequest(messages=(Message("user", "Why?"),)))
    with closing(make_cache(home / "data" / "cache.db")) as answers:
        kept = keep(answers, "why is the sky blue?")

    (chat,) = offered("history rm chat-")
    (answer,) = offered("cache show ans-")

    assert (chat.value, chat.help) == (turn.chat_id, "Why?")
    assert (answer.value, answer.help) == (kept, "why is the sky blue?")


def test_settings_that_cannot_be_read_offer_nothing_and_say_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "config.toml").write_text("modle = 'x'\n")

    assert words("pool rm ") == []
    assert capsys.readouterr() == ("", "")
