"""Commands on who answers: the model, the next turn, the pin on this machine, and why it was so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from edgecloud.errors import BadRequest, EdgeCloudError
from edgecloud.types import Message, Mode

from ..screens.dialogs import Reader
from ..screens.picker import Choice, Picker, model_choices
from ..session import HERE, Route
from ..state import receipt as words

if TYPE_CHECKING:
    from ..screens.chat import ChatScreen

_ROUTES = (
    Choice("auto", "auto", "the router chooses"),
    Choice("local", "local", "this machine, whatever it takes"),
    Choice("pool", "pool", "the pool, whatever it costs"),
)


async def model(screen: ChatScreen, name: str) -> None:
    async def load() -> Sequence[Choice]:
        cards = screen.cards = await screen.gateway.models()
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
        name = await screen.app.push_screen_wait(picker) or ""
    if name:
        await screen.session.set_preferences(replace(chosen, model=name))
        await screen.look()


async def route(screen: ChatScreen, name: str) -> None:
    async def load() -> Sequence[Choice]:
        screen.cards = await screen.gateway.models()
        return [*_ROUTES, *(choice for choice in model_choices(screen.cards, None) if choice.value != "auto")]

    if not name:
        current = screen.route.model or screen.route.mode or "auto"
        name = (
            await screen.app.push_screen_wait(Picker("Who answers the next prompt", load, current=current))
            or ""
        )
    if name in get_args(Mode):
        screen.route = Route(mode=name)  # type: ignore[arg-type]
    elif name:
        screen.route = Route(model=name)
    if screen.route.mode == screen.session.preferences.mode and not screen.route.model:
        screen.route = HERE
    screen.show_bars()


async def private(screen: ChatScreen, _: str) -> None:
    chosen = screen.session.preferences
    await screen.session.set_preferences(replace(chosen, private=not chosen.private))
    await screen.look()
    screen.say(
        "This chat may leave this machine again."
        if chosen.private
        else "Private: nothing of this chat leaves this machine."
    )


async def preview(screen: ChatScreen, _: str) -> None:
    session = screen.session
    request = session.request(session.conversation.head, screen.route)
    typed = screen.prompt.full_text
    messages = (*request.messages, Message("user", typed)) if typed.strip() else request.messages
    if not messages:
        raise BadRequest("There is nothing to send yet.")
    body = "\n\n".join(f"{message.role}:\n{message.content}" for message in messages)
    head = [
        f"to: {screen.would().line() or request.model}",
        f"mode: {request.mode}; private: {_yes(request.private)}; offline: {_yes(request.offline)}",
        f"kept in the history: {_yes(request.journal)}",
        f"parameters: {session.preferences.described() or 'the model’s own'}",
    ]
    await screen.app.push_screen_wait(Reader("What would be sent", "\n".join(head) + "\n\n" + body))


async def why(screen: ChatScreen, _: str) -> None:
    answer = screen.answer
    if answer is None or answer.receipt is None:
        raise BadRequest("There is no receipt here: only an answer that came to its end has one.")
    rows = words.details(answer.receipt)
    width = max(len(name) for name, _ in rows)
    await screen.app.push_screen_wait(
        Reader("Why this answer", "\n".join(f"{name.rjust(width)}  {value}" for name, value in rows))
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
