"""`edgecloud config`."""

from __future__ import annotations

import json
import re
import stat
import tomllib
from pathlib import Path

import pytest

from .shell import edgecloud


def test_the_path_is_told_even_if_the_file_is_broken(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("= =")

    assert edgecloud(tmp_path, "config", "path").stdout.decode() == f"{tmp_path / 'config.toml'}\n"


def test_show_tells_where_each_value_came_from_and_masks_secrets(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[server]\nport = 9\napi_keys = ['sk-canary']\n")

    done = edgecloud(tmp_path, "config", "show", EDGECLOUD_MODEL="tiny")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in done.stdout.decode().splitlines()}
    assert rows["server.port"] == ["9", f"{tmp_path / 'config.toml'}, line 2"]
    assert rows["model"] == ['"tiny"', "the environment variable EDGECLOUD_MODEL"]
    assert rows["server.host"] == ['"127.0.0.1"', "default"]
    assert b"canary" not in done.stdout

    one = json.loads(edgecloud(tmp_path, "--offline", "config", "show", "offline", "--json").stdout)
    assert one == {"offline": {"value": True, "source": "flag", "where": "the flag for offline"}}


def test_show_of_a_section_and_of_nothing(tmp_path: Path) -> None:
    assert edgecloud(tmp_path, "config", "show", "history").stdout.count(b"\n") == 2
    unknown = edgecloud(tmp_path, "config", "show", "histroy")
    assert unknown.returncode == 2
    assert b"There is no setting 'histroy'" in unknown.stderr


def test_show_tells_of_servers_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        "[[pool]]\nname = 'big'\nurl = 'https://x.test/v1'\nmodel = 'm'\napi_key = 'sk-canary'\n"
        "[[pool]]\nname = 'two'\nurl = 'https://y.test/v1'\nmodel = 'n'\n"
        "replicas = [{url = 'https://z.test/v1'}]\n"
    )
    out = edgecloud(tmp_path, "config", "show", "pool").stdout.decode()
    rows = {line.split()[0]: re.split(r"\s{2,}", line)[1:] for line in out.splitlines()}

    assert rows["pool.big.url"] == ['"https://x.test/v1"', f"{path}, line 3"]
    assert rows["pool.big.api_key"] == ['"********"', f"{path}, line 5"]
    assert rows["pool.two.model"] == ['"n"', f"{path}, line 9"]
    assert rows["pool.two.replicas"][0] == '[{url = "https://z.test/v1", weight = 1.0}]'
    assert rows["pool.two.price_cached"] == ["not set", "default"]
    assert "null" not in out

    one = edgecloud(tmp_path, "config", "show", "pool.two.url").stdout.decode().split()
    assert one[:2] == ["pool.two.url", '"https://y.test/v1"']


def test_a_file_from_another_editor_is_read_and_stays_its_own(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xef\xbb\xbf# mine\r\nmodel = 'tiny'\r\n")

    shown = json.loads(edgecloud(tmp_path, "config", "show", "model", "--json").stdout)
    assert shown["model"] == {"value": "tiny", "source": "file", "where": f"{path}, line 2"}
    assert edgecloud(tmp_path, "config", "set", "server.port", "9").returncode == 0
    written = path.read_bytes()
    assert written.startswith(b"# mine\r\nmodel = 'tiny'\r\n")
    assert written.count(b"\n") == written.count(b"\r\n")


def test_set_writes_and_says_nothing(tmp_path: Path) -> None:
    done = edgecloud(tmp_path, "config", "set", "server.port", "9000")

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert tomllib.loads((tmp_path / "config.toml").read_text()) == {"server": {"port": 9000}}


def test_unset_brings_the_default_back_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        "# mine\nmodel = 'tiny'\n\n[server]  # the door\nport = 9\nhost = '127.0.0.2'\n"
        "[aliases]\ngpt = 'tiny'\n"
    )

    for key in ("server.port", "aliases.gpt"):
        assert edgecloud(tmp_path, "config", "unset", key).returncode == 0
    assert path.read_text() == "# mine\nmodel = 'tiny'\n\n[server]  # the door\nhost = '127.0.0.2'\n"
    assert edgecloud(tmp_path, "config", "unset", "server").returncode == 0
    assert path.read_text().strip() == "# mine\nmodel = 'tiny'"

    again = edgecloud(tmp_path, "config", "unset", "server.port")
    assert again.returncode != 0
    assert again.stderr.decode().count("\n") == 1
    assert "'server.port' isn't set in" in again.stderr.decode()


def test_what_is_in_a_list_is_not_set_by_its_number(tmp_path: Path) -> None:
    done = edgecloud(tmp_path, "config", "set", "pool.0.name", "x")
    assert done.returncode != 0
    assert b"`edgecloud pool add`" in done.stderr


def test_a_wrong_value_is_one_line(tmp_path: Path) -> None:
    done = edgecloud(tmp_path, "config", "set", "server.prot", "9000")

    assert done.returncode == 2
    assert done.stderr.decode() == (
        "edgecloud: There is no setting 'server.prot' (in `config set`); did you mean 'server.port'?\n"
    )


@pytest.mark.parametrize("name", ["ansi", "nord"])
def test_a_theme_that_there_is_is_set(tmp_path: Path, name: str) -> None:
    assert edgecloud(tmp_path, "config", "set", "chat.theme", name).returncode == 0
    assert tomllib.loads((tmp_path / "config.toml").read_text()) == {"chat": {"theme": name}}


def test_a_negative_number_is_a_value(tmp_path: Path) -> None:
    assert edgecloud(tmp_path, "config", "set", "local.gpu_layers", "-1").returncode == 0
    assert tomllib.loads((tmp_path / "config.toml").read_text()) == {"local": {"gpu_layers": -1}}

    refused = edgecloud(tmp_path, "config", "set", "local.parallel", "-1")
    assert (refused.returncode, refused.stderr.decode()) == (
        2,
        "edgecloud: local.parallel must be greater than or equal to 1, not -1.\n",
    )


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("server.host", "", "server.host must be an address"),
        ("server.host", "203.0.113.9", "203.0.113.9"),
        ("embedder", "smollm2", "smollm2 is a chat model and gives no embeddings"),
        ("model", "minilm", "minilm is an embedding model and can't chat"),
        ("local.chat_template", "broken.jinja", "is broken in line 1"),
        ("local.chat_template", ".", "can't be read: Is a directory"),
        ("local.ctx_size", "10", "local.ctx_size must be 0 or at least 256"),
        ("chat.theme", "nosuch", "There is no theme 'nosuch'; those that there are: dark, light, ansi, "),
    ],
)
def test_what_is_there_and_wrong_is_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str, part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.jinja").write_text("{% if %}")

    done = edgecloud(tmp_path, "config", "set", key, value)
    assert (done.returncode, done.stdout) == (2, b"")
    assert part in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert (tmp_path / "config.toml").read_text() == ""


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("model", "nope", "There is no model named 'nope'"),
        ("model", "hf:a/b-GGUF:Q4_0", "edgecloud models pull hf:a/b-GGUF:Q4_0"),
        ("local.chat_template", "/nope", "There is no chat template /nope"),
        ("local.chat_template", "~nouser/nope", "There is no chat template ~nouser/nope"),
    ],
)
def test_what_is_not_there_yet_is_set_with_a_warning(tmp_path: Path, key: str, value: str, part: str) -> None:
    done = edgecloud(tmp_path, "config", "set", key, value)

    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode().startswith("edgecloud: warning: ")
    assert part in done.stderr.decode()
    assert json.loads(edgecloud(tmp_path, "config", "show", key, "--json").stdout)[key]["value"] == value


def test_edit_begins_with_every_default_as_a_comment(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    sed = "sed -i 's/^# port = 8484/port = 9/'"
    done = edgecloud(tmp_path, "config", "edit", EDITOR=sed, EDGECLOUD_CONFIG=str(file))

    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = tomllib.loads(file.read_text())
    assert written.pop("server") == {"port": 9}
    assert written
    assert not any(written.values())
    uncommented = "\n".join(line.removeprefix("# ") for line in file.read_text().splitlines()[1:])
    assert tomllib.loads(uncommented)["local"]["kv_type"] == "f16"


def test_edit_checks_what_was_written(tmp_path: Path) -> None:
    sed, file = "sed -i 's/^# port = 8484/port = -9/'", str(tmp_path / "new.toml")
    done = edgecloud(tmp_path, "config", "edit", EDITOR=sed, EDGECLOUD_CONFIG=file)

    assert done.returncode == 2
    assert b"server.port must be greater than or equal to 0" in done.stderr


def test_get_prints_the_value_alone_and_of_a_section_its_lines(tmp_path: Path) -> None:
    assert edgecloud(tmp_path, "config", "get", "server.port").stdout == b"8484\n"
    assert edgecloud(tmp_path, "config", "get", "model").stdout == b"smollm2\n"
    assert edgecloud(tmp_path, "config", "get", "budget.per_day").stdout == b""
    section = edgecloud(tmp_path, "config", "get", "server").stdout
    assert section == edgecloud(tmp_path, "config", "show", "server").stdout
    assert edgecloud(tmp_path, "config", "get", "server.prot").returncode == 2


@pytest.mark.parametrize("value", ['{gpt-4 = "smollm2"}', '{"gpt-4": "smollm2"}'])
def test_a_table_is_set_as_the_file_has_it_or_as_json(tmp_path: Path, value: str) -> None:
    assert edgecloud(tmp_path, "config", "set", "aliases", value).returncode == 0
    assert tomllib.loads((tmp_path / "config.toml").read_text())["aliases"] == {"gpt-4": "smollm2"}


@pytest.mark.parametrize("value", ["gpt-4=smollm2", '{"a": "b"}\nmodel = "x"'])
def test_a_table_that_is_none_is_told_with_an_example(tmp_path: Path, value: str) -> None:
    done = edgecloud(tmp_path, "config", "set", "aliases", value)
    assert done.returncode == 2
    assert b'aliases must be a table like {name = "value"}' in done.stderr


def test_a_file_that_cannot_be_written_is_no_wrong_usage(tmp_path: Path) -> None:
    done = edgecloud(tmp_path, "config", "set", "server.port", "1", EDGECLOUD_CONFIG="/proc/no/config.toml")
    assert (done.returncode, b"cannot be written" in done.stderr) == (1, True)


def test_a_file_that_was_named_and_is_not_there_is_no_set_of_defaults(tmp_path: Path) -> None:
    file = tmp_path / "cofnig.toml"
    named = {"EDGECLOUD_CONFIG": str(file)}
    told = f"EDGECLOUD_CONFIG names {file}, which isn't there: correct it"
    for command in (["ask", "hi"], ["serve"], ["config", "show"], ["stats"], ["pool", "list"]):
        done = edgecloud(tmp_path, *command, **named)
        assert (done.returncode, done.stdout) == (2, b""), command
        assert told in done.stderr.decode()
    doctor = edgecloud(tmp_path, "doctor", **named)
    assert (doctor.returncode, doctor.stderr) == (1, b"")
    assert told in doctor.stdout.decode()
    assert not file.exists()


@pytest.mark.parametrize(
    "command", [["config", "set", "server.port", "9"], ["pool", "add", "x", "http://x/v1", "--model", "m"]]
)
def test_what_writes_settings_makes_the_file_that_was_named(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "new" / "config.toml"
    done = edgecloud(tmp_path, *command, EDGECLOUD_CONFIG=str(file))
    assert done.returncode == 0, done.stderr
    assert tomllib.loads(file.read_text())
