"""The lines of the ledger, as they are written and as they are read back."""

from __future__ import annotations

from dataclasses import dataclass

from edgecloud.types import Receipt, Usage


@dataclass(frozen=True, slots=True)
class AttemptEntry:
    """One engine's try at a request. `nano` is what it cost; `at_least` where it was cut off before the
    upstream said how much it had done. `replica` is the host that was asked, "" for an engine in process.
    """

    engine: str
    replica: str
    started: float
    seconds: float
    outcome: str
    usage: Usage
    nano: int
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class RequestEntry:
    """One request with its receipt; `outcome` is 'ok' or the code of what ended it."""

    receipt: Receipt
    created: float
    door: str
    tenant: str | None
    chat_id: str | None
    outcome: str
    nano: int


@dataclass(frozen=True, slots=True)
class Orphan:
    """What a dead process had reserved for a request: `nano`, last at `beat` (Unix seconds), for `engine`, ""
    where nobody knows for whom.
    """

    request_id: str
    engine: str
    nano: int
    beat: float
    tenant: str | None
    chat_id: str | None


@dataclass(frozen=True, slots=True)
class Precedent:
    """Which engine was first for a question. `vector` is its embedding as bytes of float16, from the embedder
    with that `fingerprint`; `chat_id` is what it is deleted with, None where it is not to be kept.
    """

    request_id: str
    chat_id: str | None
    engine: str
    mode: str
    tenant: str | None
    fingerprint: str
    vector: bytes


@dataclass(frozen=True, slots=True)
class AnswerEntry:
    """How fast one whole answer was, as its receipt has it."""

    model: str
    usage: Usage
    ttft_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class EngineSums:
    """What one engine did on one local day (`2026-11-30`), or in all (`day` is ""). `engine` is "" for
    requests that were over before anybody was asked. Who asked broke off those `interrupted`; they have not
    failed. Tokens are those that were computed, speeds medians over its own whole answers that say something.
    """

    day: str
    engine: str
    requests: int
    failed: int
    interrupted: int
    cache_hits: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: float
    ttft_s: float
    total_s: float
    tokens_per_s: float
