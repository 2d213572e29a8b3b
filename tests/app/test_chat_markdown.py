"""A chat as Markdown and back: every word, every branch, every seam."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.app.chat_markdown import as_markdown, as_markdown_file, from_markdown
from edgecloud.app.chats import Chat, ChatSummary, Seam, StoredMessage
from edgecloud.errors import BadRequest
from edgecloud.types import Message, ToolCall

SUMMARY = ChatSummary("chat-1", "Eggs", "chat", "smollm2", 1_750_000_000.0, 0.0, 1, "complete")
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def stored(number: int, parent: int | None, role: str, text: str, **fields: Any) -> StoredMessage:
    """A message; fields of `Message` and of `StoredMessage` alike."""
    said = {name: fields.pop(name) for name in ("reasoning", "images", "tool_calls") if name in fields}
    return StoredMessage(
        id=f"m{number}",
        parent_id=None if parent is None else f"m{parent}",
        message=Message(role, text, **said),
        **{"status": "complete", "created": 1_750_000_000.0 + number, **fields},
    )


def chat_of(*messages: StoredMessage, path: tuple[int, ...]) -> Chat:
    summary = ChatSummary(
        "chat-1", "Eggs", "chat", "smollm2", 1_750_000_000.0, 0.0, len(messages), "complete"
    )
    return Chat(summary, messages, tuple(f"m{number}" for number in path))


SEAM = Seam(7, "gpu-box fell over. smollm2 goes on from here.")
BRANCHED = chat_of(
    stored(0, None, "user", "How long does an egg boil?"),
    stored(1, 0, "assistant", "An hour.", model="smollm2"),
    stored(2, 0, "assistant", "Seven minutes.", model="gpu-box", seams=(SEAM,)),
    stored(3, 2, "user", "And a hard one?"),
    stored(4, 2, "user", "And a soft one?"),
    stored(5, 4, "assistant", "Four.", model="smollm2", status="interrupted"),
    path=(0, 2, 4, 5),
)


def test_a_file_shows_the_conversation_first_and_then_what_stands_beside_it() -> None:
    lines = [line for line in as_markdown_file(BRANCHED).splitlines() if not line.startswith("<!--")]

    assert [line for line in lines if line.startswith("#")] == [
        "# Eggs",
        "## user",
        "## assistant (gpu-box)",
        "## user",
        "## assistant (smollm2, interrupted)",
        "# Other branches",
        "## assistant (smollm2, beside the answer to “How long does an egg boil?”)",
        "## user (beside “And a soft one?”)",
    ]


@pytest.mark.parametrize("write", [as_markdown, as_markdown_file])
def test_a_seam_stands_where_it_is(write: Any) -> None:
    assert "Seven m\n\n> ⚡ gpu-box fell over. smollm2 goes on from here.\n\ninutes." in write(BRANCHED)


def test_what_is_read_has_no_comments_and_no_branches() -> None:
    text = as_markdown(BRANCHED)

    assert "<!--" not in text
    assert "An hour." not in text


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.sampled_from(
    [
        "```\n## user\n",
        "\n\n",
        "> quoted\n\nrest",
        "## assistant (x)\n",
        "# Other branches",
        "a\r\nb",
        "-->",
        "⚡",
    ]
)


@st.composite
def chats(draw: st.DrawFn) -> Chat:
    messages: list[StoredMessage] = []
    for number in range(draw(st.integers(1, 6))):
        parent = draw(st.none() | st.integers(0, number - 1)) if number else None
        text = draw(TEXTS)
        fields: dict[str, Any] = {}
        if draw(st.booleans()):
            fields = {
                "reasoning": draw(st.none() | TEXTS.filter(bool)),
                "images": tuple(draw(st.lists(st.just(PIXEL), max_size=2))),
                "tool_calls": tuple(draw(st.lists(st.builds(ToolCall, TEXTS, TEXTS, TEXTS), max_size=2))),
                "status": draw(st.sampled_from(["complete", "interrupted", "failed"])),
                "error": draw(st.none() | TEXTS.filter(bool)),
                "finish_reason": draw(st.sampled_from([None, "stop", "length"])),
                "seams": tuple(
                    Seam(position, draw(TEXTS))
                    for position in sorted(draw(st.sets(st.integers(0, len(text)), max_size=3)))
                ),
            }
        messages.append(
            stored(
                number,
                parent,
                draw(st.sampled_from(["user", "assistant", "system", "judge"])),
                text,
                **fields,
            )
        )
    by_id = {message.id: message for message in messages}
    path, last = [], messages[draw(st.integers(0, len(messages) - 1))]
    while last is not None:
        path.append(last.id)
        last = by_id.get(last.parent_id or "")  # type: ignore[assignment]
    summary = ChatSummary(
        "chat-1", "Eggs", "chat", "smollm2", 1_750_000_000.0, 0.0, len(messages), "complete"
    )
    return Chat(summary, tuple(messages), tuple(reversed(path)), draw(st.booleans()))


@given(chats())
def test_what_is_written_is_read_back(chat: Chat) -> None:
    # cases: TE14
    found = from_markdown(as_markdown_file(chat), "chat.md")

    assert found.messages == chat.messages
    assert (found.title, found.head, found.private) == ("Eggs", chat.path[-1], chat.private)


def test_a_chat_in_which_its_own_file_was_attached_is_read_back() -> None:
    inner = as_markdown_file(BRANCHED)
    chat = chat_of(stored(0, None, "user", inner), stored(1, 0, "assistant", inner), path=(0, 1))

    assert from_markdown(as_markdown_file(chat), "chat.md").messages == chat.messages


def test_a_file_with_the_line_ends_of_windows_is_read() -> None:
    text = as_markdown_file(BRANCHED).replace("\n", "\r\n")

    assert from_markdown(text, "chat.md").messages == BRANCHED.messages


def test_words_that_somebody_changed_in_the_file_are_taken_as_they_are() -> None:
    text = (
        as_markdown_file(BRANCHED).replace("> ⚡ gpu-box fell over. ", "").replace("An hour.", "Two hours.")
    )
    messages = from_markdown(text, "chat.md").messages

    assert messages[1].message.content == "Two hours."
    assert messages[2].message.content == "Seven m\n\nsmollm2 goes on from here.\n\ninutes."


def test_comments_that_make_no_sense_any_more_are_a_sentence() -> None:
    with pytest.raises(BadRequest, match=r"chat\.md"):
        from_markdown(as_markdown_file(BRANCHED).replace('"parent"', '"patent"'), "chat.md")


def test_a_file_without_comments_is_read_by_its_headings() -> None:
    text = "# Eggs\n\n## user\n\nhow\u2028long?\n\n## assistant\n\n> hm\n\nSeven.\n"
    found = from_markdown(text, "eggs.md")

    assert [(m.message.role, m.message.content, m.message.reasoning) for m in found.messages] == [
        ("user", "how\u2028long?", None),
        ("assistant", "Seven.", "hm"),
    ]
    assert [m.parent_id for m in found.messages] == [None, "m0"]
