"""What a saved state is found by, and when saving or reading one pays: pure functions of tokens and numbers.

A state is found by a chain of hashes, one for every `BLOCK` tokens, each over the one before it: the longest
saved prefix of a prompt is the deepest link that is known, and an index finds it without a scan.

    tokens  |  0 … 63  | 64 … 127 | 128 … 191 |  the rest is compared token by token
    chain        h1  ->     h2  ->      h3
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

BLOCK = 64
"""Tokens of a link. Shorter prefixes are computed again sooner than they are found."""

LEAST_S = 0.5
"""Seconds of computing that a state must spare: less is not noticed."""

FIRST_REUSE = 0.2
"""How often a prefix that was never used again is expected to be, once."""

DISK_BYTES_S = 200e6
"""Bytes a second that go to disk and come back; a cautious number for SQLite on an SSD."""


class StateKind(NamedTuple):
    """Whose states fit into whose contexts: all of this must be equal.

    `fingerprint` names the model file's content, `build` that of the engine.
    """

    model: str
    fingerprint: str
    build: str
    kv_type: str
    adapter: str = ""

    def digest(self, secret: bytes = b"") -> bytes:
        """Where the chain begins, 16 bytes. With a secret nobody can ask the index for a text he guesses."""
        parts = (self.fingerprint, self.build, self.kv_type, self.adapter)
        return blake2b("\0".join(parts).encode(), digest_size=16, key=secret).digest()


def as_tokens(tokens: Sequence[int]) -> Tokens:
    """Token ids in the form in which they are hashed and stored: little-endian int32."""
    return np.asarray(tokens, "<i4")


def chain(seed: bytes, tokens: Tokens) -> list[bytes]:
    """The hash of each whole block of tokens and all before it, 16 bytes each."""
    data, links = tokens.tobytes(), [seed]
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = data[4 * start : 4 * (start + BLOCK)]
        links.append(blake2b(links[-1] + block, digest_size=16).digest())
    return links[1:]


def shared_length(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length


def is_worth_saving(num_new: int, num_bytes: int, token_s: float, num_uses: int) -> bool:
    """Whether the seconds that a state will probably spare are more than writing and reading it costs.

    `num_new` are its tokens that no other saved state holds, `token_s` the seconds to compute one, `num_uses`
    how often it served already.
    """
    spared_s = num_new * token_s
    return spared_s >= LEAST_S and spared_s * (FIRST_REUSE + num_uses) >= num_bytes / DISK_BYTES_S


def is_worth_reading(num_spared: int, num_bytes: int, token_s: float) -> bool:
    """Whether reading a state is faster than computing the tokens that it spares."""
    return num_spared * token_s > num_bytes / DISK_BYTES_S
