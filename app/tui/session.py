"""One chat being held: prompts wait here while an answer comes, and go on whether anybody looks or not.

Nothing here draws. The screen looks at `turn` and `version` a few times a second, so that a token never wakes
more than this.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace

from edgecloud.errors import EdgeCloudError, StorageError, sentence
from edgecloud.types import ChatRequest, Message, new_id

from .ports import Gateway, Store
from .state import waiting as waits
from .state.conversation import Conversation, Node
from .state.preferences import Preferences
from .state.turn import Turn
from .state.waiting import HERE, Route, Waiting

log = logging.getLogger(__name__)


LOOKS_FOR_END = 20
LOOK_FOR_END_S = 0.05
"""How often, and how far apart, history is asked whether an answer's end is written. A disk may be slow."""

REMOVED_S = 1.0
"""How long a prompt waits to know whether its chat is still there."""


class Session:
    """A chat's tree, what runs in it and what waits. `offline` is whether nothing distant may be asked.

    `one_by_one` is whether what waits is asked with `go_on` only. `ended` is called when an answer has ended,
    whatever its end.
    """

    def __init__(
        self,
        gateway: Gateway,
        store: Store,
        *,
        chat_id: str | None = None,
        title: str = "",
        conversation: Conversation | None = None,
        preferences: Preferences | None = None,
        queue: Sequence[Waiting] = (),
        one_by_one: bool = False,
        offline: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gateway = gateway
        self.store = store
        self.chat_id = chat_id
        self.title = title
        self.conversation = conversation or Conversation()
        self.preferences = preferences or Preferences()
        self.one_by_one = one_by_one
        self.offline = offline
        self.clock = clock
        self.queue: list[Waiting] = list(queue)
        self._kept = waits.noted(queue)
        """What waits as the notes of the chat have it."""
        self.noted_draft = self.preferences.draft
        """And what is typed."""
        self._keeping: set[asyncio.Task[None]] = set()
        self.turn: Turn | None = None
        self.answering: Node | None = None
        self.version = 0
        """Counts changes of the tree and the queue; deltas of a running answer are no such change."""
        self.warning: str | None = None
        self.ended: Callable[[Session], None] = lambda session: None
        self._task: asyncio.Task[object] | None = None
        self._is_kept = self.conversation.head is not None
        """Whether the chat was seen in the history."""

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was said yet."""
        return self.conversation.head is None and not self.queue and not self.is_running

    # -------------------------------------------------------------------------------------------- asking

    def send(self, waiting: Waiting) -> None:
        """Ask, or wait in the queue while an answer comes."""
        self.queue.append(waiting)
        self.changed()
        self.go_on()
        self._keep_queue()

    def go_on(self) -> None:
        """Ask what waits, unless an answer is coming; it goes on with the rest by itself."""
        if self.queue and not self.is_running:
            self._run(self._work_off())

    def unqueue(self) -> Waiting | None:
        """Take back the prompt that waits last."""
        if not self.queue:
            return None
        waiting = self.queue.pop()
        self.changed()
        self._keep_queue()
        return waiting

    def regenerate(self, answer: Node, route: Route = HERE, *, fresh: bool = True) -> bool:
        """Another answer to the same question, beside the first; False while one is coming."""
        return self._alone(answer.parent, route, fresh=fresh)

    def edit(self, question: Node, waiting: Waiting) -> bool:
        """Ask the question in other words, beside the first; False while an answer is coming."""
        if self.is_running:
            return False
        self.conversation.head = question.parent
        self.queue.insert(0, waiting)
        self.go_on()
        return True

    def continue_(self, answer: Node) -> bool:
        """Let the model go on where an answer was cut; False while one is coming."""
        return self._alone(answer.parent, prefix=answer.message.content)

    def stop(self) -> None:
        """End the answer that is coming and keep what is there; what waits stays in the queue."""
        if self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        """Stop and wait for the end."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._keeping:
            await asyncio.wait(self._keeping)

    # ------------------------------------------------------------------------------------------- settings

    async def set_preferences(self, preferences: Preferences) -> None:
        """Keep them with the chat, once there is one."""
        self.preferences = preferences
        self.changed()
        await self.note()

    def changed(self) -> None:
        self.version += 1

    # --------------------------------------------------------------------------------------------- inside

    def _alone(
        self, question: Node | None, route: Route = HERE, *, prefix: str = "", fresh: bool = False
    ) -> bool:
        if self.is_running or question is None:
            return False
        self._run(self._answer(question, route, fresh=fresh, prefix=prefix))
        return True

    def _run(self, work: Coroutine[None, None, object]) -> None:
        self._task = asyncio.create_task(work)

    async def _work_off(self) -> None:
        while self.queue:
            waiting = self.queue.pop(0)
            message = Message("user", waiting.prompt.text, images=waiting.prompt.images)
            question = self.conversation.add(message, self.last_sendable())
            files = waiting.prompt.files
            done = await self._answer(question, waiting.route, fresh=waiting.fresh, files=files)
            if not done or self.one_by_one:
                return

    def last_sendable(self) -> Node | None:
        """What the next question hangs under: what can't be sent is passed over, as in the history."""
        parent = self.conversation.head
        while parent is not None and not parent.is_sendable:
            parent = parent.parent
        return parent

    async def _answer(
        self, question: Node, route: Route, *, fresh: bool, prefix: str = "", files: tuple[str, ...] = ()
    ) -> bool:
        """Answer one question; False if the queue should wait for the user to look."""
        if await self.begin_anew_if_removed():
            question, prefix = self.conversation.add(question.message, None), ""
        self.chat_id = self.chat_id or new_id("chat")
        node = self.conversation.add(Message("assistant", prefix), question, status="running")
        request = self.request(question, route, fresh=fresh, prefix=prefix, files=files)
        turn = self.turn = Turn(self.clock(), prefix, request.model)
        self.answering = node
        self.changed()
        warning = await stream(self.gateway, request, node, turn, self.clock, began=self._keep_queue)
        self.warning = warning or self.warning
        self.turn = self.answering = None
        self.changed()
        self._keep_queue()
        await self.remember()
        self.changed()
        self.ended(self)
        # Stopped while it was read back, an answer is complete, and what waits is to stay.
        task = asyncio.current_task()
        return node.status == "complete" and not (task is not None and task.cancelling())

    async def begin_anew_if_removed(self) -> bool:
        """Where somebody removed this chat from the history meanwhile, forget what was said in it and begin a
        new one: what is removed must not come back with the next prompt.
        """
        if not self._is_kept or self.chat_id is None:
            return False
        try:
            if not await asyncio.wait_for(self.store.was_removed(self.chat_id), REMOVED_S):
                return False
        except (EdgeCloudError, TimeoutError):
            return False  # who writes the prompt looks again
        self.conversation.clear()
        self.chat_id, self.title, self._is_kept = None, "", False
        self.warning = "This chat was removed from the history: what is asked now begins a new one."
        self.changed()
        return True

    def request(
        self,
        question: Node | None,
        route: Route,
        *,
        fresh: bool = False,
        prefix: str = "",
        files: tuple[str, ...] = (),
    ) -> ChatRequest:
        """What is sent to go on after `question`, as the chat's preferences and this turn's route say.

        `files` are the paths of what the question attached.
        """
        chosen = self.preferences
        messages = self.conversation.messages(question)
        if chosen.system:
            messages = (Message("system", chosen.system), *messages)
        if prefix:
            messages = (*messages, Message("assistant", prefix))
        return ChatRequest(
            messages=messages,
            model=route.model or chosen.model,
            sampling=chosen.sampling,
            max_tokens=chosen.max_tokens,
            continue_final=bool(prefix),
            mode=route.mode or chosen.mode,
            private=chosen.private,
            fresh=fresh,
            offline=self.offline,
            journal=self.store.is_on,
            files=files,
            chat_id=self.chat_id,
            parent_id=_kept_id(question),
            door="chat",
        )

    async def remember(self) -> None:
        """Learn under which ids the history keeps what was said, and what an answer that was stopped cost."""
        if not self.store.is_on or self.chat_id is None:
            return
        try:
            chat, receipts, _ = await self.store.chat(self.chat_id)
            for _ in range(LOOKS_FOR_END):
                if all(stored.status != "running" for stored in chat.messages):
                    break
                # Nobody waited for the end of a stopped answer to be written; it takes a moment.
                await asyncio.sleep(LOOK_FOR_END_S)
                chat, receipts, _ = await self.store.chat(self.chat_id)
            self.conversation.bind(chat, receipts)
            self._is_kept = True
            if not self.title:
                self.title = chat.summary.title
                await self.note()
        except (EdgeCloudError, asyncio.CancelledError) as error:
            # The answer is on the screen; that it was not kept is said by the gateway.
            log.info("the chat could not be read back: %s", error)

    async def note(self) -> None:
        """Write down what is set for the chat, and what waits in it, once there is one."""
        if self.chat_id is None:
            return
        kept, draft = waits.noted(self.queue), self.preferences.draft
        try:
            if await self.store.set_notes(self.chat_id, {**self.preferences.noted(), waits.NOTED: kept}):
                self._kept, self.noted_draft = kept, draft
        except StorageError as error:
            self.warning = error.message

    def _keep_queue(self) -> None:
        """Write down what waits, aside, unless that is what is written; in a chat that is not there yet, what
        waits is written once it is. A crash forgets no prompt.
        """

        async def keep() -> None:
            if waits.noted(self.queue) != self._kept:
                await self.note()

        task = asyncio.ensure_future(keep())
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    def keep_draft(self, typed: str) -> None:
        """Remember what was typed and not sent."""
        self.preferences = replace(self.preferences, draft=typed)


def _kept_id(node: Node | None) -> str | None:
    """The id of the message, or of the nearest before it that the history is known to keep."""
    while node is not None and node.id is None:
        node = node.parent
    return node.id if node is not None else None


async def stream(
    gateway: Gateway,
    request: ChatRequest,
    node: Node,
    turn: Turn,
    clock: Callable[[], float],
    *,
    began: Callable[[], None] | None = None,
) -> str | None:
    """Let one answer come into `turn` and end as `node`, whatever its end; returns a warning for the user.
    `began` is called with the first event: the prompt is written down then.

    Cancelling it is an end too: what came is kept and marked as interrupted.
    """
    try:
        async with aclosing(gateway.chat(request)) as events:
            async for event in events:
                turn.see(event, clock())
                if began is not None:
                    began()
                    began = None
        node.status = "complete"
    except asyncio.CancelledError:
        node.status = "interrupted"
    except Exception as error:
        shown = sentence(error)
        if shown is not error:
            log.exception("an answer failed in the chat")
        node.status, node.error = "failed", shown.message
    node.message = Message(
        "assistant", turn.text, tool_calls=turn.tool_calls, reasoning=turn.reasoning or None
    )
    node.finish_reason, node.receipt, node.seams = turn.finish_reason, turn.receipt, tuple(turn.seams)
    node.receipt_id = turn.receipt.id if turn.receipt else request.id if turn.start else None
    node.model = turn.receipt.model if turn.receipt else turn.start.model if turn.start else ""
    node.id = turn.message_id
    return turn.warning
