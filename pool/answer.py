"""What the step loop says of one request, as events: text, stops, echo, logprobs, usage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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

from .model_text import ModelText
from .prepare import Prepared
from .sequence import Ended
from .ticket import Closed, Message, Scores, Tokens


class Answer:
    """Turns the messages of one ticket into events."""

    def __init__(self, text: ModelText, request: ChatRequest, prepared: Prepared) -> None:
        self._text = text
        self._request = request
        self._job = prepared.ask.job
        self._stop_ids = prepared.ask.drawing.stop_ids
        # While nothing may end an answer, a stop string is text like any other.
        stops = () if request.min_tokens else request.stop
        self._outputs = [
            ChoiceOutput(index, stops=stops, parser=output_parser(text.template, request, prepared.tail))
            for index in range(request.n)
        ]
        self._num_tokens = [0] * request.n
        self._open = set(range(request.n))
        self._scores: list[TokenScore] = []
        self._echo_due = request.echo
        self._reasoning_tokens = 0
        self._end: Ended | None = None

    @property
    def is_over(self) -> bool:
        return self._end is not None

    def events(self, messages: Iterable[Message]) -> Iterator[Delta]:
        """The events of some messages. Raises the error that a ticket closed with."""
        for message in messages:
            if isinstance(message, Tokens):
                yield from self._prompt_echo()
                yield from self._tokens(message)
            elif isinstance(message, Scores):
                self._scores += message.scores
            elif isinstance(message, Closed):
                if message.error is not None:
                    raise message.error
                self._end = message.end

    def done(self) -> Done:
        """The last event, once the answer is over."""
        end = self._end
        if end is None:
            raise RuntimeError("the answer is not over")
        admitted = end.ended_at if end.admitted_at is None else end.admitted_at
        first = end.ended_at if end.first_token_at is None else end.first_token_at
        return Done(
            Usage(end.num_prompt, sum(self._num_tokens), end.num_cached, self._reasoning_tokens),
            Timings(
                queue_s=admitted - end.arrival,
                prefill_s=first - admitted,
                ttft_s=first - end.arrival,
                decode_s=end.ended_at - first,
            ),
        )

    def _tokens(self, message: Tokens) -> Iterator[Delta]:
        choice = message.choice
        output = self._outputs[choice]
        for index, token in enumerate(message.tokens):
            if message.stopped == "stop" and token in self._stop_ids:
                break
            if self._request.min_tokens and self._num_tokens[choice] == self._request.min_tokens:
                output.watch_for(self._request.stop)
            self._num_tokens[choice] += 1
            score = token_logprob(self._text.vocabulary, message.scores[index]) if message.scores else None
            yield from self._counted(output.push(self._text.spell(token), score))
        if message.stopped is not None and choice in self._open:
            self._open.discard(choice)
            yield from self._counted(output.finish(message.stopped))

    def _counted(self, deltas: list[Delta]) -> list[Delta]:
        for delta in deltas:
            if isinstance(delta, ReasoningDelta):
                self._reasoning_tokens += delta.num_tokens
        return deltas

    def _prompt_echo(self) -> Iterator[Delta]:
        """The prompt as text of every choice, once, with its logprobs if they were asked for."""
        if self._echo_due:
            self._echo_due = False
            scores = self._scores if self._request.logprobs is not None else None
            for choice in sorted(self._open):
                yield from echoed(self._text.vocabulary, self._job.prompt, choice, scores)


def echo_only(text: ModelText, prepared: Prepared) -> Iterator[EngineEvent]:
    """A prompt given back without anything to compute (`max_tokens` 0, no logprobs)."""
    job = prepared.ask.job
    for choice in range(job.n):
        yield from echoed(text.vocabulary, job.prompt, choice, None)
        yield ChoiceDone(choice, "length")
    yield Done(Usage(prompt_tokens=len(job.prompt)))
