"""The thread governor: what a busy machine does to it, and when it takes its threads back."""

from __future__ import annotations

from edgecloud.local_engine.threads import ThreadChoice, ThreadGovernor

STEP_S = 0.02


class Machine:
    """A machine whose other work leaves `free` CPUs; feeds a governor steps of 20 ms."""

    def __init__(self, threads: int, free: float) -> None:
        self.free = free
        self.governor = ThreadGovernor(ThreadChoice(threads, ""), idle_cpus=self.idle)

    def idle(self) -> float:
        return max(0.0, self.free - self.governor.threads)

    def run(self, seconds: float) -> list[int]:
        """The thread counts it changed to."""
        changes = []
        for _ in range(round(seconds / STEP_S)):
            got = min(self.free, self.governor.threads)
            if self.governor.observe(STEP_S, STEP_S * got):
                changes.append(self.governor.threads)
        return changes


def test_a_machine_of_its_own_keeps_its_threads() -> None:
    assert Machine(4, free=4).run(60) == []


def test_threads_are_given_up_from_the_first_window_on_a_busy_machine() -> None:
    assert Machine(2, free=1.1).run(0.2) == [1]


def test_as_many_are_kept_as_there_are_cpus_to_run_them() -> None:
    assert Machine(8, free=4.5).run(0.2) == [4]


def test_threads_come_back_when_cores_are_idle() -> None:
    machine = Machine(2, free=1.0)
    machine.run(5)
    machine.free = 2.0
    assert machine.run(5) == [2]


def test_no_retry_while_the_others_still_run() -> None:
    assert Machine(2, free=1.2).run(120) == [1]


def test_retries_that_fail_come_ever_less_often() -> None:
    machine = Machine(2, free=1.0)
    machine.governor._idle_cpus = lambda: 1.0  # a container's quota: the host idles, but not for us
    changes = machine.run(300)
    assert set(changes) == {1, 2}
    assert changes.count(2) < 10


def test_one_slow_step_changes_nothing() -> None:
    governor = ThreadGovernor(ThreadChoice(2, ""), idle_cpus=lambda: 0.0)
    for _ in range(50):
        assert not governor.observe(0.005, 0.003)
        assert not any(governor.observe(0.02, 0.04) for _ in range(5))


def test_one_thread_has_nothing_to_give_up() -> None:
    assert Machine(1, free=0.3).run(60) == []
