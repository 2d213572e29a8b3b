"""Saved prefixes beside the batcher: one thread reads, one writes, and the batcher waits for neither.

    arrival   fetch  -> the reading thread finds, reads and checks -> the batcher is woken, and restores
    leaving   offer  -> a bounded queue -> the writing thread, where it is worth it

What fails here costs time and nothing else: the prompt is computed, and the user is told once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edgecloud import gguf
from edgecloud.errors import EdgeCloudError, StorageError

from .parked import Parked

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..cache.prefix import PrefixStore
    from ..cache.prefix_key import StateKind

log = logging.getLogger("edgecloud.saved")

MOST_QUEUED_BYTES = 512_000_000
"""States waiting to be written stay in memory; beyond this they are let go."""

CLOSE_S = 5.0
"""How long the end of the program waits for what is being written."""

REST_S = 300.0
"""How long a file that could not be used is left alone."""


class Fetch:
    """A saved state on its way. The reading thread sets `found`, then `is_over`."""

    def __init__(self, give_up_at: float) -> None:
        self.found: Parked | None = None
        self.number = 0
        self.is_over = False
        self._give_up_at = give_up_at

    @property
    def is_awaited(self) -> bool:
        """Whether it may still come in time: later than this, computing is faster (`time.monotonic`)."""
        return not self.is_over and time.monotonic() < self._give_up_at


class SavedPrefixes:
    """The saved states of every model of this process. `open_store` runs in each of the two threads."""

    def __init__(self, open_store: Callable[[], PrefixStore]) -> None:
        self._open_store = open_store
        self._stores: dict[int, PrefixStore] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="edgecloud-prefix-reader")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="edgecloud-prefix-writer")
        self._counting = threading.Lock()
        self._queued_bytes = 0
        self._writing: set[Future[None]] = set()
        self._is_closing = False
        self._rests_until = 0.0
        self._complaint = ""
        self._complained = False

    def of_model(self, name: str, path: Path, kv_type: str) -> ModelPrefixes:
        """The states of one model file with one type of KV."""
        return ModelPrefixes(self, name, path, kv_type)

    def complaint(self) -> str:
        """Why saved prefixes are not used, once; empty if they are or it was told."""
        if not self._complaint or self._complained:
            return ""
        self._complained = True
        return f"Computed prefixes are not saved: {self._complaint}"

    def close(self) -> None:
        """Finish what is being written, for `CLOSE_S` seconds; leave the rest."""
        wait(list(self._writing), timeout=CLOSE_S)
        with self._counting:
            self._is_closing = True
        for threads in (self._reader, self._writer):
            threads.shutdown()
        while self._stores:
            self._stores.popitem()[1].close()

    # ------------------------------------------------------------------------------- for `ModelPrefixes`

    def read(self, work: Callable[[PrefixStore], None], done: Callable[[], None]) -> None:
        """Do it in the reading thread; `done` is called whatever comes of it."""

        def guarded() -> None:
            try:
                self._do(work)
            finally:
                done()

        try:
            self._reader.submit(guarded)
        except RuntimeError:
            done()

    def write(self, work: Callable[[PrefixStore], None], num_bytes: int = 0) -> bool:
        """Do it in the writing thread; False if too much waits there already."""

        def guarded() -> None:
            try:
                if not self._is_closing:
                    self._do(work)
            finally:
                with self._counting:
                    self._queued_bytes -= num_bytes

        with self._counting:
            if self._is_closing or self._queued_bytes + num_bytes > MOST_QUEUED_BYTES:
                return False
            self._queued_bytes += num_bytes
            written = self._writer.submit(guarded)
        self._writing.add(written)
        written.add_done_callback(self._writing.discard)
        return True

    @property
    def keeps_going(self) -> bool:
        return not self._is_closing

    def _do(self, work: Callable[[PrefixStore], None]) -> None:
        if time.monotonic() < self._rests_until:
            return
        try:
            thread = threading.get_ident()
            if thread not in self._stores:
                self._stores[thread] = self._open_store()
            work(self._stores[thread])
        except StorageError as error:
            self._rests_until = time.monotonic() + REST_S
            self._complaint = error.message
            log.warning("saved prefixes: %s", error.message)
        except EdgeCloudError as error:
            log.warning("saved prefixes: %s", error.message)
        except Exception:
            log.exception("a saved prefix")


class ModelPrefixes:
    """The saved states that fit one model's context."""

    def __init__(self, saved: SavedPrefixes, name: str, path: Path, kv_type: str) -> None:
        self._saved = saved
        self._name = name
        self._path = path
        self._kv_type = kv_type
        self.num_saved = 0
        self.saved_bytes = 0

    @cached_property
    def kind(self) -> StateKind:
        """Read from the files when it is first needed, which takes milliseconds."""
        from ..cache.prefix_key import StateKind
        from .llama import build

        return StateKind(self._name, gguf.fingerprint(self._path), build(), self._kv_type)

    def prepare(self) -> None:
        """Open the file and learn the kind aside, so that the first prompt doesn't wait for it."""

        def look(_store: PrefixStore) -> None:
            _ = self.kind

        self._saved.read(look, lambda: None)

    def fetch(
        self,
        tokens: Sequence[int],
        *,
        known: int,
        most_tokens: int,
        token_s: float,
        chat_id: str | None,
        wake: Callable[[], None],
    ) -> Fetch:
        """Look for a saved state of the beginning of a prompt of which `known` tokens are in memory.

        `wake` is called when it is over. It is waited for no longer than computing takes, by `token_s`
        seconds for each token.
        """
        fetch = Fetch(time.monotonic() + token_s * (len(tokens) - known))

        def look(store: PrefixStore) -> None:
            # The last token is always computed, because its logits are wanted.
            match = store.find(self.kind, tokens[:-1], known=known, most_tokens=most_tokens, token_s=token_s)
            if match is None or not fetch.is_awaited:
                return
            found = store.read(self.kind, match.number)
            if found is None:
                return
            fetch.number = match.number
            fetch.found = Parked(*found, is_saved=True)
            # A chat that contains all of it owns it too; one that only begins like it does not.
            owner = chat_id if match.num_shared == match.num_tokens else None
            self._saved.write(lambda store: store.note_use(match.number, owner))

        def over() -> None:
            fetch.is_over = True
            wake()

        self._saved.read(look, over)
        return fetch

    def reject(self, fetch: Fetch) -> None:
        """What was fetched could not be restored, though nothing else was in its way."""
        log.warning("a saved prefix of %s did not fit its context and is deleted", self._name)
        self._saved.write(lambda store: store.reject(fetch.number))

    def wants(self, parked: Parked, token_s: float) -> bool:
        """Whether a state may be saved and could be worth it; what is saved already decides later."""
        if parked.chat_id is None or parked.is_saved:
            return False
        from ..cache.prefix_key import is_worth_saving

        return is_worth_saving(len(parked.tokens), len(parked.state), token_s, parked.num_uses)

    def offer(self, parked: Parked, token_s: float) -> bool:
        """Save a state if it is worth it; False if it is not, or can't be taken now."""
        chat_id = parked.chat_id
        if chat_id is None or not self.wants(parked, token_s):
            return False

        def write(store: PrefixStore) -> None:
            state_id = store.save(
                self.kind,
                parked.tokens,
                parked.state,
                chat_id,
                token_s=token_s,
                num_uses=parked.num_uses,
                keep_going=lambda: self._saved.keeps_going,
            )
            if state_id is not None:
                self.num_saved += 1
                self.saved_bytes += len(parked.state)

        parked.is_saved = self._saved.write(write, len(parked.state))
        return parked.is_saved
