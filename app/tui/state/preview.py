"""What would happen if the prompt were sent now, in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.cells import cell_len

from edgecloud.types import CacheInfo, ModelCard
from edgecloud.units import age
from edgecloud.wire.native import load_record

from ....router.decision import Decision
from .receipt import money, seconds


@dataclass(frozen=True, slots=True)
class Preview:
    """Where it would go (empty: not known yet) and what it would take, as sentences' parts. `cache` is the
    kept answer that would be given, empty where there is none.
    """

    where: str
    is_local: bool
    tokens: int
    price: str = ""
    wait: str = ""
    cache: str = ""
    why: str = ""
    context: int | None = None
    """What who would answer can read, in tokens, where that is known."""

    @property
    def is_too_long(self) -> bool:
        """Whether it would be refused for its length."""
        return self.context is not None and self.tokens > self.context

    @property
    def parts(self) -> list[str]:
        """What it says, the most important first."""
        size = f"about {self.tokens:,} tokens"
        parts = [
            f"{size} of {self.context:,} that fit: /shorten" if self.is_too_long else "",
            self.cache,
            self.where,
            self.wait,
            self.price,
            size if self.tokens and not self.is_too_long else "",
            self.why,
        ]
        return [part for part in parts if part]

    def line(self, width: int | None = None) -> str:
        """As many parts as fit in `width` cells, whole; the first in any case."""
        parts = self.parts
        while width is not None and len(parts) > 1 and cell_len(" · ".join(parts)) > width:
            parts.pop()
        return " · ".join(parts)


def preview(model: str, cards: Sequence[ModelCard], tokens: int) -> Preview:
    """Who would answer as `model`, by the list of models. `tokens` are those of the whole request."""
    card = resolve(model, cards)
    if card is None:
        return Preview(model if model != "auto" else "", False, tokens)
    is_local = card.engine != "pool"
    place = "on this machine" if is_local else "on a pool"
    return Preview(f"{card.id} {place}", is_local, tokens, "free" if is_local else "", context=card.context)


def of_story(story: Mapping[str, Any], tokens: int, here: str = "") -> Preview:
    """What would be decided, as `explain` tells it. A kept answer costs nothing and comes at once. `here` is
    the model that the engine of this machine has for `auto`, where that is known.
    """
    told = _decided(story, tokens, here)
    kept = kept_answer(load_record(CacheInfo, story["cache"])) if "cache" in story else ""
    return replace(told, cache=kept, wait="", price="free", why="") if kept else told


def kept_answer(info: CacheInfo) -> str:
    """The kept answer that would be given, in a few words; empty where none would be."""
    if info.entry_id is None:
        return ""
    if (info.similarity or 0.0) < 1.0:
        return f"similar question kept · {info.similarity:.0%}"
    return f"kept answer from {age(info.age_s)} ago"


def _decided(story: Mapping[str, Any], tokens: int, here: str) -> Preview:
    if story["decision"] is None:
        place = "on this machine" if story["local"] else "on a pool"
        return Preview(f"{story['model']} {place}", story["local"], tokens, "free" if story["local"] else "")
    decision = load_record(Decision, story["decision"])
    first = decision.candidates[0]
    place = "on this machine" if first.local else "on a pool"
    who = here if here and first.engine == "local" else first.engine
    return Preview(
        f"{who} {place}",
        first.local,
        tokens,
        why=decision.reason,
        price=money(first.cost, decision.currency),
        wait=f"about {seconds(first.total_s.p50)}",
    )


def refuses_images(model: str, cards: Sequence[ModelCard]) -> str:
    """Who would answer and takes no images; empty where somebody takes them, or where that is not known."""
    chat = [card for card in cards if card.kind == "chat"]
    if model == "auto" and any(card.engine == "pool" for card in chat):
        return "" if any(card.images for card in chat) else "None of the models here"
    card = resolve(model, cards)
    return card.id if card is not None and not card.images else ""


def resolve(model: str, cards: Sequence[ModelCard]) -> ModelCard | None:
    """The card that a name means, `auto` included; None for a path, a model to be pulled, or no list yet."""
    if model == "auto":
        auto = next((card for card in cards if card.kind == "auto"), None)
        chat = [card for card in cards if card.kind == "chat"]
        named = next((card for card in chat if auto is not None and card.id == auto.detail), None)
        return named or (chat[0] if len(chat) == 1 else None)
    return next((card for card in cards if card.kind == "chat" and model in (card.id, *card.aliases)), None)
