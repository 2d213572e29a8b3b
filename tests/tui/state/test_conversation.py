"""A chat as a tree: branches, what is sent, and how it meets what is stored."""

from __future__ import annotations

from edgecloud.app.chats import Chat, ChatSummary, StoredMessage
from edgecloud.app.tui.state.conversation import Conversation
from edgecloud.types import Message

from .test_receipt import make_receipt


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
        ),
        {},
    )

    assert (question.id, second.id) == ("q", "y")


def test_two_answers_never_get_one_id() -> None:
    conversation = Conversation()
    question = conversation.add(Message("user", "q"), None)
    first = conversation.add(Message("assistant", "a"), question)
    kept = chat(stored("q", None, "user", "q"), stored("x", "q", "assistant", "a"), path=())
    conversation.bind(kept, {})
    second = conversation.add(Message("assistant", "a"), question)
    conversation.bind(kept, {})

    assert (first.id, second.id) == ("x", None)


def test_a_question_after_an_answer_that_says_nothing_follows_it() -> None:
    conversation = Conversation.of(
        chat(
            stored("q", None, "user", "one"),
            stored("a", "q", "assistant", ""),
            stored("q2", "q", "user", "two"),
            stored("a2", "q2", "assistant", "answer"),
            path=("q", "q2", "a2"),
        ),
        {},
    )

    assert texts(conversation) == ["one", "", "two", "answer"]
    assert {conversation.place(node) for node in conversation.path} == {(1, 1)}
    assert [message.content for message in conversation.messages(conversation.head)] == [
        "one",
        "two",
        "answer",
    ]


def test_who_leaves_an_answer_that_says_nothing_comes_back_to_what_followed_it() -> None:
    conversation = Conversation()
    question = conversation.add(Message("user", "one"), None)
    stopped = conversation.add(Message("assistant", ""), question, status="interrupted")
    conversation.add(Message("user", "two"), question)
    again = conversation.add(Message("assistant", "a"), question)

    assert conversation.place(again) == (2, 2)
    assert conversation.step(again, -1) is stopped
    assert texts(conversation) == ["one", "", "two"]


def test_a_stopped_answer_learns_its_receipt_from_the_history() -> None:
    conversation = Conversation()
    question = conversation.add(Message("user", "q"), None)
    half = conversation.add(Message("assistant", "half"), question, status="interrupted")
    receipt = make_receipt()

    conversation.bind(
        chat(
            stored("q", None, "user", "q"),
            stored("a", "q", "assistant", "half", receipt_id="req-1"),
            path=("q", "a"),
        ),
        {"req-1": receipt},
    )

    assert (half.receipt_id, half.receipt) == ("req-1", receipt)
