"""What the chat costs while it draws, opens a long chat and starts: `python bench/tui.py`.

The app runs on a terminal of its own and streams 60 tokens of four characters a second from a scripted
gateway. Measured are the CPU seconds of its process against the stream's length, the largest gap of its event
loop, and from outside the time between a key and its echo on the terminal. The thousand-message chat is
opened here, in an app that shows each message as one of Textual's `Markdown` widgets, and in oterm.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

TOKENS_PER_S = 60
ROWS, COLUMNS = 36, 120
ECHO = "ø"
"""A character that stands in no document, so that seeing it is seeing the echo."""


def item(number: int) -> str:
    return f"- **item {number}** with some `code`, and words enough that it wraps in most windows, I think\n"


DOCUMENTS: dict[str, str] = {
    "60-item list": "".join(item(number) for number in range(60)),
    "25-row table": "| engine | model | tokens | price |\n|---|---|--:|--:|\n"
    + "".join(
        f"| engine {number} | a model's name | {number * 17} | $0.0{number:02d} |\n" for number in range(25)
    ),
    "200-line fence": "```python\n"
    + "".join(f"def function_{number}(value: int) -> int:  # line {number}\n" for number in range(200))
    + "```\n",
    "30 paragraphs": "".join(
        f"Paragraph {number} says *something* about a thing. " * 3 + "\n\n" for number in range(30)
    ),
}


# ----------------------------------------------------------------------------------- the chat's process


class Scripted:
    """A gateway that sends one document at an even pace."""

    def __init__(self, document: str) -> None:
        self.tokens = [document[at : at + 4] for at in range(0, len(document), 4)]
        self.streamed: Callable[[], None] = lambda: None

    async def chat(self, request: Any) -> AsyncGenerator[Any, None]:
        from edgecloud.types import ChoiceDone, Start, TextDelta

        yield Start("local", "scripted", 10)
        began = time.monotonic()
        for number, token in enumerate(self.tokens):
            await asyncio.sleep(max(0.0, began + number / TOKENS_PER_S - time.monotonic()))
            yield TextDelta(token)
        yield ChoiceDone(0, "stop")
        self.streamed()

    async def models(self) -> list[Any]:
        return []

    async def health(self) -> Any:
        from edgecloud.types import Health

        return Health(ok=True)

    async def aclose(self) -> None: ...


def child(document: str, result: str) -> None:
    """The app on this terminal; asks at once, and writes what it measured to `result` when it is over."""
    from edgecloud.app.tui.app import EdgeCloudApp
    from edgecloud.app.tui.garbage import spare_what_stays
    from edgecloud.app.tui.ports import Store
    from edgecloud.settings import Settings

    spare_what_stays()
    gateway = Scripted(DOCUMENTS[document])
    app = EdgeCloudApp(gateway, Store(None), Settings())  # type: ignore[arg-type]
    measured: dict[str, float] = {}

    async def measure() -> None:
        await asyncio.sleep(1.5)  # started, painted, at rest
        session = app.chat.session
        await app.chat.submit("go")
        began, cpu, gap, last = time.monotonic(), time.process_time(), 0.0, time.monotonic()
        while session.is_running:
            await asyncio.sleep(0.002)
            now = time.monotonic()
            gap, last = max(gap, now - last - 0.002), now
        await asyncio.sleep(0.5)  # the end is drawn too
        measured.update(seconds=time.monotonic() - began, cpu=time.process_time() - cpu, gap=gap)
        app.exit()

    async def run() -> None:
        task = asyncio.create_task(measure())
        await app.run_async()
        await task

    asyncio.run(run())
    Path(result).write_text(json.dumps(measured))


# ------------------------------------------------------------------------------------------ from outside


def on_a_terminal(arguments: list[str], *, type_from_s: float) -> list[float]:
    """Run to the end on a pty, typing a letter now and then; the seconds from each to its echo."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        os.execv(sys.executable, [sys.executable, __file__, *arguments])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    echoes: list[float] = []
    begun, sent, seen = time.monotonic(), None, b""
    while True:
        ready, _, _ = select.select([terminal], [], [], 0.001)
        now = time.monotonic()
        if ready:
            try:
                seen = seen[-8:] + os.read(terminal, 65536)
            except OSError:
                break
            if not seen.strip():
                break
            if sent is not None and ECHO.encode() in seen:
                echoes.append(now - sent)
                sent, seen = None, b""
                # Take it out again, so that the next one is seen for itself.
                os.write(terminal, b"\x7f")
                begun = now
        if sent is None and now - begun > max(type_from_s, 0.37):
            type_from_s = 0.0
            os.write(terminal, ECHO.encode())
            sent = now
    os.waitpid(pid, 0)
    return echoes


def stream(document: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = f"{folder}/result.json"
        echoes = on_a_terminal(["--child", document, "--result", result], type_from_s=3.0)
        measured = json.loads(Path(result).read_text())
    share = measured["cpu"] / measured["seconds"]
    worst = max(echoes, default=float("nan"))
    middle = statistics.median(echoes) if echoes else float("nan")
    print(
        f"| {document} | {measured['seconds']:.1f} s | {measured['cpu']:.2f} s | {share:.0%} | "
        f"{measured['gap'] * 1000:.0f} ms | {middle * 1000:.0f} ms | {worst * 1000:.0f} ms | {len(echoes)} |",
        flush=True,
    )


# ----------------------------------------------------------------------------------------------- a long chat


ANSWER = "Some **bold** text with `code`.\n\n- one\n- two\n\n```python\nprint('x')\n```\n\nAnd an end.\n"


async def open_here(folder: Path, num_messages: int) -> tuple[float, float, int]:
    """Seconds and CPU seconds from the request to the painted chat, and its widgets."""
    from edgecloud.app.chats import StoredMessage
    from edgecloud.app.history import History
    from edgecloud.app.tui.app import EdgeCloudApp
    from edgecloud.app.tui.ports import Store
    from edgecloud.settings import Settings
    from edgecloud.types import Message

    history = History(folder / "edgecloud.db")
    messages = [
        StoredMessage(
            f"m{number}",
            f"m{number - 1}" if number else None,
            Message("assistant", ANSWER) if number % 2 else Message("user", f"question {number}"),
            "complete",
            0.0,
        )
        for number in range(num_messages)
    ]
    chat_id = history.insert("long", messages, f"m{num_messages - 1}")
    store = Store(lambda: History(folder / "edgecloud.db"))
    app = EdgeCloudApp(Scripted(""), store, Settings())  # type: ignore[arg-type]
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        await pilot.pause()
        began, cpu = time.monotonic(), time.process_time()
        await app.chat.open(chat_id)
        await pilot.pause(0)
        return time.monotonic() - began, time.process_time() - cpu, len(app.chat.query("*"))


async def open_naively(num_messages: int) -> tuple[float, float, int]:
    """The same in an app with a `Markdown` widget a message."""
    from textual.app import App, ComposeResult
    from textual.containers import VerticalScroll
    from textual.widgets import Markdown

    class Naive(App[None]):
        def compose(self) -> ComposeResult:
            yield VerticalScroll()

    app = Naive()
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        await pilot.pause()
        began, cpu = time.monotonic(), time.process_time()
        scroll = app.query_one(VerticalScroll)
        texts = (ANSWER if number % 2 else f"question {number}" for number in range(num_messages))
        await scroll.mount_all(Markdown(text) for text in texts)
        scroll.scroll_end(animate=False)
        await pilot.pause(0)
        return time.monotonic() - began, time.process_time() - cpu, len(app.query("*"))


def open_in_oterm(num_messages: int) -> tuple[float, float, int]:
    """The same in oterm, in a venv of its own that is made here."""
    root = Path(__file__).parents[1]
    venv = root / ".bench" / "oterm"
    if not (venv / "bin" / "oterm").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin" / "pip", "install", "-q", "oterm"], check=True)
    script = root / "bench" / "peers" / "oterm_open.py"
    done = subprocess.run(
        [venv / "bin" / "python", script, str(num_messages), ANSWER], check=True, capture_output=True
    )
    seconds, cpu, widgets = json.loads(done.stdout.splitlines()[-1])
    return seconds, cpu, widgets


def import_seconds(code: str) -> float:
    """CPU seconds of a fresh interpreter that runs this, the best of three."""
    times = []
    for _ in range(3):
        before = sum(os.times()[2:4])
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(sum(os.times()[2:4]) - before)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child")
    parser.add_argument("--result")
    parser.add_argument("--only", choices=["stream", "open", "start"])
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.result)
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {COLUMNS} x {ROWS}\n")
    if arguments.only in (None, "stream"):
        print(f"Streaming at {TOKENS_PER_S} tokens/s\n")
        print("| answer | stream | CPU | share | largest gap | echo, median | echo, worst | keys |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
        for document in DOCUMENTS:
            stream(document)
    if arguments.only in (None, "open"):
        print("\nOpening a chat of 1,000 messages\n\n| app | seconds | CPU | widgets |\n|---|--:|--:|--:|")
        with tempfile.TemporaryDirectory() as folder:
            print_opened("edgecloud", asyncio.run(open_here(Path(folder), 1000)))
        print_opened("a Markdown widget a message", asyncio.run(open_naively(1000)))
        print_opened("oterm", open_in_oterm(1000))
    if arguments.only in (None, "start"):
        print("\nImports at the start, CPU\n\n| what | seconds |\n|---|--:|")
        for name, code in {
            "python": "pass",
            "a bare Textual app": "import textual.app, textual.widgets as w; w.TextArea, w.OptionList",
            "edgecloud chat": "import edgecloud.app.tui.run, edgecloud.app.open",
            "edgecloud ask": "import edgecloud.app.cli.main, edgecloud.app.cli.ask",
        }.items():
            print(f"| {name} | {import_seconds(code):.2f} |", flush=True)


def print_opened(name: str, opened: tuple[float, float, int]) -> None:
    print(f"| {name} | {opened[0]:.2f} | {opened[1]:.2f} | {opened[2]:,} |", flush=True)


if __name__ == "__main__":
    main()
