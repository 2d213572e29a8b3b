"""One request in the history: its prompt, what is said of the answer as it comes, and how it ended."""

from __future__ import annotations

from edgecloud.errors import EdgeCloudError
from edgecloud.types import ChatRequest, Event, Receipt

from .journal import Beginning, Journal, OpenTurn, Status
from .run import Run


class Recording:
    """Does nothing where `journal` is None, or the request is not to be kept. `run` learns its chat."""

    def __init__(self, run: Run, journal: Journal | None) -> None:
        self.notice: str | None = None
        """Why this answer is not kept, though it was to be."""
        self._run = run
        self._journal = journal if run.request.journal else None
        self._beginning: Beginning | None = None
        self._turn: OpenTurn | None = None

    @property
    def is_beginning(self) -> bool:
        """The question could still be lost: wait with `begun`."""
        return self._beginning is not None

    @property
    def chat_id(self) -> str | None:
        return self._turn.turn.chat_id if self._turn is not None else None

    @property
    def message_id(self) -> str | None:
        """The first answer's."""
        return self._turn.turn.message_ids[0] if self._turn is not None else None

    async def begin(self, request: ChatRequest) -> None:
        """Write the question before anything else is done."""
        if self._journal is not None:
            self._take(*await self._journal.begin(request))

    def start(self, request: ChatRequest) -> None:
        """Have the question written meanwhile."""
        if self._journal is not None:
            self._beginning = self._journal.start(request)

    async def begun(self) -> None:
        """Wait until what was started is written."""
        if self._journal is not None and self._beginning is not None:
            self._take(*await self._journal.begun(self._beginning))
            self._beginning = None

    def add(self, event: Event) -> None:
        """Note what came of the answer."""
        if self._turn is not None:
            self._turn.add(event)

    async def finish(
        self, receipt: Receipt, status: Status, error: EdgeCloudError | None, *, wait_s: float
    ) -> str | None:
        """Write how it ended; a sentence for the user where that could not be done in time."""
        if self._journal is None or self._turn is None:
            return None
        run = self._run
        known = receipt if run.tried or run.cache.entry_id else None
        sentence = error.message if error else None
        return await self._journal.finish(self._turn, known, status, sentence, wait_s=wait_s)

    def _take(self, turn: OpenTurn | None, notice: str | None) -> None:
        self._turn, self.notice = turn, notice
        if turn is not None:
            self._run.chat_id = turn.turn.chat_id
