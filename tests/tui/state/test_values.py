"""The small rules: windows, typing, prompts, preferences, commands, previews."""

from __future__ import annotations

import pytest

from edgecloud.app.tui.state import preview
from edgecloud.app.tui.state.commands import BY_NAME, COMMANDS, matching, parse, unescaped
from edgecloud.app.tui.state.preferences import Preferences
from edgecloud.app.tui.state.preview import refuses_images
from edgecloud.app.tui.state.prompt_history import PromptHistory
from edgecloud.app.tui.state.typing import Chips, enter_sends
from edgecloud.app.tui.state.window import LIMIT, TAIL, Window
from edgecloud.errors import BadRequest
from edgecloud.types import ModelCard, Sampling

# ---------------------------------------------------------------------------------------------- windows


def test_a_long_chat_opens_at_its_end() -> None:
    window = Window.tail(1000)

    assert (window.end, window.end - window.start) == (1000, TAIL)
    assert window.earlier().start < window.start
    assert Window.tail(3) == Window(0, 3)


def test_who_follows_the_end_has_a_bounded_list_and_who_reads_keeps_it() -> None:
    followed = read = Window.tail(TAIL)
    for number in range(TAIL, TAIL + 500):
        followed = followed.grown(number, at_end=True)
        read = read.grown(number, at_end=False)

    assert followed.end - followed.start <= LIMIT
    assert read.start == 0


def test_a_search_hit_is_in_the_window() -> None:
    assert Window.tail(1000).holding(500).start <= 500
    assert Window.tail(1000).holding(999) == Window.tail(1000)


# ----------------------------------------------------------------------------------------------- typing


@pytest.mark.parametrize(
    ("text", "at_end", "sends"),
    [
        ("one line", True, True),
        ("one line", False, True),
        ("two\nlines", True, True),
        ("two\nlines", False, False),
        ("```py\nx = 1", True, False),
        ("```py\nx = 1\n```", True, True),
        ("\n" * 300_000, True, True),  # for hours, if each line looked through all that follow
    ],
)
def test_enter_sends_what_is_whole(text: str, at_end: bool, sends: bool) -> None:
    assert enter_sends(text, is_at_end=at_end) is sends


def test_a_large_paste_is_a_word_until_it_is_sent() -> None:
    chips, pasted = Chips(), "\n".join(str(number) for number in range(20_000))

    assert Chips().put("one\n" * 60) == "[pasted 60 lines]", "the end of the last line begins no other"
    typed = f"what is {chips.put(pasted)} about, and {chips.put(pasted)}?"

    assert len(typed) < 100
    assert chips.unfold(typed) == f"what is {pasted} about, and {pasted}?"
    assert chips.put("a short one") == "a short one"


def test_earlier_prompts_come_back_and_so_does_the_draft() -> None:
    history = PromptHistory(["one", "two"])

    assert history.earlier("draft") == "two"
    assert history.earlier("two") == "one"
    assert history.earlier("one") is None
    assert [history.later(), history.later(), history.later()] == ["two", "draft", None]


def test_a_prompt_sent_again_is_the_latest() -> None:
    history = PromptHistory(["one", "two"])
    history.add("one")

    assert [history.earlier(""), history.earlier("")] == ["one", "two"]


# ------------------------------------------------------------------------------------------- preferences


def test_preferences_survive_being_noted() -> None:
    chosen = Preferences(system="be brief", temperature=0.0, max_tokens=5, private=True, mode="local")

    assert Preferences.of(chosen.noted()) == chosen
    assert chosen.noted().keys() == {"system", "temperature", "max_tokens", "private", "mode"}


def test_notes_that_make_no_sense_are_left_out() -> None:
    assert Preferences.of({"temperature": 99, "mode": "no", "unknown": 1, "seed": "x"}) == Preferences()


def test_a_parameter_is_read_as_typed_and_taken_back() -> None:
    chosen = Preferences().with_parameter("top-p", "0.5").with_parameter("seed", "7")

    assert chosen.sampling == Sampling(top_p=0.5, seed=7)
    assert chosen.described() == "top_p 0.5, seed 7"
    assert chosen.with_parameter("seed", "default").seed is None


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", "3"), ("temperature", "nan"), ("max_tokens", "1.5"), ("no", "1")]
)
def test_a_parameter_out_of_range_is_refused_in_a_sentence(name: str, value: str) -> None:
    with pytest.raises(BadRequest, match=r"\.$"):
        Preferences().with_parameter(name, value)


# ---------------------------------------------------------------------------------------------- commands


def test_commands_are_told_from_prompts() -> None:
    typed = parse("  /rename  the new title ")

    assert typed is not None
    assert (typed.command.name, typed.argument) == ("rename", "the new title")
    assert parse("/usr/bin/env is what?") is None
    assert parse("a /new thing") is None
    assert parse("//new is a command") is None


def test_an_unknown_command_names_the_nearest() -> None:
    with pytest.raises(BadRequest, match="Did you mean /rename"):
        parse("/renme x")


def test_two_slashes_stand_for_one() -> None:
    assert unescaped("//new is a command") == "/new is a command"
    assert unescaped("// a comment") == "// a comment"


def test_a_beginning_is_completed() -> None:
    assert [command.name for command in matching("/re")] == ["rename", "regenerate", "receipt", "reasoning"]
    assert matching("/rename x") == matching("no") == []


def test_no_two_commands_share_a_name_or_a_key_and_nothing_is_on_a_key_that_tmux_takes() -> None:
    anywhere = [command.key for command in COMMANDS if command.key and command.where != "answer"]
    on_answers = [command.key for command in COMMANDS if command.where == "answer"]

    assert len(BY_NAME) == len(COMMANDS)
    assert len(set(anywhere)) == len(anywhere)
    assert len(set(on_answers)) == len(on_answers)
    assert not {"ctrl+a", "ctrl+b", "ctrl+s", "ctrl+z"} & set(anywhere)


# ---------------------------------------------------------------------------------------------- previews

CARDS = [
    ModelCard("auto", "auto", detail="smollm2"),
    ModelCard("smollm2", "chat", engine="local", aliases=("small",)),
    ModelCard("big", "chat", engine="pool"),
]


def test_the_line_says_where_a_prompt_would_go() -> None:
    local = preview.preview("auto", CARDS, 100)
    away = preview.preview("big", CARDS, 0)

    assert local.line() == "smollm2 on this machine · free · about 100 tokens"
    assert (away.is_local, away.line()) == (False, "big on a pool")
    assert preview.preview("small", CARDS, 0).is_local


def test_parts_that_do_not_fit_are_left_out_whole_from_the_end() -> None:
    local = preview.preview("auto", CARDS, 100)

    assert local.line(25) == "smollm2 on this machine"
    assert local.line(45) == "smollm2 on this machine · free"
    assert local.line(5) == "smollm2 on this machine"


def test_an_unknown_model_is_not_called_local() -> None:
    assert preview.preview("hf:some/model:Q4", CARDS, 0).line() == "hf:some/model:Q4"
    assert not preview.preview("auto", [], 0).is_local


@pytest.mark.parametrize(
    ("model", "cards", "who"),
    [
        ("small", [ModelCard("small", "chat", "local")], "small"),
        ("big", [ModelCard("big", "chat", "pool", images=True)], ""),
        ("auto", [ModelCard("auto", "auto", detail="small"), ModelCard("small", "chat", "local")], "small"),
        ("auto", [ModelCard("small", "chat", "local"), ModelCard("big", "chat", "pool", images=True)], ""),
        ("auto", [ModelCard("a", "chat", "pool"), ModelCard("b", "chat", "pool")], "None of the models here"),
        ("unlisted.gguf", [ModelCard("small", "chat", "local")], ""),
        ("auto", [], ""),
    ],
)
def test_images_are_refused_where_nobody_takes_them(model: str, cards: list[ModelCard], who: str) -> None:
    assert refuses_images(model, cards) == who
