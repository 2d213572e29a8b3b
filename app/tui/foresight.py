"""What would happen if the prompt were sent now: by the list of models, by the router once it is asked."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from edgecloud.errors import BadRequest, EdgeCloudError
from edgecloud.types import ChatRequest, Message, ModelCard

from .ports import Gateway
from .session import Session
from .state.attachments import Prompt, mentioned
from .state.conversation import Node
from .state.preview import Preview, of_story, preview, refuses_images, resolve
from .state.token_guess import guess
from .state.waiting import Route

FRAME = 4
"""Tokens of a template's marks around one message."""

OWN_SYSTEM = 20
"""Tokens that many templates say to the model by themselves where there is no system prompt."""

log = logging.getLogger(__name__)


class Foresight:
    """`cards` are the models there are. What the router said holds until `forget`; how far a guess of tokens
    was off, once they were counted, for every guess after it.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.cards: list[ModelCard] = []
        self._told: Preview | None = None
        self._off_by = 1.0

    def forget(self) -> None:
        """Something changed: what the router said was about something else."""
        self._told = None

    def preview(self, session: Session, route: Route, typed: str) -> Preview:
        """As far as is known without asking."""
        if self._told is not None:
            return self._told
        return preview(route.model or session.preferences.model, self.cards, self._tokens(session, typed))

    def waits_for(self, model: str) -> str:
        """What an answer of this model waits for before anything is heard; empty if that is not known."""
        is_open = model == "auto" and any(card.engine == "pool" for card in self.cards)
        card = None if is_open else resolve(model, self.cards)
        if card is None or card.engine == "pool" or card.loaded:
            return ""
        return f"loading {card.id}" + (f" ({card.detail})" if card.detail else "")

    def check(self, prompt: Prompt, model: str) -> None:
        """Raises `BadRequest` for images that who would answer as `model` does not take."""
        if prompt.images and (who := refuses_images(model, self.cards)):
            raise BadRequest(
                f"{who} takes no images: choose a model that does with /model, or leave them out."
            )

    def request(self, session: Session, route: Route, typed: str) -> ChatRequest:
        """What would be sent."""
        files = tuple(str(path.absolute()) for path in mentioned(typed))
        request = session.request(session.last_sendable(), route, files=files)
        if typed.strip():
            request = replace(request, messages=(*request.messages, Message("user", typed)))
        return request

    async def ask(self, session: Session, route: Route, typed: str) -> None:
        """Ask the gateway: the router, and the cache; a refusal is an answer too."""
        asked = self.request(session, route, typed)
        if self.cards and not any(card.engine == "pool" for card in self.cards):
            card = resolve(asked.model, self.cards)
            if card is None:
                return
            # By its name: nothing is weighed, so no router is loaded for it.
            asked = replace(asked, model=card.id)
        try:
            story = await self.gateway.explain(asked)
            await self._count(asked, _guess(session, typed))
            card = resolve(asked.model, self.cards)
            context = card.context if card is not None else None
            self._told = replace(self.of_story(story, session, typed), context=context)
        except EdgeCloudError as error:
            self._told = Preview(error.message, False, 0)
        except Exception:
            # A line that says less must not end a chat.
            log.exception("the router's word on a draft was not understood")

    def of_story(self, story: Mapping[str, Any], session: Session, typed: str) -> Preview:
        """What the router's word on a draft means, in one line."""
        card = resolve("auto", self.cards)
        return of_story(story, self._tokens(session, typed), card.id if card is not None else "")

    def latest_that_fit(self, session: Session, path: Sequence[Node]) -> list[Node]:
        """The latest messages of a branch that take half of the context, from a question on: the other half
        is for what comes. Raises `BadRequest` where the context is not known, or where all of them fit.
        """
        card = resolve(session.preferences.model, self.cards)
        if card is None or card.context is None:
            raise BadRequest("How much fits is not known before the model is loaded: ask something first.")
        left = card.context / 2 - self._tokens_of(session.preferences.system)
        kept = len(path)
        while kept and (left := left - self._tokens_of(path[kept - 1].message.content)) >= 0:
            kept -= 1
        if kept == 0:
            raise BadRequest(
                f"All turns fit in half of the {card.context:,} tokens that {card.id} reads: if a question "
                "was refused all the same, it is too long by itself."
            )
        while kept < len(path) and path[kept].role != "user":
            kept += 1
        return list(path[kept:])

    def _tokens_of(self, text: str) -> float:
        return (guess(text) + FRAME) * self._off_by

    async def _count(self, asked: ChatRequest, guessed: int) -> None:
        """Let the tokenizer of a model that is in memory count; none is loaded for it."""
        card = resolve(asked.model, self.cards)
        if card is not None and card.engine != "pool" and card.loaded and guessed:
            with suppress(EdgeCloudError):  # what can't be counted stays a guess
                self._off_by = await self.gateway.count_tokens(replace(asked, model=card.id)) / guessed

    def _tokens(self, session: Session, typed: str) -> int:
        return round(_guess(session, typed) * self._off_by)


def _guess(session: Session, typed: str) -> int:
    """Tokens of the whole request, what a template puts around its texts among them."""
    messages = session.conversation.messages(session.conversation.head)
    if not messages and not typed:
        return 0
    system = guess(session.preferences.system) or OWN_SYSTEM
    num_frames = len(messages) + 2  # the system prompt's, and that of what is typed or of the answer
    return sum(guess(message.content) for message in messages) + guess(typed) + system + num_frames * FRAME
