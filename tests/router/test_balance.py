"""Which replica: the warm one, the session's, the better of two; and counters that come back to 0."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.router.balance import (
    BOUND,
    MIN_OVERLAP,
    Outstanding,
    Replica,
    better_of_two,
    choose,
    has_room,
    ring_order,
)


def replicas(*outstanding: int, weights: tuple[float, ...] = ()) -> list[Replica]:
    return [
        Replica(f"r{place}", weights[place] if weights else 1.0, tokens)
        for place, tokens in enumerate(outstanding)
    ]


def serve(num_requests: int, weights: tuple[float, ...], sessions: int = 0) -> dict[str, int]:
    """Outstanding tokens by replica after as many requests of 100 tokens, none of them done."""
    random, tokens = Random(7), Counter[str]()
    for number in range(num_requests):
        now = [Replica(f"r{place}", weight, tokens[f"r{place}"]) for place, weight in enumerate(weights)]
        session = f"chat-{number % sessions}" if sessions else None
        tokens[choose(now, 100, random, session=session).name] += 100
    return dict(tokens)


def test_two_choices_keep_replicas_nearly_even() -> None:
    tokens = serve(400, (1.0, 1.0, 1.0, 1.0))
    assert max(tokens.values()) <= 1.1 * min(tokens.values())


def test_capacity_decides_the_share() -> None:
    tokens = serve(400, (3.0, 1.0))
    assert 2.5 <= tokens["r0"] / tokens["r1"] <= 3.5


def test_the_less_loaded_of_two_is_taken() -> None:
    assert better_of_two(replicas(500, 0), Random(1)).name == "r1"
    assert better_of_two(replicas(500, 0, weights=(1.0, 0.0)), Random(1)).name == "r0"


# cases: R36
def test_a_session_stays_at_its_replica() -> None:
    names = {choose(replicas(0, 0, 0, 0), 100, Random(n), session="chat-1").name for n in range(20)}
    assert len(names) == 1


def test_sessions_spread_and_a_lost_replica_moves_only_its_own() -> None:
    four, three = replicas(0, 0, 0, 0), replicas(0, 0, 0)
    before = {f"chat-{n}": ring_order(four, f"chat-{n}")[0].name for n in range(400)}
    after = {key: ring_order(three, key)[0].name for key in before}
    assert all(after[key] == name for key, name in before.items() if name != "r3")
    assert min(Counter(before.values()).values()) >= 50


def test_one_popular_session_does_not_pile_up_beyond_the_bound() -> None:
    tokens = serve(100, (1.0, 1.0, 1.0), sessions=1)
    assert max(tokens.values()) <= BOUND * sum(tokens.values()) / 3 + 100


def test_the_replica_with_the_longest_prefix_wins_unless_it_is_overloaded() -> None:
    # None of them is where the ring would send the session.
    other, warmest = (each.name for each in ring_order(replicas(0, 0, 0), "c")[1:])
    overlap = {other: 100, warmest: 4000}
    assert choose(replicas(300, 300, 300), 100, Random(1), session="c", overlap=overlap).name == warmest
    busy = [Replica(name, outstanding=9000 * (name == warmest)) for name in ("r0", "r1", "r2")]
    assert choose(busy, 100, Random(1), session="c", overlap=overlap).name != warmest


def test_a_few_tokens_of_prefix_do_not_move_a_session() -> None:
    home = ring_order(replicas(0, 0), "c")[0].name
    other = "r1" if home == "r0" else "r0"
    for few, name in ((MIN_OVERLAP - 1, home), (MIN_OVERLAP, other)):
        assert choose(replicas(0, 0), 10, Random(1), session="c", overlap={other: few}).name == name


def test_a_replica_has_room_up_to_the_bound_of_its_share() -> None:
    # 500 of 800 tokens are 1.25 times the half.
    assert has_room(replicas(400, 300)[0], replicas(400, 300), 100)
    assert not has_room(replicas(400, 299)[0], replicas(400, 299), 100)
    large, small = replicas(700, 700, weights=(3.0, 1.0))
    assert has_room(large, [large, small], 100)
    assert not has_room(small, [large, small], 100)


def test_a_larger_replica_has_more_of_the_ring() -> None:
    pool = replicas(0, 0, weights=(3.0, 1.0))
    firsts = Counter(ring_order(pool, f"chat-{number}")[0].name for number in range(2000))
    assert 2.2 <= firsts["r0"] / firsts["r1"] <= 4.0


def test_what_is_held_is_given_back_even_when_closing_raises() -> None:
    outstanding = Outstanding()

    def break_off() -> None:
        with outstanding.held("r0", 50):
            assert outstanding["r0"] == 50
            raise OSError("reset")

    with pytest.raises(OSError, match="reset"):
        break_off()
    assert outstanding["r0"] == 0


# cases: R21 R22
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10**6)), max_size=30), st.randoms())
def test_every_order_of_beginning_and_ending_comes_back_to_nothing(
    jobs: list[tuple[str, int]], random: Random
) -> None:
    outstanding = Outstanding()
    holds = [outstanding.held(name, tokens) for name, tokens in jobs]
    for hold in holds:
        hold.__enter__()
    assert sum(outstanding[name] for name in "abc") == sum(tokens for _, tokens in jobs)
    random.shuffle(holds)
    for hold in holds:
        hold.__exit__(None, None, None)
    assert [outstanding[name] for name in "abc"] == [0, 0, 0]
