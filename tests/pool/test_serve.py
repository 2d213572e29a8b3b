"""`edgecloud pool serve` from the outside: where it is, how it ends, what it refuses."""

from __future__ import annotations

import concurrent.futures
import signal
import sys

import httpx
import pytest
from click.testing import CliRunner

from edgecloud.app.cli.pool import pool
from edgecloud.app.cli.shell import State
from edgecloud.errors import ConfigError
from tests.support.live import eventually
from tests.support.process import Process

MODULE = "tests.support.pool_process"


def test_it_says_where_it_is_answers_and_drains_at_sigterm() -> None:
    process = Process(0, 10.0, module=MODULE)
    body = {"prompt": "abc|", "max_tokens": 100, "stream": True}
    with concurrent.futures.ThreadPoolExecutor() as many:
        url = process.url
        stream = many.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=30)
        eventually(lambda: 'running": 1' in httpx.get(f"{url}/health").text.replace('":1', '": 1'))
        process.signal(signal.SIGTERM)
        text = stream.result().text

    assert process.wait() == 0
    assert text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"length"' in text
    assert "serves fake on cpu" in process.text
    assert "256 tokens of context for all requests together" in process.text


def test_a_model_that_cannot_decode_is_told_before_it_listens() -> None:
    process = Process(0, 0.0, "no kernel image is available", module=MODULE)

    assert process.wait() != 0
    assert "edgecloud serves" not in process.text
    assert "A step of the model failed" in process.text


def test_a_network_is_not_let_in_without_a_key() -> None:
    result = CliRunner().invoke(pool, ["serve", "--host", "0.0.0.0"], obj=State())

    assert isinstance(result.exception, ConfigError)
    assert "--api-key" in result.exception.message


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("edgecloud.pool.open", "edgecloud.pool.load"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = CliRunner().invoke(pool, ["serve", "--port", "0"], obj=State())

    assert isinstance(result.exception, ConfigError)
    assert "`pip install '.[pool]'`" in result.exception.message


@pytest.mark.parametrize("flags", [["--policy", "lifo"], ["--device", "tpu"], ["--max-running", "0"]])
def test_flags_that_mean_nothing_are_refused(flags: list[str]) -> None:
    assert CliRunner().invoke(pool, ["serve", *flags], obj=State()).exit_code == 2
