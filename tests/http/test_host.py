from __future__ import annotations

import pytest

from edgecloud.http.host import HostCheck, host_name, is_loopback
from tests.support.requests import client

from .conftest import Serve


async def nothing(*_: object) -> None: ...


# cases: C140, P34, P78
@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:1234",
        "localhost.",
        "localhost.:8484",
        "127.0.0.1",
        "127.0.0.1:8484",
        "127.8.9.10",
        "[::1]",
        "[::1]:8484",
        "[0:0:0:0:0:0:0:1]:1",
        "[::ffff:127.0.0.1]",
        "app.localhost:3000",
    ],
)
def test_names_of_this_machine_are_answered(serve: Serve, host: str) -> None:
    with client(serve().url) as http:
        assert http.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8484",
        "EVIL.example.",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1:80:80",
        "127.0.0.1:x",
        "[::1].evil.example",
        "[2001:db8::1]",
        "192.168.1.7",
        "[::1",
        "[localhost]",
        "127.0.0.1 evil.example",
    ],
)
def test_any_other_name_is_refused_in_the_envelope(serve: Serve, host: str) -> None:
    with client(serve().url) as http:
        answer = http.get("/v1/models", headers={"host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "permission_error"
    assert "evil" not in answer.text


def test_every_one_of_several_host_headers_has_to_be_allowed(serve: Serve) -> None:
    live = serve()
    with live.connect() as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n")
        assert raw.recv(4096).split()[1] in (b"400", b"403")


def test_a_name_can_be_allowed(serve: Serve) -> None:
    with client(serve(allowed_hosts=("Box.Lan",)).url) as http:
        assert http.get("/health", headers={"host": "box.lan:80"}).status_code == 200
        assert http.get("/health", headers={"host": "notbox.lan"}).status_code == 403


def test_a_server_on_the_network_answers_to_addresses_but_not_to_unknown_names() -> None:
    check = HostCheck(nothing, bound=("0.0.0.0", "box.lan"))
    assert check._allows("192.168.1.7:8484")
    assert check._allows("[2001:db8::1]")
    assert check._allows("box.lan")
    assert not check._allows("evil.example")


async def test_what_is_remembered_of_hosts_is_bounded() -> None:
    check = HostCheck(nothing)
    for port in range(200):
        await check({"type": "http", "headers": [(b"host", b"localhost:%d" % port)]}, nothing, nothing)
    assert len(check._known) == 64


def test_a_star_allows_every_name(serve: Serve) -> None:
    with client(serve(allowed_hosts=("*",)).url) as http:
        assert http.get("/health", headers={"host": "evil.example"}).status_code == 200


def test_a_host_is_taken_apart() -> None:
    assert host_name("[::1]:80") == "::1"
    assert host_name("Box.") == "box"
    assert is_loopback("127.0.0.1")
    assert not is_loopback("localhost.evil.example")
    assert not is_loopback("0.0.0.0")
