"""`RemoteEngine`: an OpenAI-compatible endpoint as an engine, be it a pool of ours, vLLM, llama-server or a
hosted API.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import aiohttp
import orjson

from edgecloud.errors import DeadlineExceeded, EdgeCloudError, NotSupported, UpstreamError
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import (
    Capabilities,
    ChatRequest,
    Done,
    EngineEvent,
    Health,
    ReasoningDelta,
    Start,
    TextDelta,
    Timings,
    ToolCallDelta,
    Usage,
)
from edgecloud.wire import openai_chat, openai_completions
from edgecloud.wire.upstream import StreamDecoder

from .blankness import Blankness
from .connection import Connection
from .event_stream import EventStreamDecoder
from .joined import joined
from .patience import Clock, Patience, elapsed_clock

log = logging.getLogger(__name__)

# For questions that need no model: health, lists, token counts, and the usage behind a whole answer.
ASIDE_S = 5.0
# After the last event the rest of the body is waited for this long, so that the connection can be used again.
TAIL_S = 0.05
# No event that says something is shorter than the mark of the end with a little space around it.
MARK_CHARS = 16
# Whose servers, by the `owned_by` of their models, go on with a message that was begun: vLLM and SGLang where
# they are told to, llama-server always (streamed, it does not say the beginning again).
CONTINUING = ("vllm", "sglang", "llamacpp")
# What a token is worth where the upstream can't be asked: English prose has about four bytes in one.
BYTES_PER_TOKEN = 4
TOKENS_PER_TURN = 4


class RemoteEngine:
    """Answers from the endpoint that a `[[pool]]` entry of the config names.

    Only the entry's own `api_key` is ever sent there. `clock` gives seconds and runs on while the machine
    sleeps. Raises `ConfigError` for a URL that can't be one; everything else that goes wrong is an
    `UpstreamError`, or the class that the upstream's status means.
    """

    def __init__(self, entry: PoolEntry, settings: Settings, *, clock: Clock = elapsed_clock) -> None:
        self._entry = entry
        self._connection = Connection(entry, offline=settings.offline)
        self._clock = clock
        self._context: int | None = None
        self.num_parameters = 0
        """Weights of its model, as the list told that `capabilities` read; 0 until then, or if it doesn't."""
        self.continues = entry.may_continue
        """Whether it goes on with a message that was begun: as its entry says, else as that list tells; as is
        expected until then.
        """
        # Where a chat's tokens are counted: ours and llama-server's page, then vLLM's. One that is missing is
        # not asked again.
        self._counters = [("chat/completions/input_tokens", "input_tokens"), ("/tokenize", "count")]

    @property
    def name(self) -> str:
        return self._entry.name

    @property
    def local(self) -> bool:
        return self._entry.local

    async def capabilities(self) -> Capabilities:
        """What an OpenAI-compatible endpoint can be expected to do, and what its model list says: `context`
        is 0 where that doesn't.
        """
        if self._context is None:
            with contextlib.suppress(EdgeCloudError):
                told = _told_of(await self._aside("GET", "models"), self._entry.model)
                self._context, self.num_parameters = told.context, told.num_parameters
                if told.continues is not None and not self._entry.continues:
                    self.continues = told.continues and "continue_final" not in self._entry.lacks
        return Capabilities(
            context=self._context or 0, tools=True, images=True, continue_final=self.continues
        )

    async def models(self) -> list[str]:
        """The names in its model list. Raises `UpstreamError`."""
        listed = (await self._aside("GET", "models")).get("data")
        names = (
            [entry.get("id") for entry in listed if isinstance(entry, dict)]
            if isinstance(listed, list)
            else []
        )
        return [name for name in names if isinstance(name, str)]

    async def generate(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        """Answer through one streamed request; closing the generator closes its connection at once.

        `Start` comes with the upstream's status 200, its `prompt_tokens` an estimate: only the end tells.
        `Done` has the upstream's usage, or what was counted here if it sends none. Raises `NoPermittedRoute`
        before anything is looked up or sent when offline, `DeadlineExceeded` at the request's deadline, and
        `UpstreamError` at the entry's limits and for an upstream that breaks off or makes no sense.
        """
        try:
            self._connection.permit(offline=request.offline)
            async with aclosing(self._answer(request)) as events:
                async for event in events:
                    yield event
        except DeadlineExceeded as error:
            if request.deadline_s is None:
                # It is told our own limit as a deadline, and may be the first to notice.
                raise UpstreamError(
                    f"{self.name} took longer than its timeout_s of {self._entry.timeout_s:g} s."
                ) from error
            raise
        except EdgeCloudError as error:
            raise self._connection.told(error) from error.__cause__

    async def count_tokens(self, request: ChatRequest) -> int:
        """Prompt tokens as the upstream's tokenizer counts them, else an estimate: a token for four bytes,
        four for a turn.
        """
        if isinstance(request.prompt, tuple):
            return len(request.prompt)
        try:
            self._connection.permit(offline=request.offline)
            if request.prompt is not None:
                return len(await self.tokenize(request.prompt, add_special=True))
            return await self._count_chat(request)
        except EdgeCloudError:
            return estimate_tokens(request)

    async def held_tokens(self, request: ChatRequest) -> tuple[int, int]:
        """Prompt tokens of a request, and how many of them this pool has computed already.

        Raises `NotSupported` for an upstream that is no pool of ours.
        """
        body = (
            openai_chat.encode(request, self._entry.model, stream=False)
            if request.is_chat
            else openai_completions.encode(request, self._entry.model, stream=False)
        )
        answer = await self._aside("POST", "prefixes", body, needs="tell which prefixes it holds")
        return _integer(answer.get("prompt_tokens")), _integer(answer.get("cached_tokens"))

    async def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        """Token ids from the upstream's `/tokenize`. Raises `NotSupported` where it has none."""
        # llama.cpp's names and vLLM's.
        body = {
            "model": self._entry.model,
            "content": text,
            "prompt": text,
            "add_special": add_special,
            "add_special_tokens": add_special,
            "parse_special": parse_special,
        }
        answer = await self._aside("POST", "/tokenize", body, needs="tokenize")
        tokens = answer.get("tokens")
        if not isinstance(tokens, list):
            raise UpstreamError(f"{self.name} sent no list of tokens.")
        return [_integer(token) for token in tokens]

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Text from the upstream's `/detokenize`. Raises `NotSupported` where it has none."""
        body = {"model": self._entry.model, "tokens": list(ids)}
        answer = await self._aside("POST", "/detokenize", body, needs="detokenize")
        # llama.cpp's name, vLLM's and SGLang's.
        text = next((answer[key] for key in ("content", "prompt", "text") if key in answer), None)
        if not isinstance(text, str):
            raise UpstreamError(f"{self.name} sent no text.")
        return text

    async def token_bytes(self, token_id: int) -> bytes:
        """The token's bytes. Raises `NotSupported` for half a character, which no text can carry over
        HTTP.
        """
        text = await self.detokenize([token_id])
        if "\ufffd" in text:
            raise NotSupported(
                f"{self.name} can't tell the bytes of token {token_id}, which is no whole character."
            )
        return text.encode()

    async def health(self) -> Health:
        """Whether it answers `/health`, or lists its models where there is no such page."""
        try:
            try:
                await self._touch("/health")
            except UpstreamError as error:
                if error.upstream_status not in (401, 403, 404, 405):
                    raise
                await self._touch("models")
        except EdgeCloudError as error:
            return Health(ok=False, detail=self._connection.told(error).message)
        return Health(ok=True, detail=f"{self._connection.host} answers")

    async def aclose(self) -> None:
        await self._connection.aclose()

    # ------------------------------------------------------------------------------------------------- inside

    def _patience(self, deadline_s: float | None, most_s: float) -> Patience:
        return Patience(self.name, self._clock, deadline_s=deadline_s, most_s=most_s)

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        entry = self._entry
        patience = self._patience(request.deadline_s, entry.timeout_s)
        decoder: StreamDecoder
        if request.is_chat:
            path, body = "chat/completions", openai_chat.encode(request, entry.model)
            decoder = openai_chat.ChunkDecoder(request.n)
        else:
            path, body = "completions", openai_completions.encode(request, entry.model)
            decoder = openai_completions.ChunkDecoder(request.n)
        headers = {
            "Accept": "text/event-stream",
            "x-request-id": request.id,
            "x-request-deadline-ms": str(max(1, int(patience.left_s * 1000))),
        }
        began = self._clock()
        response = await self._connection.open(
            "POST", path, patience, body=body, headers=headers, silence_s=entry.first_byte_timeout_s
        )
        try:
            if response.content_type != "text/event-stream":
                raise await self._not_a_stream(response, patience)
            estimate = estimate_tokens(request)
            yield Start(engine=self.name, model=entry.model, prompt_tokens=estimate)
            first_s: float | None = None
            num_pieces = num_together = 0
            blankness = Blankness(self.name)
            try:
                async with aclosing(self._payloads(response, patience, decoder)) as arriving:
                    async for payloads in arriving:
                        events = self._events(decoder, payloads)
                        for event in events if request.streamed else joined(events):
                            blankness.see(event)
                            if first_s is None and isinstance(
                                event, TextDelta | ReasoningDelta | ToolCallDelta
                            ):
                                first_s = self._clock() - began
                            yield event
                        num_pieces += len(payloads)
                        num_together = max(num_together, len(payloads))
            except EdgeCloudError as error:
                if not decoder.is_whole:
                    raise
                # Nobody is to lose a whole answer for what went wrong behind it.
                log.info("%s failed after its answer: %s", self.name, error.message)
            for event in decoder.finish():
                came_at_once = 2 * num_together > num_pieces
                yield self._timed(event, estimate, first_s, self._clock() - began, came_at_once)
        finally:
            response.close()

    async def _payloads(
        self, response: aiohttp.ClientResponse, patience: Patience, decoder: StreamDecoder
    ) -> AsyncGenerator[list[str], None]:
        """The data of the events that arrive together, up to `[DONE]`, or up to the end of the body where
        that is missing. What follows a whole answer is not waited for as long as an answer is.
        """
        entry = self._entry
        stream = EventStreamDecoder()
        silence_s = entry.first_byte_timeout_s
        ended = False
        while not ended:
            try:
                received = await patience.wait(response.content.readany(), silence_s, "sent nothing")
            except (aiohttp.ClientError, OSError) as error:
                raise self._connection.broken(error) from error
            ended = not received
            payloads = stream.finish() if ended else stream.feed(received)
            for number, data in enumerate(payloads):
                if len(data) < MARK_CHARS and data.strip() == "[DONE]":
                    yield payloads[:number]
                    await _drain(response)
                    return
            yield payloads
            silence_s = min(entry.idle_timeout_s, ASIDE_S) if decoder.is_whole else entry.idle_timeout_s

    def _events(self, decoder: StreamDecoder, payloads: list[str]) -> Iterator[EngineEvent]:
        for payload in payloads:
            yield from decoder.feed(self._decode(payload))

    def _decode(self, payload: str) -> Any:
        try:
            return orjson.loads(payload)
        except orjson.JSONDecodeError:
            pass
        try:
            # What is strictly no JSON, and sent all the same: half a character, an infinite logprob.
            return json.loads(payload)
        except (ValueError, RecursionError):
            raise UpstreamError(f"{self.name} sent an event that is not JSON.") from None

    async def _not_a_stream(self, response: aiohttp.ClientResponse, patience: Patience) -> UpstreamError:
        if said := await self._connection.said(response, patience):
            return UpstreamError(f"{self.name} answered with status 200 and an error: {said}")
        kind = response.content_type[:60]
        return UpstreamError(
            f"{self.name} answered with {kind} where an event stream was asked for: "
            "check its url, which usually ends in /v1."
        )

    def _timed(
        self,
        event: EngineEvent,
        estimate: int,
        first_s: float | None,
        total_s: float,
        came_at_once: bool,
    ) -> EngineEvent:
        if not isinstance(event, Done):
            return event
        usage = event.usage
        if not usage.prompt_tokens:
            usage = Usage(estimate, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)
        # What is measured here holds the way there and back; how it divides over there, only they know.
        ttft_s = total_s if first_s is None else first_s
        theirs = event.timings
        # Where most of it came at once, the seconds between its pieces are not those that it took to draw it.
        decode_s = theirs.decode_s if came_at_once else total_s - ttft_s
        return Done(usage, Timings(theirs.queue_s, theirs.prefill_s, ttft_s, decode_s))

    async def _aside(
        self, method: str, path: str, body: Any = None, *, needs: str | None = None
    ) -> dict[str, Any]:
        """A small question beside the answers. `needs` names what the upstream can't do if it has no such
        path.
        """
        self._connection.permit()
        # The entry's limits are for answers: here only silence counts, and what is said names no setting.
        try:
            return await self._connection.json(
                method, path, self._patience(None, math.inf), body=body, silence_s=ASIDE_S
            )
        except UpstreamError as error:
            if needs and error.upstream_status in (404, 405):
                raise NotSupported(f"{self.name} does not {needs}.") from None
            raise self._connection.told(error) from error.__cause__

    async def _count_chat(self, request: ChatRequest) -> int:
        body = openai_chat.encode(request, self._entry.model, stream=False)
        for counter in list(self._counters):
            path, key = counter
            try:
                return _integer((await self._aside("POST", path, body)).get(key))
            except UpstreamError as error:
                if error.upstream_status not in (404, 405):
                    raise
                self._counters.remove(counter)
        raise NotSupported(f"{self.name} does not count tokens.")

    async def _touch(self, path: str) -> None:
        self._connection.permit()
        patience = self._patience(None, math.inf)
        response = await self._connection.open("GET", path, patience, silence_s=ASIDE_S)
        response.close()


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read what follows the last event, usually nothing, so that the connection goes back to the pool instead
    of being closed.
    """
    try:
        async with asyncio.timeout(TAIL_S):
            while await response.content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError, OSError):
        return


def estimate_tokens(request: ChatRequest) -> int:
    """Prompt tokens by length alone, never 0."""
    if isinstance(request.prompt, tuple):
        return max(1, len(request.prompt))
    texts = [message.content for message in request.messages] if request.prompt is None else [request.prompt]
    size = sum(len(text.encode(errors="replace")) for text in texts)
    return max(1, -(-size // BYTES_PER_TOKEN) + TOKENS_PER_TURN * len(request.messages))


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UpstreamError("The upstream sent a number of tokens that makes no sense.")
    return value


class _Told(NamedTuple):
    """What a model list tells of a model; 0 and None for what it doesn't."""

    context: int = 0
    num_parameters: int = 0
    continues: bool | None = None


def _told_of(models: dict[str, Any], model: str) -> _Told:
    """What a model list tells of `model`: its context in tokens, under any of the names that there are for
    it, how many weights it has, as llama-server and ours say, and whether it goes on with a message that was
    begun, as ours say, or from whose server it is.
    """
    entries = models.get("data")
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and model in _names(entry):
            meta = entry.get("meta")
            meta = meta if isinstance(meta, dict) else {}
            context = entry.get("max_model_len") or entry.get("context_length") or meta.get("n_ctx")
            continues = entry.get("continue_final_message", entry.get("owned_by") in CONTINUING or None)
            return _Told(
                _count(context),
                _count(meta.get("n_params")),
                continues if isinstance(continues, bool) else None,
            )
    return _Told()


def _names(entry: dict[str, Any]) -> list[Any]:
    aliases = entry.get("aliases")
    return [entry.get("id"), *(aliases if isinstance(aliases, list) else ())]


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
