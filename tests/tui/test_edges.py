"""Where the chat meets the machine: the clipboard, the draft, the router's word, files."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from edgecloud.app.chat_files import default_name, import_chat
from edgecloud.app.tui.clipboard import copy, osc52
from edgecloud.app.tui.draft import DraftFile
from edgecloud.app.tui.foresight import Foresight
from edgecloud.app.tui.render.lines import lay_out
from edgecloud.app.tui.screens.dialogs import hanging
from edgecloud.app.tui.session import Session
from edgecloud.app.tui.state import frame
from edgecloud.app.tui.state.keys import Keys
from edgecloud.app.tui.state.preferences import Preferences
from edgecloud.app.tui.state.preview import Preview, of_story
from edgecloud.app.tui.state.waiting import HERE
from edgecloud.errors import BadRequest, NoPermittedRoute
from edgecloud.router.decision import Candidate, Decision, Estimate
from edgecloud.router.facts import Spread
from edgecloud.settings import Settings
from edgecloud.wire.native import dump_record

from .chatting import make_gateway, make_store

# --------------------------------------------------------------------------------------------- clipboard


def test_without_a_clipboard_tool_the_terminal_is_asked() -> None:
    # cases: TE13
    written: list[str] = []

    sentence = copy("a\nb", written.append, environment={})

    assert written == ["\x1b]52;c;" + base64.b64encode(b"a\nb").decode() + "\a"]
    assert sentence.startswith("Gave 2 lines to the terminal to copy; if it did not")


def test_inside_of_tmux_the_sequence_is_wrapped() -> None:
    # cases: TE13
    assert osc52("x", in_tmux=True) == "\x1bPtmux;\x1b\x1b]52;c;eA==\a\x1b\\"


def test_a_tool_that_fails_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "xclip"
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    written: list[str] = []

    copy("x", written.append, environment={"DISPLAY": ":0"})

    assert len(written) == 1


def test_a_tool_that_works_is_used_but_not_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, got = tmp_path / "wl-copy", tmp_path / "got"
    tool.write_text(f"#!/bin/sh\ncat > {got}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    written: list[str] = []

    assert copy("日本", written.append, environment={"WAYLAND_DISPLAY": "w"}) == "Copied 2 characters."
    assert got.read_text() == "日本"
    copy("x", written.append, environment={"WAYLAND_DISPLAY": "w", "SSH_TTY": "/dev/pts/1"})
    assert len(written) == 1


def test_more_than_a_terminal_takes_is_not_claimed_to_be_copied() -> None:
    written: list[str] = []

    assert "/export" in copy("x" * 200_000, written.append, environment={})
    assert written == []


# ------------------------------------------------------------------------------------------------- draft


def test_a_draft_is_kept_for_its_owner_and_taken_once(tmp_path: Path) -> None:
    draft = DraftFile(tmp_path / "folder" / "draft.md")
    draft.keep("half a thought")

    assert (tmp_path / "folder" / "draft.md").stat().st_mode & 0o777 == 0o600
    assert (draft.take(), draft.take()) == ("half a thought", "")


def test_no_draft_is_no_file_and_no_folder_is_no_failure(tmp_path: Path) -> None:
    draft = DraftFile(tmp_path / "draft.md")
    draft.keep("x")
    draft.keep("  \n")
    assert not (tmp_path / "draft.md").exists()

    (tmp_path / "file").write_text("")
    DraftFile(tmp_path / "file" / "draft.md").keep("x")


# ---------------------------------------------------------------------------------------------- the router

CANDIDATE = Candidate(
    "gpu-box",
    local=False,
    p_ok=Estimate(0.8, 0.7, 0.9, "prior"),
    gain=0.2,
    cost=0.004,
    worst_cost=0.01,
    first_token_s=Spread(0.2, 0.4),
    total_s=Spread(0.9, 2.0),
    switch_cost=0.0,
    utility=1.0,
)
DECISION = Decision("req-1", 0.0, "balanced", (CANDIDATE,), "the better answer")


def test_the_model_of_this_machine_is_called_alike_whether_the_router_or_nobody_chose_it() -> None:
    chosen = Decision("req-1", 0.0, "balanced", (replace(CANDIDATE, engine="local", local=True),), "cheaper")
    story = {"decision": dump_record(chosen), "sentences": []}

    assert of_story(story, 100, "smollm2").where == "smollm2 on this machine"
    assert of_story({**story, "decision": dump_record(DECISION)}, 100, "smollm2").where == "gpu-box on a pool"


def test_what_the_router_would_do_is_one_line() -> None:
    told = of_story({"decision": dump_record(DECISION), "sentences": []}, 100)

    assert told.line() == "gpu-box on a pool · about 900 ms · $0.004 · about 100 tokens · the better answer"
    assert not told.is_local


def test_a_narrow_line_leaves_out_the_reason_before_the_price() -> None:
    told = of_story({"decision": dump_record(DECISION), "sentences": []}, 100)

    assert told.line(66) == "gpu-box on a pool · about 900 ms · $0.004 · about 100 tokens"


def test_a_text_to_read_hangs_under_its_names_and_numbers() -> None:
    text = "    because  a reason that is long\n1. gpu-box: right with 73%\nAnd prose that is long"
    rows, _ = lay_out(hanging(text), 22)

    assert [row.prefix.plain + row.content.plain for row in rows] == [
        "    because  a reason",
        "             that is",
        "             long",
        "1. gpu-box: right with",
        "   73%",
        "And prose that is long",
    ]


def test_a_model_that_is_named_is_where_it_would_go() -> None:
    told = of_story({"decision": None, "model": "smollm2", "local": True, "sentences": []}, 100)

    assert told.line() == "smollm2 on this machine · free · about 100 tokens"
    assert told.is_local


async def test_a_word_of_the_router_that_makes_no_sense_costs_nobody_the_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = make_gateway(tmp_path)

    async def explain(request: object) -> dict[str, object]:
        return {"decision": dump_record(replace(DECISION, candidates=()))}

    monkeypatch.setattr(gateway, "explain", explain)
    session, foresight = Session(gateway, make_store(tmp_path)), Foresight(gateway)
    before = foresight.preview(session, HERE, "hi")
    await foresight.ask(session, HERE, "hi")
    assert foresight.preview(session, HERE, "hi") == before
    await gateway.aclose()


async def test_a_refusal_is_foreseen_and_forgotten_when_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = make_gateway(tmp_path)

    async def refuse(request: object) -> None:
        raise NoPermittedRoute("Nobody may answer this: it is private.")

    monkeypatch.setattr(gateway, "explain", refuse)
    session, foresight = Session(gateway, make_store(tmp_path)), Foresight(gateway)
    await foresight.ask(session, HERE, "hi")
    assert foresight.preview(session, HERE, "hi").line() == "Nobody may answer this: it is private."

    foresight.forget()
    assert "private" not in foresight.preview(session, HERE, "hi").line()
    await gateway.aclose()


@pytest.mark.parametrize(
    ("chosen", "settings", "turn", "words"),
    [
        (Preferences(private=True), Settings(offline=True), "big", "private: this machine only"),
        (Preferences(), Settings(offline=True), "big", "offline: this machine only"),
        (Preferences(), Settings(), "big", "this turn: big"),
        (Preferences(), Settings(), "", "this machine"),
    ],
)
def test_the_frame_says_the_strongest_thing_that_holds(
    chosen: Preferences, settings: Settings, turn: str, words: str
) -> None:
    would = Preview("smollm2", True, 1)

    assert frame.frame(settings, chosen, would, turn=turn, is_editing=False) == words
    assert frame.frame(settings, chosen, would, turn=turn, is_editing=True) == "edit"


def test_the_queue_says_what_can_be_done_about_it() -> None:
    assert frame.queue([], Keys(), is_running=False) == ""
    assert frame.queue(["one"], Keys(), is_running=True) == "1 waits · ↑ takes back: one"
    assert frame.queue(["one", "two"], Keys(), is_running=False) == "2 wait · ↑ takes back, Enter sends: two"


# ------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "[]"),
        ("a.json", "{"),
        ("a.json", '{"schema_version": 1, "messages": [{"id": 1}], "path": [], "summary": {"title": ""}}'),
        ("a.json", '{"schema_version": 9, "messages": [], "path": []}'),
        ("a.md", "just words"),
    ],
)
def test_a_file_that_is_no_chat_is_refused_in_a_sentence(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(BadRequest, match=name):
        import_chat(str(tmp_path / name))


def test_a_folder_and_nothing_are_refused_too(tmp_path: Path) -> None:
    for name in (tmp_path, tmp_path / "no.json"):
        with pytest.raises(BadRequest):
            import_chat(str(name))


def test_a_file_is_named_by_the_first_words(tmp_path: Path) -> None:
    from .state.test_conversation import chat

    assert default_name(chat(path=())) == "title.md"
