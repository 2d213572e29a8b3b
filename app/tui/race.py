"""One question to two engines at once; the answer that is picked goes on, the other stays as a branch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from edgecloud.types import Message, new_id

from .session import Session, stream
from .state.conversation import Node
from .state.turn import Turn
from .state.waiting import Route, Waiting


@dataclass(slots=True, eq=False)
class Lane:
    """One of the answers while it comes."""

    route: Route
    node: Node
    turn: Turn
    task: asyncio.Task[str | None]


class Race:
    """Runs from its making on. The session must not be answering meanwhile."""

    def __init__(self, session: Session, asked: Waiting, routes: Sequence[Route]) -> None:
        self.session = session
        session.chat_id = session.chat_id or new_id("chat")
        message = Message("user", asked.prompt.text, images=asked.prompt.images)
        self.question = session.conversation.add(message, session.last_sendable())
        self.lanes = [self._lane(route, asked.prompt.files) for route in routes]
        session.changed()

    @property
    def is_running(self) -> bool:
        return any(not lane.task.done() for lane in self.lanes)

    def stop(self) -> None:
        """End both; what came is kept."""
        for lane in self.lanes:
            lane.task.cancel()

    async def pick(self, lane: Lane) -> None:
        """Go on with this answer; what still runs is stopped and kept."""
        await self.aclose()
        self.session.conversation.head = lane.node
        self.session.changed()
        if self.session.chat_id is not None and lane.node.id is not None:
            await self.session.store.show_branch(self.session.chat_id, lane.node.id)

    async def aclose(self) -> None:
        self.stop()
        await asyncio.wait([lane.task for lane in self.lanes])
        await self.session.remember()

    def _lane(self, route: Route, files: tuple[str, ...]) -> Lane:
        session = self.session
        node = session.conversation.add(Message("assistant"), self.question, status="running")
        turn = Turn(session.clock())
        request = session.request(self.question, route, fresh=True, files=files)
        task = asyncio.create_task(stream(session.gateway, request, node, turn, session.clock))
        return Lane(route, node, turn, task)
