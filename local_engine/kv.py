"""The KV memory of one context as the batcher sees it: ids, shared prefixes, what is parked, room."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .llama import Context
from .parked import Parked, ParkedPrefixes
from .prefix import CellLedger, common_prefix
from .saved import Fetch
from .sequence import Sequence

# A token costs more to compute than so many to copy: 2 ms against 12 µs for the starter model, and both grow
# with a model's size. All of a parked sequence is copied, however little of it serves.
COPIES_PER_TOKEN = 64


class _Source(NamedTuple):
    """Where the first `length` tokens are: at a running sequence, or parked."""

    length: int = 0
    seq_id: int = -1
    parked: Parked | None = None
    fetch: Fetch | None = None


class KvMemory:
    """Owns the sequence ids and cells of a context. All calls come from the thread that owns the context.

    `can_share` is False for recurrent and hybrid models, whose state can't be cut back to a prefix: nothing
    is shared or kept then. The context holds only those who run, because attention looks past every used
    cell, needed or not, and because sums come out the same only where cells lie the same; who is over is
    parked in at most `parked_bytes` of main memory. `let_go` is given what leaves that, `unfit` a fetched
    state that can't be restored.
    """

    def __init__(
        self,
        context: Context,
        *,
        can_share: bool,
        parked_bytes: int,
        let_go: Callable[[Parked], None] = lambda parked: None,
        unfit: Callable[[Fetch], None] = lambda fetch: None,
    ) -> None:
        self._context = context
        self._can_share = can_share
        self._let_go = let_go
        self._unfit = unfit
        self._ledger = CellLedger()
        self._parked = ParkedPrefixes(parked_bytes)
        self.num_restored = 0
        """Prefixes that came from disk."""
        self.restored_bytes = 0
        self._free_ids = list(range(context.num_sequences))

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

    @property
    def parked(self) -> tuple[Parked, ...]:
        """What is parked, the last used first."""
        return tuple(reversed(list(self._parked)))

    def best_parked(self, sequence: Sequence) -> int:
        """How many of a sequence's tokens a parked one holds."""
        return self._parked.best_match(sequence.tokens)[1]

    def place(self, sequence: Sequence, running: Iterable[Sequence], reserve: int, *, force: bool) -> bool:
        """Give a sequence an id and what is already known of its tokens; False if its prompt has no room yet.

        `reserve` cells stay free for those who run; `force` places it even so (nobody runs).
        """
        source = self._find_source(sequence, running)
        shared = source.length if source.seq_id >= 0 else 0
        if self.free_cells < len(sequence.tokens) - shared + reserve and not force:
            return False
        if not self._free_ids:
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
        elif shared:
            self._context.share(source.seq_id, seq_id, shared)
            self._ledger.open(seq_id, parent=source.seq_id, shared=shared)
        else:
            self._ledger.open(seq_id)
        sequence.seq_id = seq_id
        sequence.num_computed = self._ledger.length(seq_id)
        return True

    def grow(self, sequence: Sequence, count: int) -> None:
        """`count` more tokens of a sequence were computed."""
        sequence.num_computed += count
        self._ledger.grow(sequence.seq_id, count)

    def release(self, sequence: Sequence, *, keep: bool) -> None:
        """A sequence is over; what was computed of it is parked if `keep`."""
        seq_id, sequence.seq_id = sequence.seq_id, -1
        if keep and self._can_share and sequence.num_computed:
            self._park(seq_id, sequence.tokens[: sequence.num_computed], sequence.ticket.job.chat_id)
        self._drop(seq_id)

    def forget(self, sequence: Sequence) -> None:
        """Drop a running sequence's cells; it starts again from nothing."""
        seq_id, sequence.seq_id = sequence.seq_id, -1
        sequence.num_computed = 0
        self._drop(seq_id)

    def save(self, sequence: Sequence) -> None:
        """Move a running sequence's cells out into `sequence.state`, to come back by `place`."""
        sequence.state = self._context.save(sequence.seq_id)
        seq_id, sequence.seq_id = sequence.seq_id, -1
        self._drop(seq_id)

    def state_size(self, sequence: Sequence) -> int:
        return self._context.state_size(sequence.seq_id)

    def trim(self, sequence: Sequence) -> None:
        """Remove what an aborted step left of a sequence behind its `num_computed` tokens, or all of it
        where that can't be done.
        """
        if not self._context.remove(sequence.seq_id, sequence.num_computed):
            self.forget(sequence)

    def reset(self, context: Context) -> None:
        """Start over on a fresh context."""
        self._context = context
        self._ledger.clear()
        self._free_ids = list(range(context.num_sequences))

    def _find_source(self, sequence: Sequence, running: Iterable[Sequence]) -> _Source:
        if not self._can_share or sequence.state is not None or sequence.scores_prompt:
            return _Source()
        # The last token is always computed, because its logits are wanted.
        limit = len(sequence.tokens) - 1
        best = _Source()
        for other in running:
            length = min(common_prefix(other.tokens, sequence.tokens), other.num_computed, limit)
            if length > best.length and self._is_from_the_start(other.seq_id):
                best = _Source(length, other.seq_id)
        parked, length = self._parked.best_match(sequence.tokens)
        fetch = sequence.fetch
        if fetch is not None and fetch.found is not None:
            fetched = common_prefix(fetch.found.tokens, sequence.tokens)
            if fetched > length:
                parked, length = fetch.found, fetched
        length = min(length, limit)
        if parked is None or COPIES_PER_TOKEN * (length - best.length) < len(parked.tokens):
            return best
        is_fetched = fetch is not None and parked is fetch.found
        return _Source(length, parked=parked, fetch=fetch if is_fetched else None)

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

    def _park(self, seq_id: int, tokens: list[int], chat_id: str | None) -> None:
        # A state without its beginning serves nobody: it is not worth a disk's space.
        chat_id = chat_id if self._is_from_the_start(seq_id) else None
        has_room = self._parked.has_room(self._context.state_size(seq_id))
        if not has_room and chat_id is None:
            return
        parked = Parked(tokens, self._context.save(seq_id), chat_id)
        for each in self._parked.add(parked) if has_room else (parked,):
            self._let_go(each)

    def _drop(self, seq_id: int) -> None:
        self._context.remove(seq_id)
        self._ledger.close(seq_id)
        self._free_ids.append(seq_id)
