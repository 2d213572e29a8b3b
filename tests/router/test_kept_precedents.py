"""Precedents that the ledger keeps: every process finds those of all, and none of what may serve no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecloud.router.facts import Facts
from edgecloud.router.ledger import Ledger, RequestEntry
from edgecloud.router.ledger.precedents import KEPT
from edgecloud.router.precedents import ALIKE, Precedents, precedent_of
from edgecloud.types import CacheInfo, Receipt

from .worlds import make_facts

ANGLES = (1.0, 0.95, 0.4, -0.2)


def asked(angle: float, **changes: Any) -> Facts:
    vector = (angle, float(np.sqrt(1 - angle**2)))
    return make_facts(**{"vector": vector, "fingerprint": "two", **changes})


class Process:
    """What one process of the user knows, with its own connection to the ledger."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(path)
        self.precedents = Precedents()

    def decide(self, facts: Facts, engine: str, chat_id: str) -> None:
        """A request that is decided and answered."""
        precedent = precedent_of(facts, engine, chat_id)
        if precedent is not None:
            self.precedents.note(precedent)
        receipt = Receipt(
            facts.request_id, engine, "m", "", "auto", "", (), CacheInfo(), 1, 0, 1, 0.0, 0.0, 0.0, 0.0
        )
        line = RequestEntry(receipt, 0.0, "ask", facts.tenant, chat_id, "ok", 0)
        self.ledger.settle(line, (), (), precedent=precedent, private=facts.local_only)

    def look(self, facts: Facts) -> str | None:
        known = self.precedents
        while not known.catch_up(self.ledger.precedents(known.last, known.pending)):
            pass
        return known.of(facts)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[tuple[Process, Process]]:
    one, other = (Process(tmp_path / "edgecloud.db") for _ in range(2))
    yield one, other
    one.ledger.close()
    other.ledger.close()


def test_another_process_and_the_next_one_know_who_was_first(
    processes: tuple[Process, Process], tmp_path: Path
) -> None:
    one, other = processes
    one.decide(asked(1.0, request_id="a"), "cloud", "chat")

    assert other.look(asked(0.95)) == "cloud"
    other.decide(asked(0.95, request_id="b"), "laptop", "another")
    assert one.look(asked(0.96)) == "laptop"
    with closing(Ledger(tmp_path / "edgecloud.db")) as ledger:
        kept = ledger.precedents()
    assert [precedent.engine for _, precedent in kept.newer] == ["cloud", "laptop"]


def test_only_what_is_new_is_read_and_all_again_once_something_was_deleted(
    processes: tuple[Process, Process],
) -> None:
    one, other = processes
    for number in range(3):
        one.decide(asked(ANGLES[number], request_id=f"{number}"), f"engine-{number}", f"chat-{number}")
    other.look(asked(1.0))
    one.decide(asked(ANGLES[3], request_id="3"), "engine-3", "chat-3")

    assert [number for number, _ in one.ledger.precedents(other.precedents.last).newer] == [4]
    one.ledger.forget_chats(["chat-1"])
    assert other.look(asked(ANGLES[1])) == "engine-0"
    assert other.look(asked(ANGLES[3])) == "engine-3"


def test_the_last_deleted_one_is_missed_though_a_new_one_takes_its_place(
    processes: tuple[Process, Process],
) -> None:
    one, other = processes
    one.decide(asked(1.0, request_id="a"), "cloud", "chat")
    assert other.look(asked(1.0)) == "cloud"

    one.ledger.forget_chats(["chat"])
    one.decide(asked(-0.2, request_id="b"), "laptop", "another")

    assert other.look(asked(1.0)) is None


def test_a_chat_that_is_deleted_while_it_is_answered_leaves_none_anywhere(
    processes: tuple[Process, Process],
) -> None:
    one, other = processes
    precedent = precedent_of(asked(1.0), "cloud", "chat")
    assert precedent is not None
    one.precedents.note(precedent)
    assert one.look(asked(1.0)) == "cloud"

    other.ledger.forget_chats(["chat"])

    assert one.look(asked(1.0)) is None
    one.decide(asked(1.0), "cloud", "chat")
    assert other.look(asked(1.0)) is None


def test_what_was_decided_in_a_chat_before_it_was_private_serves_no_other(
    processes: tuple[Process, Process],
) -> None:
    one, other = processes
    one.decide(asked(1.0, request_id="a"), "cloud", "chat")
    one.decide(asked(0.4, request_id="b", private=True), "laptop", "chat")

    assert one.look(asked(1.0)) is None
    assert other.look(asked(1.0)) is None


def test_no_more_are_kept_than_are_looked_at(processes: tuple[Process, Process]) -> None:
    one, other = processes
    with one.ledger.together():
        for number in range(KEPT + 3):
            one.decide(asked(1.0, request_id=f"{number}"), "cloud", "chat")

    assert len(one.ledger.precedents().newer) == KEPT
    assert other.look(asked(1.0)) == "cloud"
    one.decide(asked(1.0, request_id="last"), "laptop", "chat")
    assert other.look(asked(1.0)) == "laptop"
    assert len(one.ledger.precedents().newer) == KEPT


# ------------------------------------------------------------------------------------------- whatever happens


class Asked(NamedTuple):
    process: int
    angle: float
    tenant: str | None
    chat: str
    private: bool


class Deleted(NamedTuple):
    process: int
    chat: str


class Restarted(NamedTuple):
    process: int


STEPS = st.lists(
    st.one_of(
        st.builds(
            Asked,
            st.integers(0, 1),
            st.sampled_from(ANGLES),
            st.sampled_from([None, "key"]),
            st.sampled_from("abcd"),
            st.sampled_from([False, False, False, True]),
        ),
        st.builds(Deleted, st.integers(0, 1), st.sampled_from("abcd")),
        st.builds(Restarted, st.integers(0, 1)),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(STEPS, st.booleans())
def test_whoever_looks_finds_the_nearest_that_may_be_found_and_no_other(
    steps: list[Asked | Deleted | Restarted], looks_always: bool
) -> None:
    with TemporaryDirectory() as folder, ExitStack() as opened:
        path = Path(folder) / "edgecloud.db"

        def begin() -> Process:
            process = Process(path)
            opened.callback(process.ledger.close)
            return process

        processes = [begin(), begin()]
        found_in: dict[str, Asked] = {}  # by the engine, which is another for each
        deleted: set[str] = set()
        for number, step in enumerate(steps, 1):
            match step:
                case Asked():
                    facts = asked(
                        step.angle, request_id=f"{number}", tenant=step.tenant, private=step.private
                    )
                    processes[step.process].decide(facts, f"engine-{number}", step.chat)
                    if step.private:
                        found_in = {at: each for at, each in found_in.items() if each.chat != step.chat}
                    elif step.chat not in deleted:
                        found_in[f"engine-{number}"] = step
                case Deleted():
                    processes[step.process].ledger.forget_chats([step.chat])
                    deleted.add(step.chat)
                    found_in = {at: each for at, each in found_in.items() if each.chat != step.chat}
                case Restarted():
                    processes[step.process] = begin()
            for process in processes if looks_always or number == len(steps) else ():
                for tenant in (None, "key"):
                    engine = process.look(asked(1.0, tenant=tenant))
                    alike = [at for at, each in found_in.items() if each.tenant == tenant]
                    alike = [at for at in alike if found_in[at].angle > ALIKE]
                    nearest = max((found_in[at].angle for at in alike), default=None)
                    latest = [at for at in alike if found_in[at].angle == nearest]
                    assert engine == (latest[-1] if latest else None)
