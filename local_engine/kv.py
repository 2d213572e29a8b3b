"""The KV memory of one context as the batcher sees it: ids, shared prefixes, recent sequences, room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .llama import Context
from .parked import Parked, ParkedPrefixes
from .prefix import CellLedger, Recent, RecentSequences, common_prefix
from .saved import Fetch
from .sequence import Sequence

# A parked prefix is worth bringing back when it is this much longer than what the context still holds.
WORTH_RESTORING = 32


class _Source(NamedTuple):
    seq_id: int
    length: int
    recent: Recent | None
    parked: Parked | None = None
    fetch: Fetch | None = None


class KvMemory:
    """Owns the sequence ids and cells of a context. All calls come from the thread that owns the context.

    `can_share` is False for recurrent and hybrid models, whose state can't be cut back to a prefix: nothing
    is shared or kept then. Attention looks past every used cell, needed or not, so recent sequences keep at
    most `keep_cells`; beyond that they are parked in at most `parked_bytes` of main memory. `let_go` is
    given what leaves that, `unfit` a fetched state that can't be restored.
    """

    def __init__(
        self,
        context: Context,
        *,
        can_share: bool,
        keep_cells: int,
        parked_bytes: int,
        let_go: Callable[[Parked], None] = lambda parked: None,
        unfit: Callable[[Fetch], None] = lambda fetch: None,
    ) -> None:
        self._context = context
        self._can_share = can_share
        self._keep_cells = keep_cells
        self._let_go = let_go
        self._unfit = unfit
        self._ledger = CellLedger()
        self._recent = RecentSequences()
        self._parked = ParkedPrefixes(parked_bytes)
        self.num_restored = 0
        """Prefixes that came from disk."""
        self.restored_bytes = 0
        self._free_ids = list(range(context.num_sequences))
        self.recent_cells = 0

    @property
    def num_cells(self) -> int:
        return self._context.n_ctx

    @property
    def used_cells(self) -> int:
        return self._ledger.used

    @property
    def free_cells(self) -> int:
        return self._context.n_ctx - self._ledger.used

    @property
    def parked_bytes(self) -> int:
        return self._parked.num_bytes

    @property
    def num_free_ids(self) -> int:
        return len(self._free_ids)

    def best_recent(self, sequence: Sequence) -> int:
        """How many of a sequence's tokens a recent sequence holds, in the context or parked."""
        return max(self._recent.best_match(sequence.tokens)[1], self._parked.best_match(sequence.tokens)[1])

    def parked(self) -> Iterator[Parked]:
        """What is parked, the last used first."""
        return reversed(list(self._parked))

    def park_all(self) -> None:
        """Take every recent sequence out of the context."""
        while self._evict_oldest(None):
            pass

    def place(self, sequence: Sequence, running: Iterable[Sequence], reserve: int, *, force: bool) -> bool:
        """Give a sequence an id and what is already known of its tokens; False if its prompt has no room yet.

        `reserve` cells stay free for those who run; `force` places it even so (nobody runs).
        """
        source = self._find_source(sequence, running)
        known = len(sequence.tokens) if sequence.state is not None else source.length
        spare = source.recent
        needed = len(sequence.tokens) - (0 if sequence.state is not None else known) + reserve
        if source.parked is not None:
            needed = len(sequence.tokens) + reserve
            # All of it comes back before what isn't shared is cut off.
            self._make_room(len(source.parked.tokens), None)
        self._make_room(needed, spare)
        if self.free_cells < needed and spare is not None:
            # Sharing with a recent sequence keeps all of it alive: too dear when room is what is missing.
            self._evict(self._recent.pop(spare))
            return self.place(sequence, running, reserve, force=force)
        if self.free_cells < needed and not force:
            return False
        if not self._free_ids and not self._evict_oldest(spare):
            return False
        seq_id = self._free_ids.pop()
        if sequence.state is not None:
            state, sequence.state = sequence.state, None
            if self._context.restore(seq_id, state):
                self._ledger.open(seq_id)
                self._ledger.grow(seq_id, sequence.num_computed)
                sequence.seq_id = seq_id
                return True
            self._context.remove(seq_id)
            self._free_ids.append(seq_id)
            sequence.num_computed = 0
            return self.place(sequence, running, reserve, force=force)
        if source.parked is not None:
            self._bring_back(source, source.parked, seq_id)
        elif source.length:
            self._context.share(source.seq_id, seq_id, source.length)
            self._ledger.open(seq_id, parent=source.seq_id, shared=source.length)
            if source.recent is not None:
                self._recent.touch(source.recent)
        else:
            self._ledger.open(seq_id)
        sequence.seq_id = seq_id
        sequence.num_computed = self._ledger.length(seq_id)
        self._count_recent()
        return True

    def grow(self, sequence: Sequence, count: int) -> None:
        """`count` more tokens of a sequence were computed."""
        sequence.num_computed += count
        self._ledger.grow(sequence.seq_id, count)

    def release(self, sequence: Sequence, *, keep: bool) -> None:
        """A sequence is over; its cells stay as a recent prefix if `keep`."""
        seq_id, sequence.seq_id = sequence.seq_id, -1
        if not (keep and self._can_share and sequence.num_computed):
            self._drop(seq_id)
        else:
            tokens = sequence.tokens[: sequence.num_computed]
            for covered in self._recent.add(Recent(tokens, seq_id, sequence.ticket.job.chat_id)):
                self._evict(covered)
            self._count_recent()
            while self.recent_cells > self._keep_cells and self._evict_oldest(None):
                pass
        self._count_recent()

    def forget(self, sequence: Sequence) -> None:
        """Drop a running sequence's cells; it starts again from nothing."""
        seq_id, sequence.seq_id = sequence.seq_id, -1
        sequence.num_computed = 0
        self._drop(seq_id)
        self._count_recent()

    def save(self, sequence: Sequence) -> None:
        """Move a running sequence's cells out into `sequence.state`, to come back by `place`."""
        sequence.state = self._context.save(sequence.seq_id)
        seq_id, sequence.seq_id = sequence.seq_id, -1
        self._drop(seq_id)
        self._count_recent()

    def state_size(self, sequence: Sequence) -> int:
        return self._context.state_size(sequence.seq_id)

    def trim(self, sequence: Sequence) -> None:
        """Remove what an aborted step left of a sequence behind its `num_computed` tokens, or all of it
        where that can't be done.
        """
        if not self._context.remove(sequence.seq_id, sequence.num_computed):
            self.forget(sequence)

    def evict_recent(self, needed: int) -> bool:
        """Evict recent sequences, oldest first, until `needed` cells are free; whether any went."""
        return self._make_room(needed, None)

    def evict_all(self) -> bool:
        """Evict every recent sequence; whether there was one."""
        return self._make_room(self.num_cells + 1, None)

    def reset(self, context: Context) -> None:
        """Start over on a fresh context."""
        self._context = context
        self._ledger.clear()
        self._recent.clear()
        self._free_ids = list(range(context.num_sequences))
        self.recent_cells = 0

    def _find_source(self, sequence: Sequence, running: Iterable[Sequence]) -> _Source:
        if not self._can_share or sequence.state is not None or sequence.scores_prompt:
            return _Source(-1, 0, None)
        # The last token is always computed, because its logits are wanted.
        limit = len(sequence.tokens) - 1
        recent, length = self._recent.best_match(sequence.tokens)
        best = _Source(recent.seq_id if recent else -1, min(length, limit), recent)
        for other in running:
            length = min(common_prefix(other.tokens, sequence.tokens), other.num_computed, limit)
            if length > best.length:
                best = _Source(other.seq_id, length, None)
        parked, length = self._parked.best_match(sequence.tokens)
        fetch = sequence.fetch
        if fetch is not None and fetch.found is not None:
            fetched = common_prefix(fetch.found.tokens, sequence.tokens)
            if fetched > length:
                parked, length = fetch.found, fetched
        if parked is not None and min(length, limit) >= best.length + WORTH_RESTORING:
            is_fetched = fetch is not None and parked is fetch.found
            return _Source(-1, min(length, limit), None, parked, fetch if is_fetched else None)
        if best.length == 0 or not self._is_from_the_start(best.seq_id):
            return _Source(-1, 0, None)
        return best

    def _make_room(self, needed: int, spare: Recent | None) -> bool:
        evicted = False
        while self.free_cells < needed and self._evict_oldest(spare):
            evicted = True
        return evicted

    def _evict_oldest(self, spare: Recent | None) -> bool:
        oldest = self._recent.pop_oldest(spare)
        if oldest is not None:
            self._park(oldest)
            self._evict(oldest)
            self._count_recent()
        return oldest is not None

    def _bring_back(self, source: _Source, parked: Parked, seq_id: int) -> None:
        """Restore the first `source.length` tokens of a parked or fetched sequence, or nothing where that
        can't be done.
        """
        if source.fetch is None:
            self._parked.touch(parked)
        was_empty = self._ledger.used == 0
        self._ledger.open(seq_id)
        has_room = self.free_cells >= len(parked.tokens)
        restored = has_room and self._context.restore(seq_id, parked.state)
        is_whole = restored and self._context.last_position(seq_id) == len(parked.tokens) - 1
        if is_whole and self._is_from_the_start(seq_id) and self._context.remove(seq_id, source.length):
            self._ledger.grow(seq_id, source.length)
            if source.fetch is not None:
                self.num_restored += 1
                self.restored_bytes += len(parked.state)
            return
        self._context.remove(seq_id)
        if source.fetch is not None and has_room and not is_whole and (restored or was_empty):
            self._unfit(source.fetch)

    def _is_from_the_start(self, seq_id: int) -> bool:
        # Under a sliding window the beginning may be gone, and with it the use of the rest.
        return self._context.first_position(seq_id) == 0

    def _park(self, recent: Recent) -> None:
        if self._parked.has_room(self._context.state_size(recent.seq_id)):
            for parked in self._parked.add(self._saved(recent)):
                self._let_go(parked)
        elif recent.chat_id is not None:
            self._let_go(self._saved(recent))

    def _saved(self, recent: Recent) -> Parked:
        # A state without its beginning serves nobody: it is not worth a disk's space.
        chat_id = recent.chat_id if self._is_from_the_start(recent.seq_id) else None
        return Parked(recent.tokens, self._context.save(recent.seq_id), chat_id, recent.num_uses)

    def _evict(self, recent: Recent) -> None:
        self._drop(recent.seq_id)

    def _drop(self, seq_id: int) -> None:
        self._context.remove(seq_id)
        self._ledger.close(seq_id)
        self._free_ids.append(seq_id)

    def _count_recent(self) -> None:
        self.recent_cells = self._ledger.used_only_by([recent.seq_id for recent in self._recent])
