from __future__ import annotations

import pytest

from edgecloud import errors
from tests.support.fake_engine import FakeEngine
from tests.support.requests import chat, client

from .conftest import Serve

KEYS = {"message", "type", "param", "code"}


# cases: C126
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("POST", "/v1/nope", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("PUT", "/health", 405, "method_not_allowed"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/v1/completions/", 404, "not_found"),
    ],
)
def test_what_is_not_there_has_the_envelope(
    serve: Serve, method: str, path: str, status: int, code: str
) -> None:
    with client(serve().url) as http:
        answer = http.request(method, path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) >= KEYS
    assert error["code"] == code
    assert "detail" not in answer.json()
    if status == 405:
        assert answer.headers["allow"]


def test_a_head_request_has_no_body(serve: Serve) -> None:
    with client(serve().url) as http:
        answer = http.head("/health")
    assert (answer.status_code, answer.content) == (200, b"")


def test_anthropic_routes_speak_anthropic(serve: Serve) -> None:
    with client(serve().url) as http:
        for answer in (
            http.get("/v1/messages"),
            http.post("/v1/messages", json={}),
            http.post("/v1/messages", content=b"{"),
            http.post("/v1/messages/count_tokens", json=[]),
            http.post("/messages/nope"),
        ):
            body = answer.json()
            assert body["type"] == "error"
            assert set(body["error"]) == {"type", "message"}
            assert body["request_id"] == answer.headers["x-request-id"] == answer.headers["request-id"]


# cases: C130, P73
@pytest.mark.parametrize("stream", [False, True])
def test_a_bug_of_ours_is_500_says_nothing_of_itself_and_is_not_to_be_repeated(
    serve: Serve, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine(refuse=RuntimeError("/secret/path/engine.py at 0x7f001122"))
    with client(serve(engine).url) as http:
        answer = http.post("/v1/chat/completions", json=chat(stream=stream))
    assert answer.status_code == 500
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["code"] == "internal_error"
    for leak in ("secret", "0x7f", "Traceback", "RuntimeError", ".py"):
        assert leak not in answer.text
    assert "/secret/path" in caplog.text


STATUSES = [
    (errors.BadRequest("no"), 400, None),
    (errors.ContextLengthExceeded(9, 5), 400, None),
    (errors.BudgetExceeded("no"), 402, "false"),
    (errors.NoPermittedRoute("no"), 403, "false"),
    (errors.ModelNotFound("x"), 404, None),
    (errors.Overloaded("full", retry_after=2.2), 429, None),
    (errors.EngineFailure("broke"), 500, "false"),
    (errors.ModelLoadError("broke"), 500, "false"),
    (errors.NotSupported("no"), 501, "false"),
    (errors.UpstreamError("no"), 502, None),
    (errors.Unavailable("loading"), 503, None),
    (errors.DeadlineExceeded("late"), 504, "false"),
]


@pytest.mark.parametrize(
    ("error", "status", "should_retry"), STATUSES, ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_error_has_its_status_before_anything_is_streamed(
    serve: Serve, error: errors.EdgeCloudError, status: int, should_retry: str | None, stream: bool
) -> None:
    with client(serve(FakeEngine(refuse=error)).url) as http:
        answer = http.post("/v1/chat/completions", json=chat(stream=stream))
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers.get("x-should-retry") == should_retry
    body = answer.json()["error"]
    assert (body["message"], body["type"], body["code"]) == (error.message, error.type, error.code)
    assert ("retry-after" in answer.headers) == (status in (429, 503))


# cases: P24, C042
def test_an_overlong_prompt_says_so_in_the_words_of_both_families(serve: Serve) -> None:
    with client(serve(FakeEngine(context=10)).url) as http:
        for stream in (False, True):
            answer = http.post("/v1/chat/completions", json=chat("word " * 20, stream=stream))
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert error["type"] == "exceed_context_size_error"
            assert (error["n_prompt_tokens"], error["n_ctx"]) == (21, 10)
        # cases: P4
        assert http.post("/v1/chat/completions", json=chat("short")).status_code == 200


def test_a_full_queue_says_when_to_come_back(serve: Serve) -> None:
    with client(serve(FakeEngine(queue_limit=0)).url) as http:
        answer = http.post("/v1/chat/completions", json=chat())
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "2"
