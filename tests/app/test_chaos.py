"""Upstreams that die, hang and lie, clocks that jump, disks that are locked: one answer or one clear error,
and a ledger that is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from edgecloud.app.books import Books
from edgecloud.app.gateway import Gateway
from edgecloud.errors import EdgeCloudError, UpstreamError
from edgecloud.pool.client import RemoteEngine
from edgecloud.router.budgets import limits_of
from edgecloud.router.ledger import Ledger
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import ChatRequest, Event, Finish, Message, Notice, TextDelta
from tests.pool.scripted_upstream import DONE, STREAM, Call, Script, chunked, delta, finish, upstream, usage
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog
from tests.support.process import Process

HERE = "It is answered here."


class House:
    """A gateway with a local engine and one pool at a real address."""

    def __init__(self, folder: Path, entry: PoolEntry, **settings: Any) -> None:
        self.settings = Settings(
            model="small", pool=(entry,), router={"mode": "pool", **settings.pop("router", {})}, **settings
        )
        self.local = FakeEngine([HERE.encode()], name="small")
        catalog = FakeCatalog([self.local, RemoteEngine(entry, self.settings)], pools=(entry,))
        self.path = folder / "edgecloud.db"
        self.gateway = Gateway(self.settings, catalog, books=Books(lambda: Ledger(self.path, busy_s=0.1)))
        self.events: list[Event] = []

    async def ask(self, **fields: Any) -> str:
        """The text of one answer; what was seen of it stays in `events` if it fails."""
        self.events = []
        request = ChatRequest(messages=(Message("user", "hi"),), **{"mode": "quality", **fields})
        async for event in self.gateway.chat(request):
            self.events.append(event)
        return self.text

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        finish = self.events[-1]
        assert isinstance(finish, Finish)
        return [(attempt.engine, attempt.outcome) for attempt in finish.receipt.attempts]

    def money(self, ledger: Ledger) -> tuple[int, int]:
        limits = limits_of(self.settings.budget, time.time(), chat_id=None, tenant=None)
        return ledger.sums(limits)[0]


@asynccontextmanager
async def house(
    folder: Path, script: Script, settings: dict[str, Any] | None = None, **entry: Any
) -> AsyncIterator[House]:
    """The house over a scripted upstream, closed at the end with its counters looked at."""
    async with upstream(script) as running:
        made = House(
            folder, PoolEntry(name="big", url=running.url, model="m-70b", **entry), **(settings or {})
        )
        try:
            yield made
        finally:
            for each in (await made.gateway.routing.engines.all()).values():
                assert [each.outstanding[address.name] for address in each.deployments] == [0]
            await made.gateway.aclose()


NO_DRAFTS = {"router": {"cascade": False}}


async def dies_at_once(call: Call) -> None:
    call.reset()


async def dies_after_its_head(call: Call) -> None:
    await call.send(STREAM)
    call.reset()


async def never_answers(call: Call) -> None:
    await call.gone.wait()


async def hangs_after_its_head(call: Call) -> None:
    await call.send(STREAM)
    await call.gone.wait()


async def sends_bad_json(call: Call) -> None:
    await call.stream(b"data: {oops\n\n")


async def sends_an_error_in_its_stream(call: Call) -> None:
    await call.stream(b'data: {"error": {"message": "overloaded"}}\n\n')


async def sends_html(call: Call) -> None:
    await call.answer(200, b"<html>welcome</html>", "text/html")


async def fails_with_500(call: Call) -> None:
    await call.answer(500, b'{"error": {"message": "oh no"}}')


# cases: R1 R2
@pytest.mark.parametrize(
    "script",
    [
        dies_at_once,
        dies_after_its_head,
        never_answers,
        hangs_after_its_head,
        sends_bad_json,
        sends_an_error_in_its_stream,
        sends_html,
        fails_with_500,
    ],
    ids=lambda script: script.__name__,
)
async def test_whatever_happens_before_the_first_token_the_answer_comes_from_here(
    tmp_path: Path, script: Script
) -> None:
    async with house(tmp_path, script, NO_DRAFTS, first_byte_timeout_s=0.2) as made:
        assert await made.ask() == HERE
        assert [engine for engine, _ in made.outcomes] == ["big", "small"]
        assert [event.kind for event in made.events if isinstance(event, Notice)] == ["rerouted"]


async def test_an_upstream_that_is_slow_to_accept_is_passed_over(tmp_path: Path) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        entry = PoolEntry(
            name="big", url=f"http://127.0.0.1:{address[1]}/v1", model="m-70b", connect_timeout_s=0.2
        )
        made = House(tmp_path, entry, **NO_DRAFTS)
        assert await made.ask() == HERE
        assert made.outcomes[0][0] == "big"
        for each in waiting:
            each.close()
        await made.gateway.aclose()


async def breaks_off(call: Call) -> None:
    await call.stream(delta("One"), delta(" two"), end=False)
    await asyncio.sleep(0.05)
    call.reset()


async def falls_silent(call: Call) -> None:
    await call.stream(delta("One"), delta(" two"), end=False)
    await call.gone.wait()


async def ends_without_an_end(call: Call) -> None:
    await call.stream(delta("One"), delta(" two"))


BREAKING = pytest.mark.parametrize(
    "script", [breaks_off, falls_silent, ends_without_an_end], ids=lambda script: script.__name__
)


# cases: R5
@BREAKING
async def test_an_answer_that_breaks_off_is_one_error_and_its_partial(tmp_path: Path, script: Script) -> None:
    async with house(tmp_path, script, NO_DRAFTS, idle_timeout_s=0.2, price_out=10.0) as made:
        with pytest.raises(UpstreamError):
            await made.ask()
        assert made.text == "One two"
        assert made.local.requests == []
        await made.gateway.books.do(lambda ledger: None)  # type: ignore[union-attr]
        ledger = Ledger(made.path)
        (line,) = ledger.recent(1)
        assert (line["outcome"], line["cost"]) == ("upstream_failed", pytest.approx(2 * 10 / 1e6))
        ledger.close()


@BREAKING
async def test_where_it_may_the_local_engine_goes_on(tmp_path: Path, script: Script) -> None:
    settings = {"router": {"cascade": False, "continue_elsewhere": True}}
    async with house(tmp_path, script, settings, idle_timeout_s=0.2) as made:
        assert await made.ask() == "One two" + HERE
        assert made.outcomes == [("big", "upstream_failed"), ("small", "ok")]
        assert made.local.requests[0].messages[-1] == Message("assistant", "One two")


async def floods_with_nothing(call: Call) -> None:
    await call.stream(end=False)
    while not call.gone.is_set():
        await call.send(chunked(delta(" \n" * 500)))


async def begins_and_floods_with_nothing(call: Call) -> None:
    await call.stream(delta('{"a": 1'), end=False)
    while not call.gone.is_set():
        await call.send(chunked(delta(" \n" * 500)))


async def never_stops_saying_nothing(call: Call) -> None:
    await call.stream(end=False)
    while not call.gone.is_set():
        await call.send(chunked(delta(" \n")))
        await asyncio.sleep(0.005)


async def test_endless_whitespace_is_no_answer_so_another_engine_gives_one(tmp_path: Path) -> None:
    async with house(tmp_path, never_stops_saying_nothing, NO_DRAFTS, timeout_s=0.4) as made:
        assert await made.ask() == HERE
        assert made.outcomes == [("big", "upstream_failed"), ("small", "ok")]


async def test_endless_whitespace_where_nobody_else_may_answer_is_one_error(tmp_path: Path) -> None:
    async with house(tmp_path, floods_with_nothing, NO_DRAFTS) as made:
        with pytest.raises(UpstreamError, match="nothing but white space"):
            await made.ask(model="big")


@pytest.mark.parametrize(("goes_on", "text"), [(False, '{"a": 1'), (True, '{"a": 1' + HERE)])
async def test_endless_whitespace_in_the_middle_breaks_the_answer_off(
    tmp_path: Path, goes_on: bool, text: str
) -> None:
    settings = {"router": {"cascade": False, "continue_elsewhere": goes_on}}
    async with house(tmp_path, begins_and_floods_with_nothing, settings) as made:
        with contextlib.suppress(UpstreamError) if not goes_on else contextlib.nullcontext():
            await made.ask()
        assert "".join(made.text.split(" \n")) == text


async def claims_the_impossible(call: Call) -> None:
    await call.stream(delta("Cheap."), finish(), usage(10**9, 10**9), DONE)


@pytest.mark.parametrize("budget", [{}, {"per_day": 1.0}], ids=["no budget", "a budget"])
async def test_usage_that_cannot_be_is_believed_by_nobody(tmp_path: Path, budget: dict[str, float]) -> None:
    settings = {**NO_DRAFTS, "budget": budget}
    async with house(tmp_path, claims_the_impossible, settings, price_out=10.0, context=4096) as made:
        await made.ask(mode="pool", max_tokens=100)
        finish = made.events[-1]
        assert isinstance(finish, Finish)
        assert finish.usage.completion_tokens == finish.receipt.completion_tokens == 100
        assert finish.usage.prompt_tokens == finish.receipt.prompt_tokens < 4096
        assert finish.receipt.cost == pytest.approx(100 * 10 / 1e6)
        speed = (await made.gateway.router_states())[-1]["decode_tokens_per_s"]
        assert speed < 10**6


async def claims_nonsense(call: Call) -> None:
    await call.stream(delta("One"), delta(" two"), finish(), usage(-5, "many"), DONE)


async def claims_nothing(call: Call) -> None:
    await call.stream(delta("One"), delta(" two"), finish(), usage(0, 0), DONE)


@pytest.mark.parametrize("script", [claims_nonsense, claims_nothing], ids=lambda script: script.__name__)
async def test_a_whole_answer_is_not_lost_for_its_usage_and_what_was_seen_is_paid(
    tmp_path: Path, script: Script
) -> None:
    async with house(tmp_path, script, NO_DRAFTS, price_out=10.0) as made:
        assert await made.ask(mode="pool") == "One two"
        assert made.outcomes == [("big", "ok")]
        finish = made.events[-1]
        assert isinstance(finish, Finish)
        assert (finish.usage.completion_tokens, finish.receipt.cost) == (2, pytest.approx(2 * 10 / 1e6))


async def test_an_upstream_that_claims_impossible_usage_takes_no_more_than_was_set_aside(
    tmp_path: Path,
) -> None:
    settings = {**NO_DRAFTS, "budget": {"per_day": 1.0, "answer_tokens": 1000}}
    async with house(tmp_path, claims_the_impossible, settings, price_in=1.0, price_out=100.0) as made:
        assert await made.ask(mode="pool") == "Cheap."
        await made.gateway.books.do(lambda ledger: None)  # type: ignore[union-attr]
        ledger = Ledger(made.path)
        spent, reserved = made.money(ledger)
        assert spent <= 0.101 * 1e9
        assert reserved == 0
        ledger.close()


async def answers(call: Call) -> None:
    await call.stream(delta("Fine."), finish(), usage(10, 1000), DONE)


@pytest.mark.parametrize("jump_s", [-10 * 86400.0, 40 * 86400.0])
async def test_a_clock_that_jumps_under_a_request_moves_neither_its_money_nor_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    real = time.time

    async def jumps(call: Call) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + jump_s)
        await answers(call)

    settings = {**NO_DRAFTS, "budget": {"per_day": 1.0, "per_month": 5.0}}
    async with house(tmp_path, jumps, settings, price_out=100.0) as made:
        assert await made.ask(mode="pool", deadline_s=30.0) == "Fine."
        await made.gateway.books.do(lambda ledger: None)  # type: ignore[union-attr]
        monkeypatch.setattr(time, "time", real)
        ledger = Ledger(made.path)
        assert made.money(ledger) == (100_000_000, 0), "spent on the day on which it was reserved"
        ledger.close()


async def test_breakers_do_not_listen_to_the_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(tmp_path, fails_with_500, NO_DRAFTS) as made:
        for _ in range(3):
            await made.ask()
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - 10 * 86400.0)
        assert await made.ask() == HERE
        assert made.outcomes == [("small", "ok")]
        (state,) = [each for each in await made.gateway.router_states() if each["engine"] == "big"]
        assert 0 < state["addresses"][0]["retry_in_s"] <= 60


async def test_a_locked_database_costs_no_answer_and_its_line_is_written_later(tmp_path: Path) -> None:
    async with house(tmp_path, answers, NO_DRAFTS) as made:
        Ledger(made.path).close()
        lock = sqlite3.connect(made.path, isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        assert await made.ask(mode="pool") == "Fine."
        lock.execute("ROLLBACK")
        lock.close()
        assert await made.ask(mode="pool") == "Fine."
        await made.gateway.books.do(lambda ledger: None)  # type: ignore[union-attr]
        ledger = Ledger(made.path)
        assert [line["outcome"] for line in ledger.recent(9)] == ["ok", "ok"]
        ledger.close()


async def test_a_locked_database_lets_nobody_spend(tmp_path: Path) -> None:
    settings = {**NO_DRAFTS, "budget": {"per_day": 1.0}}
    async with house(tmp_path, answers, settings, price_out=1.0) as made:
        Ledger(made.path).close()
        lock = sqlite3.connect(made.path, isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        assert await made.ask() == HERE
        with pytest.raises(EdgeCloudError, match="can't be read"):
            await made.ask(model="big")
        lock.execute("ROLLBACK")
        lock.close()
        assert await made.ask(model="big", mode="pool") == "Fine."


@pytest.fixture
def pool_process(tmp_path: Path) -> Process:
    folders = {"EDGECLOUD_HOME": str(tmp_path), "EDGECLOUD_RUNTIME": str(tmp_path)}
    return Process(0, 0.0, -1, environment=folders)


@pytest.mark.slow
async def test_a_pool_that_hangs_and_is_killed_before_its_first_token_is_replaced(
    tmp_path: Path, pool_process: Process
) -> None:
    url = await asyncio.to_thread(lambda: pool_process.url)
    made = House(tmp_path, PoolEntry(name="big", url=f"{url}/v1", model="fake"), **NO_DRAFTS)
    pool_process.signal(signal.SIGSTOP)
    asking = asyncio.create_task(made.ask())
    await asyncio.sleep(0.3)
    assert not asking.done()
    pool_process.signal(signal.SIGKILL)
    assert await asking == HERE
    assert made.outcomes == [("big", "upstream_failed"), ("small", "ok")]
    await made.gateway.aclose()
    pool_process.wait()


@pytest.mark.slow
async def test_a_pool_that_is_killed_in_the_middle_leaves_its_partial_and_one_error(
    tmp_path: Path, pool_process: Process
) -> None:
    url = await asyncio.to_thread(lambda: pool_process.url)
    made = House(tmp_path, PoolEntry(name="big", url=f"{url}/v1", model="fake"), **NO_DRAFTS)
    asking = asyncio.create_task(made.ask(model="big"))
    while len(made.text) < 3:  # noqa: ASYNC110 - the house has no event for it
        await asyncio.sleep(0.005)
    pool_process.signal(signal.SIGKILL)
    with pytest.raises(UpstreamError):
        await asking
    assert 3 <= len(made.text) < 30
    assert made.local.requests == []
    await made.gateway.aclose()
    pool_process.wait()


ADDRESS = "10.231.77.2"
CABLE = """
ip netns add {name} && ip link add {name} type veth peer name {name}p netns {name} &&
ip addr add 10.231.77.1/30 dev {name} && ip link set {name} up &&
ip -n {name} addr add 10.231.77.2/30 dev {name}p && ip -n {name} link set {name}p up
"""


class Elsewhere:
    """A pool in a network of its own, at the end of a cable."""

    def __init__(self, home: Path) -> None:
        self.name = f"edge{os.getpid() % 100_000}"
        made = subprocess.run(["sh", "-c", CABLE.format(name=self.name)], capture_output=True)
        if made.returncode:
            self.take_down()
            pytest.skip("networks can't be made here")
        environment = {
            "EDGECLOUD_HOME": str(home),
            "EDGECLOUD_RUNTIME": str(home),
            "EDGECLOUD_SERVER__HOST": ADDRESS,
            "EDGECLOUD_SERVER__ALLOWED_HOSTS": f'["{ADDRESS}"]',
            "EDGECLOUD_SERVER__API_KEYS": '["a-key-of-sixteen-letters"]',
        }
        inside = ("ip", "netns", "exec", self.name)
        self.process = Process(
            0, 0.0, module="tests.support.pool_process", environment=environment, inside=inside
        )

    def entry(self, **fields: Any) -> PoolEntry:
        url = f"{self.process.url}/v1"
        return PoolEntry(name="big", url=url, model="fake", api_key="a-key-of-sixteen-letters", **fields)

    def cut(self) -> None:
        """Nobody is told: packets are lost from now on."""
        subprocess.run(["ip", "link", "set", self.name, "down"], check=True)

    def mend(self) -> None:
        subprocess.run(["ip", "link", "set", self.name, "up"], check=True)

    def take_down(self) -> None:
        for command in (["link", "del", self.name], ["netns", "del", self.name]):
            subprocess.run(["ip", *command], capture_output=True)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("only root can make networks")
    made = Elsewhere(tmp_path)
    try:
        yield made
    finally:
        made.process.signal(signal.SIGKILL)
        made.process.wait()
        made.take_down()


@pytest.mark.slow
async def test_a_cable_that_is_cut_in_the_middle_leaves_the_partial_one_error_and_a_right_ledger(
    tmp_path: Path, elsewhere: Elsewhere
) -> None:
    entry = await asyncio.to_thread(
        elsewhere.entry, idle_timeout_s=2, connect_timeout_s=3, first_byte_timeout_s=3, price_out=10.0
    )
    made = House(tmp_path, entry, **NO_DRAFTS)
    asking = asyncio.create_task(made.ask(model="big"))
    while len(made.text) < 3:  # noqa: ASYNC110 - the house has no event for it
        await asyncio.sleep(0.005)
    elsewhere.cut()
    with pytest.raises(UpstreamError):
        await asking
    partial = made.text
    assert 3 <= len(partial) < 30
    assert made.local.requests == []

    assert await made.ask() == HERE, "before its first word it is answered here"
    assert [engine for engine, _ in made.outcomes] == ["big", "small"]

    elsewhere.mend()
    assert len(await made.ask(model="big")) > len(partial)
    for each in (await made.gateway.routing.engines.all()).values():
        assert [each.outstanding[address.name] for address in each.deployments] == [0]
    await made.gateway.aclose()
    ledger = Ledger(made.path)
    whole, here, broken = ledger.recent(3)
    assert [line["outcome"] for line in (whole, here, broken)] == ["ok", "ok", "upstream_failed"]
    assert broken["cost"] == pytest.approx(len(partial) * 10 / 1e6)
    (attempt,) = ledger.receipt(broken["id"])["attempts"]
    assert attempt["at_least"]
    assert here["cost"] == 0.0
    ledger.close()
