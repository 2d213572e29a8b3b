"""Commands that open another screen: two models side by side, and the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgecloud.errors import BadRequest

from ..naming import check_model
from ..race import Race
from ..screens.compare import CompareScreen
from ..state.attachments import Prompt, gather
from ..state.commands import unescaped
from ..state.waiting import Route, Waiting
from .judging import shown
from .turns import BUSY

if TYPE_CHECKING:
    from ..chat_view import ChatView


USAGE = "Say which two, and what: /compare NAME NAME QUESTION; with no question, the last one is asked again."


async def compare(screen: ChatView, said: str) -> None:
    """Ask two models at once: what stands behind their names, else in the prompt, else the last question."""
    session = screen.session
    if session.is_running:
        raise BadRequest(screen.keys.fill(BUSY))
    screen.foresight.cards = await screen.gateway.models()
    names, question = said.split()[:2], "".join(said.split(maxsplit=2)[2:])
    if question:
        screen.prompt.earlier.add(f"/compare {said}")  # whatever is wrong with the names, it is not lost
    routes = [Route(model=name) for name in names] or _both_sides(screen)
    if len(routes) != 2:
        raise BadRequest(
            USAGE
            if said
            else "It takes two models, and there is one model here: /pull gets another, "
            "`edgecloud pool add` a server that has some."
        )
    for route in routes:
        await check_model(screen.gateway, screen.settings, route.model)
    typed = question or screen.prompt.full_text
    if typed.strip():
        asked = Waiting(typed, gather(unescaped(typed)))
        for route in routes:
            screen.foresight.check(asked.prompt, route.model)
        if not question:
            screen.prompt.clear_all()
        screen.prompt.earlier.add(typed)
    else:
        asked = _again(screen)
    await session.begin_anew_if_removed()
    race = Race(session, asked, routes)
    picked = await screen.app.push_screen_wait(CompareScreen(race, asked.typed))
    await race.pick(picked or race.lanes[-1])
    if picked is not None:
        others = [lane.node for lane in race.lanes if lane is not picked]
        await shown(screen, picked.node, "picked", over=others)
    screen.transcript.anchor()
    await screen.look()
    await screen.load_chats()


async def dashboard(screen: ChatView, _: str) -> None:
    # Its plots take a quarter of a second to import.
    from ..screens.dashboard import DashboardScreen

    await screen.app.push_screen_wait(DashboardScreen(screen.gateway, screen.store, screen.settings.budget))


def _both_sides(screen: ChatView) -> list[Route]:
    """This machine and a pool, or the first two models."""
    chat = [card for card in screen.foresight.cards if card.kind == "chat"]
    here = [card for card in chat if card.engine != "pool"]
    away = [card for card in chat if card.engine == "pool"]
    return [Route(model=card.id) for card in (here[:1] + away[:1] if here and away else chat[:2])]


def _again(screen: ChatView) -> Waiting:
    head = screen.session.conversation.head
    question = head.parent if head is not None and head.role == "assistant" else head
    if question is None:
        raise BadRequest(USAGE)
    screen.session.conversation.head = question.parent
    return Waiting(question.message.content, Prompt(question.message.content, question.message.images))
