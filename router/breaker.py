"""When to leave a deployment alone, and how to find out that it is back.

    closed ── failures in a row, a bad share, or too many slow answers ──> open
    open ── its pause is over ──> half-open: one leased probe ── it succeeds ──> closed
                                                              └─ it fails ──> open, twice as long

Every admission is a `Lease`. A lease of an earlier generation says nothing any more, so an answer that began
before the breaker opened can't close it, and a probe that never returns expires instead of blocking for ever.
Times are seconds of any one clock, given by the caller.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

State = Literal["closed", "open", "half-open"]
Outcome = Literal["ok", "slow", "failed"]


@dataclass(frozen=True, slots=True)
class Rules:
    """`failures` in a row open it, and so does a share of `bad_share` among the last `window` answers once
    there are `enough` of them, or a share of `slow_share` slow ones. It stays open for `pause_s`, doubled at
    each failed probe up to `most_s`. A probe has `probe_s` to come back.
    """

    failures: int = 3
    window: int = 20
    enough: int = 10
    bad_share: float = 0.5
    slow_share: float = 0.8
    pause_s: float = 2.0
    most_s: float = 60.0
    probe_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Lease:
    """Leave to send one request, to be given back by exactly one of `Breaker.succeed`, `fail`, `release`."""

    generation: int
    probe: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is kept of a breaker between processes: it is open for `left_s` more seconds, after `trips`."""

    left_s: float
    trips: int


class Breaker:
    """The breaker of one deployment."""

    def __init__(self, rules: Rules = Rules()) -> None:
        self._rules = rules
        self._recent: deque[Outcome] = deque(maxlen=rules.window)
        self._generation = 0
        self._trips = 0  # openings since it last worked
        self._open_until: float | None = None
        self._is_asked_for = False  # the pause: then nobody comes sooner
        self._probe_until: float | None = None
        self.reason = ""

    def state(self, now: float) -> State:
        if self._open_until is None:
            return "closed"
        return "open" if now < self._open_until else "half-open"

    def retry_at(self, now: float) -> float | None:
        """When a request can be admitted again; None if one can now."""
        if self._open_until is None:
            return None
        if now < self._open_until:
            return self._open_until
        return self._probe_until if self._probe_until is not None and now < self._probe_until else None

    def admit(self, now: float) -> Lease | None:
        """A lease, or None while it is open or another probe is under way."""
        if self._open_until is None:
            return Lease(self._generation, probe=False)
        if self.retry_at(now) is not None:
            return None
        # A probe whose lease has run out is of an earlier generation from here on.
        self._generation += 1
        self._probe_until = now + self._rules.probe_s
        return Lease(self._generation, probe=True)

    def succeed(self, lease: Lease, now: float, *, slow: bool = False) -> None:
        """The answer came; `slow` if it began far later than this deployment usually begins."""
        if lease.generation != self._generation:
            return
        if lease.probe:
            self._close()
        self._note("slow" if slow else "ok", now)

    def fail(self, lease: Lease, now: float, reason: str, *, pause_s: float | None = None) -> None:
        """The deployment failed, for `reason`; `pause_s` is how long it asked to be left alone, if it did."""
        if lease.generation != self._generation:
            return
        if lease.probe or pause_s is not None:
            self._open(now, reason, pause_s)
        else:
            self._note("failed", now, reason)

    def release(self, lease: Lease) -> None:
        """The request ended and says nothing of the deployment: cancelled, or wrong in itself."""
        if lease.probe and lease.generation == self._generation:
            self._probe_until = None

    @property
    def may_wake(self) -> bool:
        """Whether its pause may end early: it was ours to choose, the deployment did not ask for it."""
        return self._open_until is not None and not self._is_asked_for

    def wake(self, now: float) -> None:
        """End a pause that may end early: something says that the deployment is back."""
        if self.may_wake and self._open_until is not None:
            self._open_until = min(self._open_until, now)

    def snapshot(self, now: float) -> Snapshot | None:
        """What to keep; None for one that is closed."""
        if self._open_until is None:
            return None
        return Snapshot(max(0.0, self._open_until - now), self._trips)

    def restore(self, snapshot: Snapshot, now: float, reason: str) -> None:
        """Go on from what another process kept, with the reason that it had. A clock that was set can't hold
        it open beyond the rules.
        """
        self._trips = max(1, snapshot.trips)
        self._open_until = now + min(max(0.0, snapshot.left_s), self._rules.most_s)
        self.reason = reason

    # ------------------------------------------------------------------------------------------------- inside

    def _note(self, outcome: Outcome, now: float, reason: str = "") -> None:
        rules, recent = self._rules, self._recent
        recent.append(outcome)
        last = list(recent)[-rules.failures :]
        if len(last) == rules.failures and all(each == "failed" for each in last):
            self._open(now, reason)
        elif len(recent) >= rules.enough:
            if recent.count("failed") >= rules.bad_share * len(recent):
                self._open(now, reason or "half of its answers fail")
            elif recent.count("slow") >= rules.slow_share * len(recent):
                self._open(now, "it has become far slower than it was")

    def _open(self, now: float, reason: str, pause_s: float | None = None) -> None:
        rules = self._rules
        backoff_s = min(rules.most_s, rules.pause_s * 2.0 ** min(self._trips, 16))
        self._trips += 1
        self._generation += 1
        self._open_until = now + (backoff_s if pause_s is None else pause_s)
        self._is_asked_for = pause_s is not None
        self._probe_until = None
        self._recent.clear()
        self.reason = reason

    def _close(self) -> None:
        self._trips = 0
        self._generation += 1
        self._open_until = self._probe_until = None
        self._recent.clear()
        self.reason = ""
