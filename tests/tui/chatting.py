"""The chat over a scripted engine: the real gateway, the real history in a folder of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from edgecloud.app.gateway import Gateway
from edgecloud.app.history import History
from edgecloud.app.journal import Journal
from edgecloud.app.tui.app import EdgeCloudApp
from edgecloud.app.tui.chat import ChatScreen
from edgecloud.app.tui.ports import Store
from edgecloud.app.tui.session import Session
from edgecloud.app.tui.state.attachments import Prompt
from edgecloud.app.tui.state.preferences import Preferences
from edgecloud.app.tui.state.waiting import Waiting
from edgecloud.app.tui.widgets.label import Label
from edgecloud.engine import Engine
from edgecloud.settings import Settings
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog

PATIENCE_S = 20.0


def make_store(folder: Path) -> Store:
    return Store(lambda: History(folder / "edgecloud.db"), forget=lambda chat_ids: True)


def make_gateway(folder: Path, *engines: Engine, settings: Settings | None = None) -> Gateway:
    journal = Journal(lambda: History(folder / "edgecloud.db"))
    return Gateway(settings or Settings(), FakeCatalog(engines or (FakeEngine(),)), journal)


def make_session(folder: Path, *engines: Engine, **options: Any) -> Session:
    return Session(make_gateway(folder, *engines), make_store(folder), **options)


def make_app(
    folder: Path, *engines: Engine, settings: Settings | None = None, **options: Any
) -> EdgeCloudApp:
    settings = settings or Settings()
    gateway = make_gateway(folder, *engines, settings=settings)
    return EdgeCloudApp(gateway, make_store(folder), settings, **{"preferences": Preferences(), **options})


def words(text: str) -> list[bytes]:
    """A text as the tokens of a script, a word each."""
    return [part.encode() for part in text.replace(" ", " \0").split("\0")]


def waiting(text: str, **fields: Any) -> Waiting:
    return Waiting(text, Prompt(text), **fields)


async def until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait for what others bring about; fail if they don't."""
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110  (conditions of widgets and engines, which set no event)
            await asyncio.sleep(0.01)


class Driven:
    """A running app with the hands of a user."""

    def __init__(self, app: EdgeCloudApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def chat(self) -> ChatScreen:
        return self.app.chat

    @property
    def session(self) -> Session:
        return self.app.chat.session

    async def type(self, text: str) -> None:
        """Type into the prompt."""
        self.chat.prompt.focus()
        self.chat.prompt.insert(text)
        await self.pilot.pause()

    async def ask(self, text: str, *, wait: bool = True) -> None:
        """Type, send, and wait for the end of the answer."""
        await self.type(text)
        await self.pilot.press("enter")
        if wait:
            await self.settled()

    async def settled(self) -> None:
        """Wait until nothing runs and everything is shown."""
        await until(lambda: not self.session.is_running and not self.session.queue)
        await self.pilot.pause()
        await self.pilot.app.workers.wait_for_complete()
        await self.pilot.pause()

    async def do(self, command: str) -> None:
        """Type a command and wait until it is done."""
        await self.type(command)
        await self.pilot.press("enter")
        await self.pilot.pause()
        await self.settled()

    def screen_text(self) -> str:
        """What stands on the screen, a line a row."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    def toasts(self) -> list[str]:
        """What was said in the corner, and last above the prompt: what was done, what went wrong."""
        corner = [notification.message for notification in self.app._notifications]
        above = [self.chat.query_one(id, Label) for id in ("#said", "#trouble")]
        return [
            *corner,
            *(line for label in above if label.display for line in str(label.content).split("\n")),
        ]


@asynccontextmanager
async def driven(app: EdgeCloudApp, size: tuple[int, int] = (100, 36)) -> Any:
    """The app on a screen of this size, everything loaded; closed with what it holds."""
    async with app.run_test(size=size, notifications=True) as pilot:
        driver = Driven(app, pilot)
        await driver.settled()
        yield driver
        await app.chat.desk.keep()
    await app.gateway.aclose()
    await app.store.aclose()
