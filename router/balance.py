"""Which replica of an engine takes a request.

Three ways, in this order: the replica that holds the longest prefix of the prompt, the one that the session's
place on a hash ring names, the better of two drawn at random. The first two give way when their replica is
busy beyond its share (consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018), so
that one popular prefix does not pile everybody up in one place.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

VIRTUAL_NODES = 64
"""Points on the ring for a replica of weight 1: shares then differ by about an eighth."""

BOUND = 1.25
"""A replica may be this much busier than its share before a session or a prefix goes elsewhere."""

MIN_OVERLAP = 64
"""Fewer tokens than these are computed faster than it is worth to leave a session's replica."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One deployment: `weight` is its capacity beside the others', `outstanding` tokens are asked of it."""

    name: str
    weight: float = 1.0
    outstanding: int = 0

    @property
    def load(self) -> float:
        return self.outstanding / self.weight


def choose(
    replicas: Sequence[Replica],
    tokens: int,
    random: Random,
    *,
    session: str | None = None,
    overlap: Mapping[str, int] = {},
) -> Replica:
    """The replica for a request of `tokens` tokens.

    `session` names the chat, so that its turns meet their prefix; `overlap` has the tokens of this prompt
    that a replica reported to hold. `replicas` must not be empty.
    """
    if len(replicas) == 1:
        return replicas[0]
    warmest = max(replicas, key=lambda replica: (overlap.get(replica.name, 0), -replica.load))
    if overlap.get(warmest.name, 0) >= MIN_OVERLAP and has_room(warmest, replicas, tokens):
        return warmest
    if session is not None:
        for replica in ring_order(replicas, session):
            if has_room(replica, replicas, tokens):
                return replica
    return better_of_two(replicas, random)


def better_of_two(replicas: Sequence[Replica], random: Random) -> Replica:
    """Two replicas drawn by weight, the less loaded of them: nearly as even as asking all, without the herd
    that runs to the one that looked idle (Mitzenmacher 2001).
    """
    weights = [replica.weight for replica in replicas]
    (first,) = random.choices(range(len(replicas)), weights)
    weights[first] = 0.0
    if not any(weights):
        return replicas[first]
    (second,) = random.choices(range(len(replicas)), weights)
    return min(replicas[first], replicas[second], key=lambda replica: replica.load)


def has_room(replica: Replica, replicas: Sequence[Replica], tokens: int) -> bool:
    """Whether the replica stays within `BOUND` times its share of all outstanding tokens, these included."""
    total = sum(each.outstanding for each in replicas) + tokens
    share = total * replica.weight / sum(each.weight for each in replicas)
    # The first request of an idle pool is always more than a share.
    return replica.outstanding == 0 or replica.outstanding + tokens <= BOUND * share


def ring_order(replicas: Sequence[Replica], key: str) -> list[Replica]:
    """The replicas in the order in which a walk around the ring from `key` meets them.

    A replica that comes or goes moves only the keys of its own points.
    """
    points = sorted(
        (_hash(f"{replica.name}#{number}"), place)
        for place, replica in enumerate(replicas)
        for number in range(max(1, round(VIRTUAL_NODES * replica.weight)))
    )
    start = bisect.bisect(points, (_hash(key), len(replicas)))
    order = dict.fromkeys(place for _, place in points[start:] + points[:start])
    return [replicas[place] for place in order]


class Outstanding:
    """Tokens that were asked for and not answered yet, by replica. They can't leak: whoever holds some gives
    them back when its block ends, however it ends.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self._tokens.get(name, 0)

    @contextmanager
    def held(self, name: str, tokens: int) -> Iterator[None]:
        """Count `tokens` against the replica while the block runs."""
        self._tokens[name] = self[name] + tokens
        try:
            yield
        finally:
            self._tokens[name] -= tokens


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
