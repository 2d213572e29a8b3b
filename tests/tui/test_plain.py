"""The chat line by line: what is said, and that nothing is said twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from edgecloud.app.tui.plain import PlainChat
from edgecloud.app.tui.state.preferences import Preferences
from edgecloud.app.tui.state.waiting import NOTED, noted
from edgecloud.engine import Engine
from edgecloud.errors import ModelNotFound
from edgecloud.settings import Settings
from edgecloud.types import Loading
from tests.support.fake_engine import FakeEngine

from .chatting import make_gateway, make_store, until, waiting
from .test_chat_answers import SEAM, Handed


def reading(*lines: str) -> Callable[[str], str]:
    """Gives one line after the other, then the end of the input."""
    left = list(lines)

    def read(prompt: str) -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return read


def asked(folder: Path, engine: Engine, said: list[str]) -> PlainChat:
    """A chat that is asked "hi" and says its lines into `said`."""
    return PlainChat(
        make_gateway(folder, engine),
        make_store(folder),
        Settings(),
        Preferences(),
        read=reading("hi"),
        say=said.append,
    )


async def test_a_load_is_told_once_and_not_read_aloud_again_and_again(tmp_path: Path) -> None:
    engine, said = FakeEngine(name="qwen"), list[str]()
    engine.loaded, engine.loading = asyncio.Event(), Loading("qwen", 1_200_000_000, 2_790_000_000)
    chat = asked(tmp_path, engine, said)
    running = asyncio.create_task(chat.run())
    await until(lambda: "-- loading qwen · 43 % · 1.20 of 2.79 GB\n" in said)
    engine.loading = Loading("qwen", 2_000_000_000, 2_790_000_000)
    await asyncio.sleep(0.6)  # longer than the look at a load
    engine.loaded.set()
    await running
    await chat.gateway.aclose()
    await chat.store.aclose()

    assert len([line for line in said if "loading" in line]) == 1
    assert "Hello, world!" in "".join(said)


async def test_a_seam_is_read_where_it_is(tmp_path: Path) -> None:
    said, engine = list[str](), Handed("Seven m", "in", "utes.")
    chat = asked(tmp_path, engine, said)
    running = asyncio.create_task(chat.run())
    await until(lambda: "in" in said)
    engine.go_on.set()
    await running
    await chat.gateway.aclose()
    await chat.store.aclose()

    assert f"Seven m\n-- {SEAM.text}\ninutes.\n" in "".join(said)


async def test_the_prompt_of_the_command_line_is_asked_first_and_what_it_says_holds_for_an_old_chat_too(
    tmp_path: Path,
) -> None:
    engine, said = FakeEngine(), list[str]()
    gateway, store = make_gateway(tmp_path, engine), make_store(tmp_path)
    for preferences, prompt in ((Preferences(), "one"), (Preferences(private=True), "two")):
        last = await store.last_chat()
        chat = PlainChat(gateway, store, Settings(), preferences, read=reading("and"), say=said.append)
        await chat.run(last, prompt)
    await gateway.aclose()
    await store.aclose()

    asked = [(request.messages[-1].content, request.private) for request in engine.requests]
    assert asked == [("one", False), ("and", False), ("two", True), ("and", True)]
    assert "you> one\n" in said


async def test_what_waited_is_said_and_asked_with_an_empty_line(tmp_path: Path) -> None:
    engine, said = FakeEngine(lambda request: [f"re {request.messages[-1].content}".encode()]), list[str]()
    gateway, store = make_gateway(tmp_path, engine), make_store(tmp_path)
    chat = PlainChat(gateway, store, Settings(), Preferences(), read=reading("one"), say=said.append)
    await chat.run()
    chat_id = str(await store.last_chat())
    await store.set_notes(chat_id, {NOTED: noted([waiting("two"), waiting("three")])})

    chat = PlainChat(gateway, store, Settings(), Preferences(), read=reading(), say=said.append)
    await chat.run(chat_id)
    assert len(engine.requests) == 1, "nothing is sent by itself"
    chat = PlainChat(gateway, store, Settings(), Preferences(), read=reading(""), say=said.append)
    await chat.run(chat_id)
    _, _, notes = await store.chat(chat_id)
    await gateway.aclose()
    await store.aclose()

    assert [request.messages[-1].content for request in engine.requests] == ["one", "two", "three"]
    assert notes[NOTED] == []
    text = "".join(said)
    assert "-- waits since then, and goes with an empty line or before what you ask: three" in text
    assert text.index("re two") < text.index("you> three") < text.index("re three")


@pytest.mark.parametrize("lines", [(), ("/model nosuch",)])
async def test_a_model_that_is_not_there_is_said_when_it_is_named(
    tmp_path: Path, lines: tuple[str, ...]
) -> None:
    said = list[str]()
    gateway, store = make_gateway(tmp_path, FakeEngine()), make_store(tmp_path)
    named = Preferences() if lines else Preferences(model="nosuch")
    chat = PlainChat(gateway, store, Settings(), named, read=reading(*lines), say=said.append)
    if lines:
        await chat.run()
        assert any("There is no model named 'nosuch'" in line for line in said)
        assert chat.session.preferences.model == "auto"
        assert "-- smollm2 answers" in said[0], "and not the router's name where it has no choice"
    else:
        with pytest.raises(ModelNotFound, match="There is no model named 'nosuch'"):
            await chat.run()
        assert said == []
    await gateway.aclose()
    await store.aclose()
