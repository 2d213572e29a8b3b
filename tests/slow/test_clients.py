"""Clients nobody here wrote, each against the real server and the real model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.support.process import ROOT, Process
from tests.support.requests import client

from .house import comes_to_rest, house

HERE = Path(__file__).parent / "clients"
DAYS: Any = [{"role": "user", "content": "Name the days of the week."}]
ADA: Any = [{"role": "user", "content": "Ada is 36 years old."}]
GREEDY = {"temperature": 0}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


AGE = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
    "additionalProperties": False,
}


class Person(BaseModel):
    age: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with house(tmp_path_factory.mktemp("clients")) as opened:
        serving = opened.serve()
        yield serving
        comes_to_rest(serving.url)
        assert "Traceback" not in serving.text


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server whose chat template knows tools, which the starter's does not."""
    template = ROOT / "tests" / "ground" / "templates" / "hermes.jinja"
    with house(tmp_path_factory.mktemp("calling")) as opened:
        serving = opened.serve(EDGECLOUD_LOCAL__CHAT_TEMPLATE=str(template))
        yield serving.url
        comes_to_rest(serving.url)
        assert "Traceback" not in serving.text


def sdk(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)


# --------------------------------------------------------------------------------------------- openai, Python


# cases: C012, C031, C037, C056, C079, C086
def test_openai_chat_streamed_and_by_its_helper_are_the_same(server: Process) -> None:
    chat = sdk(server.url).chat.completions
    # The helper takes an answer that met its limit for a failure.
    fields: Any = {"model": "smollm2", "messages": DAYS, "stop": [", Wed"], "temperature": 0}
    whole = chat.create(**fields)
    chunks = list(chat.create(**fields, stream=True, stream_options={"include_usage": True}))
    with chat.stream(**fields) as stream:
        helped = stream.get_final_completion()
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.choices[0].message.content == streamed == helped.choices[0].message.content
    assert streamed
    assert whole.usage
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


# cases: C098
def test_openai_parses_into_a_model(server: Process) -> None:
    parsed = sdk(server.url).chat.completions.parse(
        model="smollm2", messages=ADA, max_tokens=60, temperature=0, response_format=Person
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)


# cases: C103
def test_a_grammar_of_llama_cpp_holds(server: Process) -> None:
    answer = sdk(server.url).chat.completions.create(
        model="smollm2", messages=DAYS, extra_body={"grammar": 'root ::= "yes" | "no"'}
    )
    assert answer.choices[0].message.content in ("yes", "no")


# cases: C052, C025
def test_a_seed_repeats_every_choice(server: Process) -> None:
    def texts() -> list[str | None]:
        answer = sdk(server.url).chat.completions.create(
            model="smollm2", messages=DAYS, max_tokens=12, temperature=1, seed=11, n=3
        )
        return [choice.message.content for choice in answer.choices]

    first = texts()
    assert first == texts()
    assert len(set(first)) > 1


# cases: C064, C066, C087
def test_log_probabilities_hold_over_a_stream(server: Process) -> None:
    stream = sdk(server.url).chat.completions.create(
        model="smollm2", messages=DAYS, max_tokens=8, logprobs=True, top_logprobs=5, stream=True
    )
    entries = [
        entry
        for chunk in stream
        if chunk.choices and chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert len(entries) == 8
    for entry in entries:
        tops = [top.logprob for top in entry.top_logprobs]
        assert len(tops) == 5
        assert tops == sorted(tops, reverse=True)
        assert -9999 <= entry.logprob <= 0
        assert bytes(entry.bytes or []).decode("utf-8", "replace") == entry.token


# cases: C152, P37
def test_openai_embeddings_coded_and_plain(server: Process) -> None:
    coded = sdk(server.url).embeddings.create(model="minilm", input=["a cat", "a dog"])
    plain = sdk(server.url).embeddings.create(
        model="minilm", input=["a cat", "a dog"], encoding_format="float"
    )
    for left, right in zip(coded.data, plain.data, strict=True):
        assert left.embedding == pytest.approx(right.embedding)


# cases: C157, C158
def test_openai_responses_streamed(server: Process) -> None:
    events = list(
        sdk(server.url).responses.create(
            model="smollm2", input="Name the days of the week.", max_output_tokens=16, stream=True
        )
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert "".join(deltas) == last.response.output_text != ""


# cases: C049, C070, C072, C074
def test_openai_legacy_completions_with_log_probabilities(server: Process) -> None:
    answer = sdk(server.url).completions.create(
        model="smollm2", prompt=["One, two,", "Red, green,"], max_tokens=8, logprobs=2, temperature=0
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        logprobs = choice.logprobs
        assert logprobs
        assert logprobs.tokens
        assert logprobs.text_offset
        for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
            assert choice.text[offset:].startswith(token)


# cases: C106, C115, P45
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_openai_tools_are_called_and_answered(calling: str, choice: Any) -> None:
    chat = sdk(calling).chat.completions
    messages: Any = [{"role": "user", "content": "How is the weather in Oslo?"}]
    fields: Any = {"model": "smollm2", "tools": [WEATHER], "max_tokens": 100, "temperature": 0}
    with chat.stream(**fields, messages=messages, tool_choice=choice) as stream:
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert final.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls
    assert message.tool_calls[0].function.name == "get_weather"
    assert set(json.loads(message.tool_calls[0].function.arguments)) == {"city"}
    assert not message.content
    whole = chat.create(**fields, messages=messages, tool_choice=choice)
    assert whole.choices[0].message.tool_calls
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It rains."}
    sent_back = message.model_dump(exclude_none=True, exclude={"parsed"})
    for call in sent_back["tool_calls"]:
        call["function"].pop("parsed_arguments", None)
    answer = chat.create(**fields, messages=[*messages, {**sent_back, "content": None}, result])
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


# ------------------------------------------------------------------------------------------------- anthropic


# cases: C164, C169
def test_anthropic_message_stream_and_count(server: Process) -> None:
    claude = anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0)
    fields: Any = {"model": "smollm2", "max_tokens": 12, "messages": DAYS, "extra_body": GREEDY}
    whole = claude.messages.create(**fields)
    with claude.messages.stream(**fields) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert whole.content[0].text == streamed  # type: ignore[union-attr]
    assert whole.stop_reason == "max_tokens"
    counted = claude.messages.count_tokens(model="smollm2", messages=DAYS).input_tokens
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) == counted


# cases: C170
def test_anthropic_tools(calling: str) -> None:
    tool: Any = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
    claude = anthropic.Anthropic(base_url=calling, api_key="x", max_retries=0)
    with claude.messages.stream(
        model="smollm2",
        max_tokens=100,
        messages=[{"role": "user", "content": "How is the weather in Oslo?"}],
        tools=[tool],
        tool_choice={"type": "tool", "name": "get_weather"},
        extra_body=GREEDY,
    ) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    block = final.content[-1]
    assert block.type == "tool_use"
    assert set(block.input) == {"city"}


# ------------------------------------------------------------------------------------------------------- llm


def llm(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "llm", *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "LLM_USER_PATH": str(folder)},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("flags", [(), ("--no-stream",), ("--responses",)])
def test_llm_asks_an_endpoint(server: Process, tmp_path: Path, flags: tuple[str, ...]) -> None:
    endpoint = ("openai", "endpoint", f"{server.url}/v1", "--key", "x")
    assert "smollm2" in llm(tmp_path, *endpoint, "--models")
    assert llm(
        tmp_path, *endpoint, "-m", "smollm2", "-o", "max_tokens", "16", *flags, "Name the days of the week."
    )


def test_llm_knows_us_as_a_model_of_its_own(server: Process, tmp_path: Path) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- {{model_id: edge, model_name: smollm2, api_base: '{server.url}/v1', supports_schema: true}}\n"
    )
    options = ("-m", "edge", "--key", "x", "-o", "max_tokens", "60", "-o", "temperature", "0")
    assert llm(tmp_path, *options, "Name the days of the week.")
    person = llm(tmp_path, *options, "--schema", json.dumps(AGE), "Ada is 36 years old.")
    assert isinstance(json.loads(person)["age"], int)
    logged = json.loads(llm(tmp_path, "logs", "--json", "-n", "1"))
    assert logged[0]["output_tokens"] > 0


# ------------------------------------------------------------------------------------------------------ Node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the scripts and their packages."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    for file in (HERE / "package.json", *HERE.glob("*.mjs")):
        shutil.copy(file, folder)
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    if done.returncode != 0:
        pytest.skip(f"npm could not install the clients: {done.stderr.strip().splitlines()[-1:]}")
    return folder


def run_node(folder: Path, script: str, url: str) -> Any:
    done = subprocess.run(
        ["node", script],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "BASE": url},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_openai_for_node(server: Process, node: Path) -> None:
    result = run_node(node, "openai.mjs", server.url)
    assert result["models"][:2] == ["auto", "smollm2"]
    assert result["text"] == result["streamed"] != ""
    assert result["helper"]
    assert result["usage"] == result["streamedUsage"] == 12
    assert result["parsed"] == "number"
    assert result["dimensions"] == [384, 384]
    assert result["response"]
    assert result["events"][0] == "response.created"
    assert result["events"][1] in ("response.completed", "response.incomplete")
    assert result["error"] == ["NotFoundError", 404, "model_not_found"]


def test_anthropic_for_node(server: Process, node: Path) -> None:
    result = run_node(node, "anthropic.mjs", server.url)
    assert result["text"] == result["streamed"] == result["final"] != ""
    assert result["stop"] == "max_tokens"
    assert result["usage"] == 12
    assert result["counted"] > 0
    assert result["error"] == ["NotFoundError", 404]


# cases: P61
def test_a_strict_parser_reads_every_stream_however_it_is_cut(server: Process, node: Path) -> None:
    result = run_node(node, "sse.mjs", server.url)
    for path, read in result.items():
        assert read["status"] == 200, path
        assert read["events"] > 5, path
        assert read["same"], path
    assert result["/v1/chat/completions"]["last"] == ["", "[DONE]"]
    assert result["/v1/completions"]["last"] == ["", "[DONE]"]
    assert result["/v1/messages"]["last"][0] == "message_stop"
    assert result["/v1/responses"]["last"][0] in ("response.completed", "response.incomplete")


# ------------------------------------------------------------------------------------------------ frameworks


def test_langchain_instructor_and_pydantic_ai(server: Process, tmp_path: Path) -> None:
    """In an environment of their own: they pin what we use too."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    done = subprocess.run(
        [
            *(venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("langchain-openai>=1.7", "instructor>=1.17", "pydantic-ai-slim[openai]>=2"),
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    if done.returncode != 0:
        pytest.skip("the frameworks could not be installed")
    done = subprocess.run(
        [venv / "bin" / "python", HERE / "frameworks.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "BASE": server.url},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["langchain"] == result["langchain_streamed"] != ""
    assert result["langchain_usage"] == 12
    assert result["langchain_dimensions"] == 384
    assert result["instructor"] == "int"
    assert result["pydantic_ai"]


def test_nobody_was_asked_twice(server: Process) -> None:
    """No client met an error of ours that it repeats by itself."""
    with client(server.url) as http:
        metrics = http.get("/metrics").text
    assert 'status="5' not in metrics
