"""Draws the pictures of the README: `python -m tests.tui.screenshots`. Engines and numbers are scripted."""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from edgecloud.app.tui.screens.compare import CompareScreen
from edgecloud.app.tui.screens.dashboard import DashboardScreen
from edgecloud.app.tui.state.stats import DAY_S, HOUR_S, Stats, summarise
from edgecloud.app.tui.widgets.receipt import ReceiptLine
from edgecloud.settings import BudgetSettings, Settings
from edgecloud.types import CacheInfo, Receipt
from tests.support.fake_engine import FakeEngine

from .chatting import Driven, driven, make_app, until, words
from .test_pictures import RECEIPT, still

FOLDER = Path(__file__).parents[2] / "docs" / "images"
SIZE = (110, 34)

EARLIER = ("how long does an egg boil?", "a regular expression for dates", "plan a week", "翻訳してください")
QUESTION = "Which quantisation should I use on a laptop?"
ANSWER = """It depends on **what limits you**: memory or patience.

| quantisation | size | speed | how near the original |
|:--|--:|--:|:--|
| Q8_0 | 145 MB | 89 tokens/s | as good as the same |
| Q4_K_M | 105 MB | 111 tokens/s | small differences |
| Q4_0 | 92 MB | 136 tokens/s | every fifth word another |

Measure before you choose:

```sh
edgecloud models tune smollm2   # the fastest that still answers like the original
```

- plenty of memory: *Q8_0*
- a small machine: *Q4_K_M*, and look at the answers
"""
LEFT = "Boil it **seven minutes** for a soft yolk.\n\n- four: runny\n- seven: soft\n- ten: hard\n"
RIGHT = """Seven to eight minutes from **boiling** water, for a yolk that is set at the edge and soft inside.

1. Take the egg from the fridge.
2. Lower it into boiling water with a spoon.
3. Seven minutes, then cold water.

At altitude add a minute for every 1,000 m.
"""


async def draw(folder: Path) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    local, pool = FakeEngine(words(ANSWER), name="smollm2"), FakeEngine(words(RIGHT), name="gpu-box")
    settings = Settings(budget=BudgetSettings(per_day=1.0))
    app = make_app(folder, local, pool, settings=settings)
    async with driven(app, SIZE) as user:
        for question in EARLIER:
            await user.do("/new")
            await user.ask(question)
        await user.do("/new")
        await user.ask(QUESTION)
        await still(user)
        save(user, "chat")

        local.script = words(LEFT)
        await user.do("/new")
        await user.type("How long do I boil an egg?")
        user.chat.run_command("compare")
        await until(lambda: isinstance(user.app.screen, CompareScreen))
        screen = user.app.screen
        await until(lambda: len(screen.query(ReceiptLine)) == 2)
        for line, receipt in zip(screen.query(ReceiptLine), (RECEIPT, of_pool(RECEIPT)), strict=True):
            line.receipt = receipt
            line.refresh(layout=True)
        await user.pilot.pause(0.5)
        save(user, "compare")
        await user.pilot.press("1")
        await user.settled()

        await user.pilot.press("f3")
        await until(lambda: isinstance(user.app.screen, DashboardScreen))
        await user.pilot.pause(0.5)
        dashboard = user.app.screen
        assert isinstance(dashboard, DashboardScreen)
        dashboard.show(week(time.time()))
        await user.pilot.pause(0.5)
        save(user, "dashboard")


def of_pool(receipt: Receipt) -> Receipt:
    return replace(
        receipt,
        engine="gpu-box",
        model="Qwen2.5-32B",
        cost=0.0041,
        ttft_s=0.31,
        tokens_per_s=61.0,
        cached_tokens=0,
    )


def week(now: float) -> Stats:
    """Receipts as a week of use leaves them."""
    receipts = []
    for number in range(240):
        at = now - (239 - number) * 7 * DAY_S / 240 + (number % 5) * HOUR_S / 9
        receipt = of_pool(RECEIPT) if number % 4 == 0 else RECEIPT
        tokens = 400 + number * 53 % 1700
        wait = 0.1 + (number * 37 % 50) / 90 + (number % 17 == 0) * 0.8
        hit = CacheInfo("exact" if number % 9 == 0 else "miss", age_s=60.0)
        receipts.append(
            (
                at,
                "ok",
                replace(receipt, ttft_s=wait, cache=hit, prompt_tokens=tokens, cached_tokens=tokens // 2),
            )
        )
    return summarise(receipts, now=now, midnight=now - 0.6 * DAY_S)


def save(user: Driven, name: str) -> None:
    user.app.clear_notifications()
    user.chat.unsay()
    (FOLDER / f"{name}.svg").write_text(user.app.export_screenshot(title="edgecloud"), encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as own:
        asyncio.run(draw(Path(own)))
