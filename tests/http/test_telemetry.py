from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from edgecloud.errors import EngineFailure
from edgecloud.log_lines import LineFormatter, Redactor, configure_logging
from tests.support.fake_engine import FakeEngine
from tests.support.live import eventually
from tests.support.requests import chat, client, post_bytes

from .conftest import Serve

SECRET = "SECRET123-do-not-show"


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Every sample by its name and its label values, in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# cases: C145, C146
def test_counters_match_what_was_done(serve: Serve) -> None:
    engine = FakeEngine(cached_tokens=1)
    with client(serve(engine).url) as http:
        for _ in range(3):
            http.post("/v1/chat/completions", json=chat())
        http.post("/v1/chat/completions", json={})
        http.post("/v1/chat/completions", json=chat(model="no-such-model"))
        http.get("/no/such/path")
        answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = samples(answer.text)
    route = "/v1/chat/completions"
    assert found["edgecloud_http_requests_total", "fake", route, "200"] == 3
    assert found["edgecloud_http_requests_total", "", route, "400"] == 1
    assert found["edgecloud_http_requests_total", "", route, "404"] == 1
    assert found["edgecloud_http_requests_total", "", "unmatched", "404"] == 1
    assert found["edgecloud_prompt_tokens_total", "fake"] == 6
    assert found["edgecloud_cached_tokens_total", "fake"] == 3
    assert found["edgecloud_generation_tokens_total", "fake"] == 12
    assert found["edgecloud_generations_total", "fake", "done"] == 3
    for name in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "time_per_output_token_seconds",
    ):
        assert found[f"edgecloud_{name}_count", "fake"] == 3
    assert found["edgecloud_inter_token_latency_seconds_count", "fake"] == 9
    assert ("edgecloud_num_requests_running",) in found


def test_help_and_type_come_before_samples(serve: Serve) -> None:
    with client(serve().url) as http:
        http.post("/v1/chat/completions", json=chat())
        lines = http.get("/metrics").text.splitlines()
    described: set[str] = set()
    for line in lines:
        if line.startswith("# TYPE "):
            described.add(line.split()[2])
        elif not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            assert any(name.startswith(family) for family in described), line


def test_names_that_clients_invent_are_no_labels(serve: Serve) -> None:
    with client(serve().url) as http:
        for number in range(20):
            http.get(f"/v1/models/invented-{number}")
            http.get(f"/invented-{number}")
            http.post("/v1/chat/completions", json=chat(model=f"invented-{number}"))
        text = http.get("/metrics").text
    assert "invented" not in text


# cases: C145
def test_metrics_can_be_switched_off(serve: Serve) -> None:
    with client(serve(metrics=False).url) as http:
        assert http.get("/metrics").status_code == 404


def test_failures_and_cancels_are_told_apart(serve: Serve) -> None:
    engine = FakeEngine(fail_at=1, error=EngineFailure("broke"))
    hanging = FakeEngine(name="hanging", hang_at=1)
    live = serve(engine, hanging)
    with client(live.url) as http:
        http.post("/v1/chat/completions", json=chat(stream=True))
        raw = live.connect()
        raw.sendall(post_bytes(chat(model="hanging", stream=True)))
        eventually(lambda: hanging.generated == 1)
        raw.close()
        eventually(lambda: hanging.cancelled)
        found = samples(http.get("/metrics").text)
    assert found["edgecloud_generations_total", "fake", "failed"] == 1
    assert found["edgecloud_generations_total", "hanging", "cancelled"] == 1
    route = "/v1/chat/completions"
    assert found["edgecloud_http_requests_total", "hanging", route, "499"] == 1


# cases: C148
def test_load_is_1_during_a_stream_and_0_after(serve: Serve) -> None:
    engine = FakeEngine(hang_at=1)
    live = serve(engine)
    with client(live.url) as http:
        with live.connect() as raw:
            raw.sendall(post_bytes(chat(stream=True)))
            eventually(lambda: engine.generated == 1)
            assert http.get("/load").json() == {"server_load": 1}
        eventually(lambda: engine.cancelled)
        assert http.get("/load").json() == {"server_load": 0}


# cases: P28
def test_a_stuck_engine_is_not_healthy_but_the_process_lives(serve: Serve) -> None:
    engine = FakeEngine()
    with client(serve(engine).url) as http:
        engine.ok = False
        for path in ("/health", "/health/", "/health/ready", "/v1/health"):
            assert http.get(path).status_code == 503
        assert http.get("/health/live").status_code == 200
        engine.ok = True
        assert http.get("/health").status_code == 200


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("debug", secrets=[SecretStr(SECRET)], stream=stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def test_a_request_is_one_line_with_its_id_and_without_its_words(serve: Serve, log: io.StringIO) -> None:
    with client(serve(FakeEngine([b"the-answer"]), api_keys=(SECRET,)).url) as http:
        http.headers["authorization"] = f"Bearer {SECRET}"
        http.headers["x-request-id"] = "mine"
        http.post("/v1/chat/completions?q=the-query", json=chat("the-prompt"))
        http.get("/health/live")  # the line is there before another request is read, but after the answer
    lines = [line for line in log.getvalue().splitlines() if "logger=edgecloud.access" in line]
    (line,) = (line for line in lines if "path=/v1/chat/completions" in line)
    for part in ("request_id=mine", "status=200", "model=fake", "prompt_tokens=2", "completion_tokens=1"):
        assert part in line
    for leak in ("the-prompt", "the-answer", "the-query", "SECRET123"):
        assert leak not in log.getvalue()


# cases: P50
def test_a_key_shows_up_nowhere_whatever_fails(serve: Serve, log: io.StringIO) -> None:
    engine = FakeEngine(refuse=RuntimeError(f"upstream said no to Bearer {SECRET}"))
    bodies = []
    with client(serve(engine, api_keys=(SECRET,)).url) as http:
        for headers in ({"authorization": f"Bearer {SECRET}"}, {"x-api-key": SECRET}):
            bodies.append(http.post("/v1/chat/completions", json=chat(), headers=headers).text)
            bodies.append(http.post("/v1/messages", json={}, headers=headers).text)
            bodies.append(http.get(f"/v1/{SECRET}", headers=headers).text.replace(f"/v1/{SECRET}", ""))
            bodies.append(http.get("/metrics", headers=headers).text)
    assert "Traceback" in log.getvalue()
    assert "SECRET123" not in log.getvalue()
    assert "SECRET123" not in "".join(bodies)


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {SECRET}",
        "authorization: bearer abcdefghijk",
        "x-api-key: abcdefghijk",
        "(b'x-api-key', b'x') {'x-api-key': 'abcdefghijk'}",
        "key sk-abcdefghijklmnopqrstuvwx was used",
        f"{SECRET}{SECRET}",
    ],
)
def test_what_looks_like_a_key_is_taken_out(text: str) -> None:
    shown = Redactor([SecretStr(SECRET)])(text)
    assert "[redacted]" in shown
    for leak in ("SECRET123", "abcdefghijk"):
        assert leak not in shown


def test_a_line_break_in_a_path_does_not_make_a_second_line(serve: Serve, log: io.StringIO) -> None:
    with client(serve().url) as http:
        http.get("/a%0Alevel=critical%20forged")
        http.get("/health/live")
    assert not [line for line in log.getvalue().splitlines() if line.startswith("level=critical")]


def test_lines_can_be_json() -> None:
    record = logging.LogRecord("edgecloud", logging.INFO, "", 0, 'he said "%s"', ("hi\nthere",), None)
    record.fields = {"status": 200}
    line = LineFormatter(Redactor(), as_json=True).format(record)
    assert json.loads(line) | {"time": ""} == {
        "time": "",
        "level": "info",
        "logger": "edgecloud",
        "message": 'he said "hi\nthere"',
        "status": 200,
    }


def test_a_request_id_is_echoed_cleaned_or_made(serve: Serve) -> None:
    def answered(http: httpx.Client, given: str) -> str:
        return http.get("/health", headers={"x-request-id": given}).headers["x-request-id"]

    with client(serve().url) as http:
        assert answered(http, "trace-1.2:3") == "trace-1.2:3"
        assert answered(http, "a b\tc<d>") == "abcd"
        assert answered(http, "x" * 500) == "x" * 128
        first, second = answered(http, ""), answered(http, "<>")
        assert first.startswith("req-")
        assert second.startswith("req-")
        assert first != second
        assert http.get("/nope").headers["x-request-id"]


def test_the_receipt_has_the_id_that_the_client_sees(serve: Serve) -> None:
    engine = FakeEngine()
    with client(serve(engine).url) as http:
        ours = http.post("/v1/chat/completions", json=chat())
        http.post("/v1/chat/completions", json=chat(), headers={"x-request-id": "same"})
        http.post("/v1/chat/completions", json=chat(), headers={"x-request-id": "same"})
    ids = [request.id for request in engine.requests]
    assert ids[0] == ours.headers["x-request-id"]
    assert len(set(ids)) == 3


def test_a_span_continues_the_callers_trace_where_the_sdk_is_installed(serve: Serve) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with client(serve().url) as http:
        parent = f"00-{'a' * 32}-{'b' * 16}-01"
        http.post("/v1/chat/completions", json=chat("the-prompt"), headers={"traceparent": parent})
    eventually(exporter.get_finished_spans)
    (span,) = (s for s in exporter.get_finished_spans() if s.instrumentation_scope.name == "edgecloud")
    assert format(span.context.trace_id, "032x") == "a" * 32
    assert span.attributes["http.route"] == "/v1/chat/completions"
    assert span.attributes["http.response.status_code"] == 200
    assert "the-prompt" not in span.to_json()
