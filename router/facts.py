"""What is known of a request before anything is decided: numbers and labels, never its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from edgecloud.types import Mode

Language = Literal["en", "zh", "other"]


@dataclass(frozen=True, slots=True)
class Form:
    """How a question asks: its stem is what stands before the first of its options, all where there is none.

    `option_chars` and `option_spread` are the mean and the standard deviation of the options' lengths;
    `asks` and `states` say how the stem ends, `asks_what`, `asks_how` and `supposes` how it begins.
    """

    stem_chars: int = 0
    option_chars: float = 0.0
    option_spread: float = 0.0
    numeric_options: float = 0.0
    blanks: int = 0
    asks: bool = False
    states: bool = False
    following: int = 0
    asks_what: bool = False
    asks_how: bool = False
    supposes: bool = False
    quotes: int = 0
    numbers: int = 0
    names: int = 0
    commas: int = 0
    all_or_none: int = 0
    longest_word: int = 0
    distinct_words: float = 0.0


@dataclass(frozen=True, slots=True)
class Structure:
    """How the question is built: shares are 0..1 of its characters, counts are of the question alone.

    Measured by `structure.measure` on the turn that says what is wanted: an approval ('yes', 'go on') has
    the structure of what it approves.
    """

    num_chars: int = 0
    num_words: int = 0
    num_lines: int = 0
    mean_word: float = 0.0
    digits: float = 0.0
    capitals: float = 0.0
    symbols: float = 0.0
    maths: int = 0
    code: int = 0
    questions: int = 0
    options: int = 0
    negations: int = 0
    reasoning: int = 0
    expertise: int = 0
    language: Language = "en"
    form: Form = Form()


@dataclass(frozen=True, slots=True)
class Needs:
    """What an engine must be able to do to answer at all. `chat` is False for a raw prompt."""

    chat: bool = True
    tools: bool = False
    json: bool = False
    images: bool = False
    logprobs: bool = False
    continue_final: bool = False


@dataclass(frozen=True, slots=True)
class PrivacyReason:
    """Why a request stays here. `label` says which rule (`pii:email`, `path`, `rule:clients`, `pin`), the
    sentence what a person reads; neither holds what was found.
    """

    label: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Privacy:
    """`local_only` requests are answered on this machine or not at all."""

    local_only: bool = False
    reasons: tuple[PrivacyReason, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(reason.label for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity that varies, by two of its quantiles."""

    p50: float
    p90: float


@dataclass(frozen=True, slots=True)
class Facts:
    """One request as the router sees it.

    `num_prompt_tokens` is by engine name, counted with each engine's own tokenizer; `estimated_tokens` stands
    in for engines whose tokenizer is not on this machine, for asking them would send the text before the
    filters ran. `output_tokens` is what the answer is expected to take; `max_tokens` what it may take, None
    for no limit but the context. `vector` is the embedding of the question, from the embedder with that
    `fingerprint`, None where there is none. `deadline_s` is what is left of it, in seconds. `covers`
    are the engines that the asked model name means, None for all (`auto`). `words` are hashes of the
    question's words, for estimates; they are kept nowhere. `precedent` is the engine that was first for a
    question like it, if one was. `most_prompt_tokens` are more than any tokenizer makes of the prompt: what
    money is set aside for.
    """

    request_id: str
    estimated_tokens: int
    num_prompt_tokens: Mapping[str, int] = field(default_factory=dict)
    output_tokens: Spread = Spread(256.0, 768.0)
    max_tokens: int | None = None
    num_choices: int = 1
    structure: Structure = Structure()
    needs: Needs = Needs()
    privacy: Privacy = Privacy()
    covers: tuple[str, ...] | None = None
    mode: Mode = "auto"
    private: bool = False
    offline: bool = False
    deadline_s: float | None = None
    tenant: str | None = None
    vector: tuple[float, ...] | None = None
    fingerprint: str = ""
    words: tuple[int, ...] = field(default=(), repr=False)
    precedent: str | None = None
    most_prompt_tokens: int = 0

    def prompt_tokens(self, engine: str) -> int:
        """Tokens of the prompt for this engine, estimated where they could not be counted."""
        return self.num_prompt_tokens.get(engine, self.estimated_tokens)

    def is_counted(self, engine: str) -> bool:
        """Whether this engine's own tokenizer counted the prompt."""
        return engine in self.num_prompt_tokens

    @property
    def local_only(self) -> bool:
        return self.private or self.privacy.local_only
