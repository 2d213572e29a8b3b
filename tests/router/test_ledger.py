"""The ledger: money that is reserved before it is spent, and lines that tell the story afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgecloud.app.explaining import request_story
from edgecloud.errors import BudgetExceeded, NotFound
from edgecloud.owner import Owner
from edgecloud.router.budgets import Limit, limits_of
from edgecloud.router.ledger import AttemptEntry, Ledger, RequestEntry, accounts
from edgecloud.router.ledger.crashed import REASON
from edgecloud.router.ledger.deleted import REMEMBER_S
from edgecloud.router.ledger.reserving import STALE_S
from edgecloud.router.money import NANO, Price, nano
from edgecloud.settings import BudgetSettings
from edgecloud.types import Attempt, CacheInfo, Receipt, Usage

NOW = datetime(2026, 11, 30, 12).timestamp()
PRICE = Price(prompt=1.0, cached=0.1, completion=4.0)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "edgecloud.db")
    yield ledger
    ledger.close()


def limits(
    now: float = NOW, *, tenant: str | None = None, chat: str | None = None, **amounts: float
) -> tuple[Limit, ...]:
    return limits_of(BudgetSettings(**amounts), now, chat_id=chat, tenant=tenant)  # type: ignore[arg-type]


def entry(
    request_id: str,
    cost: int = 0,
    *,
    created: float = NOW,
    engine: str = "big",
    outcome: str = "ok",
    **fields: object,
) -> RequestEntry:
    receipt = Receipt(
        id=request_id,
        engine=engine,
        model="m",
        variant="",
        mode="auto",
        reason="",
        attempts=(Attempt(engine, outcome, 1.0),),
        cache=CacheInfo(),
        prompt_tokens=1000,
        cached_tokens=0,
        completion_tokens=500,
        queue_s=0.0,
        ttft_s=0.5,
        total_s=2.0,
        tokens_per_s=50.0,
    )
    return RequestEntry(receipt, created, "ask", fields.get("tenant"), fields.get("chat_id"), outcome, cost)  # type: ignore[arg-type]


def attempt(cost: int, engine: str = "big") -> AttemptEntry:
    return AttemptEntry(engine, "host:1", NOW, 1.0, "ok", Usage(1000, 500), cost)


def spent(ledger: Ledger, of: tuple[Limit, ...]) -> list[tuple[int, int]]:
    return list(ledger.sums(of))


def steps(ledger: Ledger, ask: Callable[[], object]) -> int:
    """How many steps of its machine SQLite takes for it."""
    taken = 0

    def count() -> None:
        nonlocal taken
        taken += 1

    with ledger._reading() as connection:
        connection.set_progress_handler(count, 1)
        ask()
        connection.set_progress_handler(None, 1)
    return taken


def test_a_quota_and_a_story_are_looked_up_however_much_was_asked(ledger: Ledger) -> None:
    def ask() -> None:
        assert ledger.receipt("0003")["id"] == "req-0003"
        assert ledger.receipt("req-0003", tenant="ci")["id"] == "req-0003"
        assert ledger.tokens_on("ci", "2026-11-30") % 1500 == 0

    for number in range(10):
        ledger.settle(entry(f"req-{number:04}", tenant="ci"), [], ())
    few = steps(ledger, ask)
    with ledger.together():
        for number in range(10, 500):
            ledger.settle(entry(f"req-{number:04}", tenant="ci"), [], ())

    assert ledger.tokens_on("ci", "2026-11-30") == 500 * 1500
    assert steps(ledger, ask) == few


def test_what_keys_asked_before_their_sums_were_kept_counts(ledger: Ledger) -> None:
    ledger.settle(entry("req-1", created=time.time(), tenant="ci"), [], ())
    ledger.settle(entry("req-2", created=time.time()), [], ())
    with ledger._writing() as connection:
        connection.execute("DROP TABLE key_tokens")
        connection.execute("DELETE FROM migrations WHERE name LIKE '%sum_key_tokens'")
    ledger.close()

    again = Ledger(ledger.path)
    today = f"{datetime.now():%Y-%m-%d}"
    assert [again.tokens_on(name, today) for name in ("ci", "other")] == [1500, 0]
    again.close()


def test_a_reservation_becomes_what_was_spent(ledger: Ledger) -> None:
    day = limits(per_day=1.0)
    ledger.reserve("req-1", day, nano(0.6))
    assert spent(ledger, day)[0] == (0, nano(0.6))
    ledger.settle(entry("req-1", nano(0.25)), [attempt(nano(0.25))], day)
    assert spent(ledger, day) == [(nano(0.25), 0), (nano(0.25), 0)]


def test_what_does_not_fit_is_refused_with_what_is_left_and_nothing_is_kept(ledger: Ledger) -> None:
    day = limits(per_day=1.0)
    ledger.reserve("req-1", day, nano(0.9))
    with pytest.raises(
        BudgetExceeded, match=r"up to 0\.20 USD, and budget\.per_day has 0\.10 left until 2026-12-01 00:00"
    ):
        ledger.reserve("req-2", day, nano(0.2))
    assert spent(ledger, day)[0] == (0, nano(0.9))


def test_a_budget_is_used_up_to_its_last_nano(ledger: Ledger) -> None:
    day = limits(per_day=0.3)
    for number in range(3):
        ledger.reserve(f"req-{number}", day, nano(0.1))
    with pytest.raises(BudgetExceeded):
        ledger.reserve("req-3", day, 1)


# cases: R26
@pytest.mark.parametrize(
    ("amounts", "scope"),
    [
        ({"per_key_day": 1.0}, {"tenant": "abc"}),
        ({"per_key_month": 1.0}, {"tenant": "abc"}),
        ({"per_chat": 1.0}, {"chat": "chat-1"}),
        ({"per_month": 1.0}, {}),
    ],
)
def test_each_kind_of_budget_holds_for_its_own_and_no_other(
    ledger: Ledger, amounts: dict[str, float], scope: dict[str, str]
) -> None:
    mine = limits(**amounts, **scope)  # type: ignore[arg-type]
    ledger.settle(entry("req-1", NANO), [], mine)
    with pytest.raises(BudgetExceeded):
        ledger.reserve("req-2", mine, 1)
    other = limits(**amounts, **dict.fromkeys(scope, "somebody"))  # type: ignore[arg-type]
    if scope:
        ledger.reserve("req-3", other, NANO)


def test_what_was_spent_before_a_budget_was_set_counts(ledger: Ledger) -> None:
    ledger.settle(entry("req-1", NANO), [], limits())
    with pytest.raises(BudgetExceeded):
        ledger.reserve("req-2", limits(per_day=1.5), NANO)


# cases: R27
def test_of_fifty_at_once_only_those_that_fit_are_admitted(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path / "edgecloud.db") for _ in range(5)]
    barrier, admitted = threading.Barrier(50), list[int]()

    def ask(number: int) -> None:
        barrier.wait()
        try:
            ledgers[number % 5].reserve(f"req-{number}", limits(per_day=3.0), NANO)
            admitted.append(number)
        except BudgetExceeded:
            pass

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 3
    assert ledgers[0].sums(limits(per_day=3.0))[0] == (0, 3 * NANO)
    for ledger in ledgers:
        ledger.close()


# cases: R30
@pytest.mark.parametrize(
    ("spent_at", "asked_at", "name"),
    [
        (datetime(2026, 11, 30, 23, 59), datetime(2026, 12, 1, 0, 0), "per_day"),
        (datetime(2026, 11, 30, 23, 59), datetime(2026, 12, 1, 0, 0), "per_month"),
        (datetime(2026, 12, 31, 23, 59), datetime(2027, 1, 1, 0, 1), "per_month"),
        (datetime(2026, 1, 31, 12), datetime(2026, 2, 28, 12), "per_month"),
    ],
)
def test_a_budget_is_full_again_in_its_next_period(
    ledger: Ledger, spent_at: datetime, asked_at: datetime, name: str
) -> None:
    before, after = (limits(when.timestamp(), **{name: 1.0}) for when in (spent_at, asked_at))
    ledger.settle(entry("req-1", NANO), [], before)
    ledger.reserve("req-2", after, NANO)
    with pytest.raises(BudgetExceeded):
        ledger.reserve("req-3", before, NANO)


@pytest.mark.parametrize(
    ("asked_at", "ends_at"),
    [
        (datetime(2026, 1, 31, 12), datetime(2026, 2, 1)),
        (datetime(2026, 2, 1), datetime(2026, 3, 1)),
        (datetime(2026, 12, 31, 23, 59), datetime(2027, 1, 1)),
    ],
)
def test_a_month_ends_with_its_last_day(asked_at: datetime, ends_at: datetime) -> None:
    _, month, *_ = limits(asked_at.timestamp(), per_month=1.0)
    assert month.ends_at == ends_at.timestamp()


def test_a_sum_without_a_limit_is_no_budget() -> None:
    day, month = limits(per_month=1.0)
    assert day.view(5, 5) is None
    budget = month.view(NANO // 2, NANO // 4)
    assert budget is not None
    assert (budget.scope, budget.limit, budget.spent, budget.left) == ("month", 1.0, 0.5, 0.25)


# cases: R30
def test_days_end_at_midnight_when_clocks_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        hours = []
        for month, day in ((3, 29), (10, 25), (6, 1)):
            (limit, *_) = limits(datetime(2026, month, day, 12).timestamp(), per_day=1.0)
            assert limit.starts_at is not None
            assert limit.ends_at is not None
            hours.append((limit.ends_at - limit.starts_at) / 3600)
        assert hours == [23, 25, 24]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_reservation_of_a_living_process_is_never_taken(ledger: Ledger) -> None:
    day = limits(per_day=1.0)
    ledger.reserve("req-1", day, NANO)
    assert ledger.reclaim() == 0
    assert spent(ledger, day)[0] == (0, NANO)


def test_what_a_dead_process_had_reserved_counts_as_spent(ledger: Ledger, tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from edgecloud.router.ledger import Ledger
from edgecloud.router.budgets import limits_of
from edgecloud.settings import BudgetSettings
limits = limits_of(BudgetSettings(per_day=1.0), {NOW}, chat_id="chat-1", tenant="abc")
Ledger(Path({str(tmp_path / "edgecloud.db")!r})).reserve("req-dead", limits, 400_000_000, "big")
import os; os._exit(9)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    day = limits(per_day=1.0)
    assert spent(ledger, day)[0] == (0, nano(0.4))
    assert ledger.reclaim() == 1
    assert spent(ledger, day) == [(nano(0.4), 0), (nano(0.4), 0)]
    # The lines add up to what is spent.
    line = ledger.receipt("req-dead")
    told = {name: line[name] for name in ("outcome", "cost", "tenant", "chat_id", "attempts")}
    assert told == {"outcome": "crashed", "cost": 0.4, "tenant": "abc", "chat_id": "chat-1", "attempts": []}
    assert (line["receipt"]["engine"], line["receipt"]["cost"]) == ("big", 0.4)
    (sums,) = ledger.sums_since(0.0)
    assert (sums.engine, sums.requests, sums.failed, sums.cost) == ("big", 1, 1, 0.4)
    assert request_story(ledger, "req-dead")["sentences"] == [f"{REASON.capitalize()}."]


def test_a_doubtful_owner_s_reservation_is_given_up_once_it_is_silent(tmp_path: Path) -> None:
    now = [NOW]
    ledger = Ledger(tmp_path / "edgecloud.db", clock=lambda: now[0])
    # Its process id lives, but began at another time: used again, or the clock was set.
    ledger._owner = Owner(os.getpid(), 1.0)
    day = limits(per_day=1.0)
    ledger.reserve("req-1", day, 1)
    now[0] += STALE_S - 1
    ledger.reserve("req-1", day, 1)
    now[0] += STALE_S
    assert ledger.reclaim() == 0
    now[0] += 1
    assert ledger.reclaim() == 1
    assert spent(ledger, day)[0] == (2, 0)
    ledger.close()


# cases: R32
def test_a_corrected_price_is_spent_money_corrected(ledger: Ledger) -> None:
    month = limits(per_day=1.0, tenant="abc", per_key_day=1.0)
    wrong = Price(1000.0, 1000.0, 1000.0)
    cost = wrong.cost(Usage(1000, 500))
    ledger.settle(entry("req-1", cost), [attempt(cost)], month)
    ledger.settle(entry("req-2", 7), [attempt(7, engine="other")], month)
    with pytest.raises(BudgetExceeded):
        ledger.reserve("req-3", month, 1)
    right = PRICE.cost(Usage(1000, 500))
    assert ledger.reprice("big", PRICE, NOW + 1) == 0
    assert ledger.reprice("big", PRICE, NOW) == right - cost
    assert {each for each, _ in spent(ledger, month)} == {right + 7}
    assert ledger.receipt("req-1")["cost"] == pytest.approx(right / NANO)
    assert ledger.reprice("big", PRICE, NOW) == 0


def test_a_request_is_found_by_the_beginning_of_its_id_with_its_whole_story(ledger: Ledger) -> None:
    ledger.settle(entry("req-abcdef01", 5), [attempt(2), attempt(3)], limits(), '{"mode": "balanced"}')
    ledger.settle(entry("req-abcdee02", created=NOW + 1), [], limits())
    story = ledger.receipt("abcdef")
    assert (story["id"], story["outcome"], len(story["attempts"])) == ("req-abcdef01", "ok", 2)
    assert ledger.decision("req-abcdef01") == {"mode": "balanced"}
    assert ledger.receipt("")["id"] == "req-abcdee02"
    assert ledger.decision("req-abcdee02") is None
    with pytest.raises(NotFound, match="2 requests"):
        ledger.receipt("abcde")
    with pytest.raises(NotFound, match="no request"):
        ledger.receipt("zzzz")


def test_days_are_summed_by_engine(ledger: Ledger) -> None:
    ledger.settle(entry("req-1", nano(0.5)), [], limits())
    ledger.settle(entry("req-2", nano(0.25), outcome="upstream_failed"), [], limits())
    ledger.settle(entry("req-3", engine="smollm2"), [], limits())
    ledger.settle(entry("req-4", created=NOW - 86400), [], limits())
    days = ledger.sums_since(NOW - 2 * 86400, by_day=True)
    assert [(day.day, day.engine, day.requests, day.failed, day.cost) for day in days] == [
        ("2026-11-29", "big", 1, 0, 0.0),
        ("2026-11-30", "big", 2, 1, 0.75),
        ("2026-11-30", "smollm2", 1, 0, 0.0),
    ]
    totals = ledger.sums_since(NOW - 2 * 86400)
    assert [(each.engine, each.requests) for each in totals] == [("big", 3), ("smollm2", 1)]
    assert [each.requests for each in ledger.sums_since(NOW)] == [2, 1]


def test_deleting_a_chat_forgets_what_was_decided_in_it_and_not_what_it_cost(ledger: Ledger) -> None:
    ledger.settle(entry("req-1", NANO, chat_id="chat-1"), [], limits(), "{}")
    ledger.forget_chats(["chat-1"])
    assert ledger.decision("req-1") is None
    assert ledger.receipt("req-1")["chat_id"] is None
    assert spent(ledger, limits())[0] == (NANO, 0)


def test_old_decisions_and_lines_go_and_their_cost_stays(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "KEPT_DECISIONS", 3)
    for number in range(6):
        ledger.settle(entry(f"req-{number}", 7, created=NOW + number), [attempt(7)], limits(), "{}")
    ledger.settle(entry("req-old", 7, created=NOW - 500 * 86400), [attempt(7)], limits(), "{}")
    ledger.tidy()
    assert [number for number in range(6) if ledger.decision(f"req-{number}") is not None] == [2, 3, 4, 5]
    assert [line["id"] for line in ledger.recent(99)] == [f"req-{number}" for number in range(5, -1, -1)]
    assert spent(ledger, limits())[0] == (49, 0)


def test_what_was_learnt_of_engines_is_kept(ledger: Ledger) -> None:
    ledger.keep_engines({"big": {"wait": [0.1]}})
    ledger.keep_engines({"big": {"wait": [0.2]}, "local": {}})
    assert {name: state for name, (_, state) in ledger.engines().items()} == {
        "big": {"wait": [0.2]},
        "local": {},
    }


# cases: R27
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["reserve", "settle"]), st.integers(0, NANO)),
        max_size=40,
    ),
    st.integers(0, 3 * NANO),
)
def test_spent_and_reserved_never_exceed_the_limit_and_nothing_stays_reserved(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str, int]], limit: int
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "edgecloud.db")
    day = (Limit("per_day", "day", "all", "2026-11-30", limit),)
    held = dict[str, int]()
    for number, step, money in steps:
        name = f"req-{number}"
        if step == "reserve":
            try:
                ledger.reserve(name, day, money)
                held[name] = held.get(name, 0) + money
            except BudgetExceeded:
                pass
        else:
            ledger.settle(entry(name, min(money, held.pop(name, 0))), [], day)
        ((spent_now, reserved),) = ledger.sums(day)
        assert spent_now + reserved <= limit
        assert reserved == sum(held.values())
    for name in held:
        ledger.settle(entry(name), [], day)
    assert ledger.sums(day)[0][1] == 0
    ledger.close()


def test_what_ends_after_its_chat_was_deleted_costs_and_leaves_nothing_else(tmp_path: Path) -> None:
    now = [NOW]
    ledger = Ledger(tmp_path / "edgecloud.db", clock=lambda: now[0])
    day = limits(per_day=1.0)
    ledger.reserve("req-1", day, nano(0.5))

    ledger.forget_chats(["chat-1"])
    ledger.settle(entry("req-1", nano(0.25), chat_id="chat-1"), [attempt(nano(0.25))], day, '{"a": 1}')
    ledger.settle(entry("req-2", chat_id="chat-2"), [], (), '{"a": 1}')

    assert spent(ledger, day)[0] == (nano(0.25), 0)
    assert ledger.receipt("req-1")["chat_id"] is None
    assert (ledger.decision("req-1"), ledger.decision("req-2")) == (None, {"a": 1})
    now[0] += REMEMBER_S + 1
    ledger.forget_chats(["chat-3"])
    ledger.settle(entry("req-3", chat_id="chat-1"), [], (), '{"a": 1}')
    assert ledger.decision("req-3") == {"a": 1}
    ledger.close()
