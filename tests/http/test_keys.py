from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.routing import Route

from edgecloud.app.proxy.app import create_app
from edgecloud.http.keys import LIVENESS, tenant_of
from edgecloud.http.operations import RUNNING
from edgecloud.metrics import Metrics
from edgecloud.settings import ServerSettings, Settings
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import fake_gateway
from tests.support.requests import chat, client

from .conftest import Serve


# cases: C133
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer right-and-more"}, 401),
        ({"authorization": "Bearer righ"}, 401),
        ({"authorization": "right"}, 401),
        ({"authorization": "Basic right"}, 401),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": b"\xff\xfe"}, 401),
        ({"authorization": "Bearer right"}, 200),
        ({"authorization": "bearer right"}, 200),
        ({"x-api-key": "right"}, 200),
        ({"x-api-key": "other"}, 200),
        ({"x-api-key": "wrong", "authorization": "Bearer right"}, 200),
    ],
)
def test_a_key_opens_the_door(serve: Serve, headers: dict[str, Any], status: int) -> None:
    with client(serve(api_keys=("right", "other")).url) as http:
        answer = http.get("/v1/models", headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["type"] == "authentication_error"
        assert answer.headers["www-authenticate"] == "Bearer"


# cases: C001, C002
def test_liveness_is_public_and_nothing_else(serve: Serve) -> None:
    with client(serve(api_keys=("right",)).url) as http:
        for path in sorted(LIVENESS - {"/"}):
            answer = http.get(path)
            assert answer.status_code == 200
            assert len(answer.content) < 200
            assert answer.json()["status"] == "ok"
        for path in ("/v1/models/", "/health/x", "//health", "/HEALTH", "/metrics", "/openapi.json", "/docs"):
            assert http.get(f"{http.base_url}{path}").status_code == 401, path


def test_a_browser_at_the_address_is_told_what_is_there_and_nothing_else(serve: Serve) -> None:
    with client(serve(api_keys=("right",)).url) as http:
        answer = http.get("/")
        named = re.findall("^/[^ ]+", answer.text, re.MULTILINE)
        found = [http.get(path, headers={"x-api-key": "right"}).status_code for path in named]

    assert (answer.status_code, answer.text) == (200, RUNNING)
    assert answer.headers["content-type"].startswith("text/plain")
    assert (len(named), set(found)) == (3, {200})


# cases: C134
def test_every_route_of_the_table_wants_the_key(serve: Serve) -> None:
    settings = Settings(server=ServerSettings.model_validate({"api_keys": ("right",)}))
    table = create_app(fake_gateway(), settings, metrics=Metrics()).routes
    routes = [route for route in table if isinstance(route, Route) and route.path not in LIVENESS]
    assert len(routes) > 20
    assert len(routes) + len(LIVENESS) == len(table)
    with client(serve(api_keys=("right",)).url) as http:
        for route in routes:
            for method in route.methods or ():
                path = route.path.replace("{model:path}", "fake")
                assert http.request(method, path).status_code == 401, (method, path)


def test_without_keys_any_key_will_do(serve: Serve) -> None:
    with client(serve().url) as http:
        assert http.get("/v1/models", headers={"authorization": "Bearer x"}).status_code == 200


def test_the_tenant_is_a_hash_of_the_key(serve: Serve) -> None:
    engine = FakeEngine()
    with client(serve(engine, api_keys=("right", "other")).url) as http:
        for key in ("right", "other", "right"):
            http.post("/v1/chat/completions", json=chat(), headers={"x-api-key": key})
    first, second, third = (request.tenant for request in engine.requests)
    assert first == third == tenant_of(b"right")
    assert first != second
    assert "right" not in str(first)


def test_a_websocket_is_turned_away(serve: Serve) -> None:
    live = serve()
    with live.connect() as raw:
        raw.sendall(
            b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 ")
