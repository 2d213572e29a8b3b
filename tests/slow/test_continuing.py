"""A chain of real servers: one dies in the middle of an answer, and another goes on with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import openai
import pytest

from edgecloud.router.ledger import Ledger
from tests.support.process import Process
from tests.support.requests import client

from .house import STORY, House, house, wait_for

MESSAGES: Any = [{"role": "user", "content": STORY}]
COUNTING: Any = [
    {"role": "user", "content": "Count from one to ten in words."},
    {"role": "assistant", "content": "One, two, three,"},
]
CONFIG = """
[router]
continue_elsewhere = true
cascade = false
hedge = 0.0

[[pool]]
name = "first"
url = "{first}/v1"
model = "smollm2"
price_out = 1.0

[[pool]]
name = "second"
url = "{second}/v1"
model = "smollm2"
price_out = 2.0
"""


class Chain:
    """A server in front, and the two behind it: nobody has said yet that these go on with a message."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.houses = [opened.enter_context(house(folder / name)) for name in ("front", "first", "second")]
        for each in self.houses:
            each.home.mkdir()
        self.first, self.second = (each.serve() for each in self.houses[1:])
        config = CONFIG.format(first=self.first.url, second=self.second.url)
        (self.houses[0].home / "config.toml").write_text(config)
        self.front: Process = self.houses[0].serve()
        self.sdk = openai.OpenAI(
            base_url=f"{self.front.url}/v1",
            api_key="none",
            max_retries=0,
            default_headers={"x-edgecloud-mode": "pool"},
        )

    def only_line(self, of: House) -> dict[str, Any]:
        """The one request that a server was asked, as its ledger has it."""

        def lines() -> list[dict[str, Any]]:
            with closing(Ledger(of.home / "data" / "edgecloud.db")) as ledger:
                return ledger.recent(5)

        wait_for(lines)
        (line,) = lines()
        return line


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with ExitStack() as opened:
        yield Chain(tmp_path, opened)


def test_a_killed_server_is_gone_on_from_by_the_next_and_both_are_paid(chain: Chain) -> None:
    stream = chain.sdk.chat.completions.create(
        model="auto", messages=MESSAGES, max_tokens=400, temperature=0, stream=True,
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
    )  # fmt: skip
    chunks = []
    for chunk in stream:
        chunks.append(chunk)
        if len(chunks) == 30:
            chain.first.process.kill()
    request_id = stream.response.headers["x-edgecloud-id"]

    end, usage = chunks[-2], chunks[-1].usage
    assert stream.response.headers["x-edgecloud-route"] == "first"
    assert end.choices[0].finish_reason == "length"
    (notice,) = (end.model_extra or {})["edgecloud"]["notices"]
    assert notice["kind"] == "continued"
    assert notice["text"].endswith("second goes on from here.")
    assert usage is not None
    assert usage.completion_tokens == pytest.approx(400, abs=2), "a piece is not always a token"

    with client(chain.front.url) as http:
        story = http.get("/route/explain", params={"id": request_id}).json()
    first, second = story["attempts"]
    assert (first["engine"], second["engine"]) == ("first", "second")
    assert (first["at_least"], second["at_least"], second["outcome"]) == (True, False, "ok")
    assert first["completion_tokens"] + second["completion_tokens"] == usage.completion_tokens
    assert first["cost"] == pytest.approx(first["completion_tokens"] * 1e-6)
    assert second["cost"] == pytest.approx(second["completion_tokens"] * 2e-6)
    assert story["cost"] == pytest.approx(first["cost"] + second["cost"])
    behind = chain.only_line(chain.houses[2])
    assert (behind["outcome"], behind["completion_tokens"]) == ("ok", second["completion_tokens"])
    assert behind["prompt_tokens"] > usage.prompt_tokens, "what the first had said was its prompt"


def test_a_begun_message_is_gone_on_with_through_the_chain(chain: Chain) -> None:
    begun = {"continue_final_message": True, "add_generation_prompt": False}
    answers = [
        sdk.chat.completions.create(
            model=model, messages=COUNTING, max_tokens=12, temperature=0, extra_body=begun
        )
        for sdk, model in (
            (chain.sdk, "second"),
            (openai.OpenAI(base_url=f"{chain.second.url}/v1", api_key="none"), "smollm2"),
        )
    ]

    through, straight = (answer.choices[0].message.content for answer in answers)
    assert through == straight
    assert through is not None
    assert through.startswith(" four, five")
    with client(chain.front.url) as http:
        told = {
            each["id"]: each.get("continue_final_message") for each in http.get("/v1/models").json()["data"]
        }
    assert (told["auto"], told["smollm2"], told["second"], told["first"]) == (True, True, True, False)
