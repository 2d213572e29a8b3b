"""Where settings come from, which one wins, and what is said when one is wrong."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from edgecloud.config.editing import set_value
from edgecloud.config.loading import load, origins
from edgecloud.config.sources import stray_variables
from edgecloud.errors import ConfigError
from edgecloud.folders import config_path, data_dir, runtime_dir
from edgecloud.settings import Settings

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in os.environ:
        if name.startswith("EDGECLOUD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "etc" / "config.toml"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "config.toml").touch()
    return tmp_path / "etc" / "config.toml"


@pytest.fixture
def write(config: Path) -> Write:
    def write(text: str) -> Path:
        config.parent.mkdir(exist_ok=True)
        config.write_text(text)
        return config

    return write


def complaint(overrides: dict[str, object] | None = None) -> str:
    with pytest.raises(ConfigError) as raised:
        load(overrides)
    assert raised.value.exit_code == 2
    assert "\n" not in raised.value.message
    return raised.value.message


def test_without_anything_the_defaults_hold() -> None:
    assert load() == Settings()


def test_flags_beat_the_environment_which_beats_the_file(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("model = 'file'\n[server]\nport = 1\nhost = 'file'\nping_s = 3\n")
    monkeypatch.setenv("EDGECLOUD_SERVER__PORT", "2")
    monkeypatch.setenv("EDGECLOUD_SERVER__HOST", "environment")

    settings = load({"server.port": 3, "model": None})

    assert (settings.server.port, settings.server.host) == (3, "environment")
    assert (settings.model, settings.server.ping_s, settings.server.drain_s) == ("file", 3.0, 30.0)


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("EDGECLOUD_OFFLINE", "1", "offline", True),
        ("EDGECLOUD_OFFLINE", "false", "offline", False),
        ("EDGECLOUD_MODEL", "7", "model", "7"),
        ("EDGECLOUD_SERVER__PING_S", "2.5", "server.ping_s", 2.5),
        ("EDGECLOUD_LOCAL__KV_TYPE", "q8_0", "local.kv_type", "q8_0"),
        ("EDGECLOUD_EXTRA_MODELS", "a, b,c", "extra_models", ("a", "b", "c")),
        ("EDGECLOUD_EXTRA_MODELS", '["a,b"]', "extra_models", ("a,b",)),
        ("EDGECLOUD_ALIASES", '{"gpt-4o": "smollm2"}', "aliases", {"gpt-4o": "smollm2"}),
        ("EDGECLOUD_MODEL", "", "model", "smollm2"),
    ],
)
def test_the_environment_is_text_read_by_the_settings_type(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, key: str, value: object
) -> None:
    monkeypatch.setenv(variable, text)

    found: object = load()
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_a_pool_can_come_from_the_file(write: Write) -> None:
    write("[[pool]]\nname = 'big'\nurl = 'http://x/v1'\nmodel = 'm'\napi_key = 'sk-secret'\n")

    (entry,) = load().pool
    assert (entry.name, entry.timeout_s) == ("big", 600.0)
    assert entry.api_key is not None
    assert entry.api_key.get_secret_value() == "sk-secret"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[server]\nprot = 1\n", ["'server.prot'", "line 2", "did you mean 'server.port'?"]),
        ("port = 1\n", ["'port'", "line 1", "did you mean 'server.port'?"]),
        ("quite_else = 1\n", ["'quite_else'", "`edgecloud config show` lists them all"]),
        ("[server]\n\nport = 'x'\n", ["server.port must be a valid integer, not 'x'", "line 3"]),
        ("[server]\nport = true\n", ["server.port must be a valid integer, not True"]),
        ("[server]\nport = '8484'\n", ["server.port must be a valid integer"]),
        ("server.port = 70000\n", ["server.port must be less than or equal to 65535, not 70000", "line 1"]),
        ("[local]\nkv_type = 'q9'\n", ["local.kv_type must be 'f16', 'q8_0' or 'f32', not 'q9'"]),
        ("server = 3\n", ["server must be a table, not 3"]),
        ("extra_models = 3\n", ["extra_models must be a list, not 3"]),
        ("[[pool]]\nname = 'a'\nurl = 'http://b'\n", ["pool.0.model is missing", "config.toml"]),
        (
            "[[pool]]\nname = 'a'\nurl = 'http://b'\nmodel = 'c'\nkey = 'd'\n",
            ["'pool.0.key'", "did you mean 'pool.0.api_key'?"],
        ),
        ("model = \n", ["is not valid TOML", "line 1"]),
    ],
)
def test_a_mistake_in_the_file_names_key_file_line_and_fix(write: Write, text: str, parts: list[str]) -> None:
    path = write(text)

    message = complaint()
    for part in [*parts, str(path)]:
        assert part in message


@pytest.mark.parametrize(
    ("variable", "text", "parts"),
    [
        ("EDGECLOUD_SERVER__PROT", "1", ["'server.prot'", "did you mean EDGECLOUD_SERVER__PORT?"]),
        ("EDGECLOUD_PORT", "1", ["did you mean EDGECLOUD_SERVER__PORT?"]),
        ("EDGECLOUD_SERVER", "1", ["EDGECLOUD_SERVER"]),
        ("EDGECLOUD_SERVER__PORT", "many", ["server.port must be a valid integer", "'many'"]),
        ("EDGECLOUD_SERVER__PORT", "-1", ["server.port must be greater than or equal to 0"]),
        ("EDGECLOUD_OFFLINE", "maybe", ["offline must be a valid boolean, not 'maybe'"]),
        ("EDGECLOUD_ALIASES", "a=b", ["aliases must be a table like"]),
        ("EDGECLOUD_POOL", "[1]", ["pool.0 must be a table, not 1"]),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, parts: list[str]
) -> None:
    monkeypatch.setenv(variable, text)

    message = complaint()
    for part in [*parts, variable]:
        assert part in message


def test_a_variable_that_resembles_no_setting_is_left_alone_and_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EDGECLOUD_BOGUS", "1")
    monkeypatch.setenv("EDGECLOUD_MODEL", "tiny")
    monkeypatch.setenv("EDGECLOUD_HOME", "/somewhere")

    assert load() == Settings(model="tiny")
    assert stray_variables() == ("EDGECLOUD_BOGUS",)


def test_a_mistake_in_a_flag_says_so() -> None:
    assert complaint({"server.port": -1}).endswith("change it in the flag for server.port.")


def test_no_complaint_shows_a_secret(write: Write) -> None:
    write("[server]\napi_keys = 'sk-canary'\n")
    assert "canary" not in complaint()

    write("[[pool]]\nname='a'\nurl='http://u'\nmodel='m'\napi_key=['sk-canary']\n")
    assert "canary" not in complaint()

    write("[[pool]]\nname='a'\nurl='http://me:canary@u/v1'\nmodel='m'\n")
    assert complaint().startswith("pool.0.url must hold no password: put the key into api_key: change it in")


@pytest.mark.parametrize(
    ("url", "must"),
    [
        *(
            (url, "look like")
            for url in ("gpu:8000", "gpu", "", "ftp://gpu/v1", "http://", "http://gpu box/v1")
        ),
        *((url, "look like") for url in ("http://gpu:99999/v1", "http://[::1", "http://gpu:0/v1")),
        *((f"http://gpu/v1{path}", "stop before") for path in ("/chat/completions", "/models/")),
    ],
)
@pytest.mark.parametrize(
    ("text", "key"), [("%s", "url"), ("'http://gpu'\nreplicas = [{url = %s}]", "replicas.0.url")]
)
def test_an_address_that_can_be_none_is_refused_with_its_line(
    write: Write, url: str, must: str, text: str, key: str
) -> None:
    write(f"[[pool]]\nname = 'a'\nmodel = 'm'\nurl = {text}\n" % f"'{url}'")

    message = complaint()

    assert message.startswith(f"pool.0.{key} must {must}")
    assert f"not '{url}': change it in" in message
    assert message.endswith(f"line {4 + text.count(chr(10))}.")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("auto = 'big'", "The alias 'auto' is a word with a meaning of its own: change it in"),
        ("SmolLM2 = 'big'", "The alias 'SmolLM2' is a model of this machine: change it in"),
        ("a = 'b'\nb = 'c'\nc = 'b'", "The alias 'a' leads in a circle (a → b → c → b): change it in"),
    ],
)
def test_an_alias_that_means_something_else_or_nothing_is_refused(write: Write, text: str, part: str) -> None:
    write(f"[aliases]\n{text}\n")

    assert part in complaint()


def test_money_has_one_spelling(write: Write) -> None:
    write("[budget]\ncurrency = 'eur'\nrates = {usd = 0.9}\n")

    assert (load().budget.currency, load().budget.rates) == ("EUR", {"USD": 0.9})


@pytest.mark.parametrize("content", [b"model = '\xff'", None])
def test_a_file_that_cannot_be_read_is_a_sentence(config: Path, content: bytes | None) -> None:
    if content is None:
        config.unlink()
        config.mkdir()
    else:
        config.write_bytes(content)

    assert str(config) in complaint()


def test_origins_say_where_each_value_came_from(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("[aliases]\ngpt-4o = 'smollm2'\n[server]\nport = 1\napi_keys = ['sk-canary']\n")
    monkeypatch.setenv("EDGECLOUD_LOCAL__THREADS", "2")

    rows = {row.key: (row.value, row.source, row.where) for row in origins({"offline": True})}

    assert rows["model"] == ("smollm2", "default", "")
    assert rows["server.port"] == (1, "file", f"{path}, line 4")
    assert rows["server.api_keys"] == (["********"], "file", f"{path}, line 5")
    assert rows["local.threads"] == (2, "environment", "the environment variable EDGECLOUD_LOCAL__THREADS")
    assert rows["offline"] == (True, "flag", "the flag for offline")
    assert rows["aliases"][:2] == ({"gpt-4o": "smollm2"}, "file")


def test_a_secret_can_live_in_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = types.ModuleType("keyring")
    stored = {("edgecloud", "openai"): "sk-from-keyring"}
    monkeypatch.setattr(keyring, "get_password", lambda *name: stored.get(name), raising=False)
    monkeypatch.setattr(keyring, "errors", types.SimpleNamespace(KeyringError=OSError), raising=False)
    monkeypatch.setitem(sys.modules, "keyring", keyring)

    (key,) = load({"server.api_keys": ["keyring:openai"]}).server.api_keys
    assert key.get_secret_value() == "sk-from-keyring"
    assert "`keyring set edgecloud other`" in complaint({"server.api_keys": ["keyring:other"]})

    monkeypatch.setitem(sys.modules, "keyring", None)
    assert "`pip install keyring`" in complaint({"server.api_keys": ["keyring:openai"]})


# ---------------------------------------------------------------------------------------------- writing


def test_a_value_is_set_and_everything_else_kept(write: Write) -> None:
    path = write("# mine\nmodel = 'a'  # the small one\n\n[server]\nhost = '::1'\n")

    set_value("model", "b")
    set_value("server.port", "9000")
    set_value("local.temperature", "0.5")
    set_value("offline", "yes")
    set_value("aliases.gpt-4o", "smollm2")
    set_value("extra_models", "x,y")

    assert path.read_text().startswith('# mine\nmodel = "b"  # the small one\n')
    settings = load()
    assert (settings.model, settings.server.host, settings.server.port) == ("b", "::1", 9000)
    assert (settings.local.temperature, settings.offline) == (0.5, True)
    assert (settings.aliases, settings.extra_models) == ({"gpt-4o": "smollm2"}, ("x", "y"))


def test_the_first_value_makes_a_private_file(config: Path) -> None:
    set_value("model", "b")

    assert load().model == "b"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert [file.name for file in config.parent.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("server.prot", "1", "did you mean 'server.port'?"),
        ("server", "1", "no setting 'server'"),
        ("server.port", "many", "server.port must be a valid integer, not 'many'"),
        (
            "server.port",
            "70000",
            "server.port must be less than or equal to 65535, not 70000.",
        ),
        (
            "server.host",
            "",
            "server.host must be an address like 127.0.0.1, or several with commas, not ''.",
        ),
        ("server.host", "http://0.0.0.0", "server.host must be an address"),
        ("server.host", "::1, ", "server.host must be an address"),
        ("model", "", "model must have at least 1 character, not ''"),
        ("server.api_keys", '["sk-canary", 7]', "server.api_keys.1 must be a valid string."),
    ],
)
def test_a_wrong_value_is_refused_and_the_file_left(write: Write, key: str, value: str, part: str) -> None:
    path = write("[server]\nport = 1\n")

    with pytest.raises(ConfigError) as raised:
        set_value(key, value)

    assert part in raised.value.message
    assert path.read_text() == "[server]\nport = 1\n"


def test_a_value_can_be_checked_before_it_is_written(write: Write) -> None:
    path = write("model = 'a'\n")
    seen: list[str] = []

    def refuse(settings: Settings) -> None:
        seen.append(settings.model)
        raise ConfigError("Not that one.")

    with pytest.raises(ConfigError, match="Not that one"):
        set_value("model", "b", check=refuse)
    assert (seen, path.read_text()) == (["b"], "model = 'a'\n")


def test_setting_a_value_can_mend_a_wrong_one(write: Write) -> None:
    write("[server]\nport = 'x'\n")

    set_value("server.port", "2")

    assert load().server.port == 2


def test_a_file_behind_a_link_stays_behind_it(config: Path, tmp_path: Path) -> None:
    config.unlink()
    (tmp_path / "dotfiles.toml").write_text("model = 'a'\n")
    config.symlink_to(tmp_path / "dotfiles.toml")

    set_value("model", "b")

    assert config.is_symlink()
    assert (tmp_path / "dotfiles.toml").read_text() == 'model = "b"\n'


# ---------------------------------------------------------------------------------------------- folders


def test_folders_can_be_moved_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EDGECLOUD_RUNTIME", str(tmp_path / "run"))

    assert (data_dir(), runtime_dir()) == (tmp_path / "home", tmp_path / "run")
    assert config_path() == tmp_path / "etc" / "config.toml"
    assert load() == Settings()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has a private folder for each user")
def test_without_a_private_runtime_folder_the_users_own_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_dir() == tmp_path / "edgecloud"

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert runtime_dir() == tmp_path / "home" / "run"


def test_settings_import_nothing_heavy() -> None:
    heavy = "asyncio tomlkit keyring pydantic_settings fastapi llama_cpp numpy"
    script = f"import sys, edgecloud.config.loading; print([m for m in {heavy.split()} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_nothing_is_set_in_a_file_that_is_not_toml(write: Write) -> None:
    path = write("x = [")
    with pytest.raises(ConfigError, match="not valid TOML"):
        set_value("server.port", "9")
    assert path.read_text() == "x = ["
