"""Whether a name means a model that can answer here: asked when it is chosen, not at the first prompt."""

from __future__ import annotations

import asyncio

from edgecloud import models
from edgecloud.errors import BadRequest, ModelNotFound
from edgecloud.settings import Settings
from edgecloud.types import ModelCard

from .ports import Gateway
from .state.preview import resolve


async def check_model(gateway: Gateway, settings: Settings, name: str) -> list[ModelCard]:
    """The models there are, if `name` means one of them or a file that is one.

    Raises `ModelNotFound` with the names there are, and `BadRequest` with what is wrong with the file.
    """
    cards = await gateway.models()
    if name == "auto" or resolve(name, cards) is not None:
        return cards
    try:
        file = await asyncio.to_thread(models.resolve, name, settings, kind="chat")
    except ModelNotFound:
        raise ModelNotFound(name, [card.id for card in cards if card.kind != "embedding"]) from None
    if file.kind != "chat":
        raise BadRequest(f"{file.name} is an embedding model and answers nothing: choose a chat model.")
    return cards
