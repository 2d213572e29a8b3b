"""`edgecloud pool list`, `add`, `test`, `rm`, `reprice` against scripted servers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edgecloud.app.cli.main import edgecloud
from edgecloud.app.cli.pool_findings import pool_findings
from edgecloud.app.cli.pool_test import Finding
from edgecloud.app.cli.shell import State
from edgecloud.config.editing import pool_entry, set_value
from edgecloud.config.loading import load
from edgecloud.errors import BadRequest, ConfigError, NotFound, UpstreamError
from edgecloud.pool.client import RemoteEngine
from edgecloud.router.ledger import Ledger
from edgecloud.settings import PoolEntry
from tests.ground.gguf_files import write_gguf
from tests.support.fake_engine import FakeEngine
from tests.support.live import Live, live_server


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv("EDGECLOUD_RUNTIME", str(tmp_path / "run"))
    return tmp_path


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live_server(FakeEngine(name="tiny")) as live:
        yield live


def pool(*arguments: str, stdin: str = "") -> Result:
    result = CliRunner().invoke(edgecloud, ["pool", *arguments], input=stdin, obj=State())
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_server_is_added_with_everything_that_was_said(home: Path) -> None:
    config = home / "config.toml"
    config.write_text("# mine\nmodel = 'smollm2'  # small\n")
    pool(
        *("add", "big", "https://api.example.com/v1", "--model", "big-1", "--key", "env:BIG_KEY"),
        *("--price-in", "0.5", "--price-out", "2", "--currency", "EUR", "--region", "eu"),
        *("--replica", "https://b.example.com/v1", "--context", "32768", "--continues"),
    )
    text = config.read_text()
    assert "# mine" in text
    assert "# small" in text
    assert "env:BIG_KEY" in text
    (entry,) = load().pool
    assert [replica.url for replica in entry.replicas] == ["https://b.example.com/v1"]
    assert (entry.context, entry.currency, entry.region, entry.continues) == (32768, "EUR", "eu", True)


def test_a_key_that_is_not_there_yet_stops_only_what_needs_it() -> None:
    pool("add", "big", "https://api.example.com/v1", "--model", "big-1", "--key", "env:BIG_KEY")
    result = pool("test")
    assert (result.exit_code, "BIG_KEY, which is not set" in result.stdout) == (1, True)


def test_the_settings_read_what_was_added(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIG_KEY", "sk-1")
    url = "https://api.example.com/v1"
    pool("add", "big", url, "--model", "big-1", "--key", "env:BIG_KEY", "--price-out", "2")
    pool("add", "box", "http://box:8000/v1", "--model", "m", "--local")
    big, box = load().pool
    assert big.api_key is not None
    assert (big.api_key.get_secret_value(), big.price_out, box.local) == ("sk-1", 2.0, True)
    rows = json.loads(pool("list", "--json").stdout)
    assert [(row["name"], row["urls"], row["price_out"]) for row in rows] == [
        ("big", ["https://api.example.com/v1"], 2.0),
        ("box", ["http://box:8000/v1"], 0.0),
    ]
    assert "sk-1" not in pool("list").stdout + (home / "config.toml").read_text()
    pool("rm", "big")
    assert [entry.name for entry in load().pool] == ["box"]


@pytest.mark.parametrize("name", ["auto", "smollm2", "box", "Box", "mine", "a b", ""])
def test_a_name_that_means_something_else_is_refused(home: Path, name: str) -> None:
    write_gguf(home / "data" / "models" / "me" / "repo" / "Mine.gguf")
    pool("add", "box", "http://box:8000/v1", "--model", "m")
    with pytest.raises(BadRequest, match="give the server another"):
        pool("add", name, "http://other:8000/v1", "--model", "m")
    assert [entry.name for entry in load().pool] == ["box"]


@pytest.mark.parametrize(
    "before", ["", "pool = []\nmodel = 'smollm2'\n[server]\nport = 1\n", "pool = [ # none\n]"]
)
def test_servers_come_and_go(home: Path, before: str) -> None:
    (home / "config.toml").write_text(before)
    for name in ("a", "b"):
        pool("add", name, "http://box:8000/v1", "--model", "m")
        assert [entry.name for entry in load().pool] == [name]
        pool("rm", name)
        assert load().pool == ()
        assert "pool" not in (home / "config.toml").read_text()


def test_a_key_in_the_open_is_refused(home: Path) -> None:
    with pytest.raises(BadRequest, match="history"):
        pool("add", "box", "http://box:8000/v1", "--model", "m", "--key", "sk-123")
    assert (home / "config.toml").read_text() == ""


def test_without_a_model_the_only_one_is_taken_and_a_choice_is_shown(server: Live) -> None:
    with pytest.raises(BadRequest, match="auto, tiny"):
        pool("add", "box", f"{server.url}/v1")


def test_what_is_not_there_cannot_be_removed_or_tested() -> None:
    for command in ("rm", "test", "reprice"):
        with pytest.raises(NotFound, match="no server 'nobody'"):
            pool(command, "nobody")


def test_testing_asks_every_address_and_remembers_its_context(server: Live) -> None:
    pool("add", "box", f"{server.url}/v1", "--model", "tiny", "--replica", "http://127.0.0.1:9/v1")
    result = pool("test", "--json")
    findings = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [(each["ok"], each["context"]) for each in findings] == [(True, 4096), (False, 0)]
    assert "refused the connection" in findings[1]["detail"]
    (row,) = json.loads(pool("list", "--json").stdout)
    assert row["context"] == 4096


def test_who_goes_on_with_a_message_that_was_begun_is_listed_and_tested(server: Live) -> None:
    for name, *options in (("plain", "--price-in", "1"), ("able", "--price-in", "1", "--continues")):
        pool("add", name, f"{server.url}/v1", "--model", "tiny", *options)
    assert [row["continues"] for row in json.loads(pool("list", "--json").stdout)] == [False, True]
    assert ["goes on" in line for line in pool("list").stdout.splitlines()] == [False, True]
    assert [each["continues"] for each in json.loads(pool("test", "--json").stdout)] == [False, True]


def test_an_entry_that_can_and_cannot_continue_is_refused() -> None:
    entry = {"name": "big", "url": "http://b/v1", "model": "b-1", "continues": True}
    assert pool_entry({**entry, "lacks": ["tools"]}).may_continue
    with pytest.raises(ConfigError, match="continues must be false where lacks says continue_final"):
        pool_entry({**entry, "lacks": ["tools", "continue_final"]})


def test_an_address_that_passed_the_test_rests_no_longer(server: Live) -> None:
    pool("add", "box", f"{server.url}/v1", "--model", "tiny", "--replica", "http://127.0.0.1:9/v1")
    rest = {"left_s": 60.0, "trips": 1, "reason": "it was down"}
    good = server.url.removeprefix("http://")
    State().ledger().keep_engines({"box": {"breakers": {good: rest, "127.0.0.1:9": rest}}})

    pool("test")

    assert State().ledger().engines()["box"][1]["breakers"] == {"127.0.0.1:9": rest}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("localhost:8000",), "url must look like http://host:8000/v1, not 'localhost:8000'."),
        (("http://me:secret@box/v1",), "url must hold no password: put the key into api_key."),
        (("http://box/v1/chat/completions",), "url must stop before /chat/completions or /models"),
        (
            ("http://box", "--replica", "box2"),
            "replicas.0.url must look like http://host:8000/v1, not 'box2'.",
        ),
        (("http://box", "--currency", "euro"), "currency must have at most 3 characters, not 'euro'."),
    ],
)
def test_what_can_be_no_server_is_not_added(home: Path, arguments: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        pool("add", "box", *arguments, "--model", "m")

    assert refused.value.message.startswith(complaint)
    assert (home / "config.toml").read_text() == ""


def test_prices_that_cannot_be_counted_are_told_when_they_are_added_and_by_the_doctor(server: Live) -> None:
    why = "box has prices in EUR and is not asked until budget.rates says what one EUR is worth in USD"

    added = pool("add", "box", f"{server.url}/v1", "--model", "tiny", "--price-in", "1", "--currency", "eur")
    (found,) = pool_findings(load())
    set_value("budget.rates.EUR", "1.08")
    (mended,) = pool_findings(load())

    assert f"warning: {why}" in added.stderr
    assert "1.00 / 0 EUR" in added.stdout
    assert (found[1], found[2][: len(why)]) == (False, why)
    assert mended[1]


def test_nothing_is_tested_offline(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    pool("add", "box", "http://192.0.2.1:8000/v1", "--model", "tiny")
    monkeypatch.setenv("EDGECLOUD_OFFLINE", "1")
    result = pool("test")
    assert result.exit_code == 1
    assert "offline" in result.stdout
    pool("add", "tunnel", server.url, "--model", "tiny")
    pool("add", "here", server.url, "--model", "tiny", "--local")
    lines = pool("test").stdout.splitlines()
    assert [(line.split()[:2], "offline" in line) for line in lines if "box" not in line] == [
        (["fail", "tunnel"], True),
        (["ok", "here"], False),
    ]


def found(*fields: str) -> str:
    """What `pool test` says of one server with these options."""
    pool("add", "box", *fields)
    result = pool("test", "--json")
    assert result.exit_code == 1
    (finding,) = json.loads(result.stdout)
    detail: str = finding["detail"]
    assert detail.startswith("box "), detail
    assert detail.endswith("."), detail
    assert "\n" not in detail
    return detail


def test_a_wrong_model_is_told_with_those_that_there_are(server: Live) -> None:
    detail = found(f"{server.url}/v1", "--model", "huge")
    assert detail == "box has no model huge: set its model to one that it lists (auto, tiny, fake-embedder)."


def test_a_refused_key_and_a_wrong_scheme_are_told_apart() -> None:
    with live_server(FakeEngine(name="tiny"), api_keys=("a-key-of-sixteen-letters",)) as live:
        assert found(f"{live.url}/v1", "--model", "tiny") == "box refused our key (401): check its api_key."
        pool("rm", "box")
        https = live.url.replace("http:", "https:")
        assert "should be http:// or https://" in found(f"{https}/v1", "--model", "tiny")


def test_an_address_that_is_no_api_is_told(server: Live) -> None:
    assert "check its url, which usually ends in /v1" in found(f"{server.url}/v2/x", "--model", "tiny")


def test_a_server_that_hangs_is_given_up_and_the_others_are_told_before(server: Live) -> None:
    with live_server(FakeEngine(name="tiny", hang_at=0)) as live:
        pool("add", "stuck", f"{live.url}/v1", "--model", "tiny")
        pool("add", "box", f"{server.url}/v1", "--model", "tiny", "--replica", "http://127.0.0.1:9/v1")
        result = pool("test", "--timeout", "0.5")
        assert result.exit_code == 1
        lines = result.stdout.splitlines()
        assert "stuck did not begin to answer within 0.5 s" in lines[-1], "what hangs comes last"
        assert {line.split()[0] for line in lines[:2]} == {"ok", "fail"}
        found = json.loads(pool("test", "stuck", "--json", "--timeout", "0.5").stdout)
        assert [(each["name"], each["ok"]) for each in found] == [("stuck", False)]


def test_all_addresses_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def together(entry: PoolEntry, address: str, *_: object) -> Finding:
        asked.append(address)
        for _ in range(100):
            await asyncio.sleep(0)
        return Finding(entry.name, address, len(asked) == 2, "fine")

    monkeypatch.setattr("edgecloud.app.cli.pool_test._test", together)
    for name in ("a", "b"):
        pool("add", name, f"http://{name}:8000/v1", "--model", "m")
    assert sorted(pool("test").stdout.splitlines()) == ["ok    a  a:8000  fine", "ok    b  b:8000  fine"]


def test_where_there_are_none_it_is_said_how_there_would_be() -> None:
    for command in ("list", "test"):
        result = pool(command)
        assert (result.exit_code, result.stdout) == (0, "")
        assert "no pools yet: `edgecloud pool add NAME URL` adds one" in result.stderr


def test_what_was_added_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def models(_: RemoteEngine) -> list[str]:
        return ["tiny"]

    monkeypatch.setattr(RemoteEngine, "models", models)
    told = pool("add", "box", "http://a/v1").stdout
    assert told == "Added box at http://a/v1 (free), with the model tiny, the one model that it lists.\n"
    told = pool("add", "big", "http://b/v1", "--model", "b-1", "--price-in", "0.5", "--price-out", "2").stdout
    assert told == (
        "Added big at http://b/v1 (0.50 / 2.00 USD for a million tokens in / out), "
        "with the model b-1, as you say: it was not asked.\n"
    )


def test_a_server_that_still_starts_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgecloud.pool.client.ASIDE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UpstreamError) as caught:
        pool("add", "early", f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
    assert caught.value.message.startswith(
        "early did not answer for 0.3 s. Nothing was added: if it is still"
    )
    assert load().pool == ()


@pytest.mark.parametrize(
    ("nano", "told"),
    [
        (0, "What box answered costs what was counted.\n"),
        (2_500_000_000, "What box answered costs 2.50 USD more than was counted.\n"),
        (-2_500_000_000, "What box answered costs 2.50 USD less than was counted.\n"),
    ],
)
def test_what_other_prices_make_of_the_past_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, nano: int, told: str
) -> None:
    pool("add", "box", "http://box:8000/v1", "--model", "m", "--price-in", "1")
    monkeypatch.setattr(Ledger, "reprice", lambda *_: nano)

    assert pool("reprice", "box").stdout == told
