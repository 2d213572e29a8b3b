"""`edgecloud doctor`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from edgecloud.app.cli.findings import CHECKS
from edgecloud.cache.records import Embedded
from edgecloud.errors import EdgeCloudError
from edgecloud.settings import ChatSettings, PoolEntry, Settings
from tests.cache.building import SPACE, make_answer, make_cache, make_key, make_vector
from tests.support.fake_engine import FakeEngine
from tests.support.live import live_server

from .shell import edgecloud


def findings(home: Path, **extra: str) -> tuple[int, dict[str, tuple[str, str]]]:
    done = edgecloud(home, "doctor", "--json", **extra)
    report = json.loads(done.stdout)
    assert done.stderr == b""
    assert report["ok"] == (done.returncode == 0)
    return done.returncode, {check["name"]: (check["verdict"], check["detail"]) for check in report["checks"]}


@pytest.mark.model
def test_a_healthy_machine(tmp_path: Path) -> None:
    code, found = findings(tmp_path)

    assert code == 0
    assert {verdict for verdict, _ in found.values()} == {"ok"}
    assert "smollm2" in found["model"][1]
    assert found["threads"] == ("ok", "1, as configured")
    assert found["server"] == ("ok", "not running")
    assert "none yet" in found["history"][1]

    text = edgecloud(tmp_path, "doctor").stdout.decode()
    shown = [(line.split()[0], line[4:].split("  ")[0]) for line in text.splitlines()]
    assert shown == [(verdict, name) for name, (verdict, _) in found.items()]


def test_each_trouble_is_found_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "edgecloud.db").write_bytes(b"not a database, and long enough to be sure" * 100)

    code, found = findings(tmp_path, EDGECLOUD_MODEL="nope", EDGECLOUD_EMBEDDER="nope")
    assert code == 1
    assert {name for name, (verdict, _) in found.items() if verdict == "fail"} == {
        "model",
        "history",
    }
    assert "chat template" not in found, "there is no model that could have one"
    assert found["memory"][1].endswith("are free")
    assert found["embedder"][0] == "warn"
    assert "only the very same question is answered from memory" in found["embedder"][1]
    assert found["model"][1] == "There is no model named 'nope'. Known: smollm2."
    assert "damaged" in found["history"][1]


def test_settings_that_name_what_they_should_not_are_found(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        "embedder = 'smollm2'\n[local]\nchat_template = '/nope'\n[server]\nhost = '203.0.113.9'\n"
        "[chat]\ntheme = 'nosuch'\n"
    )

    code, found = findings(tmp_path)
    assert code == 1
    failed = {name: detail for name, (verdict, detail) in found.items() if verdict == "fail"}
    assert failed.keys() == {"embedder", "chat template", "address", "theme"}
    assert "smollm2 is a chat model" in failed["embedder"]
    assert "There is no chat template /nope" in failed["chat template"]
    assert "203.0.113.9" in failed["address"]
    assert "There is no theme 'nosuch'" in failed["theme"]


@pytest.mark.parametrize(
    ("text", "name", "complaint"),
    [
        (
            "[aliases]\ngood = 'smollm2'\nbad = 'nope'",
            "aliases",
            "The alias bad leads nowhere: There is no model named 'nope'. Known: smollm2, minilm, good.",
        ),
        ("[chat.keys]\n'chat.nwe' = 'f5'", "keys", "chat.keys names chat.nwe, which there is not"),
        ("[chat.keys]\n'chat.new' = 'f5, ctrl+ggg'", "keys", "chat.new has the key 'ctrl+ggg', which there"),
        ("[chat.keys]\n'chat.new' = 'strg+g'", "keys", "chat.new has the key 'strg+g', which there is not"),
        ("[local]\nchat_template = 'README'", "chat template", "The template README reads no `messages`"),
    ],
)
def test_what_could_never_be_of_use_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("README").write_text("No template.")
    settings = Settings.model_validate(tomllib.loads(text))
    (check,) = (check for key, check in CHECKS.items() if key.split(".")[-1].replace("_", " ") == name)

    with pytest.raises(EdgeCloudError) as found:
        check(settings)

    assert found.value.message.startswith(complaint)


def test_keys_that_can_be_pressed_and_aliases_that_lead_somewhere_are_well() -> None:
    chosen = {"chat.new": "ctrl+g, alt+enter,f5", "chat.help": "ctrl+question_mark,plus,ctrl+shift+up, ä"}
    box = PoolEntry(name="box", url="http://box/v1", model="m")
    well = Settings(chat=ChatSettings(keys=chosen), pool=(box,), aliases={"gpt-4o": "box"})

    assert CHECKS["chat.keys"](well) == "2 changed"
    assert CHECKS["aliases"](well) == "gpt-4o is box"


def test_a_place_that_can_hold_no_history_is_found(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")

    code, found = findings(tmp_path)

    assert code == 1
    assert found["history"] == (
        "fail",
        f"{tmp_path / 'data'} is a file, and has to be a folder: move it, or set EDGECLOUD_HOME.",
    )


def test_an_embedder_as_the_model_is_found(tmp_path: Path) -> None:
    code, found = findings(tmp_path, EDGECLOUD_MODEL="minilm")

    assert code == 1
    assert "minilm is an embedding model and can't chat" in found["model"][1]


def test_a_variable_that_is_no_setting_is_told_of(tmp_path: Path) -> None:
    done = edgecloud(tmp_path, "doctor", "--json", EDGECLOUD_BOGUS="1")

    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["environment"]["verdict"] == "warn"
    assert "EDGECLOUD_BOGUS" in checks["environment"]["detail"]
    assert b"warning: EDGECLOUD_BOGUS is no setting" in done.stderr


@pytest.mark.model
def test_answers_kept_with_another_embedder_are_told_of(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    cache = make_cache(tmp_path / "data" / "cache.db")
    for number, fingerprint in enumerate(("another", "another", SPACE)):
        key = make_key(f"why is the sky blue in place {number}?")
        cache.store(key, Embedded(make_vector(seed=number), fingerprint), make_answer())
    cache.close()

    code, found = findings(tmp_path)

    assert code == 0
    verdict, detail = found["kept answers"]
    assert verdict == "warn"
    assert detail.startswith("3, ")
    assert "similar questions don't find 2 of them" in detail
    assert "another embedder than minilm" in detail
    assert findings(tmp_path, EDGECLOUD_EMBEDDER="nope")[1]["kept answers"][0] == "ok"


def test_a_damaged_cache_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cache.db").write_bytes(b"not a database, and long enough to be sure" * 100)

    assert findings(tmp_path)[1]["kept answers"][0] == "warn"


def test_wrong_settings_are_the_only_finding(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("prot = 1\n")

    code, found = findings(tmp_path)
    assert code == 1
    assert list(found) == ["settings"]
    assert "'prot'" in found["settings"][1]


def test_offline_with_a_distant_model_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        "model = 'big'\noffline = true\n[[pool]]\nname = 'big'\nurl = 'http://gpu.example/v1'\nmodel = 'm'\n"
    )

    code, found = findings(tmp_path)
    assert code == 1
    assert found["model"][0] == "fail"
    assert found["offline"] == ("ok", "on: only this machine is connected to")


def test_each_pool_is_asked_without_being_paid_and_what_is_wrong_is_no_failure(tmp_path: Path) -> None:
    engine = FakeEngine(name="tiny")
    with live_server(engine) as live, live_server(engine, api_keys=("a-key-of-sixteen-letters",)) as shut:
        entries = [
            {"name": "well", "url": f"{live.url}/v1", "model": "tiny"},
            {"name": "other", "url": f"{live.url}/v1", "model": "huge"},
            {"name": "shut", "url": f"{shut.url}/v1", "model": "tiny"},
            {"name": "gone", "url": "http://127.0.0.1:9/v1", "model": "tiny"},
            {"name": "unset", "url": f"{live.url}/v1", "model": "tiny", "api_key": "env:NO_SUCH_KEY"},
        ]
        found = findings(tmp_path, EDGECLOUD_POOL=json.dumps(entries))[1]
    told = {name.removeprefix("pool "): found[name] for name in found if name.startswith("pool ")}
    assert told["well"] == ("ok", f"tiny at {live.url}/v1, answers")
    assert {name for name, (verdict, _) in told.items() if verdict == "warn"} == told.keys() - {"well"}
    assert "has no model huge" in told["other"][1]
    assert "refused our key" in told["shut"][1]
    assert "refused the connection" in told["gone"][1]
    assert "NO_SUCH_KEY, which is not set" in told["unset"][1]
    assert engine.requests == [], "nobody was asked for tokens"


def test_offline_only_pools_on_this_machine_are_asked(tmp_path: Path) -> None:
    entries = [{"name": "far", "url": "http://192.0.2.1:8000/v1", "model": "m"}]
    found = findings(tmp_path, EDGECLOUD_POOL=json.dumps(entries), EDGECLOUD_OFFLINE="1")[1]
    assert found["pool far"] == ("ok", "m at http://192.0.2.1:8000/v1; not asked, since offline mode is on")
