"""The four watermark levels and their actions, the projected peak, and what pre-emption chooses."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.errors import ConfigError
from edgecloud.pool.admission import Admission, Case, Growth, Level, Verdict, Watermarks, projected_peak
from edgecloud.pool.blocks import BlockPool, BlockTable
from edgecloud.pool.costs import StepCosts
from edgecloud.pool.estimate import LengthEstimate
from edgecloud.pool.forecast import Forecast
from edgecloud.pool.preemption import Choice, Preemption, PreemptionMode, Remedy
from edgecloud.pool.prefix import Namespace
from edgecloud.pool.sequence import Job, Request, Sequence

ids = itertools.count()


def unasked() -> int:
    raise AssertionError("the peak was not to be worked out")


# Of 100 blocks: cautious below 40, guarded below 20, urgent below 5, long above 25.
admission = Admission(Watermarks(), 100)
short = Case(
    num_left=90, num_needed=2, num_expected=10, peak=lambda: 80, urgent=False, resumed=False, num_overtaken=0
)
long = replace(short, num_needed=3, num_expected=30)


@pytest.mark.parametrize(
    ("left", "level"),
    [(100, 0), (40, 0), (39, 1), (20, 1), (19, 2), (5, 2), (4, 3), (0, 3), (-3, 3)],
)
def test_the_level_follows_the_blocks_left(left: int, level: int) -> None:
    assert admission.level(left) is Level(level)


def test_free_admits_what_fits_without_projecting() -> None:
    assert admission.verdict(replace(short, peak=unasked)) is Verdict.ADMIT


def test_a_prompt_that_would_use_up_the_room_is_projected_even_when_free() -> None:
    big = replace(short, num_left=90, num_needed=60)
    assert admission.verdict(big) is Verdict.ADMIT
    assert admission.verdict(replace(big, peak=lambda: 101)) is Verdict.WAIT


def test_cautious_admits_what_fits_at_the_peak() -> None:
    case = replace(short, num_left=30)
    assert admission.verdict(case) is Verdict.ADMIT
    assert admission.verdict(replace(case, peak=lambda: 100)) is Verdict.ADMIT
    assert admission.verdict(replace(case, peak=lambda: 101)) is Verdict.WAIT
    assert admission.verdict(replace(long, num_left=30)) is Verdict.ADMIT


def test_guarded_refuses_the_long_and_makes_room_for_the_short() -> None:
    assert admission.verdict(replace(short, num_left=10)) is Verdict.ADMIT
    assert admission.verdict(replace(long, num_left=10)) is Verdict.SKIP
    assert admission.may_preempt(replace(short, num_left=10, num_needed=11))
    assert not admission.may_preempt(replace(long, num_left=10, num_needed=11))
    assert not admission.may_preempt(replace(short, num_left=10, num_needed=10))
    assert not admission.may_preempt(replace(short, num_left=30, num_needed=31))


def test_urgent_admits_and_preempts_for_the_urgent_only() -> None:
    case = replace(short, num_left=4)
    assert admission.verdict(case) is Verdict.SKIP
    assert admission.verdict(replace(case, urgent=True, peak=unasked)) is Verdict.ADMIT
    assert admission.may_preempt(replace(case, urgent=True, num_needed=5))
    assert not admission.may_preempt(replace(case, num_needed=5))


def test_what_does_not_fit_waits_and_holds_its_place() -> None:
    assert admission.verdict(replace(short, num_left=50, num_needed=51)) is Verdict.WAIT
    assert admission.verdict(replace(short, num_left=4, num_needed=5, urgent=True)) is Verdict.WAIT


def test_a_refusal_ends_after_so_many_were_let_past() -> None:
    overtaken = replace(long, num_left=10, num_overtaken=32)
    assert admission.verdict(replace(overtaken, num_overtaken=31)) is Verdict.SKIP
    assert admission.verdict(overtaken) is Verdict.ADMIT
    assert admission.verdict(replace(overtaken, num_needed=11)) is Verdict.WAIT


def test_what_has_run_before_is_not_refused() -> None:
    assert admission.verdict(replace(long, num_left=10, resumed=True)) is Verdict.ADMIT
    assert admission.verdict(replace(short, num_left=4, num_needed=2, resumed=True)) is Verdict.ADMIT


def test_watermarks_must_be_in_order() -> None:
    with pytest.raises(ConfigError, match="urgent <= guarded"):
        Watermarks(cautious=0.1, guarded=0.2)


def replayed_peak(num_used: int, growths: list[Growth], block_size: int) -> int:
    """Token by token: everyone grows by one, who is done gives back its blocks."""
    held = [growth.num_held for growth in growths]
    peak = now = num_used
    for elapsed in range(1, max((growth.num_left for growth in growths), default=0) + 1):
        for index, growth in enumerate(growths):
            if growth.num_left >= elapsed:
                wanted = max(-(-(growth.num_tokens + elapsed) // block_size), held[index])
                now += wanted - held[index]
                held[index] = wanted
        peak = max(peak, now)
        now -= sum(
            growth.num_freed + held[index] - growth.num_held
            for index, growth in enumerate(growths)
            if growth.num_left == elapsed
        )
    return peak


growths = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 40), st.booleans()).map(
        lambda numbers: Growth(
            numbers[0], numbers[1], -(-numbers[1] // 4), -(-numbers[1] // 4) if numbers[2] else 0
        )
    ),
    max_size=8,
)


@given(growths)
def test_the_projected_peak_is_never_below_the_replayed_one_and_close(batch: list[Growth]) -> None:
    used = sum(growth.num_held for growth in batch)
    projected, replayed = projected_peak(used, batch, 4), replayed_peak(used, batch, 4)
    assert replayed <= projected <= replayed + len(batch)


def test_a_forecast_counts_choices_to_come_and_not_the_blocks_of_a_hit() -> None:
    bench = Bench()
    forecast = Forecast(bench.pool, StepCosts(), LengthEstimate())
    job = Job((1,) * 10, 6, n=3)
    sequence = Sequence(0, Request(0, job, 0.0), 0, list(job.prompt), BlockTable(Namespace()))
    bench.pool.grow(sequence.table, 0, 10)
    sequence.num_hit = 8
    assert forecast.growths(sequence) == [Growth(6, 10, 3, 1), Growth(6, 1, 0, 0), Growth(6, 1, 0, 0)]
    assert forecast.num_blocks(sequence) == 4


def test_the_peak_of_many_is_projected_from_means_and_one_alone_from_what_it_does_not_exceed() -> None:
    class Known(LengthEstimate):
        def predict(self, num_output: int, max_tokens: int) -> int:
            return 90

        def mean(self, num_output: int, max_tokens: int) -> int:
            return 30

    bench = Bench()
    forecast = Forecast(bench.pool, StepCosts(), Known())
    job = Job((1,) * 10, 100)
    sequence = Sequence(0, Request(0, job, 0.0), 0, list(job.prompt), BlockTable(Namespace()))
    assert [growth.num_left for growth in forecast.growths(sequence)] == [30]
    assert forecast.num_left(sequence) == 90


# ------------------------------------------------------------------------------------------------ pre-emption


class Bench:
    """Sequences that hold blocks of one pool; `left` says how many seconds each has yet to run."""

    def __init__(
        self, mode: PreemptionMode = "auto", num_host_blocks: int = 100, costs: StepCosts | None = None
    ):
        self.pool = BlockPool(100, 4, num_host_blocks)
        self.left: dict[Sequence, float] = {}
        self.running: list[Sequence] = []
        costs = costs or StepCosts(step_s=0.01, token_s=1e-3, block_swap_s=1e-3)
        self.preemption = Preemption(self.pool, costs, mode, lambda sequence: self.left[sequence])

    def add(
        self, rank: float, num_computed: int = 40, left: float = 1.0, deadline: float | None = None
    ) -> Sequence:
        number = next(ids)
        job = Job((1,) * (num_computed + 1), 100, deadline=deadline)
        sequence = Sequence(
            number, Request(number, job, 0.0), 0, list(job.prompt), BlockTable(Namespace(str(number)))
        )
        self.pool.grow(sequence.table, 0, num_computed)
        sequence.num_computed = num_computed
        sequence.rank = (rank, number)
        self.left[sequence] = left
        self.running.append(sequence)
        return sequence

    def choose(self, needy: Sequence) -> Choice:
        return self.preemption.choose(needy, self.running, now=0.0)


def test_nobody_of_equal_or_higher_rank_gives_way() -> None:
    bench = Bench()
    bench.add(1.0)
    needy = bench.add(1.0)
    assert bench.choose(needy) == Choice(Remedy.REFUSE)


def test_ties_are_broken_by_who_came_later() -> None:
    bench = Bench()
    needy, later = bench.add(1.0), bench.add(1.0)
    assert bench.choose(needy).victim is later


def test_the_smaller_state_gives_way() -> None:
    bench = Bench()
    needy = bench.add(0.0)
    bench.add(1.0, num_computed=80)
    small = bench.add(1.0, num_computed=20)
    bench.add(1.0, num_computed=80)
    assert bench.choose(needy).victim is small


def test_the_one_with_most_work_left_gives_way() -> None:
    bench = Bench()
    needy = bench.add(0.0)
    bench.add(1.0, left=1.0)
    far = bench.add(1.0, left=9.0)
    bench.add(1.0, left=1.0)
    assert bench.choose(needy).victim is far


def test_the_one_whose_deadline_can_bear_it_gives_way() -> None:
    bench = Bench()
    needy = bench.add(0.0)
    bench.add(1.0, deadline=1.001)
    relaxed = bench.add(1.0, deadline=5.0)
    bench.add(1.0, deadline=1.001)
    assert bench.choose(needy).victim is relaxed


@pytest.mark.parametrize(
    ("mode", "costs", "hosts", "remedy"),
    [
        ("auto", StepCosts(token_s=1e-3, block_swap_s=1e-3), 100, Remedy.SWAP),
        ("auto", StepCosts(token_s=1e-4, block_swap_s=1e-3), 100, Remedy.RECOMPUTE),
        ("auto", StepCosts(token_s=1e-3, block_swap_s=1e-3), 9, Remedy.RECOMPUTE),
        ("swap", StepCosts(token_s=1e-4, block_swap_s=1e-3), 100, Remedy.SWAP),
        ("swap", StepCosts(), 9, Remedy.RECOMPUTE),
        ("recompute", StepCosts(token_s=1e-3, block_swap_s=1e-3), 100, Remedy.RECOMPUTE),
    ],
)
def test_the_cheaper_way_out_is_taken_while_the_host_has_room(
    mode: PreemptionMode, costs: StepCosts, hosts: int, remedy: Remedy
) -> None:
    bench = Bench(mode, hosts, costs)
    needy, victim = bench.add(0.0), bench.add(1.0)
    assert bench.choose(needy) == Choice(remedy, victim)


def test_a_victim_that_is_almost_done_is_kept() -> None:
    bench = Bench()
    needy, victim = bench.add(0.0), bench.add(1.0, num_computed=41, left=0.01)
    assert bench.choose(needy) == Choice(Remedy.KEEP, victim)
    bench.left[victim] = 0.1
    assert bench.choose(needy).remedy is Remedy.SWAP


def test_a_victim_that_may_itself_be_stuck_is_not_waited_for() -> None:
    bench = Bench()
    # At a block border: its next token needs a block.
    needy, victim = bench.add(0.0), bench.add(1.0, num_computed=40, left=0.01)
    assert bench.choose(needy) == Choice(Remedy.SWAP, victim)


def test_a_victim_still_in_its_prompt_is_not_waited_for() -> None:
    bench = Bench()
    needy, victim = bench.add(0.0), bench.add(1.0, num_computed=41, left=0.01)
    victim.tokens.append(1)
    assert bench.choose(needy) == Choice(Remedy.SWAP, victim)


def test_a_deadline_that_cannot_wait_takes_the_blocks() -> None:
    bench = Bench()
    needy = bench.add(0.0, left=1.0, deadline=1.005)
    victim = bench.add(1.0, num_computed=41, left=0.01)
    assert bench.choose(needy) == Choice(Remedy.SWAP, victim)


def test_who_holds_nothing_of_its_own_is_the_last_to_go() -> None:
    bench = Bench()
    needy = bench.add(0.0)
    bench.add(1.0)
    sharer = bench.add(2.0)
    bench.pool.release(sharer.table)
    sharer.table = bench.pool.fork(needy.table)
    assert bench.choose(needy).victim is not sharer
