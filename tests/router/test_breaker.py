"""The breaker: when it opens, who may probe, and which news come too late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.router.breaker import Breaker, Lease, Rules, Snapshot

RULES = Rules(failures=3, pause_s=2.0, most_s=60.0, probe_s=10.0)


def tripped(now: float = 0.0) -> Breaker:
    breaker = Breaker(RULES)
    for _ in range(3):
        fail(breaker, now)
    return breaker


def fail(breaker: Breaker, now: float, pause_s: float | None = None) -> None:
    lease = breaker.admit(now)
    assert lease is not None
    breaker.fail(lease, now, "it refused the connection", pause_s=pause_s)


def succeed(breaker: Breaker, now: float, *, slow: bool = False) -> None:
    lease = breaker.admit(now)
    assert lease is not None
    breaker.succeed(lease, now, slow=slow)


# cases: R14
def test_failures_in_a_row_open_it_and_say_why() -> None:
    breaker = tripped()
    assert (breaker.state(1.9), breaker.admit(1.9)) == ("open", None)
    assert breaker.retry_at(1.0) == 2.0
    assert breaker.reason == "it refused the connection"


def test_a_success_between_failures_keeps_it_closed() -> None:
    breaker = Breaker(RULES)
    for now in range(4):
        fail(breaker, now)
        succeed(breaker, now)
        succeed(breaker, now)
    assert breaker.state(9) == "closed"


def test_a_bad_share_opens_it_without_failures_in_a_row() -> None:
    breaker = Breaker(RULES)
    for now in range(5):
        succeed(breaker, now)
        fail(breaker, now)
    assert breaker.state(4.5) == "open"


@pytest.mark.parametrize(("num_slow", "state"), [(7, "closed"), (8, "open")])
def test_of_ten_answers_eight_must_be_slow(num_slow: int, state: str) -> None:
    breaker = Breaker(RULES)
    for now in range(10):
        succeed(breaker, now, slow=now < num_slow)
    assert breaker.state(9.5) == state


def test_answers_that_have_become_slow_open_it() -> None:
    breaker = Breaker(RULES)
    for now in range(10):
        succeed(breaker, now, slow=True)
    assert breaker.state(9.5) == "open"
    assert "slower" in breaker.reason


# cases: R20
def test_half_open_admits_exactly_one_of_a_hundred() -> None:
    breaker = tripped()
    leases = [breaker.admit(2.0) for _ in range(100)]
    assert [lease.probe for lease in leases if lease] == [True]
    assert breaker.state(2.0) == "half-open"


def test_a_probe_that_works_closes_it_and_one_that_fails_doubles_the_pause() -> None:
    breaker = tripped()
    fail(breaker, 2.0)
    assert breaker.retry_at(2.0) == 6.0
    fail(breaker, 6.0)
    assert breaker.retry_at(6.0) == 14.0
    succeed(breaker, 14.0)
    assert breaker.state(14.0) == "closed"
    for _ in range(3):
        fail(breaker, 15.0)
    assert breaker.retry_at(15.0) == 17.0, "the pause starts over after it has worked"


# cases: R18
def test_a_probe_that_never_returns_blocks_nobody_for_long_and_its_late_result_is_ignored() -> None:
    breaker = tripped()
    lost = breaker.admit(2.0)
    assert breaker.admit(11.9) is None
    assert breaker.retry_at(11.9) == 12.0
    second = breaker.admit(12.0)
    assert lost is not None
    assert second is not None
    breaker.succeed(lost, 12.5)
    assert breaker.state(12.5) == "half-open", "the late probe must not close it"
    breaker.fail(second, 13.0, "still down")
    assert breaker.state(13.0) == "open"


def test_an_answer_that_began_before_it_opened_says_nothing() -> None:
    breaker = Breaker(RULES)
    early = breaker.admit(0.0)
    assert early is not None
    for _ in range(3):
        fail(breaker, 0.0)
    breaker.succeed(early, 1.0)
    assert breaker.state(1.0) == "open"


def test_failures_that_were_under_way_when_it_opened_do_not_prolong_its_pause() -> None:
    breaker = Breaker(RULES)
    leases = [breaker.admit(0.0) for _ in range(6)]
    for now, lease in enumerate(leases):
        assert lease is not None
        breaker.fail(lease, now / 10, "it refused the connection")
    assert breaker.retry_at(0.5) == 2.2


def test_a_lost_probe_that_is_given_back_late_lets_no_second_one_in() -> None:
    breaker = tripped()
    lost, second = breaker.admit(2.0), breaker.admit(12.0)
    assert lost is not None
    assert second is not None
    breaker.release(lost)
    assert breaker.admit(12.5) is None


def test_a_request_that_was_wrong_in_itself_gives_the_probe_back() -> None:
    breaker = tripped()
    lease = breaker.admit(2.0)
    assert lease is not None
    breaker.release(lease)
    assert breaker.admit(2.0) is not None


# cases: R11
def test_retry_after_opens_it_at_once_for_that_long() -> None:
    breaker = Breaker(RULES)
    fail(breaker, 0.0, pause_s=30.0)
    assert breaker.retry_at(1.0) == 30.0


def test_it_goes_on_in_another_process_and_no_clock_can_hold_it_open() -> None:
    kept = tripped().snapshot(1.0)
    assert kept == Snapshot(1.0, 1)
    other = Breaker(RULES)
    other.restore(kept, 100.0, "down")
    assert other.retry_at(100.0) == 101.0
    far = Breaker(RULES)
    far.restore(Snapshot(1e9, 1), 0.0, "")
    assert far.retry_at(0.0) == 60.0
    assert Breaker(RULES).snapshot(0.0) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["admit", "ok", "slow", "fail", "pause", "release"]), st.floats(0, 30))
    )
)
def test_whatever_happens_it_admits_again_within_its_longest_pause(steps: list[tuple[str, float]]) -> None:
    breaker, now, leases = Breaker(RULES), 0.0, list[Lease]()
    for step, passed in steps:
        now += passed
        if step == "admit":
            leases += [lease] if (lease := breaker.admit(now)) else []
        elif leases:
            lease = leases.pop()
            match step:
                case "ok" | "slow":
                    breaker.succeed(lease, now, slow=step == "slow")
                case "fail":
                    breaker.fail(lease, now, "x")
                case "pause":
                    breaker.fail(lease, now, "x", pause_s=5.0)
                case _:
                    breaker.release(lease)
    assert breaker.admit(now + RULES.most_s + RULES.probe_s) is not None
