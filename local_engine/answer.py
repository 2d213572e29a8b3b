"""What the batcher says of one request, as events: text, stops, echo, logprobs, usage."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from edgecloud.output import ChoiceOutput
from edgecloud.prompt import output_parser
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Delta,
    Done,
    EngineEvent,
    ReasoningDelta,
    Timings,
    Usage,
)
from edgecloud.vocabulary import TokenScore, echoed, token_logprob

if TYPE_CHECKING:
    from .llama import Model
    from .loaded import LoadedModel
    from .sequence import Drawn, Job, Message, Ticket


class Answer:
    """Turns the messages of one ticket into events. `prompt_tail` is the end of the prompt's text."""

    def __init__(self, loaded: LoadedModel, request: ChatRequest, ticket: Ticket, prompt_tail: str) -> None:
        self._model = loaded.model
        self._markup_ids = loaded.markup_ids
        self._ticket = ticket
        self._job = ticket.job
        self._outputs = [
            ChoiceOutput(
                index, stops=request.stop, parser=output_parser(loaded.template, request, prompt_tail)
            )
            for index in range(request.n)
        ]
        self._open = set(range(request.n))
        self._scores: list[TokenScore] = []
        self._echo_due = request.echo
        self._completion_tokens = 0
        self._reasoning_tokens = 0

    @property
    def is_over(self) -> bool:
        return not self._open

    def events(self, messages: Sequence[Message]) -> Iterator[Delta]:
        """The events of some messages. Raises the error that a ticket closed with."""
        from .sequence import Closed, Drawn, Ended, Scored

        for message in messages:
            if isinstance(message, Drawn):
                if message.choice in self._open:
                    yield from self._prompt_echo()
                    yield from self._token(message)
            elif isinstance(message, Ended):
                yield from self._prompt_echo()
                yield from self._finish(message.choice, message.reason)
            elif isinstance(message, Scored):
                self._scores += message.logprobs
            elif isinstance(message, Closed):
                if message.error is not None and self._open:
                    raise message.error
                self._open.clear()

    def done(self) -> Done:
        ticket, now = self._ticket, time.monotonic()
        started = ticket.started_at or now
        prefilled = ticket.prefilled_at or now
        return Done(
            Usage(
                prompt_tokens=len(self._job.prompt),
                completion_tokens=self._completion_tokens,
                cached_tokens=ticket.cached_tokens,
                reasoning_tokens=self._reasoning_tokens,
            ),
            Timings(
                queue_s=started - ticket.submitted_at,
                prefill_s=prefilled - started,
                ttft_s=prefilled - ticket.submitted_at,
                decode_s=now - prefilled,
            ),
        )

    def _token(self, drawn: Drawn) -> Iterator[Delta]:
        self._completion_tokens += 1
        output = self._outputs[drawn.choice]
        piece = self._model.token_bytes(drawn.token, special=drawn.token in self._markup_ids)
        logprob = None if drawn.logprob is None else token_logprob(self._model, drawn.logprob)
        yield from self._counted(output.push(piece, logprob))
        if output.stopped is not None:
            # The batcher may be a token ahead already: what it drew is not ours any more.
            self._ticket.stop(drawn.choice)
            yield from self._finish(drawn.choice, "stop")

    def _finish(self, choice: int, reason: Literal["stop", "length"]) -> Iterator[Delta]:
        if choice in self._open:
            self._open.discard(choice)
            yield from self._counted(self._outputs[choice].finish(reason))

    def _counted(self, deltas: list[Delta]) -> list[Delta]:
        for delta in deltas:
            if isinstance(delta, ReasoningDelta):
                self._reasoning_tokens += delta.num_tokens
        return deltas

    def _prompt_echo(self) -> Iterator[Delta]:
        """The prompt as text of every choice, once, with its logprobs if they were asked for."""
        if not self._echo_due:
            return
        self._echo_due = False
        for choice in sorted(self._open):
            yield from echoed(
                self._model, self._job.prompt, choice, self._scores if self._job.score_prompt else None
            )


def echo_only(model: Model, job: Job) -> Iterator[EngineEvent]:
    for choice in range(job.n):
        yield from echoed(model, job.prompt, choice, None)
        yield ChoiceDone(choice, "length")
    yield Done(Usage(prompt_tokens=len(job.prompt)))
