"""`edgecloud serve` over the real starter model, as a process of its own, asked by the SDKs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.support.process import Process
from tests.support.requests import chat, client

pytestmark = pytest.mark.model

COLOURS: Any = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder: Path = tmp_path_factory.mktemp("serve")
    (folder / "config.toml").touch()
    environment = {
        "EDGECLOUD_CONFIG": str(folder / "config.toml"),
        "EDGECLOUD_HOME": str(folder / "home"),
        "EDGECLOUD_RUNTIME": str(folder / "run"),
    }
    flags = ["serve", "--port", 0, "--threads", 1, "--ctx-size", 4096, "--drain", 0]
    process = Process(*flags, module="edgecloud", environment=environment, patience_s=60)
    yield process
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "Traceback" not in process.text


@pytest.fixture
def sdk(server: Process) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)


# cases: C012, C056, C079
def test_a_greedy_answer_is_the_same_streamed_or_not(sdk: openai.OpenAI) -> None:
    whole = sdk.chat.completions.create(model="auto", messages=COLOURS, max_tokens=16, temperature=0)
    stream = sdk.chat.completions.create(
        model="auto", messages=COLOURS, max_tokens=16, temperature=0, stream=True
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert whole.model == "smollm2"
    assert whole.choices[0].message.content == streamed
    assert streamed


def test_a_loaded_model_says_how_much_it_holds(server: Process) -> None:
    with client(server.url) as http:
        cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
    assert (cards["smollm2"]["loaded"], cards["smollm2"]["max_model_len"]) == (True, 4096)


# cases: C014, C018, C182
def test_parts_developer_and_null_reach_the_template(sdk: openai.OpenAI) -> None:
    def prompt_tokens(*messages: Any) -> int:
        answer = sdk.chat.completions.create(
            model="smollm2", messages=messages, max_tokens=1, extra_body={"stop": None, "tools": []}
        )
        assert answer.usage
        return answer.usage.prompt_tokens

    parts = [{"type": "text", "text": "Name three"}, {"type": "text", "text": " colours."}]
    assert prompt_tokens({"role": "user", "content": parts}) == prompt_tokens(*COLOURS)
    system, developer = ({"role": role, "content": "Be brief."} for role in ("system", "developer"))
    assert prompt_tokens(developer, *COLOURS) == prompt_tokens(system, *COLOURS)


# cases: C029, C085, C149, C150, P7
def test_tokens_are_counted_as_they_are_charged(server: Process) -> None:
    with client(server.url) as http:
        body = chat("How many tokens is this very prompt?", max_tokens=1)
        counted = http.post("/v1/chat/completions/input_tokens", json=body).json()["input_tokens"]
        tokens = http.post("/tokenize", json=body).json()["tokens"]
        tokenized, text_of_it = (
            len(tokens),
            http.post("/detokenize", json={"tokens": tokens}).json()["content"],
        )
        first, second = (http.post("/v1/chat/completions", json=body).json()["usage"] for _ in range(2))
        assert counted == tokenized == first["prompt_tokens"]
        assert "How many tokens is this very prompt?" in text_of_it
        assert second["prompt_tokens_details"]["cached_tokens"] == counted - 1
        text = "Round trip é🦙"
        ids = http.post("/tokenize", json={"content": text}).json()["tokens"]
        assert http.post("/detokenize", json={"tokens": ids}).json()["content"] == text


# cases: C042, P4, P24
def test_an_overlong_prompt_is_400_and_the_next_is_answered(sdk: openai.OpenAI) -> None:
    long: Any = [{"role": "user", "content": "word " * 6000}]
    with pytest.raises(openai.BadRequestError) as error:
        sdk.chat.completions.create(model="smollm2", messages=long, stream=True)
    assert error.value.code == "context_length_exceeded"
    assert sdk.chat.completions.create(model="smollm2", messages=COLOURS, max_tokens=1).choices


# cases: C023, C089, P2
def test_several_at_once_each_get_their_own(sdk: openai.OpenAI) -> None:
    def ask(number: int) -> int:
        answer = sdk.chat.completions.create(
            model="smollm2", messages=COLOURS, max_tokens=4, n=1 + number % 2
        )
        return len(answer.choices)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == [1, 2] * 3


# cases: C152, C155
def test_embeddings_come_from_the_embedder_only(server: Process, sdk: openai.OpenAI) -> None:
    answer = sdk.embeddings.create(model="minilm", input=["one", "two"])
    assert [len(entry.embedding) for entry in answer.data] == [384, 384]
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        sdk.embeddings.create(model="smollm2", input="x")
    with client(server.url) as http:
        told = dict(line.rsplit(" ", 1) for line in http.get("/metrics").text.splitlines() if line[0] != "#")
    assert float(told['edgecloud_embedding_pass_seconds_count{model="minilm"}']) >= 1
    assert float(told['edgecloud_embedding_pass_seconds_sum{model="minilm"}']) > 0


# cases: C160, C164, C172
def test_responses_and_messages_answer_too(server: Process, sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(model="smollm2", input="Name three colours.", max_output_tokens=4)
    assert response.status == "incomplete"
    claude = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0)
    message = claude.messages.create(model="smollm2", max_tokens=4, messages=COLOURS)
    assert message.stop_reason == "max_tokens"


# cases: C011, C095, C145, P59
def test_at_the_end_nothing_runs_and_no_path_was_a_model(server: Process) -> None:
    with client(server.url) as http:
        for name in ("/etc/passwd", "hf:owner/repo", "nope"):
            assert http.post("/v1/chat/completions", json=chat(model=name)).status_code == 404
        names = [model["id"] for model in http.get("/v1/models").json()["data"]]
        assert names[:2] == ["auto", "smollm2"]
        assert http.get("/health/ready").json() == {"status": "ok", "running": 0, "waiting": 0}
        assert "edgecloud_num_requests_running 0.0" in http.get("/metrics").text
