"""Names for computed blocks: a chain of hashes that says which tokens, after which tokens, under whose model.

A block of keys and values depends on every token before it, on the model, the adapter and, where tenants must
not learn of each other's prompts through timing, on a salt. The hash of a block therefore chains:

    hash(first) = sha256(tagged namespace | tokens)        hash(next) = sha256(hash(parent) | tokens)

The hash only finds a node; the node's own tokens and parent decide. A collision costs a miss, never a wrong
answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import NamedTuple

ChainHash = Callable[[bytes, tuple[int, ...]], bytes]


class Namespace(NamedTuple):
    """What must be equal before any token is compared; `adapter` names content, not a file name."""

    model: str = ""
    adapter: str = ""
    salt: str = ""

    @property
    def digest(self) -> bytes:
        """Each field goes in with its tag and length, so adapter "x" and salt "x" are different chains."""
        state = sha256()
        for tag, value in zip(self._fields, self, strict=True):
            data = value.encode()
            state.update(b"%s:%d:" % (tag.encode(), len(data)))
            state.update(data)
        return state.digest()


class PrefixNode:
    """One full block's worth of tokens in its place; `blocks` are the device blocks that hold its KV now."""

    __slots__ = ("blocks", "hash", "parent", "tokens")

    def __init__(self, parent: PrefixNode | Namespace, hash: bytes, tokens: tuple[int, ...]) -> None:
        self.parent = parent
        self.hash = hash
        self.tokens = tokens
        # Two requests that computed the same text at the same time each keep their own copy.
        self.blocks: list[int] = []


def chain_hash(parent: bytes, tokens: tuple[int, ...]) -> bytes:
    return sha256(parent + array("q", tokens).tobytes()).digest()


class PrefixIndex:
    """Nodes by hash. It holds no blocks: who attaches the first block adds, who detaches the last drops."""

    def __init__(self, chain: ChainHash = chain_hash) -> None:
        self.chain = chain
        self.version = 0
        self._nodes: dict[bytes, PrefixNode] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[PrefixNode]:
        return iter(self._nodes.values())

    def find(self, parent: PrefixNode | Namespace, hash: bytes, tokens: tuple[int, ...]) -> PrefixNode | None:
        node = self._nodes.get(hash)
        if node is None or node.tokens != tokens or node.parent != parent:
            return None
        return node

    def add(self, parent: PrefixNode | Namespace, hash: bytes, tokens: tuple[int, ...]) -> PrefixNode | None:
        """The node of this text, new or known; None when another text owns the hash."""
        node = self._nodes.get(hash)
        if node is None:
            node = self._nodes[hash] = PrefixNode(parent, hash, tokens)
            self.version += 1
            return node
        return self.find(parent, hash, tokens)

    def drop(self, node: PrefixNode) -> None:
        del self._nodes[node.hash]
