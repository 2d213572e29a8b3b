"""A chat as the tree it is: who answered what, which branch is shown, and what the next request sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgecloud.types import Message, Receipt

from ...chats import Chat, Seam, Status, StoredMessage


@dataclass(slots=True, eq=False)
class Node:
    """One message and what hangs under it. `id` is the stored message's, None until the history knows it.

    `seams` are sentences about the answer that are no part of it, each at its place in the text: reroutes,
    continuations, a full context.
    """

    message: Message
    parent: Node | None = None
    status: Status = "complete"
    id: str | None = None
    children: list[Node] = field(default_factory=list)
    model: str = ""
    finish_reason: str | None = None
    receipt: Receipt | None = None
    receipt_id: str | None = None
    error: str | None = None
    seams: tuple[Seam, ...] = ()

    @property
    def role(self) -> str:
        return self.message.role

    @property
    def is_sendable(self) -> bool:
        """Whether the message goes along with the next request: an answer that failed or says nothing does
        not."""
        if self.role != "assistant":
            return True
        return bool(self.message.content or self.message.tool_calls) and self.status != "failed"


class Conversation:
    """The tree of one chat. `head` is the last message of the branch that is shown."""

    def __init__(self) -> None:
        self.roots: list[Node] = []
        self.head: Node | None = None

    @classmethod
    def of(cls, chat: Chat, receipts: Mapping[str, Receipt]) -> Conversation:
        """A stored chat, on the branch that was last used. The system prompt is not among its messages."""
        conversation = cls()
        nodes: dict[str, Node] = {}
        hidden: dict[str, str | None] = {}
        for stored in chat.messages:
            parent_id = stored.parent_id
            if stored.message.role == "system":
                hidden[stored.id] = parent_id
                continue
            while parent_id in hidden:
                parent_id = hidden[parent_id]
            parent = nodes.get(parent_id) if parent_id is not None else None
            node = nodes[stored.id] = _node(stored, receipts)
            conversation._hang(node, parent)
        heads = [nodes[id] for id in chat.path if id in nodes]
        conversation.head = heads[-1] if heads else None
        return conversation

    # ------------------------------------------------------------------------------------------- reading

    @property
    def path(self) -> list[Node]:
        """The messages that are shown, from the first."""
        path: list[Node] = []
        node = self.head
        while node is not None:
            path.append(node)
            node = _followed(node)
        return path[::-1]

    def messages(self, upto: Node | None) -> tuple[Message, ...]:
        """What a request sends that goes on after `upto`; what is of no use to a model is left out."""
        path: list[Node] = []
        node = upto
        while node is not None:
            path.append(node)
            node = node.parent
        return tuple(node.message for node in reversed(path) if node.is_sendable)

    def siblings(self, node: Node) -> list[Node]:
        """The alternatives of a message, itself among them, oldest first.

        A question that came after an answer that can't be sent is none of that answer.
        """
        followed = _followed(node)
        return [
            other for other in self._beside(node) if other.role == node.role and _followed(other) is followed
        ]

    def place(self, node: Node) -> tuple[int, int]:
        """Which of how many alternatives it is, from 1."""
        siblings = self.siblings(node)
        return siblings.index(node) + 1, len(siblings)

    # ------------------------------------------------------------------------------------------ changing

    def add(self, message: Message, parent: Node | None, *, status: Status = "complete") -> Node:
        """A new message under `parent`; it becomes the head."""
        node = Node(message, parent, status)
        self._hang(node, parent)
        self.head = node
        return node

    def clear(self) -> None:
        """Begin anew: nothing was said."""
        self.roots, self.head = [], None

    def step(self, node: Node, by: int) -> Node | None:
        """Show another alternative of `node` and what last came after it; None if there is no other."""
        siblings = self.siblings(node)
        if len(siblings) < 2:
            return None
        other = siblings[(siblings.index(node) + by) % len(siblings)]
        self.head = _last_leaf(other)
        return other

    def bind(self, chat: Chat, receipts: Mapping[str, Receipt]) -> None:
        """Learn the ids under which the history keeps the messages of the branch that is shown, and the
        receipts of answers that were stopped: nobody was there to be handed one.
        """
        children: dict[str | None, list[StoredMessage]] = {}
        for stored in chat.messages:
            children.setdefault(stored.parent_id, []).append(stored)
        by_id = {stored.id: stored for stored in chat.messages}
        for node in self.path:
            parent_id = node.parent.id if node.parent else None
            while (system := _only_system(children.get(parent_id, ()))) is not None:
                parent_id = system
            if node.id is None:
                taken = {other.id for other in self._beside(node)}
                fitting = [
                    stored
                    for stored in children.get(parent_id, ())
                    if stored.message.role == node.role and stored.id not in taken
                ]
                if not fitting:
                    return
                node.id = fitting[-1].id
            if node.receipt is None and (kept := by_id.get(node.id)) is not None and kept.receipt_id:
                node.receipt_id, node.receipt = kept.receipt_id, receipts.get(kept.receipt_id)

    def _beside(self, node: Node) -> list[Node]:
        return node.parent.children if node.parent else self.roots

    def _hang(self, node: Node, parent: Node | None) -> None:
        node.parent = parent
        (parent.children if parent else self.roots).append(node)


def _node(stored: StoredMessage, receipts: Mapping[str, Receipt]) -> Node:
    return Node(
        stored.message,
        status=stored.status,
        id=stored.id,
        model=stored.model,
        finish_reason=stored.finish_reason,
        receipt=receipts.get(stored.receipt_id or ""),
        receipt_id=stored.receipt_id,
        error=stored.error,
        seams=stored.seams,
    )


def _followed(node: Node) -> Node | None:
    """What stands before a message: what it hangs under, or the answer to that which can't be sent."""
    if node.role == "assistant" or node.parent is None or node.parent.role == "assistant":
        return node.parent
    before = node.parent.children[: node.parent.children.index(node)]
    answers = (other for other in reversed(before) if other.role == "assistant" and not other.is_sendable)
    return next(answers, node.parent)


def _last_leaf(node: Node) -> Node:
    while after := node.children or _after_unsendable(node):
        node = after[-1]
    return node


def _after_unsendable(node: Node) -> list[Node]:
    """The questions that came after an answer that can't be sent; they hang where it does."""
    if node.role != "assistant" or node.parent is None:
        return []
    return [other for other in node.parent.children if other.role == "user" and _followed(other) is node]


def _only_system(children: Sequence[StoredMessage]) -> str | None:
    """The system message that stands alone at a place; messages hang under it that hung there before."""
    if children and all(stored.message.role == "system" for stored in children):
        return children[-1].id
    return None
