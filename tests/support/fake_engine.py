"""An engine that says what a test tells it to, when it is told to, and counts what it did."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from edgecloud.errors import BadRequest, ContextLengthExceeded, EdgeCloudError, NotSupported, Overloaded
from edgecloud.types import (
    Capabilities,
    ChatRequest,
    ChoiceDone,
    Done,
    EngineEvent,
    FinishReason,
    Health,
    Loading,
    ReasoningDelta,
    Start,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    TopLogprob,
    Usage,
)

BOS = 256
VOCABULARY = 257

Script = Sequence[bytes] | Callable[[ChatRequest], Sequence[bytes]]


class FakeEngine:
    """Implements `edgecloud.engine.Engine`.

    `script` is the answer as the bytes of its tokens, or a function that makes it of the request. `load`,
    `prefill` and `decode` are seconds spent before `Start`'s work begins, before the first token and before
    each further one; `hang_at` never goes beyond that token (0: never out of the prefill), `fail_at` raises
    `error` there. `parallel` sequences run at once, `queue_limit` may wait. A token of the fake vocabulary is
    a byte; prompt tokens are counted in words.
    """

    def __init__(
        self,
        script: Script = (b"Hello", b",", b" world", b"!"),
        *,
        name: str = "fake",
        local: bool = True,
        reason: FinishReason = "stop",
        stopped_by: str | None = None,
        thoughts: Sequence[str] = (),
        calls: Sequence[ToolCall] = (),
        cached_tokens: int = 0,
        context: int = 4096,
        load_s: float = 0.0,
        prefill_s: float = 0.0,
        decode_s: float = 0.0,
        hang_at: int | None = None,
        fail_at: int | None = None,
        error: Exception | None = None,
        refuse: Exception | None = None,
        parallel: int = 1024,
        queue_limit: int = 1024,
    ) -> None:
        self.name = name
        self.local = local
        self.script = script
        self.reason: FinishReason = reason
        self.stopped_by = stopped_by
        self.thoughts = thoughts
        self.calls = calls
        self.cached_tokens = cached_tokens
        self.context = context
        self.load_s = load_s
        self.prefill_s = prefill_s
        self.decode_s = decode_s
        self.hang_at = hang_at
        self.fail_at = fail_at
        self.error = error or EdgeCloudError("The fake engine was told to fail.")
        self.refuse = refuse
        self.parallel = parallel
        self.queue_limit = queue_limit
        self.ok = True
        self.images = False
        self.continues = True
        self.loading: Loading | None = None
        self.loaded: asyncio.Event | None = None
        """What every request waits for first, where a test sets one."""
        self.requests: list[ChatRequest] = []
        self.running = 0
        self.waiting = 0
        self.generated = 0
        self.finished = 0
        self.cancelled: list[str] = []
        self.closed = False
        self._places: asyncio.Semaphore | None = None

    async def capabilities(self) -> Capabilities:
        return Capabilities(
            context=self.context, tools=True, images=self.images, continue_final=self.continues
        )

    async def generate(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        self.requests.append(request)
        if self.load_s:
            await asyncio.sleep(self.load_s)
        if self.loaded is not None:
            await self.loaded.wait()
        if self.refuse is not None:
            raise self.refuse
        prompt_tokens = await self.count_tokens(request)
        if prompt_tokens >= self.context:
            raise ContextLengthExceeded(prompt_tokens, self.context)
        if self.waiting >= self.queue_limit:
            raise Overloaded("The queue is full.", retry_after=2)
        state = "queued"
        try:
            yield Start(self.name, self.name, prompt_tokens)
            async with self._place():
                state = "prefill"
                if self.prefill_s:
                    await asyncio.sleep(self.prefill_s)
                state = "decode"
                num_tokens = 0
                async for event in self._choices(request):
                    num_tokens += getattr(event, "num_tokens", 0)
                    yield event
            usage = Usage(prompt_tokens, num_tokens, self.cached_tokens, len(self.thoughts) * request.n)
            state = "done"
            self.finished += 1
            yield Done(usage)
        except (asyncio.CancelledError, GeneratorExit):
            if state != "done":
                self.cancelled.append(state)
            raise

    async def count_tokens(self, request: ChatRequest) -> int:
        if not self.images and any(message.images for message in request.messages):
            raise NotSupported("This model takes no images: image input is not supported.", param="messages")
        if request.prompt is None:
            return sum(len(message.content.split()) + 1 for message in request.messages)
        if isinstance(request.prompt, str):
            return len(request.prompt.split())
        if any(token_id >= VOCABULARY for token_id in request.prompt):
            raise BadRequest(f"A token id is not in the vocabulary of {VOCABULARY}.", param="prompt")
        return len(request.prompt)

    async def prompt_ids(self, request: ChatRequest) -> list[int]:
        """One id a word and one a turn, as `count_tokens` counts them."""
        return list(range(await self.count_tokens(request)))

    async def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        return [BOS] * add_special + list(text.encode())

    async def detokenize(self, ids: Sequence[int]) -> str:
        if any(token_id >= VOCABULARY for token_id in ids):
            raise BadRequest(f"A token id is not in the vocabulary of {VOCABULARY}.", param="tokens")
        return bytes(token_id for token_id in ids if token_id != BOS).decode("utf-8", "replace")

    async def token_bytes(self, token_id: int) -> bytes:
        return b"<s>" if token_id == BOS else bytes([token_id])

    async def health(self) -> Health:
        return Health(self.ok, "ok" if self.ok else "The fake engine is stuck.", self.running, self.waiting)

    async def aclose(self) -> None:
        self.closed = True

    # ------------------------------------------------------------------------------------------------- inside

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[None, None]:
        if self._places is None:
            self._places = asyncio.Semaphore(self.parallel)
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._places.release()

    async def _choices(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        tokens = self.script(request) if callable(self.script) else self.script
        length = len(tokens) if request.max_tokens is None else min(request.max_tokens, len(tokens))
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(request.n)]
        for thought in self.thoughts:
            for index in range(request.n):
                yield ReasoningDelta(thought, index)
        for place, token in enumerate(tokens[:length]):
            await self._step(place)
            for index, decoder in enumerate(decoders):
                self.generated += 1
                text = decoder.decode(token, final=place == length - 1)
                if text:
                    yield TextDelta(text, index, _logprobs(request, token))
        await self._step(length)
        cut = length < len(tokens)
        for index in range(request.n):
            for number, call in enumerate(self.calls):
                yield ToolCallDelta(number, call.id, call.name, "", index)
                yield ToolCallDelta(number, arguments=call.arguments, index=index)
            yield ChoiceDone(index, "length" if cut else self.reason, None if cut else self.stopped_by)

    async def _step(self, place: int) -> None:
        if place == self.fail_at:
            raise self.error
        if place == self.hang_at:
            await asyncio.Event().wait()
        # A real engine is waited for at every step.
        await asyncio.sleep(self.decode_s)


def _logprobs(request: ChatRequest, token: bytes) -> tuple[TokenLogprob, ...]:
    if request.logprobs is None:
        return ()
    text = token.decode("utf-8", "replace")
    top = tuple(TopLogprob(text, -0.5 - number, token, number) for number in range(request.logprobs))
    return (TokenLogprob(text, -0.5, token, 0, top),)
