from __future__ import annotations

import pytest

from tests.support.requests import chat, client

from .conftest import Serve

PREFLIGHT = {"origin": "http://localhost:3000", "access-control-request-method": "POST"}


# cases: C137
@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "https://localhost",
        "http://127.0.0.1",
        "http://[::1]:8080",
        "HTTP://LOCALHOST:5173",
    ],
)
def test_pages_of_this_machine_may_call_us(serve: Serve, origin: str) -> None:
    with client(serve().url) as http:
        answer = http.get("/v1/models", headers={"origin": origin})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["vary"] == "Origin"
    assert "x-edgecloud-route" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers


# cases: P33, P78
@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost.evil.com",
        "http://evil.com",
        "null",
        "file://",
        "ftp://localhost",
        "http://localhost@evil.com",
        "http://localhost:99999",
        "http://localhost/path",
        "chrome-extension://abcdef",
    ],
)
def test_other_pages_are_refused_even_for_requests_that_need_no_preflight(serve: Serve, origin: str) -> None:
    with client(serve().url) as http:
        answer = http.post(
            "/v1/chat/completions", json=chat(), headers={"origin": origin, "content-type": "text/plain"}
        )
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "permission_error"
    assert "access-control-allow-origin" not in answer.headers


# cases: C136
def test_a_real_preflight_needs_no_key_and_allows_what_the_sdks_send(serve: Serve) -> None:
    wanted = "authorization,x-stainless-os,x-stainless-new-thing,x-evil"
    with client(serve(api_keys=("k",)).url) as http:
        answer = http.options(
            "/v1/chat/completions", headers=PREFLIGHT | {"access-control-request-headers": wanted}
        )
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].split(", ")
    sdks = {"authorization", "content-type", "x-api-key", "anthropic-version", "anthropic-beta"}
    ours = {f"x-edgecloud-{name}" for name in ("mode", "private", "fresh", "cache")}
    assert sdks | ours | {"x-request-deadline-ms", "cache-control"} <= {*allowed}
    assert "x-stainless-os" in allowed
    assert "x-stainless-new-thing" in allowed
    assert "x-evil" not in allowed


# cases: C135
@pytest.mark.parametrize("missing", ["origin", "access-control-request-method"])
def test_what_only_looks_like_a_preflight_is_none(serve: Serve, missing: str) -> None:
    headers = {name: value for name, value in PREFLIGHT.items() if name != missing}
    with client(serve(api_keys=("k",)).url) as http:
        assert http.options("/v1/models", headers=headers).status_code == 401
    with client(serve().url) as http:
        assert http.options("/v1/models", headers=headers).status_code == 405


# cases: P33
@pytest.mark.parametrize(
    ("path", "status"), [("/nope", 404), ("/v1/completions", 405), ("/v1/models/none", 404)]
)
def test_a_page_can_read_our_errors(serve: Serve, path: str, status: int) -> None:
    with client(serve().url) as http:
        answer = http.get(path, headers={"origin": "http://localhost"})
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == "http://localhost"


def test_a_page_can_read_that_its_key_is_wrong(serve: Serve) -> None:
    with client(serve(api_keys=("k",)).url) as http:
        answer = http.get("/v1/models", headers={"origin": "http://localhost"})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "http://localhost"


# cases: C139
def test_a_wildcard_comes_without_credentials(serve: Serve) -> None:
    with client(serve(cors_origins=("*",)).url) as http:
        answer = http.get("/v1/models", headers={"origin": "https://anywhere.example"})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers


def test_an_exact_origin_is_exact(serve: Serve) -> None:
    with client(serve(cors_origins=("https://chat.example/",)).url) as http:
        good = http.get("/v1/models", headers={"origin": "https://chat.example"})
        bad = http.get("/v1/models", headers={"origin": "https://chat.example.evil"})
        local = http.get("/v1/models", headers={"origin": "http://localhost"})
    assert (good.status_code, bad.status_code, local.status_code) == (200, 403, 403)


def test_a_page_that_we_serve_ourselves_is_no_stranger(serve: Serve) -> None:
    live = serve(cors_origins=())
    with client(live.url) as http:
        assert http.get("/v1/models", headers={"origin": live.url}).status_code == 200
        assert http.get("/v1/models", headers={"origin": "http://127.0.0.1:1"}).status_code == 403


def test_a_private_network_preflight_is_answered(serve: Serve) -> None:
    with client(serve().url) as http:
        headers = PREFLIGHT | {"access-control-request-private-network": "true"}
        answer = http.options("/v1/models", headers=headers)
    assert answer.headers["access-control-allow-private-network"] == "true"
