"""`ask`'s routing options, `why`, `route` and `stats`, over a scripted gateway."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edgecloud.app.books import Books
from edgecloud.app.cli.main import edgecloud
from edgecloud.app.cli.shell import State
from edgecloud.app.cli.stats import HEAD, fitting, plot
from edgecloud.app.forgetting import forget_chats
from edgecloud.app.gateway import Gateway
from edgecloud.errors import EdgeCloudError, ModelNotFound, NoPermittedRoute, NotFound
from edgecloud.router.ledger import EngineSums, Ledger
from edgecloud.settings import PoolEntry, Settings
from tests.router.test_ledger import entry
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import fake_gateway

POOL = PoolEntry(name="big", url="http://big:8000/v1", model="big-70b", price_out=10.0)


class House:
    """The command line over a gateway with a local engine and a pool, its ledger at the usual place."""

    def __init__(self, home: Path) -> None:
        self.path = home / "data" / "edgecloud.db"
        self.big = FakeEngine([b"From", b" afar."], name="big", local=False)

    async def open_gateway(self, settings: Settings) -> Gateway:
        settings = settings.model_copy(update={"model": "small", "pool": (POOL,)})
        books = Books(lambda: Ledger(self.path))
        return fake_gateway(
            FakeEngine([b"From here."], name="small"), self.big, settings=settings, books=books
        )

    def run(self, *arguments: str) -> Result:
        state = State(open_gateway=self.open_gateway)
        result = CliRunner().invoke(edgecloud, list(arguments), obj=state)
        if isinstance(result.exception, EdgeCloudError):
            raise result.exception
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv("EDGECLOUD_RUNTIME", str(tmp_path / "run"))
    return House(tmp_path)


@pytest.mark.parametrize(
    ("options", "text"), [(["--mode", "pool"], "From afar."), (["--mode", "local"], "From here.")]
)
def test_a_mode_decides_who_answers(house: House, options: list[str], text: str) -> None:
    assert house.run("ask", "hi", *options).stdout == f"{text}\n"


def test_a_private_question_is_refused_where_only_elsewhere_is_left(house: House) -> None:
    assert house.run("ask", "hi", "--private", "--mode", "quality").stdout == "From here.\n"
    with pytest.raises(NoPermittedRoute):
        house.run("ask", "hi", "--private", "-m", "big")
    assert house.big.requests == []


def test_why_tells_what_the_receipt_tells(house: House) -> None:
    answer = json.loads(house.run("ask", "hi", "--mode", "pool", "--json").stdout)
    told = json.loads(house.run("why", answer["id"], "--json").stdout)
    for key in ("engine", "reason", "attempts", "cost", "mode"):
        assert told["receipt"][key] == answer["receipt"][key]
    assert told["decision"]["candidates"][0]["engine"] == "big"
    sentences = house.run("why").stdout
    assert "big was tried first" in sentences
    assert "Attempt 1: big at big:8000, ok" in sentences
    with pytest.raises(NotFound):
        house.run("why", "req-0000")


def test_a_dry_run_asks_nobody_and_keeps_nothing(house: House) -> None:
    told = json.loads(house.run("ask", "hi", "--mode", "pool", "--dry-run", "--json").stdout)
    assert told["decision"]["candidates"][0]["engine"] == "big"
    assert "small" in house.run("route", "explain", "what", "is", "this").stdout
    assert "big would be tried first" in house.run("ask", "hi", "--mode", "pool", "--dry-run").stdout
    with pytest.raises(NoPermittedRoute):
        house.run("ask", "hi", "-m", "big", "--private", "--dry-run")
    assert house.big.requests == []
    assert json.loads(house.run("route", "history", "--json").stdout) == []


def test_a_dry_run_for_a_model_that_is_named_ends_as_the_question_would(house: House) -> None:
    assert "small would answer, here" in house.run("ask", "hi", "-m", "small", "--dry-run").stdout
    told = json.loads(house.run("ask", "hi", "-m", "small", "--dry-run", "--json").stdout)
    assert (told["engine"], told["local"], told["decision"]) == ("small", True, None)
    for model, mode, refusal in (("nope", "auto", ModelNotFound), ("small", "pool", NoPermittedRoute)):
        for dry in ([], ["--dry-run"]):
            with pytest.raises(refusal):
                house.run("ask", "hi", "-m", model, "--mode", mode, *dry)


def test_history_and_stats_add_up(house: House) -> None:
    assert "Nothing was asked" in house.run("stats").stdout
    for mode in ("pool", "pool", "local"):
        house.run("ask", "hi", "--mode", mode)
    rows = json.loads(house.run("route", "history", "--json").stdout)
    assert [row["engine"] for row in rows] == ["small", "big", "big"]
    stats = json.loads(house.run("stats", "--json").stdout)
    sums = {each["engine"]: each for each in stats["engines"]}
    assert (sums["big"]["requests"], sums["small"]["requests"]) == (2, 1)
    assert sums["big"]["cost"] == pytest.approx(2 * 2 * 10 / 1e6)
    table = house.run("stats").stdout
    assert time.strftime("%Y-%m-%d") in table
    assert "3 requests" in table


def test_what_ended_before_anybody_was_chosen_is_not_said_to_have_meant_one_engine(house: House) -> None:
    with closing(Ledger(house.path)) as ledger:
        ledger.settle(entry("req-early", 0, outcome="interrupted"), [], ())

    assert house.run("why").stdout == "It ended (interrupted) before anybody was chosen.\n"


def test_what_was_broken_off_has_not_failed_and_is_not_called_refused(house: House) -> None:
    with closing(Ledger(house.path)) as ledger:
        now = time.time()
        for number, (outcome, engine) in enumerate(
            [("interrupted", ""), ("interrupted", "small"), ("no_route", ""), ("ok", "small")]
        ):
            ledger.settle(entry(f"req-{number}", now, outcome=outcome, engine=engine), [], ())
    engines = {
        each["engine"]: (each["requests"], each["failed"], each["interrupted"])
        for each in json.loads(house.run("stats", "--json").stdout)["engines"]
    }
    assert engines == {"": (2, 1, 1), "small": (2, 0, 1)}
    table = house.run("stats").stdout
    assert "stopped" in table.splitlines()[0]
    assert "refused" not in table


def test_budgets_are_shown_with_what_is_left(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGECLOUD_BUDGET__PER_DAY", "0.5")
    house.run("ask", "hi", "--mode", "pool")
    assert "budget.per_day: 0.00002 of 0.50 USD spent, 0 reserved" in house.run("stats").stdout


def test_what_was_decided_in_a_chat_goes_with_it_and_its_cost_stays(house: House) -> None:
    answer = json.loads(house.run("ask", "hi", "--mode", "pool", "--json").stdout)
    ledger = Ledger(house.path)
    with ledger._writing() as connection:
        connection.execute("UPDATE decisions SET chat_id = 'chat-1'")
        connection.execute("UPDATE requests SET chat_id = 'chat-1'")
    forget_chats(["chat-1"])
    assert ledger.decision(answer["id"]) is None
    assert ledger.receipt(answer["id"])["cost"] > 0
    ledger.close()


def test_bars_are_in_proportion_and_never_nothing() -> None:
    def day(name: str, requests: int) -> EngineSums:
        return EngineSums(name, "x", requests, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)

    lines = plot([day("a", 1000), day("b", 500), day("c", 1)], "USD")
    assert lines[2].endswith("  1 request, 0 tokens, 0 USD")
    assert [line.count("█") for line in lines] == [32, 16, 0]
    assert "▏" in lines[2]


def row(**cells: str) -> tuple[str, ...]:
    return tuple(cells.get(head.replace(" ", "_"), "1,234") for head in HEAD)


def width_of(rows: list[tuple[str, ...]]) -> int:
    return sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True)) - 2


def test_a_table_that_is_too_wide_for_the_terminal_loses_columns_that_say_nothing_first() -> None:
    rows = [HEAD, row(engine="local", failed="0", cost="0"), row(engine="big", failed="0", cost="0")]

    fitted, left_out = fitting(rows, 80)
    assert (fitted[0][0], left_out[:2]) == ("engine", ["failed", "cost"])
    assert width_of(fitted) <= 80
    assert set(HEAD) == {*fitted[0], *left_out}
    assert [len(each) for each in fitted] == [len(fitted[0])] * 3
    assert fitting(rows, None) == fitting(rows, 300) == (rows, [])
    assert fitting(rows, 10)[0][0] == ("engine", "requests", "tokens in", "out")


def test_the_bars_of_days_leave_room_for_what_stands_behind_them() -> None:
    daily = [EngineSums("2026-11-30", "big", 1000, 0, 0, 0, 10, 0, 10, 0.25, 0.1, 0.2, 50.0)]

    (wide,), (narrow,) = plot(daily, "USD"), plot(daily, "USD", 72)

    assert (wide.count("█"), len(narrow)) == (32, 72)
    assert 0 < narrow.count("█") < 32
    assert plot(daily, "USD", 20)[0].count("█") == 1


def test_stats_fit_a_terminal_and_are_whole_in_a_pipe(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.run("ask", "hi")
    piped = house.run("stats").stdout
    monkeypatch.setattr("edgecloud.app.cli.stats.room", lambda: 80)
    shown = house.run("stats").stdout

    assert "of it cached" in piped
    assert "No room for" not in piped
    assert max(map(len, shown.splitlines())) <= 80
    assert "No room for: " in shown
    assert "(--json has all)" in shown
