"""Two `edgecloud ask` without a server: what the first decided, the second goes by."""

from __future__ import annotations

import json
from typing import Any

from tests.support.fake_engine import FakeEngine
from tests.support.live import live_server

from .house import House

LARGE, SMALL = "llama-3.1-70b-instruct", "smollm2-135m-instruct"

CONFIG = """
[cache]
enabled = false

[router]
cascade = false
second_value = 0.0

[[pool]]
name = "big"
url = "{url}/v1"
model = "{model}"
price_out = 10.0
context = 4096
"""
"""Being fast counts for nothing, and the pool costs a little: of two of a size the one here is just ahead."""


def asked(home: House, *arguments: str) -> dict[str, Any]:
    done = home.run("ask", *arguments, "--json", "--max-tokens", "4")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_toss_up_of_the_next_process_goes_where_the_like_question_of_the_last_one_went(home: House) -> None:
    with live_server(FakeEngine(name=LARGE), FakeEngine(name=SMALL)) as live:

        def pool_is(model: str) -> None:
            (home.home / "config.toml").write_text(CONFIG.format(url=live.url, model=model))

        pool_is(LARGE)
        first = asked(home, "What is the capital of France?")
        assert first["receipt"]["engine"] == "big"

        pool_is(SMALL)
        alike = asked(home, "Which city is the capital of France?")
        assert alike["receipt"]["engine"] == "big"
        assert alike["receipt"]["reason"] == "a toss-up with local, and a question like it went here"
        assert asked(home, "How do I boil an egg?")["receipt"]["engine"] == "local"

        home.run("history", "rm", "--all", "--yes")
        assert asked(home, "What city is the capital of France?")["receipt"]["engine"] == "local"
