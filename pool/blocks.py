"""The pool of KV blocks: who holds which, which may be reused, and what must be copied first.

It hands out numbers and plans; the tensors live in the runner. A device block is in exactly one place:

      allocate                     release, unregistered
    free ───────────▶ used (ref ≥ 1) ───────────▶ free
     ▲                 ▲      │ release, registered
     │ evict (lazily)  │ hit  ▼
     └──────────────  cached (ref 0, LRU)

Blocks are registered for prefix reuse only after the step that wrote them has committed. A table is released
from its tail, so the least recently used block is always a leaf: a chain is evicted from its end.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .prefix import ChainHash, Namespace, PrefixIndex, PrefixNode, chain_hash


class PoolBroken(RuntimeError):
    """An invariant of the pool does not hold: a bug of ours, with the numbers that show it."""


class Copy(NamedTuple):
    """One block's content moves from `source` to `target`; which tiers these number is said by the list."""

    source: int
    target: int


class BlockTable:
    """The blocks of one sequence in order, the nodes of its registered ones, the hashes known so far."""

    __slots__ = ("blocks", "hashes", "namespace", "nodes")

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.blocks: list[int] = []
        self.nodes: list[PrefixNode] = []
        self.hashes: list[bytes] = []


class BlockPool:
    """`num_blocks` device blocks of `block_size` tokens above `num_host_blocks` for swapped sequences.

    Predicates (`room`, `match`, `num_needed`) change nothing; actions raise `PoolBroken` when called without
    their predicate holding.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        *,
        caching: bool = True,
        chain: ChainHash = chain_hash,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_host_blocks = num_host_blocks
        self.caching = caching
        self.prefix = PrefixIndex(chain)
        self.num_releases = 0
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._ref_counts = [0] * num_blocks
        self._nodes: list[PrefixNode | None] = [None] * num_blocks
        self._host_free = list(range(num_host_blocks - 1, -1, -1))

    @property
    def num_available(self) -> int:
        """Blocks an allocation may take now: the free ones and the cached ones nobody holds."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_host_available(self) -> int:
        return len(self._host_free)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # ------------------------------------------------------------------------------------------- prefix hits

    def match(self, table: BlockTable, tokens: Sequence[int]) -> list[PrefixNode]:
        """The longest chain of registered blocks that `tokens` starts with.

        Never the whole of it: the last token is always computed, because its logits are what is asked for.
        """
        nodes: list[PrefixNode] = []
        parent: PrefixNode | Namespace = table.namespace
        if self.caching:
            for index in range((len(tokens) - 1) // self.block_size):
                node = self.prefix.find(parent, *self._name(table, tokens, index))
                if node is None:
                    break
                nodes.append(node)
                parent = node
        return nodes

    def num_needed(self, hit: Sequence[PrefixNode], num_tokens: int) -> int:
        """Available blocks that a sequence of `num_tokens` takes when it starts from `hit`."""
        idle = sum(self._ref_counts[self._holder(node)] == 0 for node in hit)
        return self.blocks_for(num_tokens) - len(hit) + idle

    def share(self, table: BlockTable, hit: Sequence[PrefixNode]) -> None:
        """Start an empty table from a hit."""
        for node in hit:
            block = self._holder(node)
            if self._ref_counts[block] == 0:
                del self._cached[block]
            self._ref_counts[block] += 1
            table.blocks.append(block)
            table.nodes.append(node)

    def register(self, table: BlockTable, tokens: Sequence[int], num_computed: int) -> None:
        """Offer the full blocks of the first `num_computed` tokens for reuse; their step has committed."""
        if not self.caching:
            return
        for index in range(len(table.nodes), num_computed // self.block_size):
            hash, content = self._name(table, tokens, index)
            node = self.prefix.add(table.nodes[-1] if index else table.namespace, hash, content)
            if node is None:
                return
            block = table.blocks[index]
            # A fork made while another text owned the hash shares the block: who came first has attached it.
            if self._nodes[block] is None:
                self._nodes[block] = node
                node.blocks.append(block)
            table.nodes.append(node)

    # --------------------------------------------------------------------------------------- growing, freeing

    def is_writable(self, table: BlockTable, start: int, end: int) -> bool:
        """Whether the positions `start` to `end` need neither a block nor a copy."""
        size = self.block_size
        return end <= len(table.blocks) * size and self._ref_counts[table.blocks[start // size]] == 1

    def room(self, table: BlockTable, start: int) -> int:
        """Tokens that can be written from position `start` on with the blocks available now."""
        copies = self._must_copy(table, start)
        available = self.num_available
        if available < copies:
            return 0
        return (len(table.blocks) + available - copies) * self.block_size - start

    def num_missing(self, table: BlockTable, start: int) -> int:
        """Blocks to allocate before one token can be written at position `start`."""
        lacks = self.blocks_for(start + 1) - len(table.blocks)
        return max(lacks, 0) + self._must_copy(table, start)

    def grow(self, table: BlockTable, start: int, end: int) -> Copy | None:
        """Make the positions `start` to `end` writable; a shared block there is replaced by a copy first."""
        copy = None
        if self._must_copy(table, start):
            index = start // self.block_size
            copy = Copy(table.blocks[index], self._allocate())
            self._ref_counts[copy.source] -= 1
            table.blocks[index] = copy.target
        for _ in range(self.blocks_for(end) - len(table.blocks)):
            table.blocks.append(self._allocate())
        return copy

    def slots(self, table: BlockTable, start: int, end: int) -> list[int]:
        """Where the KV of positions `start` to `end` goes: block * block_size + offset."""
        size = self.block_size
        slots: list[int] = []
        while start < end:
            index, offset = divmod(start, size)
            first = table.blocks[index] * size + offset
            length = min(size - offset, end - start)
            slots.extend(range(first, first + length))
            start += length
        return slots

    def fork(self, table: BlockTable) -> BlockTable:
        """A second table over the same blocks; whoever writes first copies (`grow`)."""
        child = BlockTable(table.namespace)
        child.blocks = list(table.blocks)
        child.nodes = list(table.nodes)
        child.hashes = list(table.hashes)
        for block in child.blocks:
            self._ref_counts[block] += 1
        return child

    def num_exclusive(self, table: BlockTable) -> int:
        """Blocks that releasing this table would make available."""
        return sum(self._ref_counts[block] == 1 for block in table.blocks)

    def release(self, table: BlockTable) -> None:
        """Empty the table: blocks that nobody else holds become free, or cached where they are registered.

        Raises `PoolBroken` for one that was released before.
        """
        self.num_releases += 1
        for block in reversed(table.blocks):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                if self._nodes[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None
            elif self._ref_counts[block] < 0:
                raise PoolBroken(f"block {block} was released {-self._ref_counts[block]} times too often")
        table.blocks.clear()
        table.nodes.clear()

    # ---------------------------------------------------------------------------------------------- host tier

    def can_swap_out(self, num_tokens: int) -> bool:
        return 0 < self.blocks_for(num_tokens) <= len(self._host_free)

    def swap_out(self, table: BlockTable, num_computed: int) -> list[Copy]:
        """Release the table and move what is computed down: copies from device to host blocks.

        The copies must run before anything else of the step: the device blocks may be taken in the same step.
        """
        kept = table.blocks[: self.blocks_for(num_computed)]
        copies = [Copy(block, self._host_free.pop()) for block in kept]
        self.release(table)
        return copies

    def swap_in(self, table: BlockTable, host: list[int], hit: Sequence[PrefixNode]) -> list[Copy]:
        """Bring an empty table back: what the device still holds is shared, the rest is copied up."""
        self.share(table, hit)
        copies = [Copy(block, self._allocate()) for block in host[len(hit) :]]
        table.blocks.extend(copy.target for copy in copies)
        self.release_host(host)
        return copies

    def release_host(self, host: list[int]) -> None:
        self._host_free.extend(reversed(host))
        host.clear()

    # ---------------------------------------------------------------------------------------------- the proof

    def check(self, tables: Iterable[BlockTable], hosts: Iterable[Sequence[int]] = ()) -> None:
        """Prove the pool whole against every table that lives; raise `PoolBroken` with the numbers if not."""
        held: Counter[int] = Counter()
        for table in tables:
            held.update(table.blocks)
            if len(table.nodes) > len(table.blocks):
                raise PoolBroken(f"a table has {len(table.blocks)} blocks and {len(table.nodes)} nodes")
            for block, node in zip(table.blocks, table.nodes, strict=False):
                if self._nodes[block] is not node:
                    raise PoolBroken(f"block {block} is not registered as the table that holds it believes")
        free, cached, used = set(self._free), set(self._cached), set(held)
        total = len(free) + len(cached) + len(used)
        if (
            total != self.num_blocks
            or len(free) != len(self._free)
            or free | cached | used != set(range(self.num_blocks))
        ):
            raise PoolBroken(
                f"free {len(self._free)} ({len(free)} distinct) + cached {len(cached)} + used {len(used)} "
                f"!= {self.num_blocks}: free and cached {sorted(free & cached)}, free and used "
                f"{sorted(free & used)}, cached and used {sorted(cached & used)}, "
                f"lost {sorted(set(range(self.num_blocks)) - free - cached - used)}"
            )
        for block, count in enumerate(self._ref_counts):
            if count != held[block]:
                raise PoolBroken(f"block {block} has {count} references and {held[block]} holders")
        self._check_prefixes(free, cached)
        host_used = Counter(block for host in hosts for block in host)
        host_free = set(self._host_free)
        if (
            len(host_free) != len(self._host_free)
            or host_free & set(host_used)
            or any(count > 1 for count in host_used.values())
            or len(host_free) + len(host_used) != self.num_host_blocks
        ):
            raise PoolBroken(
                f"host free {len(self._host_free)} ({len(host_free)} distinct) + used {len(host_used)} "
                f"!= {self.num_host_blocks}, in both {sorted(host_free & set(host_used))}"
            )

    def _check_prefixes(self, free: set[int], cached: set[int]) -> None:
        registered = {block for block, node in enumerate(self._nodes) if node is not None}
        if registered & free or cached - registered:
            raise PoolBroken(
                f"free but registered {sorted(registered & free)}, "
                f"cached but not registered {sorted(cached - registered)}"
            )
        attached = Counter(block for node in self.prefix for block in node.blocks)
        if set(attached) != registered or any(count > 1 for count in attached.values()):
            raise PoolBroken(
                f"registered {sorted(registered)} but the index holds {sorted(attached.elements())}"
            )
        for node in self.prefix:
            if not node.blocks or any(self._nodes[block] is not node for block in node.blocks):
                raise PoolBroken(f"node {node.hash.hex()[:12]} points to blocks {node.blocks} that left it")
            if isinstance(node.parent, PrefixNode) and not node.parent.blocks:
                raise PoolBroken(f"block {node.blocks[0]} outlived the block before it and cannot be reached")

    # ----------------------------------------------------------------------------------------------- privates

    def _name(self, table: BlockTable, tokens: Sequence[int], index: int) -> tuple[bytes, tuple[int, ...]]:
        start = index * self.block_size
        content = tuple(tokens[start : start + self.block_size])
        if index == len(table.hashes):
            parent = table.hashes[-1] if index else table.namespace.digest
            table.hashes.append(self.prefix.chain(parent, content))
        return table.hashes[index], content

    def _holder(self, node: PrefixNode) -> int:
        """A block in use costs nothing to share; only then one that would leave the cached ones."""
        return next((block for block in node.blocks if self._ref_counts[block]), node.blocks[0])

    def _must_copy(self, table: BlockTable, start: int) -> bool:
        index, offset = divmod(start, self.block_size)
        return bool(offset) and self._ref_counts[table.blocks[index]] > 1

    def _allocate(self) -> int:
        if self._free:
            block = self._free.pop()
        elif self._cached:
            block = self._evict()
        else:
            raise PoolBroken(f"no block is left of {self.num_blocks}; all are in use")
        self._ref_counts[block] = 1
        return block

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        node = self._nodes[block]
        if node is None:
            raise PoolBroken(f"block {block} is cached but was never registered")
        node.blocks.remove(block)
        if not node.blocks:
            self.prefix.drop(node)
        self._nodes[block] = None
        return block
