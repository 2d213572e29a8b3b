"""Blocks: who holds which, what a hit may claim, what must be copied, and the proof that none is lost."""

from __future__ import annotations

import pytest

from edgecloud.pool.blocks import BlockPool, BlockTable, Copy, PoolBroken
from edgecloud.pool.prefix import ChainHash, Namespace, chain_hash

from .fake_runner import weak_hash

LOCAL = Namespace("m")


def make_pool(num_blocks: int = 8, num_host_blocks: int = 0, chain: ChainHash = chain_hash) -> BlockPool:
    return BlockPool(num_blocks, 4, num_host_blocks, chain=chain)


def compute(pool: BlockPool, tokens: list[int], namespace: Namespace = LOCAL) -> BlockTable:
    """A sequence that has computed all its tokens, starting from what the cache holds."""
    table = BlockTable(namespace)
    hit = pool.match(table, tokens)
    pool.share(table, hit)
    pool.grow(table, len(hit) * 4, len(tokens))
    pool.register(table, tokens, len(tokens))
    return table


def num_hit(pool: BlockPool, tokens: list[int], namespace: Namespace = LOCAL) -> int:
    return len(pool.match(BlockTable(namespace), tokens))


def text(length: int) -> list[int]:
    return list(range(100, 100 + length))


@pytest.mark.parametrize(
    ("length", "blocks"), [(1, 0), (3, 0), (4, 0), (5, 1), (8, 1), (9, 2), (11, 2), (12, 2), (13, 3)]
)
def test_a_hit_leaves_the_last_token_to_be_computed(length: int, blocks: int) -> None:
    pool = make_pool()
    compute(pool, text(16))
    assert num_hit(pool, text(length)) == blocks


def test_only_committed_full_blocks_are_offered() -> None:
    pool = make_pool()
    table = BlockTable(LOCAL)
    pool.grow(table, 0, 9)
    assert num_hit(pool, text(9)) == 0
    pool.register(table, text(9), 7)
    assert num_hit(pool, text(9)) == 1
    pool.register(table, text(9), 9)
    assert num_hit(pool, text(9)) == 2


def test_a_hit_shares_blocks_and_takes_only_what_it_lacks() -> None:
    pool = make_pool()
    first = compute(pool, text(12))
    second = BlockTable(LOCAL)
    hit = pool.match(second, [*text(8), 7, 7, 7])
    needed = pool.num_needed(hit, 11)
    before = pool.num_available
    pool.share(second, hit)
    pool.grow(second, 8, 11)
    assert second.blocks[:2] == first.blocks[:2]
    assert before - pool.num_available == needed == 1
    pool.check([first, second])


def test_what_a_hit_needs_counts_the_cached_blocks_it_takes_back() -> None:
    pool = make_pool()
    pool.release(compute(pool, text(12)))
    table = BlockTable(LOCAL)
    hit = pool.match(table, text(12))
    needed = pool.num_needed(hit, 12)
    before = pool.num_available
    pool.share(table, hit)
    pool.grow(table, 8, 12)
    assert before - pool.num_available == needed == 3


def test_looking_changes_nothing() -> None:
    pool = make_pool(num_blocks=4)
    used = compute(pool, text(8))
    pool.release(compute(pool, [1, 2, 3, 4]))
    waiting = BlockTable(LOCAL)
    before = (pool.num_available, pool.num_cached, pool.num_used)
    pool.num_needed(pool.match(waiting, text(40)), 40)
    pool.room(used, 8)
    assert (pool.num_available, pool.num_cached, pool.num_used) == before
    assert waiting.blocks == []
    pool.check([used])


def test_a_reused_block_no_longer_answers_to_its_old_text() -> None:
    pool = make_pool(num_blocks=2)
    pool.release(compute(pool, text(8)))
    assert num_hit(pool, text(9)) == 2
    compute(pool, [1, 2, 3, 4])
    assert num_hit(pool, text(9)) == 1
    assert len(pool.prefix) == 2


def test_free_blocks_go_before_cached_ones() -> None:
    pool = make_pool(num_blocks=3)
    pool.release(compute(pool, text(4)))
    compute(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    assert num_hit(pool, text(5)) == 1


def test_the_least_recently_used_chain_is_evicted_from_its_tail() -> None:
    pool = make_pool(num_blocks=4)
    old, new = text(8), [9] * 8
    pool.release(compute(pool, old))
    pool.release(compute(pool, new))
    holder = compute(pool, [1, 1, 1, 1])
    assert (num_hit(pool, [*old, 0]), num_hit(pool, [*new, 0])) == (1, 2)
    pool.grow(holder, 4, 8)
    assert (num_hit(pool, [*old, 0]), num_hit(pool, [*new, 0])) == (0, 2)
    pool.grow(holder, 8, 12)
    assert num_hit(pool, [*new, 0]) == 1
    pool.check([holder])


def test_a_hit_makes_a_chain_recent_again() -> None:
    pool = make_pool(num_blocks=4)
    pool.release(compute(pool, text(8)))
    pool.release(compute(pool, [9] * 8))
    again = BlockTable(LOCAL)
    pool.share(again, pool.match(again, text(9)))
    pool.release(again)
    compute(pool, [1, 1, 1, 1])
    assert (num_hit(pool, text(9)), num_hit(pool, [9] * 9)) == (2, 1)


def test_two_blocks_with_the_same_text_both_serve_hits() -> None:
    pool = make_pool(num_blocks=3)
    tables = [BlockTable(LOCAL), BlockTable(LOCAL)]
    for table in tables:
        pool.grow(table, 0, 4)
    for table in tables:
        pool.register(table, text(4), 4)
    pool.check(tables)
    pool.release(tables[0])
    hit = pool.match(BlockTable(LOCAL), text(5))
    assert pool.num_needed(hit, 5) == 1, "the block in use is shared, the idle one stays available"
    pool.grow(tables[1], 4, 12)
    assert num_hit(pool, text(5)) == 1
    pool.check([tables[1]])


def test_a_weak_hash_costs_hits_and_never_gives_a_wrong_one() -> None:
    pool = make_pool(chain=weak_hash)
    compute(pool, [0, 0, 0, 0])
    assert num_hit(pool, [3, 0, 0, 0, 1]) == 0
    assert num_hit(pool, [0, 0, 0, 0, 1]) == 1
    compute(pool, [3, 0, 0, 0])
    assert num_hit(pool, [3, 0, 0, 0, 1]) == 0


def test_a_shared_block_is_registered_once_when_its_hash_becomes_free() -> None:
    pool = make_pool(num_blocks=4, chain=weak_hash)
    owner = compute(pool, [3, 0, 0, 0])
    parent = compute(pool, [0, 0, 0, 0])
    child = pool.fork(parent)
    pool.release(owner)
    filler = BlockTable(LOCAL)
    pool.grow(filler, 0, 12)
    for table in (parent, child):
        pool.register(table, [0, 0, 0, 0], 4)
    pool.check([parent, child, filler])
    assert num_hit(pool, [0, 0, 0, 0, 1]) == 1


def test_a_block_only_matches_after_the_same_blocks() -> None:
    for chain in (chain_hash, weak_hash):
        pool = make_pool(chain=chain)
        compute(pool, [1, 0, 0, 0, 5, 5, 5, 5])
        assert num_hit(pool, [2, 0, 0, 0, 5, 5, 5, 5, 1]) == 0


@pytest.mark.parametrize(
    "other",
    [Namespace("m", salt="x"), Namespace("m"), Namespace("mx"), Namespace("m", "", ""), Namespace("", "x")],
)
def test_names_in_other_fields_are_other_chains(other: Namespace) -> None:
    pool = make_pool()
    compute(pool, text(8), Namespace("m", adapter="x"))
    assert num_hit(pool, text(9), other) == 0
    assert num_hit(pool, text(9), Namespace("m", adapter="x")) == 2


def test_moving_a_letter_between_fields_gives_another_digest() -> None:
    names = [
        Namespace("ab"),
        Namespace("a", "b"),
        Namespace("a", "", "b"),
        Namespace("", "ab"),
        Namespace("", "a", "b"),
    ]
    assert len({name.digest for name in names}) == len(names)


def test_whoever_writes_into_a_shared_block_copies_and_the_last_one_need_not() -> None:
    pool = make_pool()
    first = compute(pool, text(6))
    second = pool.fork(first)
    shared = first.blocks[1]
    copy = pool.grow(first, 6, 7)
    assert copy == Copy(shared, first.blocks[1])
    assert first.blocks[1] != shared
    assert pool.grow(second, 6, 7) is None
    assert second.blocks[1] == shared
    pool.check([first, second])


def test_a_fork_at_a_block_border_copies_nothing() -> None:
    pool = make_pool()
    first = compute(pool, text(8))
    second = pool.fork(first)
    assert pool.grow(second, 8, 9) is None
    assert pool.grow(first, 8, 9) is None
    assert first.blocks[:2] == second.blocks[:2]
    assert first.blocks[2] != second.blocks[2]


def test_room_knows_of_the_copy_that_must_come_first() -> None:
    pool = make_pool(num_blocks=3)
    first = compute(pool, text(6))
    second = pool.fork(first)
    assert pool.room(second, 6) == 2
    blocker = compute(pool, [9])
    assert pool.room(second, 6) == 0
    assert pool.num_missing(second, 6) == 1
    pool.release(first)
    assert pool.room(second, 6) == 2
    pool.check([second, blocker])


def test_to_release_a_table_frees_what_nobody_else_holds() -> None:
    pool = make_pool()
    parent = compute(pool, text(6))
    assert pool.num_exclusive(parent) == 2
    child = pool.fork(parent)
    assert pool.num_exclusive(child) == 0
    pool.grow(child, 6, 7)
    assert pool.num_exclusive(child) == pool.num_exclusive(parent) == 1


def test_the_parent_goes_on_after_its_fork_is_gone() -> None:
    pool = make_pool()
    parent = compute(pool, text(6))
    pool.release(pool.fork(parent))
    assert pool.grow(parent, 6, 7) is None
    pool.check([parent])


def test_swapping_out_and_in_moves_what_the_device_no_longer_has() -> None:
    pool = make_pool(num_blocks=4, num_host_blocks=3)
    table = compute(pool, text(10))
    assert pool.can_swap_out(10)
    before = list(table.blocks)
    out = pool.swap_out(table, 10)
    host = [copy.target for copy in out]
    assert [copy.source for copy in out] == before
    assert pool.num_host_available == 0
    # Someone takes three blocks for a while: the two free ones and the tail of what was registered.
    other = BlockTable(LOCAL)
    pool.grow(other, 0, 12)
    pool.release(other)
    hit = pool.match(table, [*text(10), 7])
    assert len(hit) == 1
    back = pool.swap_in(table, host, hit)
    assert table.blocks[0] == before[0]
    assert [copy.source for copy in back] == [copy.target for copy in out[len(hit) :]]
    assert [copy.target for copy in back] == table.blocks[len(hit) :]
    assert pool.num_host_available == 3
    pool.check([table])


def test_blocks_that_hold_nothing_yet_are_not_swapped() -> None:
    pool = make_pool(num_host_blocks=1)
    table = compute(pool, [1, 2, 3])
    pool.grow(table, 3, 9)
    assert len(pool.swap_out(table, 3)) == 1
    assert pool.num_available == 8


def test_a_full_host_takes_no_more() -> None:
    pool = make_pool(num_host_blocks=2)
    assert pool.can_swap_out(8)
    assert not pool.can_swap_out(9)
    assert not pool.can_swap_out(0)


def test_slots_follow_the_table() -> None:
    pool = make_pool()
    table = BlockTable(LOCAL)
    table.blocks = [5, 2, 7]
    assert pool.slots(table, 3, 9) == [23, 8, 9, 10, 11, 28]


def test_the_proof_names_what_is_wrong() -> None:
    pool = make_pool()
    table = compute(pool, text(6))
    with pytest.raises(PoolBroken, match=r"free 6 .* used 0 != 8: .*lost \[0, 1\]"):
        pool.check([])
    with pytest.raises(PoolBroken, match="block 0 has 1 references and 2 holders"):
        pool.check([table, table])
    pool.check([table])
    forgotten = pool.fork(table)
    with pytest.raises(PoolBroken, match="block 0 has 2 references and 1 holders"):
        pool.check([table])
    pool.release(forgotten)
    with pytest.raises(PoolBroken, match="host free 0"):
        pool.check([table], hosts=[[0]])
    node = table.nodes[0]
    node.blocks.append(3)
    with pytest.raises(PoolBroken, match="registered"):
        pool.check([table])


def test_releasing_twice_is_found_at_once() -> None:
    pool = make_pool()
    table = compute(pool, [1])
    stolen = list(table.blocks)
    pool.release(table)
    table.blocks = stolen
    with pytest.raises(PoolBroken, match="too often"):
        pool.release(table)


def test_taking_more_than_there_is_is_a_bug_and_says_so() -> None:
    pool = make_pool(num_blocks=2)
    with pytest.raises(PoolBroken, match="no block is left of 2"):
        pool.grow(BlockTable(LOCAL), 0, 9)
