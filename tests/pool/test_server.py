"""The pool's server over real sockets and the fake runner."""

from __future__ import annotations

import concurrent.futures
import json
from typing import Any

import httpx
import pytest
from openai import OpenAI

from edgecloud.pool.plan import StepPlan
from tests.support.fake_pool import live_pool, make_pool, scripted
from tests.support.fake_runner import expected
from tests.support.live import eventually
from tests.support.requests import chat, client, frames, post_bytes

from .server_builders import Gate, completion, is_idle

KEY = "sk-of-the-pool"


# ------------------------------------------------------------------------------------------------ the answers


# cases: E52, E75
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stop", ["END", "it", "never"])
def test_a_stream_joined_is_the_answer_in_one(path: str, stop: str) -> None:
    engine, _ = make_pool(num_blocks=32, runner={"next_token": scripted("hé END of it!".encode())})
    body = completion() if path == "/v1/completions" else chat("yo")
    body |= {"max_tokens": 30, "stop": [stop]}
    with live_pool(engine) as live, client(live.url) as http:
        whole = http.post(path, json=body).json()
        stream = frames(
            http.post(path, json=body | {"stream": True, "stream_options": {"include_usage": True}}).text
        )

    *chunks, usage, end = stream
    assert end == "[DONE]"
    assert usage["choices"] == []
    # The second time the prompt was cached.
    details = usage["usage"].pop("prompt_tokens_details"), whole["usage"].pop("prompt_tokens_details")
    assert usage["usage"] == whole["usage"]
    assert details[0]["cached_tokens"] >= details[1]["cached_tokens"] == 0
    pieces = [choice.get("text") or choice.get("delta", {}).get("content") or ""
              for chunk in chunks for choice in chunk["choices"]]  # fmt: skip
    choice = whole["choices"][0]
    assert "".join(pieces) == choice.get("text", choice.get("message", {}).get("content"))
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


# cases: E55
def test_a_limit_inside_a_character_is_valid_json() -> None:
    engine, _ = make_pool(runner={"next_token": scripted("\N{SNOWMAN}".encode())})
    with live_pool(engine) as live, client(live.url) as http:
        answer = http.post("/v1/completions", json=completion(max_tokens=1))

    assert answer.status_code == 200
    assert json.loads(answer.content)["choices"][0]["finish_reason"] == "length"


def test_the_openai_sdk_is_answered() -> None:
    engine, _ = make_pool(num_blocks=32, runner={"next_token": scripted(b"hello")})
    with live_pool(engine, api_keys=[KEY]) as live:
        sdk = OpenAI(base_url=f"{live.url}/v1", api_key=KEY, max_retries=0)
        answer = sdk.chat.completions.create(model="fake", messages=[{"role": "user", "content": "yo"}])
        stream = sdk.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "yo"}], stream=True
        )
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        models = [model.id for model in sdk.models.list()]

    assert answer.choices[0].message.content == streamed == "hello"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert models == ["fake"]


def test_only_the_models_own_name_and_auto_are_models() -> None:
    engine, _ = make_pool()
    with live_pool(engine) as live, client(live.url) as http:
        unknown = http.post("/v1/completions", json=completion(model="gpt-4"))
        auto = http.post("/v1/completions", json=completion(model="auto"))

    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert auto.json()["model"] == "fake"


def test_tokens_can_be_had_and_counted() -> None:
    engine, _ = make_pool()
    with live_pool(engine) as live, client(live.url) as http:
        listed = http.get("/v1/models").json()["data"][0]
        tokens = http.post("/tokenize", json={"prompt": "hi"}).json()
        text = http.post("/detokenize", json={"tokens": tokens["tokens"]}).json()
        count = http.post("/v1/chat/completions/input_tokens", json=chat("yo")).json()

    assert tokens["tokens"] == [104, 105]
    assert tokens["max_model_len"] == 33
    assert listed["meta"] == {"n_ctx": 33, "n_params": 1234}
    assert text["prompt"] == "hi"
    assert count["input_tokens"] == len("u:yo\na:")


# -------------------------------------------------------------------------------------------- what is refused


# cases: E38, E69
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"prompt": ""}, 400),
        ({"prompt": []}, 400),
        ({"prompt": [[]]}, 400),
        ({"prompt": "x" * 40}, 400),
        ({"prompt": [[999]]}, 400),
        ({"n": 9}, 400),
        ({"min_tokens": 9}, 400),
    ],
)
def test_what_can_never_be_served_has_its_status_and_the_next_is_answered(
    fields: dict[str, Any], status: int, stream: bool
) -> None:
    engine, runner = make_pool()
    with live_pool(engine) as live, client(live.url) as http:
        refused = http.post("/v1/completions", json=completion() | fields | {"stream": stream})
        assert runner.num_steps == 0
        good = http.post("/v1/completions", json=completion())

    assert refused.status_code == status
    assert refused.json()["error"]["message"]
    assert good.status_code == 200


@pytest.mark.parametrize("param", ["grammar", "ebnf", "guided_grammar"])
def test_a_grammar_is_refused_by_the_name_it_was_sent_under(param: str) -> None:
    engine, _ = make_pool()
    with live_pool(engine) as live, client(live.url) as http:
        refused = http.post("/v1/completions", json=completion() | {param: 'root ::= "x"'})

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


def test_without_the_key_nothing_but_liveness_is_told() -> None:
    engine, _ = make_pool()
    with live_pool(engine, api_keys=[KEY]) as live, client(live.url) as http:
        closed = [http.get(path).status_code for path in ("/health/deep", "/metrics", "/v1/prefixes")]
        closed.append(http.post("/v1/completions", json=completion()).status_code)
        opened = [http.get(path).status_code for path in ("/health", "/health/live", "/health/ready")]

    assert closed == [401] * 4
    assert opened == [200] * 3


def test_a_full_queue_is_429_with_the_time_to_come_back(gate: Gate) -> None:
    engine, runner = make_pool(max_running=1, max_waiting=1, runner={"before_step": gate})
    with live_pool(engine) as live, client(live.url) as http, concurrent.futures.ThreadPoolExecutor() as many:
        first = many.submit(http.post, "/v1/completions", json=completion())
        eventually(lambda: runner.num_steps)
        second = many.submit(http.post, "/v1/completions", json=completion())
        eventually(lambda: engine.loop.num_waiting)
        refused = http.post("/v1/completions", json=completion())
        gate.open()
        served = [first.result().status_code, second.result().status_code]

    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert served == [200, 200]


def test_a_deadline_header_bounds_the_answer() -> None:
    engine, _ = make_pool(num_blocks=64, context=256, runner={"step_s": 0.005})
    with live_pool(engine) as live, client(live.url) as http:
        late = http.post(
            "/v1/completions", json=completion(max_tokens=200), headers={"x-request-deadline-ms": "40"}
        )
        eventually(lambda: is_idle(engine))

    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert engine.loop.metrics.finished == {"deadline": 1}


# cases: E47
def test_the_urgent_goes_first_and_what_runs_is_left_alone(gate: Gate) -> None:
    order: list[int] = []

    def before_step(plan: StepPlan) -> None:
        gate(plan)
        order.extend(item.request_id for item in plan.items)

    engine, runner = make_pool(
        policy="priority", num_blocks=64, max_running=1, runner={"before_step": before_step}
    )
    with live_pool(engine) as live, client(live.url) as http, concurrent.futures.ThreadPoolExecutor() as many:
        answers = [many.submit(http.post, "/v1/completions", json=completion("zero"))]
        eventually(lambda: runner.num_steps)
        for waiting, priority in enumerate((5, 0, -5), 1):
            answers.append(
                many.submit(http.post, "/v1/completions", json=completion(f"p{priority}", priority=priority))
            )
            eventually(lambda waiting=waiting: engine.loop.num_waiting == waiting)  # type: ignore[misc]
        gate.open()
        assert [answer.result().status_code for answer in answers] == [200] * 4

    assert list(dict.fromkeys(order)) == [0, 3, 2, 1]
    assert engine.loop.stats.preemptions == 0, "a full house of choices is no want of blocks"


# ----------------------------------------------------------------------------------------- leaving and ending


# cases: E3, E7
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_is_gone_within_a_step_or_two(stream: bool) -> None:
    engine, runner = make_pool(num_blocks=64, context=256, runner={"step_s": 0.01})
    with live_pool(engine) as live:
        connection = live.connect()
        connection.sendall(post_bytes(completion(max_tokens=200, stream=stream), "/v1/completions"))
        eventually(lambda: runner.num_steps > 3)
        connection.close()
        eventually(lambda: is_idle(engine))

        assert runner.num_steps < 150, "it was not answered to its end"
        assert engine.loop.metrics.finished == {"abort": 1}
        assert engine.loop.metrics.cancel.total == 1
        assert not runner.requests


# cases: E71, E2
def test_one_name_for_two_requests_and_a_late_hang_up_of_the_first() -> None:
    engine, _ = make_pool(num_blocks=64, context=256, runner={"step_s": 0.01})
    with live_pool(engine) as live, client(live.url, headers={"x-request-id": "twin"}) as http:
        connection = live.connect()
        first = post_bytes(completion("one|", max_tokens=200, stream=True), "/v1/completions")
        connection.sendall(first.replace(b"host:", b"x-request-id: twin\r\nhost:"))
        eventually(lambda: engine.loop.stats.running)
        connection.close()
        second = http.post("/v1/completions", json=completion("two|"))

    assert second.headers["x-request-id"] == "twin"
    assert second.json()["choices"][0]["text"].encode() == bytes(expected(b"two|", 5))


def test_a_fault_of_the_first_step_is_500_not_to_be_repeated_and_a_later_one_is_in_the_stream() -> None:
    broken = {0, 30}

    def before_step(plan: StepPlan) -> None:
        if plan.id in broken:
            broken.discard(plan.id)
            raise RuntimeError("a kernel failed")

    engine, _ = make_pool(num_blocks=64, context=256, runner={"before_step": before_step, "step_s": 0.005})
    with live_pool(engine) as live:
        first, second, third = (
            httpx.post(f"{live.url}/v1/completions", json=completion(max_tokens=60, stream=stream))
            for stream in (True, True, False)
        )

    assert (first.status_code, first.headers["x-should-retry"]) == (500, "false")
    *chunks, error, end = frames(second.text)
    assert chunks
    assert (error["error"]["code"], end) == ("engine_failed", "[DONE]")
    assert third.status_code == 200


def test_the_log_names_who_was_lost_as_the_client_does(caplog: pytest.LogCaptureFixture) -> None:
    def before_step(plan: StepPlan) -> None:
        raise RuntimeError("a kernel failed")

    engine, _ = make_pool(runner={"before_step": before_step})
    with live_pool(engine) as live:
        httpx.post(f"{live.url}/v1/completions", json=completion(), headers={"x-request-id": "from-afar"})

    [record] = [record for record in caplog.records if record.name == "edgecloud.pool"]
    assert "lost with it: from-afar" in record.getMessage()


def test_a_drain_lets_answers_finish_takes_no_new_ones_and_frees_the_model(gate: Gate) -> None:
    engine, runner = make_pool(runner={"before_step": gate})
    with (
        concurrent.futures.ThreadPoolExecutor() as many,
        live_pool(engine, drain_s=10.0) as live,
        client(live.url) as http,
    ):
        running = many.submit(http.post, "/v1/completions", json=completion())
        eventually(lambda: runner.num_steps)
        live.stop()
        eventually(lambda: live.drain.draining)
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{live.url}/v1/completions", json=completion())
        gate.open()

        assert running.result().status_code == 200
    assert runner.closed
