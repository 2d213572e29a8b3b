"""What history keeps, finds, continues and forgets."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from edgecloud.app.chat_markdown import as_markdown
from edgecloud.app.chats import Turn, as_json
from edgecloud.app.history import History
from edgecloud.errors import NotFound, StorageError
from edgecloud.types import CacheInfo, ChatRequest, Message, Receipt, ToolCall

CANARY = "zanzibarquokka"


class Clock:
    """Seconds that pass only when a test says so; every look is a little later."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "edgecloud.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(path: Path, clock: Clock) -> Iterator[History]:
    history = History(path, clock=clock)
    yield history
    history.close()


def make_request(*turns: str, door: Any = "ask", **fields: Any) -> ChatRequest:
    """User and assistant texts in turn; one that begins with `system:` is the system's."""
    messages, role = [], "user"
    for text in turns:
        if text.startswith("system:"):
            messages.append(Message("system", text.removeprefix("system:")))
        else:
            messages.append(Message(role, text))
            role = "assistant" if role == "user" else "user"
    return ChatRequest(tuple(messages), door=door, **fields)


def make_receipt(id: str = "req-1", model: str = "smollm2") -> Receipt:
    return Receipt(id, "local", model, "", "auto", "only one", (), CacheInfo(), 3, 0, 2, 0.0, 0.1, 0.2, 10.0)


def answer(history: History, request: ChatRequest, text: str, **finish: Any) -> Turn:
    turn = history.begin(request)
    history.append(turn, 0, text)
    history.finish(
        turn, finish.pop("receipt", None), {0: "stop"}, {}, finish.pop("status", "complete"), **finish
    )
    return turn


def texts(history: History, chat_id: str) -> list[str]:
    return [message.content for message in history.messages(chat_id)]


def count(path: Path, table: str) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def files_with(path: Path, needle: str) -> list[str]:
    """Names of the database's files that hold the needle, in whatever case."""
    files = [file for file in path.parent.iterdir() if file.name.startswith(path.name)]
    # Not in this process: closing the file would drop the locks that SQLite holds on it.
    found = subprocess.run(["grep", "-lia", needle, *files], capture_output=True, text=True)
    return found.stdout.splitlines()


# ------------------------------------------------------------------------------------------- writing


def test_the_prompt_is_there_before_any_answer(history: History) -> None:
    turn = history.begin(make_request("why?"))

    chat = history.show(turn.chat_id)
    assert [(stored.message.content, stored.status) for stored in chat.messages] == [
        ("why?", "complete"),
        ("", "running"),
    ]


def test_a_running_answer_can_be_read_as_it_grows(history: History) -> None:
    turn = history.begin(make_request("why?"))
    history.append(turn, 0, "Be", reasoning="hm")
    history.append(turn, 0, "cause", reasoning="m")

    message = history.show(turn.chat_id).messages[-1].message
    assert (message.content, message.reasoning) == ("Because", "hmm")


def test_a_finished_answer_knows_how_it_came_about(history: History, path: Path) -> None:
    call = ToolCall("call-1", "weather", '{"city": "Oslo"}')
    turn = history.begin(make_request("weather?", model="auto"))
    history.append(turn, 0, "Let me see.", reasoning="a tool")
    history.finish(turn, make_receipt(), {0: "tool_calls"}, {0: [call]}, "complete")

    stored = history.show(turn.chat_id).messages[-1]
    assert stored.message == Message("assistant", "Let me see.", tool_calls=(call,), reasoning="a tool")
    assert (stored.status, stored.finish_reason, stored.receipt_id, stored.model) == (
        "complete",
        "tool_calls",
        "req-1",
        "smollm2",
    )
    assert count(path, "slices") == 0


def test_every_choice_is_an_answer_to_the_same_prompt(history: History) -> None:
    turn = history.begin(make_request("pick", n=2))
    history.append(turn, 0, "left")
    history.append(turn, 1, "right")
    history.finish(turn, None, {0: "stop", 1: "length"}, {}, "complete")

    prompt, *answers = history.show(turn.chat_id).messages
    assert [(a.message.content, a.finish_reason, a.parent_id) for a in answers] == [
        ("left", "stop", prompt.id),
        ("right", "length", prompt.id),
    ]
    assert texts(history, turn.chat_id) == ["pick", "left"]


def test_a_failure_keeps_the_partial_and_its_sentence(history: History) -> None:
    turn = answer(history, make_request("why?"), "Becau", status="failed", error="The pool is gone.")

    stored = history.show(turn.chat_id).messages[-1]
    assert (stored.message.content, stored.status, stored.error) == ("Becau", "failed", "The pool is gone.")


def test_a_prefilled_answer_begins_with_what_the_caller_wrote(history: History) -> None:
    turn = answer(history, make_request("count", "one,", continue_final=True), " two")

    assert texts(history, turn.chat_id) == ["count", "one, two"]
    turn = answer(history, make_request("count", "one,"), "two")
    assert texts(history, turn.chat_id) == ["count", "one,", "two"]


@pytest.mark.parametrize(("prompt", "kept"), [("Once upon", "Once upon"), ((1, 22, 333), "[1, 22, 333]")])
def test_a_raw_prompt_is_kept_too(history: History, prompt: Any, kept: str) -> None:
    turn = answer(history, ChatRequest(prompt=prompt), " a time")

    assert texts(history, turn.chat_id) == [kept, " a time"]


def test_text_that_is_no_unicode_does_not_stop_an_answer(history: History) -> None:
    turn = answer(history, make_request("half \ud83d"), "odd \udc80 \x00 end")

    assert texts(history, turn.chat_id) == ["half ?", "odd ? \x00 end"]


# ----------------------------------------------------------------------------------- chats and their trees


def test_ask_starts_a_chat_each_time_unless_it_continues_one(history: History) -> None:
    first = answer(history, make_request("hi"), "hello")
    second = answer(history, make_request("hi"), "hello")
    third = answer(history, make_request("hi", "hello", "more", chat_id=second.chat_id), "and more")

    assert first.chat_id != second.chat_id == third.chat_id == history.last_chat()
    assert texts(history, third.chat_id) == ["hi", "hello", "more", "and more"]
    assert history.show(third.chat_id).summary.num_messages == 4


def test_the_last_chat_is_not_an_agents(history: History) -> None:
    mine = answer(history, make_request("hi"), "hello")
    answer(history, make_request("do it", door="http"), "done")

    assert history.last_chat() == mine.chat_id


def test_an_empty_history_has_no_last_chat(history: History) -> None:
    assert history.last_chat() is None


@pytest.mark.parametrize(
    ("text", "status", "sent"),
    [
        ("", "failed", ["hi"]),
        ("half", "failed", ["hi"]),
        ("half", "interrupted", ["hi", "half"]),
        ("", "interrupted", ["hi"]),
    ],
)
def test_what_failed_or_is_empty_is_not_sent_again_and_its_question_is(
    history: History, text: str, status: str, sent: list[str]
) -> None:
    turn = answer(history, make_request("hi"), text, status=status, error="no")

    assert texts(history, turn.chat_id) == sent


def test_an_http_request_continues_the_chat_with_the_longest_known_prefix(history: History) -> None:
    one = answer(history, make_request("system:s", "hi", door="http"), "hello")
    two = answer(history, make_request("system:s", "hi", "hello", "more", door="http"), "sure")
    fork = answer(history, make_request("system:s", "hi", "hello", "else", door="http"), "well")

    assert one.chat_id == two.chat_id == fork.chat_id
    assert texts(history, one.chat_id) == ["s", "hi", "hello", "else", "well"]
    assert history.show(one.chat_id).summary.num_messages == 7


def test_regenerating_gives_the_same_prompt_another_answer(history: History) -> None:
    answer(history, make_request("hi", door="http"), "hello")
    again = answer(history, make_request("hi", door="http"), "hey")

    prompt, first, second = history.show(again.chat_id).messages
    assert first.parent_id == second.parent_id == prompt.id
    assert texts(history, again.chat_id) == ["hi", "hey"]


def test_a_shared_system_prompt_alone_does_not_join_conversations(history: History) -> None:
    one = answer(history, make_request("system:s", "hi", door="http"), "hello")
    two = answer(history, make_request("system:s", "bye", door="http"), "ciao")

    assert one.chat_id != two.chat_id


def test_tenants_and_doors_do_not_share_chats(history: History) -> None:
    turns = [
        answer(history, make_request("hi", door="http", tenant="a"), "hello"),
        answer(history, make_request("hi", door="http", tenant="b"), "hello"),
        answer(history, make_request("hi", door="http"), "hello"),
        answer(history, make_request("hi", door="api"), "hello"),
    ]

    assert len({turn.chat_id for turn in turns}) == 4


def test_a_named_parent_decides_between_equal_answers(history: History) -> None:
    request = make_request("hi")
    first = answer(history, request, "same")
    answer(history, make_request("hi", chat_id=first.chat_id), "same")
    named = make_request("hi", "same", "on", chat_id=first.chat_id, parent_id=first.message_ids[0])
    turn = answer(history, named, "end")

    path = history.show(turn.chat_id).path
    assert path[-1] == turn.message_ids[0]
    assert path[-3] == first.message_ids[0]


def test_an_agent_that_sends_its_whole_history_grows_it_linearly(history: History, path: Path) -> None:
    """100 turns of 2 kB each, sent again every time: 20 MB over the wire."""
    conversation: list[str] = ["system:" + "s" * 1000]
    for number in range(100):
        conversation.append(f"question {number} " + "q" * 1000)
        turn = answer(history, make_request(*conversation, door="http"), f"answer {number} " + "a" * 1000)
        conversation.append(f"answer {number} " + "a" * 1000)

    assert len(history.list()) == 1
    assert (count(path, "contents"), count(path, "messages")) == (201, 201)
    assert texts(history, turn.chat_id)[1:] == conversation[1:]
    history.remove([])  # empties the WAL, so that the file alone tells the size
    assert path.stat().st_size < 600_000


def test_a_tool_result_is_told_apart_by_its_call(history: History) -> None:
    def request(call_id: str) -> ChatRequest:
        result = Message("tool", "42", tool_call_id=call_id)
        return ChatRequest((Message("user", "hi"), result), door="http")

    answer(history, request("one"), "a")
    turn = answer(history, request("two"), "b")

    tools = [s.message for s in history.show(turn.chat_id).messages if s.message.role == "tool"]
    assert [message.tool_call_id for message in tools] == ["one", "two"]


# ----------------------------------------------------------------------------------------- dead owners


BEGIN_AND_DIE = """
import os, signal, sys
from pathlib import Path
from edgecloud.app.history import History
from edgecloud.types import ChatRequest, Message
history = History(Path(sys.argv[1]))
turn = history.begin(ChatRequest((Message("user", "why?"),), door="ask"))
history.append(turn, 0, "Because the sk", reasoning="hm")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_partial_of_a_killed_process_is_kept_and_marked(history: History, path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN_AND_DIE, str(path)])
    assert done.returncode == -signal.SIGKILL

    assert history.recover() == 1
    assert history.recover() == 0
    chat_id = history.last_chat()
    assert chat_id is not None
    stored = history.show(chat_id).messages[-1]
    assert (stored.message.content, stored.message.reasoning) == ("Because the sk", "hm")
    assert stored.status == "interrupted"
    assert history.show(chat_id).summary.status == "interrupted"


def test_the_answers_of_living_processes_are_left_alone(history: History, path: Path, clock: Clock) -> None:
    turn = history.begin(make_request("why?"))
    clock.now += 10_000

    assert History(path, clock=clock).recover() == 0
    assert history.show(turn.chat_id).messages[-1].status == "running"


def test_a_reused_process_id_is_told_by_its_silence(history: History, path: Path, clock: Clock) -> None:
    turn = history.begin(make_request("why?"))
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE messages SET owner_started = owner_started - 1000 WHERE status = 'running'"
        )
    clock.now += 10
    history.heartbeat(turn)
    clock.now += 10
    assert history.recover() == 0

    clock.now += 10
    assert history.recover() == 1


def test_an_answer_recovered_too_early_is_set_right_when_it_ends(history: History, path: Path) -> None:
    turn = history.begin(make_request("why?"))
    history.append(turn, 0, "Be")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE messages SET owner_pid = 999999999 WHERE status = 'running'")
    assert history.recover() == 1

    history.append(turn, 0, "cause")
    history.finish(turn, None, {0: "stop"}, {}, "complete")

    stored = history.show(turn.chat_id).messages[-1]
    assert (stored.message.content, stored.status, stored.error) == ("Because", "complete", None)
    assert count(path, "contents") == 2


# -------------------------------------------------------------------------------------------- finding


def test_the_list_is_newest_first_and_says_how_each_ended(history: History) -> None:
    answer(history, make_request("first question"), "yes")
    answer(
        history,
        make_request("system:be brief", "second\nquestion " + "long " * 50),
        "no",
        status="interrupted",
    )

    second, first = history.list()
    assert (first.title, first.status, first.num_messages) == ("first question", "complete", 2)
    assert second.status == "interrupted"
    assert second.title.startswith("second question long")
    assert len(second.title) <= 80
    assert history.list(limit=1, offset=1) == (first,)


def test_the_list_names_who_answered_and_not_who_was_asked(history: History) -> None:
    answer(history, make_request("hi", model="auto"), "hello", receipt=make_receipt(model="smollm2"))
    assert history.list()[0].model == "smollm2"

    history.begin(make_request("hi", model="auto"))
    assert history.list()[0].model == "auto"


def test_a_chat_is_named_by_the_beginning_of_its_id(history: History) -> None:
    chat_id = answer(history, make_request("hi"), "hello").chat_id

    assert history.resolve(chat_id) == chat_id
    assert history.resolve(chat_id[:12]) == chat_id
    assert history.resolve(chat_id.removeprefix("chat-")[:6]) == chat_id


def test_a_name_that_is_unknown_or_not_enough_is_a_sentence(history: History) -> None:
    for id in ("chat-aaaa1", "chat-aaaa2"):
        answer(history, make_request("hi", chat_id=id), "hello")

    with pytest.raises(NotFound, match="2 chats begin with 'aaaa'"):
        history.resolve("aaaa")
    with pytest.raises(NotFound, match="no chat 'zzzz'"):
        history.resolve("zzzz")
    with pytest.raises(NotFound, match="no chat"):
        history.show("chat-zz")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("sky", ["why is the sky blue?", "The sky scatters light."]),
        ("SCATTERS light", ["The sky scatters light."]),
        ("scatt", ["The sky scatters light."]),
        ("catters", ["The sky scatters light."]),
        ("cafe", ["Un café, s'il vous plaît"]),
        ("天空", ["为什么天空是蓝色的"]),
        ('"sky" OR NEAR(', []),
        ("100%", ["100% sure"]),
        ("%", ["100% sure"]),
        ("absent", []),
        ("   ", []),
    ],
)
@pytest.mark.parametrize("fts", [True, False])
def test_search(
    history: History, monkeypatch: pytest.MonkeyPatch, query: str, found: list[str], fts: bool
) -> None:
    answer(history, make_request("why is the sky blue?"), "The sky scatters light.")
    answer(history, make_request("Un café, s'il vous plaît"), "为什么天空是蓝色的")
    answer(history, make_request("certain?"), "100% sure")
    if not fts:
        if query in ("SCATTERS light", "cafe"):
            pytest.skip("order and accents need the full-text index")
        monkeypatch.setattr("edgecloud.app.history.searching.update_index", lambda _: False)

    assert sorted(hit.excerpt for hit in history.search(query)) == sorted(found)


def test_reading_waits_for_nobody_who_writes(
    path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgecloud.app.history.searching.PATIENCE_S", 0.01)
    turn = answer(history, make_request("why is it so?"), "because", receipt=make_receipt())
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert [message.message.content for message in history.show(turn.chat_id).messages] == [
        "why is it so?",
        "because",
    ]
    assert history.asked(turn.message_ids[0]) is not None
    assert [hit.chat_id for hit in history.search("because")] == [turn.chat_id]
    other.close()


def test_a_hit_names_its_chat_and_shows_the_words_around(history: History) -> None:
    text = "word " * 100 + "needle " + "word " * 100
    chat_id = answer(history, make_request("question"), text).chat_id

    (hit,) = history.search("needle")
    assert (hit.chat_id, hit.title, hit.role) == (chat_id, "question", "assistant")
    assert "needle" in hit.excerpt
    assert len(hit.excerpt) < 200


def test_a_letter_in_a_long_answer_is_found_at_once(history: History) -> None:
    answer(history, make_request("question"), "la do " * 200_000)  # hours, were its count squared

    (hit,) = history.search("d")
    assert hit.excerpt.startswith("la do la do")


def test_a_match_far_into_a_text_with_other_accents_is_shown(history: History) -> None:
    answer(history, make_request("question"), "mot " * 100 + "déjà vu " + "mot " * 100)

    (hit,) = history.search("deja")
    assert "déjà vu" in hit.excerpt
    assert hit.excerpt.startswith("…")
    assert hit.excerpt.endswith("…")


def test_what_is_written_after_a_search_is_found_by_the_next(history: History) -> None:
    answer(history, make_request("one"), "first")
    assert history.search("second") == ()
    answer(history, make_request("two"), "second")

    assert [hit.excerpt for hit in history.search("second")] == ["second"]


def test_the_receipt_of_an_answer_can_be_asked_for(history: History) -> None:
    turn = answer(history, make_request("hi"), "hello", receipt=make_receipt("req-77"))

    decision = history.decision("req-77")
    assert decision is not None
    assert (decision["model"], decision["cache"]["verdict"], decision["chat_id"]) == (
        "smollm2",
        "off",
        turn.chat_id,
    )
    assert history.decision("req-78") is None


def test_exports_hold_the_conversation(history: History) -> None:
    turn = history.begin(make_request("system:be brief", "why?"))
    history.append(turn, 0, "Because.\n", reasoning="think\nhard")
    history.finish(turn, make_receipt(), {0: "stop"}, {}, "interrupted")
    chat = history.show(turn.chat_id)

    assert as_markdown(chat).split("\n\n", 2)[2] == (
        "## system\n\nbe brief\n\n## user\n\nwhy?\n\n"
        "## assistant (smollm2, interrupted)\n\n> think\n> hard\n\nBecause.\n"
    )
    exported = json.loads(json.dumps(as_json(chat)))
    assert exported["schema_version"] == 1
    assert [m["message"]["content"] for m in exported["messages"]] == ["be brief", "why?", "Because.\n"]
    assert exported["path"] == list(chat.path)


# ----------------------------------------------------------------------------------------- forgetting


def fill_with_canary(history: History) -> Turn:
    answer(history, make_request("something else"), "that stays")
    for number in range(30):
        answer(history, make_request(f"filler {number}"), "filler " * 200)
    turn = history.begin(make_request(f"what is {CANARY}?"))
    for _ in range(20):
        history.append(turn, 0, f"{CANARY} " * 300, reasoning=CANARY)
    history.finish(turn, make_receipt(), {0: "stop"}, {}, "failed", error=f"{CANARY} broke it")
    assert history.search(CANARY)
    return turn


def test_removal_leaves_no_trace_in_any_file(history: History, path: Path) -> None:
    turn = fill_with_canary(history)
    assert files_with(path, CANARY) != []

    removal = history.remove([turn.chat_id])

    assert (removal.num_chats, removal.num_messages, removal.purged) == (1, 2, True)
    assert files_with(path, CANARY) == []
    assert history.search(CANARY) == ()
    assert history.search("stays") != ()
    assert history.decision("req-1") is None


def hold_a_read_transaction(path: Path, holding: Event, release: Event, seen: Queue[int]) -> None:
    connection = sqlite3.connect(path)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM messages").fetchone()
    holding.set()
    release.wait()
    seen.put(connection.execute("SELECT count(*) FROM messages").fetchone()[0])
    connection.close()


def test_a_purge_that_a_reader_blocks_is_told_and_made_up_for(history: History, path: Path) -> None:
    turn = fill_with_canary(history)
    context = get_context("spawn")
    holding, release, seen = context.Event(), context.Event(), context.Queue()
    reader = context.Process(target=hold_a_read_transaction, args=(path, holding, release, seen))
    reader.start()
    holding.wait()

    removal = history.remove([turn.chat_id])
    assert not removal.purged
    assert files_with(path, CANARY) != []
    history.recover()
    assert files_with(path, CANARY) != []

    release.set()
    reader.join()
    assert seen.get() == 64
    history.recover()
    assert files_with(path, CANARY) == []


def test_what_another_chat_holds_too_stays_until_that_goes(history: History, path: Path) -> None:
    one = answer(history, make_request(CANARY), "shared answer")
    two = answer(history, make_request(CANARY), "shared answer")

    history.remove([one.chat_id])
    assert texts(history, two.chat_id) == [CANARY, "shared answer"]
    history.remove([two.chat_id])
    assert files_with(path, CANARY) == []
    assert count(path, "contents") == 0


def test_an_answer_removed_while_it_is_written_stays_removed(history: History, path: Path) -> None:
    turn = history.begin(make_request(CANARY))
    history.append(turn, 0, CANARY)
    history.remove([turn.chat_id])

    history.append(turn, 0, CANARY)
    history.heartbeat(turn)
    history.finish(turn, make_receipt(), {0: "stop"}, {}, "complete")

    assert history.list() == ()
    assert files_with(path, CANARY) == []


def test_a_removed_chat_does_not_come_back_with_the_next_prompt(history: History, path: Path) -> None:
    turn = answer(history, make_request("a secret"), "kept for you")
    kept = history.show(turn.chat_id).path[-1]
    going_on = make_request("a secret", "kept for you", "and now?", chat_id=turn.chat_id, parent_id=kept)
    history.remove([turn.chat_id])

    begun = history.begin(going_on)

    assert texts(history, begun.chat_id) == ["and now?"]
    assert files_with(path, "secret") == []


def test_a_chat_that_was_never_kept_is_written_whole(history: History) -> None:
    going_on = make_request("the disk was full", "an answer", "and now?", chat_id="chat-0123")

    begun = history.begin(going_on)

    assert texts(history, begun.chat_id) == ["the disk was full", "an answer", "and now?"]


def test_everything_can_be_removed(history: History, path: Path) -> None:
    fill_with_canary(history)

    assert history.remove([chat.id for chat in history.list(-1)]).num_chats == 32
    assert [count(path, table) for table in ("chats", "messages", "contents", "slices", "receipts")] == [
        0
    ] * 5


def test_expired_is_what_was_not_used_lately_and_is_not_running(history: History, clock: Clock) -> None:
    old = answer(history, make_request("old"), "yes")
    history.begin(make_request("old but running"))
    clock.now += 8 * 86400
    answer(history, make_request("recent"), "yes")

    assert history.expired(0) == ()
    assert history.expired(7) == (old.chat_id,)


# -------------------------------------------------------------------------------------------- trouble


def answer_twenty(path: Path) -> None:
    history = History(path)
    history.recover()
    for number in range(20):
        answer(history, make_request(f"{os.getpid()} {number}"), "fine")
    history.close()


def test_eight_processes_write_one_history_at_once(path: Path) -> None:
    context = get_context("spawn")
    processes = [context.Process(target=answer_twenty, args=(path,)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0] * 8
    history = History(path)
    assert len(history.list(limit=1000)) == 160
    assert {chat.status for chat in history.list(limit=1000)} == {"complete"}


def test_a_history_that_is_damaged_while_open_is_one_sentence(history: History, path: Path) -> None:
    turn = history.begin(make_request("why?"))
    other = sqlite3.connect(path)
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    path.write_bytes(b"\x00" * path.stat().st_size)

    with pytest.raises(StorageError, match=r"edgecloud\.db is damaged"):
        history.append(turn, 0, "text")


@pytest.mark.parametrize("name", ["", "chat-", "chat", "1", "chat-1", "abc"])
def test_what_could_be_anybodys_beginning_names_no_chat(history: History, name: str) -> None:
    history.begin(make_request("the only chat there is"))
    with pytest.raises(NotFound):
        history.resolve(name)
