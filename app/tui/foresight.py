"""What would happen if the prompt were sent now: by the list of models, by the router once it is asked."""

from __future__ import annotations

import logging
from dataclasses import replace

from edgecloud.errors import EdgeCloudError
from edgecloud.types import ChatRequest, Message, ModelCard

from .ports import Gateway
from .session import Route, Session
from .state.preview import Preview, of_story, preview

log = logging.getLogger(__name__)


class Foresight:
    """`cards` are the models there are. What the router said holds until `forget`."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.cards: list[ModelCard] = []
        self._told: Preview | None = None

    def forget(self) -> None:
        """Something changed: what the router said was about something else."""
        self._told = None

    def preview(self, session: Session, route: Route, typed: str) -> Preview:
        """As far as is known without asking."""
        if self._told is not None:
            return self._told
        return preview(route.model or session.preferences.model, self.cards, _length(session, typed))

    def request(self, session: Session, route: Route, typed: str) -> ChatRequest:
        """What would be sent."""
        request = session.request(session.last_sendable(), route)
        if typed.strip():
            request = replace(request, messages=(*request.messages, Message("user", typed)))
        return request

    async def ask(self, session: Session, route: Route, typed: str) -> None:
        """Ask the router; a refusal is an answer too."""
        try:
            story = await self.gateway.explain(self.request(session, route, typed))
            self._told = of_story(story, _length(session, typed))
        except EdgeCloudError as error:
            self._told = Preview(error.message, False, 0)
        except Exception:
            # A line that says less must not end a chat.
            log.exception("the router's word on a draft was not understood")


def _length(session: Session, typed: str) -> int:
    """Characters of the whole request."""
    messages = session.conversation.messages(session.conversation.head)
    return sum(len(message.content) for message in messages) + len(typed) + len(session.preferences.system)
