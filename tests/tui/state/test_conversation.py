"""A chat as a tree: branches, what is sent, and how it meets what is stored."""

from __future__ import annotations

from edgecloud.app.chats import Chat, ChatSummary, StoredMessage
from edgecloud.app.tui.state.conversation import Conversation
from edgecloud.types import Message


def stored(id: str, parent: str | None, role: str, text: str, **fields: object) -> StoredMessage:
    return StoredMessage(id, parent, Message(role, text), status="complete", created=0.0, **fields)  # type: ignore[arg-type]


def chat(*messages: StoredMessage, path: tuple[str, ...]) -> Chat:
    summary = ChatSummary("chat-1", "title", "chat", "m", 0.0, 0.0, len(messages), "complete")
    return Chat(summary, messages, path)


def texts(conversation: Conversation) -> list[str]:
    return [node.message.content for node in conversation.path]


def test_a_stored_chat_opens_on_its_branch_without_the_system_prompt() -> None:
    conversation = Conversation.of(
        chat(
            stored("s", None, "system", "be brief"),
            stored("q", "s", "user", "why"),
            stored("a1", "q", "assistant", "one"),
            stored("a2", "q", "assistant", "two"),
            path=("s", "q", "a2"),
        ),
        {},
    )

    assert texts(conversation) == ["why", "two"]
    assert conversation.place(conversation.path[1]) == (2, 2)


def test_stepping_shows_what_last_came_after_the_other_branch() -> None:
    conversation = Conversation()
    question = conversation.add(Message("user", "q"), None)
    first = conversation.add(Message("assistant", "a1"), question)
    conversation.add(Message("user", "q2"), first)
    second = conversation.add(Message("assistant", "a2"), question)

    assert conversation.step(second, 1) is first
    assert texts(conversation) == ["q", "a1", "q2"]
    assert conversation.step(question, 1) is None


def test_what_failed_or_says_nothing_is_not_sent_again() -> None:
    conversation = Conversation()
    question = conversation.add(Message("user", "q"), None)
    failed = conversation.add(Message("assistant", "half"), question, status="failed")
    after = conversation.add(Message("user", "again"), failed)
    empty = conversation.add(Message("assistant", ""), after)

    assert [message.content for message in conversation.messages(empty)] == ["q", "again"]


def test_an_interrupted_answer_is_sent_as_far_as_it_came() -> None:
    conversation = Conversation()
    question = conversation.add(Message("user", "q"), None)
    half = conversation.add(Message("assistant", "half"), question, status="interrupted")

    assert [message.content for message in conversation.messages(half)] == ["q", "half"]


def test_messages_learn_the_ids_of_the_history() -> None:
    conversation = Conversation()
    question = conversation.add(Message("user", "q"), None)
    conversation.add(Message("assistant", "a1"), question)
    second = conversation.add(Message("assistant", "a2"), question)

    conversation.bind(
        chat(
            stored("s", None, "system", "be brief"),
            stored("q", "s", "user", "q"),
            stored("x", "q", "assistant", "a1"),
            stored("y", "q", "assistant", "a2"),
            path=(),
        )
    )

    assert (question.id, second.id) == ("q", "y")


def test_two_answers_never_get_one_id() -> None:
    conversation = Conversation()
    question = conversation.add(Message("user", "q"), None)
    first = conversation.add(Message("assistant", "a"), question)
    kept = chat(stored("q", None, "user", "q"), stored("x", "q", "assistant", "a"), path=())
    conversation.bind(kept)
    second = conversation.add(Message("assistant", "a"), question)
    conversation.bind(kept)

    assert (first.id, second.id) == ("x", None)
