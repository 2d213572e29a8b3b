"""Chats kept in order: names, notes, what was read, branches, copies."""

from __future__ import annotations

import json
import resource
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from edgecloud.app.chat_files import export_chat, import_chat
from edgecloud.app.chat_markdown import PRIVATE_LINE
from edgecloud.app.chats import Seam, StoredMessage
from edgecloud.app.history import History
from edgecloud.app.pins import unpinned
from edgecloud.app.text_files import write_private
from edgecloud.errors import BadRequest, NotFound
from edgecloud.router.facts import Privacy, PrivacyReason
from edgecloud.router.ledger import Ledger
from edgecloud.router.privacy import ASKED
from edgecloud.types import ChatRequest, Message, TextDelta
from edgecloud.wire.native import dump_record


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path))
    return History(tmp_path / "edgecloud.db", clock=Clock())


def asked(history: History, text: str = "why", answer: str = "so", **fields: str) -> str:
    """A chat with one question and one answer; its id."""
    turn = history.begin(ChatRequest(messages=(Message("user", text),), door="chat", **fields))  # type: ignore[arg-type]
    history.append(turn, 0, TextDelta(answer).text)
    history.finish(turn, None, {0: "stop"}, {}, "complete")
    return turn.chat_id


def test_a_chat_is_renamed_on_one_line(history: History) -> None:
    chat_id = asked(history)

    history.rename(chat_id, "  a better\n title ")

    assert history.show(chat_id).summary.title == "a better title"
    with pytest.raises(BadRequest):
        history.rename(chat_id, " \n ")
    with pytest.raises(NotFound):
        history.rename("chat-0", "x")


def test_a_chat_asked_privately_by_any_door_is_pinned_and_its_other_notes_stay(history: History) -> None:
    chat_id = asked(history)
    assert not history.show(chat_id).private
    history.set_notes(chat_id, {"system": "be brief"})

    again = ChatRequest(messages=(Message("user", "why"),), chat_id=chat_id, private=True)
    history.finish(history.begin(again), None, {0: "stop"}, {}, "complete")

    assert history.show(chat_id).private
    assert history.notes(chat_id) == {"system": "be brief", "private": True}
    history.set_notes(chat_id, {"system": "be brief"})
    assert not history.show(chat_id).private, "the chat's own switch undoes it"


def test_what_did_not_fit_on_the_disk_leaves_no_half_a_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(BadRequest, match="File too large"):
            write_private(tmp_path / "chat.json", "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    write_private(tmp_path / "chat.json", "x" * 1000)


def test_a_file_in_the_home_of_no_user_is_none() -> None:
    with pytest.raises(BadRequest, match=r"~nouser/chat\.md cannot be read: No such file"):
        import_chat("~nouser/chat.md")


@pytest.mark.parametrize("suffix", ["json", "md"])
def test_the_pin_of_a_chat_goes_with_its_file(history: History, tmp_path: Path, suffix: str) -> None:
    for private in (False, True):
        chat = history.show(asked(history, text=PRIVATE_LINE))
        path = export_chat(replace(chat, private=private), str(tmp_path / f"{private}.{suffix}"))
        found = import_chat(str(path))

        assert found.private is private, "what was said in the chat is not its head"
        copy = history.insert(found.title, found.messages, found.head, private=found.private)
        assert history.show(copy).private is private


@pytest.mark.parametrize(
    ("found", "private"), [(PrivacyReason("path", "it holds a file"), True), (ASKED, False)]
)
def test_what_was_found_in_a_chat_binds_its_copy_and_a_wish_that_was_taken_back_does_not(
    history: History, tmp_path: Path, found: PrivacyReason, private: bool
) -> None:
    chat_id = asked(history)
    with closing(Ledger(tmp_path / "edgecloud.db")) as ledger:
        ledger.bind(chat_id, dump_record(Privacy(True, (found,))))

    path = export_chat(history.show(chat_id), str(tmp_path / "chat.json"))

    assert import_chat(str(path)).private is private
    assert ("stays on this machine" in unpinned(chat_id)) is private
    assert ("may leave this machine again" in unpinned(chat_id)) is not private


def test_the_seams_of_an_answer_go_with_its_file(history: History, tmp_path: Path) -> None:
    turn = history.begin(ChatRequest(messages=(Message("user", "why"),), door="chat"))
    history.finish(turn, None, {}, {}, "complete", seams=[Seam(3, "small goes on from here.")])
    path = export_chat(history.show(turn.chat_id), str(tmp_path / "chat.json"))

    assert import_chat(str(path)).messages[-1].seams == (Seam(3, "small goes on from here."),)


def test_a_file_that_does_not_say_whether_it_is_pinned_is_not(history: History, tmp_path: Path) -> None:
    path = export_chat(history.show(asked(history)), str(tmp_path / "old.json"))
    told = json.loads(path.read_text())
    del told["private"]
    path.write_text(json.dumps(told))

    assert not import_chat(str(path)).private


def test_notes_are_kept_with_the_chat_and_go_with_it(history: History) -> None:
    chat_id = asked(history)
    assert history.notes(chat_id) == {}

    history.set_notes(chat_id, {"system": "be brief"})
    history.mark_read(chat_id)
    assert history.notes(chat_id) == {"system": "be brief"}

    history.remove([chat_id])
    assert history.notes(chat_id) == {}
    history.set_notes(chat_id, {"system": "x"})
    assert history.notes(chat_id) == {}, "a chat that is gone takes no notes"


def test_only_what_was_read_once_can_be_unread(history: History) -> None:
    read, never = asked(history, "one"), asked(history, "two")
    assert history.unread() == frozenset()

    history.mark_read(read)
    assert history.unread() == frozenset()
    asked(history, "more", chat_id=read)
    asked(history, "more", chat_id=never)

    assert history.unread() == {read}


def test_the_branch_that_was_shown_last_is_opened_next(history: History) -> None:
    chat_id = asked(history, "why", "one")
    first = history.show(chat_id).path[-1]
    asked(history, "why", "two", chat_id=chat_id)
    assert history.show(chat_id).conversation[-1].message.content == "two"

    history.show_branch(chat_id, first)
    history.show_branch(chat_id, "msg-of-another-chat")

    assert history.show(chat_id).conversation[-1].message.content == "one"


def test_prompts_come_back_oldest_first_and_once(history: History) -> None:
    for text in ("one", "two", "one"):
        asked(history, text)

    assert history.prompts() == ("two", "one")


def test_a_copy_has_the_same_tree_under_other_ids(history: History) -> None:
    chat_id = asked(history, "why", "one")
    asked(history, "why", "two", chat_id=chat_id)
    original = history.show(chat_id)

    copy = history.show(history.insert("a copy", original.messages, original.path[-1]))

    assert [stored.message for stored in copy.messages] == [stored.message for stored in original.messages]
    assert len(copy.path) == len(original.path)
    assert not {stored.id for stored in copy.messages} & {stored.id for stored in original.messages}
    history.remove([chat_id])
    assert [stored.message.content for stored in history.show(copy.summary.id).messages] == [
        "why",
        "one",
        "two",
    ]


def test_a_message_before_its_parent_is_refused_and_nothing_is_written(history: History) -> None:
    orphan = StoredMessage("a", "b", Message("user", "x"), status="complete", created=0.0)

    with pytest.raises(BadRequest):
        history.insert("broken", [orphan], None)

    assert history.list() == ()


def test_a_running_answer_is_copied_as_interrupted(history: History) -> None:
    turn = history.begin(ChatRequest(messages=(Message("user", "why"),), door="chat"))
    history.append(turn, 0, "half")
    original = history.show(turn.chat_id)

    copy = history.show(history.insert("a copy", original.messages, original.path[-1]))

    assert (copy.messages[-1].message.content, copy.messages[-1].status) == ("half", "interrupted")
