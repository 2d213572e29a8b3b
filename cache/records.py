"""What the answer cache takes and gives: keys of requests, what a lookup found, what is kept of an answer.

The gateway's side, in the order of one request:

    key = key_of(request)                                  which tiers may serve it
    recalled = cache.recall(key, answerers)                the very request; costs next to nothing
    found = cache.similar(key, embedded, answerers)        if `recalled.is_near`: a vector is worth its time
    hit.events                                             a whole stream: Start, deltas, ChoiceDone, Done
    cache.store(key, embedded, answer, near=found.near)    otherwise, once it is computed

`answerers` name who may answer this request (the allowed set): a string is equal only where the same engine,
model and file would answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgecloud.types import CacheInfo, EngineEvent

Vector = NDArray[np.float32]
Tier = Literal["exact", "semantic"]


@dataclass(frozen=True, slots=True)
class Key:
    """What may be remembered of one request, and under which names.

    `exact` and `partition` are SHA-256 digests of everything that must be equal for an answer to be served;
    None leaves the tier out, and `reason` says why. `text` is the last user turn, what the semantic tier
    embeds and compares; `only_words` says why it is recognised and not compared, if so. `max_tokens` and
    `max_age_s` bound the answers that may be served; one that did not come in pieces is not served where it
    is to be `streamed`.
    """

    scope: str
    exact: bytes | None
    partition: bytes | None
    text: str
    lifetime_s: float
    reason: str = ""
    max_tokens: int | None = None
    max_age_s: float | None = None
    streamed: bool = True
    only_words: str = ""

    @property
    def is_compared(self) -> bool:
        """Whether the answer to another wording may serve."""
        return self.partition is not None and not self.only_words

    @property
    def wording(self) -> bytes | None:
        """The digest of the partition and the words in it, whatever the spaces between them; of what is not
        compared, to the letter.
        """
        if self.partition is None:
            return None
        text = self.text if self.only_words else " ".join(self.text.split())
        return hashlib.sha256(self.partition + text.encode("utf-8", "replace")).digest()

    @property
    def is_cached(self) -> bool:
        """Whether any tier may serve or keep this request."""
        return self.exact is not None or self.partition is not None


class Embedded(NamedTuple):
    """A prompt's unit vector (float32), and what made it: another fingerprint is another space."""

    vector: Vector
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete answer as it streamed: `Start` … `Done`. `seconds` and `cost` are what a hit saves;
    `request_id` is the request that it was computed for.
    """

    events: tuple[EngineEvent, ...]
    answerer: str
    seconds: float = 0.0
    cost: float = 0.0
    chat_id: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A kept answer to serve. `similarity` is a cosine, `probability` that of being the same answer."""

    entry_id: str
    tier: Tier
    similarity: float
    probability: float
    age_s: float
    events: tuple[EngineEvent, ...]
    seconds_saved: float
    cost_saved: float

    @property
    def info(self) -> CacheInfo:
        """The hit as the receipt has it."""
        return CacheInfo(self.tier, self.similarity, self.age_s, self.entry_id, self.probability)


@dataclass(frozen=True, slots=True)
class Near:
    """The kept answer most like to serve that was not served: what the fresh answer is compared with.

    `lookup` is the number by which it is taught. `withheld` marks one that would have been served: an audit,
    or a `fresh` request. `answer` is its text.
    """

    lookup: int
    entry_id: str
    similarity: float
    probability: float
    withheld: bool
    answer: str


class Recalled(NamedTuple):
    """What was found without a vector; `is_near` says that there are prompts to compare this one with."""

    hit: Hit | None = None
    is_near: bool = False


class Foreseen(NamedTuple):
    """What a lookup would find, nothing of which was counted; `is_near` as in `Recalled`."""

    info: CacheInfo | None = None
    is_near: bool = False


class Found(NamedTuple):
    """What was found with one; at most one of the two is there."""

    hit: Hit | None = None
    near: Near | None = None


class Entry(NamedTuple):
    """One kept answer as a person sees it. Times are seconds since the epoch."""

    id: str
    scope: str
    tier: Tier
    prompt: str
    answer: str
    answerer: str
    created: float
    expires: float
    hits: int
    bytes: int
    blocked: bool
    chat_id: str | None


class Removal(NamedTuple):
    """`purged` is False while another process keeps old pages readable."""

    num_answers: int
    purged: bool


class ScopeStats(NamedTuple):
    """How similar prompts of one scope are answered: whose they are, and `wrong_per_100`, `threshold` and
    `off_because` as in `Stats`.
    """

    scope: str
    wrong_per_100: tuple[float, float, float]
    threshold: float
    off_because: str


class Stats(NamedTuple):
    """The cache in numbers, since it was last cleared.

    `audits` are hits drawn by lot whose answer was computed after all and compared. `wrong_per_100` is the
    expected number of wrong answers in 100 requests, with the limits of its 80 % interval; `threshold` the
    probability from which on a similar prompt is answered. These are of one scope; `scopes` has all of which
    something was seen.
    """

    entries: int
    bytes: int
    lookups: int
    exact_hits: int
    semantic_hits: int
    seconds_saved: float
    cost_saved: float
    audits: int
    audits_wrong: int
    blamed: int
    wrong_per_100: tuple[float, float, float]
    threshold: float
    off_because: str
    scopes: tuple[ScopeStats, ...] = ()


def text_of(events: Sequence[EngineEvent]) -> str:
    """The text of an answer's first choice."""
    from edgecloud.types import TextDelta

    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.index == 0)
