"""The protocols that backends implement: `Engine` answers, `Embedder` turns text into vectors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, runtime_checkable

from edgecloud.types import Capabilities, ChatRequest, EmbedResult, EngineEvent, Health, Loading


@runtime_checkable
class Engine(Protocol):
    """One model that answers, in this process or behind HTTP."""

    @property
    def name(self) -> str: ...

    @property
    def local(self) -> bool:
        """Whether the answer is computed on this machine: in process, or declared so in the config."""

    async def capabilities(self) -> Capabilities:
        """What it can do. May load a model's header, never its weights."""

    def generate(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        """Answer one request; closing the generator cancels the work within a step or two.

        Yields `Start` once the request is checked and queued (every error that is the caller's fault is
        raised before it), then for each choice its deltas and exactly one `ChoiceDone`, then one `Done`.
        Raises `EdgeCloudError` otherwise.
        """

    async def count_tokens(self, request: ChatRequest) -> int:
        """Prompt tokens of the request as `generate` would count them."""

    async def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]: ...

    async def detokenize(self, ids: Sequence[int]) -> str: ...

    async def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes of one token, which may be half a character."""

    async def health(self) -> Health: ...

    async def aclose(self) -> None: ...


@runtime_checkable
class TokenizesPrompts(Protocol):
    """An engine that renders the prompt itself, and so can say what it is made of."""

    async def prompt_ids(self, request: ChatRequest) -> list[int]:
        """The prompt's token ids as `generate` would read them. Raises what it would."""


@runtime_checkable
class LoadsModels(Protocol):
    """An engine whose model may have to come into memory before anybody is answered."""

    @property
    def loading(self) -> Loading | None:
        """How far the load is that its requests wait for now; None while they wait for none."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into L2-normalised vectors. `fingerprint` changes when the vectors would."""

    @property
    def name(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    async def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> EmbedResult: ...

    async def aclose(self) -> None: ...
