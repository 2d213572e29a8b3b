"""Who may start: four watermark levels on the blocks that are left, each with its own action.

    level      blocks left       action
    FREE       above cautious    admit what fits now
    CAUTIOUS   above guarded     admit what also fits at the projected peak of all answers
    GUARDED    above urgent      as before, but refuse the long, and pre-empt lower ranks for the short
    URGENT     below urgent      admit and pre-empt for the urgent only

'Left' is what is available less what admitted prompts have yet to take. A refusal is not for ever: after
`max_overtaken` others have gone past, the sequence holds its place and everyone behind it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from edgecloud.errors import ConfigError


class Level(IntEnum):
    FREE = 0
    CAUTIOUS = 1
    GUARDED = 2
    URGENT = 3


class Verdict(Enum):
    ADMIT = "admit"
    WAIT = "wait"  # and so do all behind it
    SKIP = "skip"  # refused for now; the next may try


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Shares of the pool, and what counts as long and as urgent.

    Long: expected to hold more than `long_share` of the pool. Urgent: a priority of at least
    `urgent_priority`, or a deadline less than `urgent_slack_s` seconds after the earliest possible end.
    """

    cautious: float = 0.4
    guarded: float = 0.2
    urgent: float = 0.05
    long_share: float = 0.25
    urgent_priority: int = 1
    urgent_slack_s: float = 1.0
    max_overtaken: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.urgent <= self.guarded <= self.cautious <= 1:
            raise ConfigError(
                "Watermarks must satisfy 0 <= urgent <= guarded <= cautious <= 1, not "
                f"{self.urgent}, {self.guarded}, {self.cautious}."
            )


class Growth(NamedTuple):
    """One sequence in a projection: tokens it has and is still expected to get, blocks it holds and those it
    will free.
    """

    num_left: int
    num_tokens: int
    num_held: int
    num_freed: int


def projected_peak(num_used: int, growths: Iterable[Growth], block_size: int) -> int:
    """Most blocks that will be in use at once, if every sequence gets the length expected of it.

    Answers end one by one, each giving back its blocks, so the peak is at one of the ends. With the sequences
    by tokens left, longest first, at the end of the i-th those before it have grown by as many tokens and
    those after it are gone (Past-Future scheduling, LightLLM, ASPLOS 2025).
    """
    order = sorted(growths, key=lambda growth: growth.num_left, reverse=True)
    num_present = num_used * block_size - sum(growth.num_freed for growth in order) * block_size
    peak = num_used * block_size
    for count, growth in enumerate(order, start=1):
        # Up to block_size - 1 slots of its last block stay empty.
        slack = growth.num_tokens + block_size - 1 - growth.num_held * block_size
        num_present += growth.num_freed * block_size + slack
        peak = max(peak, num_present + count * growth.num_left)
    return peak // block_size


@dataclass(frozen=True, slots=True)
class Case:
    """One candidate before the pool, in blocks. `peak` is only asked for when the level calls for it."""

    num_left: int
    num_needed: int
    num_expected: int
    peak: Callable[[], int]
    urgent: bool
    resumed: bool
    num_overtaken: int


class Admission:
    """Who may enter, by how many of the `num_blocks` would be left; it counts nothing itself."""

    def __init__(self, watermarks: Watermarks, num_blocks: int) -> None:
        self.watermarks = watermarks
        self._num_blocks = num_blocks

    def level(self, num_left: int) -> Level:
        share = num_left / self._num_blocks
        marks = self.watermarks
        if share >= marks.cautious:
            return Level.FREE
        if share >= marks.guarded:
            return Level.CAUTIOUS
        return Level.GUARDED if share >= marks.urgent else Level.URGENT

    def verdict(self, case: Case) -> Verdict:
        """What becomes of the first in the queue now."""
        level = self.level(case.num_left)
        if self._is_refused(case, level):
            return Verdict.SKIP
        if case.num_needed > case.num_left:
            return Verdict.WAIT
        if level is Level.URGENT and case.urgent:
            return Verdict.ADMIT
        # Room now is room enough only where a lot of it stays.
        if self.level(case.num_left - case.num_needed) is Level.FREE:
            return Verdict.ADMIT
        return Verdict.ADMIT if case.peak() <= self._num_blocks else Verdict.WAIT

    def may_preempt(self, case: Case) -> bool:
        """Whether running sequences of lower rank should make room for this one."""
        level = self.level(case.num_left)
        if level < Level.GUARDED or case.num_needed <= case.num_left:
            return False
        return case.urgent or (level is Level.GUARDED and not self._is_long(case))

    def _is_refused(self, case: Case, level: Level) -> bool:
        if case.resumed or case.num_overtaken >= self.watermarks.max_overtaken or level < Level.GUARDED:
            return False
        return not case.urgent and (level is Level.URGENT or self._is_long(case))

    def _is_long(self, case: Case) -> bool:
        return case.num_expected > self.watermarks.long_share * self._num_blocks
