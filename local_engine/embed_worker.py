"""One thread that turns many callers' token rows into few passes of an embedding model.

    callers (asyncio)            worker thread
    submit(rows) ─┐
    submit(rows) ─┼─> jobs ──> take a row from each in turn ──> like lengths together ──> passes
    submit(rows) ─┘            up to `max_rows`                  (padding costs time)

A row that comes alone goes alone: waiting for company would cost whoever asks one thing at a time half as
much again. Under load the rows that arrive during one pass are company enough for the next.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgecloud.errors import EdgeCloudError, EngineFailure, Unavailable

log = logging.getLogger("edgecloud.embed")

Rows = Sequence[Sequence[int]]
Vectors = NDArray[np.float32]


class _Job:
    """One caller's rows, and how far they are."""

    def __init__(self, rows: Rows, loop: asyncio.AbstractEventLoop) -> None:
        self.rows = rows
        self.loop = loop
        self.future: asyncio.Future[Vectors] = loop.create_future()
        self.num_taken = 0
        self.vectors: list[NDArray[np.float32] | None] = [None] * len(rows)

    @property
    def is_taken(self) -> bool:
        return self.num_taken == len(self.rows)

    def settle(self, error: EdgeCloudError | None = None) -> None:
        """Answer the caller, from the worker's thread; one that has gone away is no error."""
        vectors = None if error else np.stack([vector for vector in self.vectors if vector is not None])

        def answer() -> None:
            if self.future.done():
                return
            if error is not None:
                self.future.set_exception(error)
            elif vectors is not None:
                self.future.set_result(vectors)

        try:
            self.loop.call_soon_threadsafe(answer)
        except RuntimeError:
            log.debug("the caller's event loop is closed")


class _Row(NamedTuple):
    job: _Job
    place: int

    @property
    def tokens(self) -> Sequence[int]:
        return self.job.rows[self.place]


class EmbedWorker:
    """Runs `embed(rows) -> [len(rows), width]` in a thread of its own; `num_passes` counts the calls, and
    `pass_s` their seconds.
    """

    def __init__(self, embed: Callable[[Rows], Vectors], *, name: str, max_rows: int = 16) -> None:
        self._embed = embed
        self._max_rows = max_rows
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.num_passes = 0
        self.pass_s = 0.0
        self._thread = threading.Thread(target=self._work, name=f"embed-{name}", daemon=True)
        self._thread.start()

    async def submit(self, rows: Rows) -> Vectors:
        """Vectors [len(rows), width], unit length. Raises `EngineFailure`, or `Unavailable` once closed."""
        job = _Job(rows, asyncio.get_running_loop())
        with self._changed:
            if self._closed:
                raise Unavailable("The embedder is shutting down.")
            self._jobs.append(job)
            self._changed.notify()
        return await job.future

    async def aclose(self) -> None:
        """Stop after the running pass; callers still waiting get `Unavailable`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while (rows := self._next_rows()) is not None:
            for group in _alike(rows):
                self._run(group)
        with self._changed:
            jobs, self._jobs = self._jobs, deque()
        for job in jobs:
            job.settle(Unavailable("The embedder is shutting down."))

    def _next_rows(self) -> list[_Row] | None:
        """Up to `max_rows` rows, from all jobs in turn so that a long list doesn't hold up a short one.

        None once closed.
        """
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            rows: list[_Row] = []
            while self._jobs and len(rows) < self._max_rows:
                job = self._jobs.popleft()
                if job.future.done():
                    continue
                rows.append(_Row(job, job.num_taken))
                job.num_taken += 1
                if not job.is_taken:
                    self._jobs.append(job)
            return rows

    def _run(self, group: list[_Row]) -> None:
        began = time.perf_counter()
        try:
            vectors = unit_length(self._embed([row.tokens for row in group]))
        except Exception as error:
            failure = (
                error
                if isinstance(error, EdgeCloudError)
                else EngineFailure("The embedding failed; try again.")
            )
            if failure is not error:
                log.exception("an embedding pass of %d rows failed", len(group))
            self._drop({row.job for row in group}, failure)
            return
        finally:
            self.num_passes += 1
            self.pass_s += time.perf_counter() - began
        for row, vector in zip(group, vectors, strict=True):
            row.job.vectors[row.place] = vector
            if all(each is not None for each in row.job.vectors):
                row.job.settle()

    def _drop(self, jobs: set[_Job], failure: EdgeCloudError) -> None:
        with self._changed:
            self._jobs = deque(job for job in self._jobs if job not in jobs)
        for job in jobs:
            job.settle(failure)


def _alike(rows: list[_Row]) -> list[list[_Row]]:
    """The rows in groups where none is more than twice as long as another, so that padding stays cheap."""
    groups: list[list[_Row]] = []
    for row in sorted(rows, key=lambda row: len(row.tokens)):
        if groups and len(row.tokens) <= 2 * max(16, len(groups[-1][0].tokens)):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def unit_length(vectors: Vectors) -> Vectors:
    """The rows scaled to length 1. One without a direction (NaN, infinite, zero) is an `EngineFailure`."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not (lengths > 0).all():
        raise EngineFailure("The embedding model gave a vector that isn't one (NaN or zero).")
    unit: Vectors = (vectors / lengths).astype(np.float32)
    return unit
