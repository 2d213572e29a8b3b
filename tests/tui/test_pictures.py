"""What the screens look like: light and dark, small and wide, empty, answering, failing, all of Markdown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgecloud.app.tui.state.preferences import Preferences
from edgecloud.app.tui.state.receipt import parse
from edgecloud.errors import UpstreamError
from edgecloud.settings import Settings
from edgecloud.types import CacheInfo, Receipt
from tests.support.fake_engine import FakeEngine

from .chatting import Driven, driven, make_app, until, words
from .snapshots import check

MARKDOWN = """Here is **why**, in short, with `code` and [a link](https://example.org/page):

- one *thing*
- another with a long line that has to wrap around somewhere, because it does not fit into eighty columns
  1. nested
  2. 日本語のテキスト 🎉 emoji
- [x] done

```python
def greet(name: str) -> str:
    return f"hello {name}"  # a comment
```

| engine | tokens/s | price |
|:--|--:|--:|
| local | 93 | free |
| pool 池 | 1200 | $0.004 |

> A quote, which is not ours.
"""

RECEIPT = parse(
    {
        "id": "req-3f2a9c", "engine": "local", "model": "smollm2", "variant": "Q4_0",
        "reason": "the default model",
        "attempts": [{"engine": "local", "outcome": "ok", "seconds": 1.4}],
        "prompt_tokens": 2010, "cached_tokens": 1840, "completion_tokens": 152,
        "queue_s": 0.0, "ttft_s": 0.12, "total_s": 1.4, "tokens_per_s": 118.0,
    }
)  # fmt: skip

SIZES = {"small": (80, 24), "wide": (160, 50)}


async def still(user: Driven, receipt: Receipt = RECEIPT) -> None:
    """Hold what moves: the cursor, and what a receipt measured."""
    user.chat.prompt.cursor_blink = False
    user.chat.prompt._cursor_visible = False
    for node in user.session.conversation.path:
        if node.receipt is not None:
            node.receipt = receipt
    await user.chat.show()
    await user.settled()
    user.chat.unsay()
    await user.pilot.pause()


@pytest.mark.parametrize("theme", ["dark", "light", "ansi"])
@pytest.mark.parametrize("size", ["small", pytest.param("wide", marks=pytest.mark.slow)])
async def test_an_answer_with_all_of_markdown(tmp_path: Path, size: str, theme: str) -> None:
    engine = FakeEngine(words(MARKDOWN), thoughts=["Let me think ", "about it."], name="smollm2")
    async with driven(make_app(tmp_path, engine, theme=theme), SIZES[size]) as user:
        await user.ask("why?")
        await still(user)
        check(user.app, f"markdown-{size}-{theme}", tmp_path)


@pytest.mark.parametrize("size", SIZES)
async def test_the_first_run(tmp_path: Path, size: str) -> None:
    async with driven(make_app(tmp_path, FakeEngine(name="smollm2")), SIZES[size]) as user:
        await still(user)
        check(user.app, f"first-run-{size}", tmp_path)


async def test_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    engine = FakeEngine(words(MARKDOWN), hang_at=40, name="smollm2")
    clock = [0.0]
    async with driven(make_app(tmp_path, engine, clock=lambda: clock[0]), SIZES["small"]) as user:
        await user.ask("why?", wait=False)
        await until(lambda: user.session.turn is not None and user.session.turn.num_tokens == 40)
        await user.ask("and then?", wait=False)
        await user.chat.look()
        user.chat.prompt._cursor_visible = False
        await user.pilot.pause()
        check(user.app, "answering", tmp_path)


async def test_an_error_offline(tmp_path: Path) -> None:
    engine = FakeEngine(
        refuse=UpstreamError("gpu-box cannot be reached: check its address, or ask a local model.")
    )
    app = make_app(tmp_path, engine, settings=Settings(offline=True), preferences=Preferences(private=True))
    async with driven(app, SIZES["small"]) as user:
        await user.ask("why?")
        await still(user)
        check(user.app, "error-offline", tmp_path)


async def test_an_open_receipt_of_a_hit_and_branches(tmp_path: Path) -> None:
    hit = replace(RECEIPT, cache=CacheInfo("semantic", similarity=0.97, age_s=3 * 86400.0, entry_id="e1"))
    async with driven(make_app(tmp_path, FakeEngine(name="smollm2")), SIZES["small"]) as user:
        await user.ask("why?")
        await user.do("/regenerate")
        await still(user, hit)
        user.chat.transcript.focus()
        await user.pilot.press("o")
        await user.settled()
        check(user.app, "receipt", tmp_path)


async def test_the_list_of_chats(tmp_path: Path) -> None:
    async with driven(make_app(tmp_path, FakeEngine(name="smollm2")), SIZES["wide"]) as user:
        for question in (
            "how do I boil an egg?",
            "日本語の質問",
            "a [bracketed] question that is longer than the list",
        ):
            await user.do("/new")
            await user.ask(question)
        await still(user)
        check(user.app, "chats", tmp_path)
