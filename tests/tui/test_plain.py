"""The chat line by line: what is said, and that nothing is said twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from edgecloud.app.tui.plain import PlainChat
from edgecloud.app.tui.state.preferences import Preferences
from edgecloud.engine import Engine
from edgecloud.settings import Settings
from edgecloud.types import Loading
from tests.support.fake_engine import FakeEngine

from .chatting import make_gateway, make_store, until
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
