"""Commands on one message: again, on, in other words, elsewhere, and out of here."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from edgecloud.errors import BadRequest

from ...pins import with_pin
from ..widgets.code import CodeBlock
from .judging import shown

if TYPE_CHECKING:
    from ..chat_view import ChatView
    from ..state.conversation import Node

BUSY = "An answer is coming: stop it with {chat.stop}, or wait for its end."


async def stop(screen: ChatView, _: str) -> None:
    screen.session.stop()


async def regenerate(screen: ChatView, _: str) -> None:
    answer = _answer(screen)
    if not screen.session.regenerate(answer, screen.route):
        raise BadRequest(screen.keys.fill(BUSY))
    await _follow(screen)
    await shown(screen, answer, "regenerated")


async def continue_(screen: ChatView, _: str) -> None:
    answer = _answer(screen)
    if answer.status == "complete" and answer.finish_reason != "length":
        raise BadRequest(screen.keys.fill("This answer came to its end; {chat.regenerate} asks again."))
    # What was cut off before its first word has nothing to go on from: it is asked again.
    going = (
        screen.session.continue_(answer)
        if answer.message.content
        else screen.session.regenerate(answer, screen.route)
    )
    if not going:
        raise BadRequest(screen.keys.fill(BUSY))
    await _follow(screen)


async def edit(screen: ChatView, _: str) -> None:
    node = _node(screen)
    question = node if node.role == "user" else node.parent
    if question is None:
        raise BadRequest("There is no question to edit here.")
    screen.edit(question)
    screen.show_bars()


async def fork(screen: ChatView, _: str) -> None:
    node, session = _node(screen), screen.session
    if session.chat_id is None or node.id is None:
        raise BadRequest("Only what the history keeps can be forked, and this message is not kept.")
    await _copy(screen, session.chat_id, node.id, "fork")
    screen.say("This is a copy: the chat that it was copied from stays as it is.")


async def shorten(screen: ChatView, _: str) -> None:
    """Go on in a copy of the latest turns; a question that was too long for the whole chat is typed again."""
    session = screen.session
    if session.is_running:
        raise BadRequest(screen.keys.fill(BUSY))
    path, asked = session.conversation.path, ""
    while path and path[-1].role == "assistant" and not path[-1].is_sendable:
        path.pop()
    if path and path[-1].role == "user":
        asked = path.pop().message.content
    latest = screen.foresight.latest_that_fit(session, path)
    if not latest:
        raise BadRequest("Not even the last turn fits: /new begins another chat.")
    if session.chat_id is None or latest[0].id is None or latest[-1].id is None:
        raise BadRequest("Only what the history keeps can be copied, and this chat is not kept.")
    await _copy(screen, session.chat_id, latest[-1].id, "shortened", first_id=latest[0].id)
    if asked:
        screen.prompt.give_back(asked)
    screen.say(f"This is a copy of the last {len(latest)} messages of {len(path)}; the whole chat stays.")


async def _copy(
    screen: ChatView, from_id: str, last_id: str, suffix: str, *, first_id: str | None = None
) -> None:
    """Open a new chat of the messages that end in one, from the chat's first or from `first_id` on."""
    session = screen.session
    chat = await screen.store.show(from_id)
    by_id = {stored.id: stored for stored in chat.messages}
    path, at = [], by_id.get(last_id)
    while at is not None:
        path.append(at if at.id != first_id else replace(at, parent_id=None))
        at = by_id.get(at.parent_id or "") if at.id != first_id else None
    receipts = await screen.store.raw_receipts(from_id)
    of_path = {stored.receipt_id for stored in path}
    chat_id = await screen.store.insert(
        f"{chat.summary.title} ({suffix})",
        path[::-1],
        last_id,
        {id: receipt for id, receipt in receipts.items() if id in of_path},
    )
    private = (await asyncio.to_thread(with_pin, chat)).private or session.preferences.private
    # What is typed and not sent stays with the chat that it was typed into.
    chosen = replace(session.preferences, private=private, draft="")
    await screen.store.set_notes(chat_id, chosen.noted())
    await screen.open(chat_id)


async def next_(screen: ChatView, _: str) -> None:
    await _step(screen, 1)


async def previous(screen: ChatView, _: str) -> None:
    await _step(screen, -1)


async def copy(screen: ChatView, _: str) -> None:
    screen.app.copy_to_clipboard(_node(screen).message.content)


async def code(screen: ChatView, _: str) -> None:
    """Copy a block of code of the message, with each further call the one before it."""
    view = screen.transcript.view_of(_node(screen))
    blocks = list(view.query(CodeBlock)) if view is not None else []
    if not blocks:
        raise BadRequest("There is no code in this message.")
    last = next((number for number, block in enumerate(blocks) if block.has_class("-copied")), 0)
    for block in blocks:
        block.remove_class("-copied")
    chosen = blocks[last - 1]
    chosen.add_class("-copied")
    screen.app.copy_to_clipboard(chosen.code)


async def _step(screen: ChatView, by: int) -> None:
    if screen.session.is_running:
        raise BadRequest(screen.keys.fill(BUSY))
    conversation = screen.session.conversation
    node: Node | None = _node(screen)
    # An answer to the only wording of a question has the question's branches, and so on upwards.
    while node is not None and len(conversation.siblings(node)) < 2:
        node = node.parent
    if node is None or (other := conversation.step(node, by)) is None:
        hint = "There are no branches here: {chat.regenerate} answers again, {chat.edit} asks in other words."
        raise BadRequest(screen.keys.fill(hint))
    screen.transcript.cursor = other
    screen.session.changed()
    await screen.look()
    head = conversation.head
    if screen.session.chat_id is not None and head is not None and head.id is not None:
        await screen.store.show_branch(screen.session.chat_id, head.id)


async def _follow(screen: ChatView) -> None:
    screen.desk.watch(screen.session)
    screen.transcript.action_end()
    await screen.look()


def _node(screen: ChatView) -> Node:
    if screen.node is None:
        raise BadRequest("There is no message yet.")
    return screen.node


def _answer(screen: ChatView) -> Node:
    if screen.answer is None:
        raise BadRequest("There is no answer yet.")
    return screen.answer
