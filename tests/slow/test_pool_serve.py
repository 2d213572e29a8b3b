"""`edgecloud pool serve` with the starter model, and the SDK that everybody uses."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.support.process import Process

pytestmark = [pytest.mark.slow, pytest.mark.model]

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    flags = ("pool", "serve", "-m", "smollm2", "--port", 0, "--device", "cpu", "--threads", 2, "--kv-mb", 300)
    process = Process(*flags, module="edgecloud", patience_s=120.0)
    yield process
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "leaked" not in process.text


@pytest.fixture(scope="module")
def url(process: Process) -> str:
    return process.url


@pytest.fixture(scope="module")
def sdk(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_a_chat_streamed_is_the_chat_in_one(sdk: OpenAI) -> None:
    whole = sdk.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=24)  # type: ignore[arg-type]
    stream = sdk.chat.completions.create(
        model="smollm2", messages=QUESTION, temperature=0, max_tokens=24, stream=True,  # type: ignore[arg-type]
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert text
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    details = chunks[-1].usage.prompt_tokens_details
    assert details is not None
    assert details.cached_tokens is not None
    assert details.cached_tokens > 0


# cases: E62
def test_an_answer_does_not_depend_on_what_runs_beside_it(sdk: OpenAI) -> None:
    def answer(number: int) -> str:
        prompt = f"Count from {number} upwards: {number}, {number + 1}, {number + 2},"
        return (
            sdk.completions.create(model="smollm2", prompt=prompt, temperature=0, max_tokens=24)
            .choices[0]
            .text
        )

    alone = [answer(number) for number in range(8)]
    with ThreadPoolExecutor(8) as many:
        together = list(many.map(answer, range(8)))

    assert together == alone


# cases: E59, E60
def test_a_seed_repeats_its_text_whoever_runs_beside_it(sdk: OpenAI) -> None:
    def answer(seed: int | None) -> str:
        return (
            sdk.completions.create(
                model="smollm2", prompt="Once upon a time", temperature=1.0, max_tokens=24, seed=seed
            )
            .choices[0]
            .text
        )

    alone = [answer(1), answer(2)]
    with ThreadPoolExecutor(6) as many:
        mixed = list(many.map(answer, [1, None, 2, None, 1, 2]))

    assert alone[0] != alone[1]
    assert [mixed[0], mixed[2], mixed[4], mixed[5]] == [alone[0], alone[1], alone[0], alone[1]]


def test_an_idle_server_does_next_to_nothing(process: Process, sdk: OpenAI) -> None:
    """No thread of it spins: not the step loop, not OpenMP's."""
    sdk.completions.create(model="smollm2", prompt="Once upon a time", max_tokens=8)
    server = psutil.Process(process.process.pid)
    time.sleep(0.5)
    before = server.cpu_times()
    time.sleep(5)
    after = server.cpu_times()
    assert after.user + after.system - before.user - before.system < 0.5


def test_choices_logprobs_and_stops(sdk: OpenAI) -> None:
    answer = sdk.completions.create(
        model="smollm2", prompt="The sky is", n=2, temperature=0.8, seed=5, max_tokens=8, logprobs=3
    )
    cut = sdk.completions.create(
        model="smollm2", prompt="1, 2, 3, 4, 5,", temperature=0, max_tokens=24, stop=" 8"
    )

    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        assert "".join(choice.logprobs.tokens) == choice.text
    assert " 8" not in cut.choices[0].text
    assert cut.choices[0].finish_reason == "stop"


def test_an_answer_follows_its_schema(sdk: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "people": {"type": "integer", "minimum": 1, "maximum": 9999999},
        },
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    answer = sdk.chat.completions.create(
        model="smollm2",
        messages=QUESTION,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=80,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
    )

    found = json.loads(answer.choices[0].message.content or "")
    assert set(found) == {"city", "people"}


def test_what_is_wrong_is_said_in_the_sdks_own_errors(sdk: OpenAI) -> None:
    with pytest.raises(NotFoundError):
        sdk.chat.completions.create(model="gpt-4", messages=QUESTION)  # type: ignore[arg-type]
    with pytest.raises(BadRequestError) as caught:
        sdk.completions.create(model="smollm2", prompt="word " * 9000)

    assert caught.value.code == "context_length_exceeded"


def test_operators_see_what_was_done(url: str, sdk: OpenAI) -> None:
    sdk.completions.create(model="smollm2", prompt="The sky is", max_tokens=4)
    with httpx.Client(base_url=url) as http:
        metrics = http.get("/metrics").text
        deep = http.get("/health/deep").json()

    assert deep["status"] == "ok"
    assert 'vllm:num_requests_running{model_name="smollm2"} 0.0' in metrics
    assert 'vllm:kv_cache_usage_perc{model_name="smollm2"} 0.0' in metrics
