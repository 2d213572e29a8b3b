"""What the user thinks of an answer, said with a thumb or shown by what is done with it: a lesson."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgecloud.errors import BadRequest, EdgeCloudError

if TYPE_CHECKING:
    from ..chat_view import ChatView
    from ..state.conversation import Node


async def good(screen: ChatView, _: str) -> None:
    await _judge(screen, "up")
    screen.say("Noted as good: the router learns from it.")


async def bad(screen: ChatView, _: str) -> None:
    await _judge(screen, "down")
    again = "{chat.regenerate} asks again, {chat.route} somebody else."
    screen.say(screen.keys.fill(f"Noted as bad: the router learns from it. {again}"))


async def shown(screen: ChatView, answer: Node | None, verdict: str, over: Sequence[Node] = ()) -> None:
    """Tell what was shown by asking again, in other words, or taking another; nothing depends on it."""
    if answer is None or answer.receipt_id is None:
        return
    others = [node.receipt_id for node in over if node.receipt_id is not None]
    with contextlib.suppress(EdgeCloudError):
        await screen.gateway.feedback(answer.receipt_id, verdict, over=others)


async def _judge(screen: ChatView, verdict: str) -> None:
    answer = screen.answer
    if answer is None or answer.receipt_id is None:
        raise BadRequest("There is no answer here to judge.")
    await screen.gateway.feedback(answer.receipt_id, verdict)
