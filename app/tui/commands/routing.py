"""Commands on who answers: the model, the next turn, the pin on this machine, and why it was so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from edgecloud.errors import BadRequest, EdgeCloudError, NotFound
from edgecloud.types import Mode

from ...pins import unpinned
from ..naming import check_model
from ..screens.dialogs import Reader
from ..screens.picker import Choice, Picker, model_choices
from ..state import receipt as words
from ..state.waiting import HERE, Route

if TYPE_CHECKING:
    from ..chat_view import ChatView

_ROUTES = (
    Choice("auto", "auto", "the router chooses"),
    Choice("local", "local", "this machine, whatever it takes"),
    Choice("pool", "pool", "the pool, whatever it costs"),
)


async def model(screen: ChatView, name: str) -> None:
    async def load() -> Sequence[Choice]:
        cards = screen.foresight.cards = await screen.gateway.models()
        try:
            health = await screen.gateway.health()
        except EdgeCloudError:
            health = None
        return model_choices(cards, health)

    chosen = screen.session.preferences
    if not name:
        picker = Picker(
            "Who answers in this chat", load, current=chosen.model, other="Enter takes this name as it is"
        )
        picked = await screen.app.push_screen_wait(picker)
        name = picked or ""
    if name:
        screen.foresight.cards = await check_model(screen.gateway, screen.settings, name)
        await screen.session.set_preferences(replace(chosen, model=name))
        await screen.look()


async def route(screen: ChatView, name: str) -> None:
    async def load() -> Sequence[Choice]:
        cards = screen.foresight.cards = await screen.gateway.models()
        return [*_ROUTES, *(choice for choice in model_choices(cards, None) if choice.value != "auto")]

    if not name:
        current = screen.route.model or screen.route.mode or "auto"
        picked = await screen.app.push_screen_wait(
            Picker("Who answers the next prompt", load, current=current)
        )
        name = picked or ""
    if name in get_args(Mode):
        screen.route = Route(mode=name)  # type: ignore[arg-type]
    elif name:
        screen.foresight.cards = await check_model(screen.gateway, screen.settings, name)
        screen.route = Route(model=name)
    if screen.route.mode == screen.session.preferences.mode and not screen.route.model:
        screen.route = HERE
    screen.look_ahead()


async def private(screen: ChatView, _: str) -> None:
    chosen = screen.session.preferences
    await screen.session.set_preferences(replace(chosen, private=not chosen.private))
    await screen.look()
    if not chosen.private:
        screen.say("Private: nothing of this chat leaves this machine.")
    else:
        screen.say(await asyncio.to_thread(unpinned, screen.session.chat_id))


async def preview(screen: ChatView, _: str) -> None:
    request = screen.foresight.request(screen.session, screen.route, screen.prompt.full_text)
    if not request.messages:
        raise BadRequest("There is nothing to send yet.")
    told: list[str] = []
    if screen.settings.pool:
        story = await screen.gateway.explain(request)
        told = ["", *story["sentences"]]
        would = screen.foresight.of_story(story, screen.session, screen.prompt.full_text)
    else:
        would = screen.would()
    head = [
        f"to: {replace(would, why='').line() or request.model}",
        f"mode: {request.mode}; private: {_yes(request.private)}; offline: {_yes(request.offline)}",
        f"kept in the history: {_yes(request.journal)}",
        f"parameters: {screen.session.preferences.described() or 'the model’s own'}",
    ]
    body = "\n\n".join(f"{message.role}:\n{message.content}" for message in request.messages)
    await screen.app.push_screen_wait(Reader("What would be sent", "\n".join([*head, *told]) + "\n\n" + body))


async def why(screen: ChatView, _: str) -> None:
    answer, turn = screen.answer, screen.session.turn
    if turn is not None and answer is screen.session.answering:
        await screen.app.push_screen_wait(Reader("Why this answer", "\n".join(turn.known())))
        return
    if answer is None or answer.receipt_id is None:
        raise BadRequest("There is nothing to say of who answered: nobody was asked yet, or it was not kept.")
    rows = words.details(answer.receipt) if answer.receipt is not None else []
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"{name.rjust(width)}  {value}" for name, value in rows]
    try:
        lines += ["", *(await screen.gateway.why(answer.receipt_id))["sentences"]]
    except NotFound as error:
        # The receipt stays with the chat; the ledger may be off, or of another machine.
        lines += ["", error.message]
    await screen.app.push_screen_wait(Reader("Why this answer", "\n".join(lines)))


async def forget(screen: ChatView, _: str) -> None:
    answer = screen.answer
    entry_id = answer.receipt.cache.entry_id if answer is not None and answer.receipt is not None else None
    if entry_id is None:
        raise BadRequest(screen.keys.fill("This answer is not from the cache; {chat.regenerate} asks again."))
    if not await screen.gateway.blame(entry_id):
        raise BadRequest("The cache does not have this answer any more.")
    screen.say(
        screen.keys.fill(
            "It is not given again, and similar questions are taken less for the same. "
            "{chat.regenerate} asks again."
        )
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
