"""Nothing leaves this machine on its own, seen from outside: native libraries pass by all hooks of Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.shell import environment
from tests.support.requests import chat

WATCHED = """
set -e
# A network whose only way out ends in a device where nobody listens.
ip link set lo up
ip link add out type veth peer name nowhere
[ ! -e /proc/sys/net/ipv6/conf/out/disable_ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/out/disable_ipv6
ip addr add 10.77.0.2/24 dev out
ip link set out up
ip link set nowhere up
ip route add default via 10.77.0.1
# Names would be asked of a server that is out there.
echo nameserver 10.77.0.53 >"$HOME/resolv.conf"
mount --bind "$HOME/resolv.conf" /etc/resolv.conf
set +e
"$@"
code=$?
echo "packets $(sed -n 's/^ *out: *//p' /proc/net/dev | awk '{print $10}')" >&2
exit $code
"""


def can_watch() -> bool:
    """Whether this system lets us make a network of our own."""
    try:
        made = subprocess.run(
            ["unshare", "-rnm", "ip", "link", "add", "out", "type", "veth", "peer", "name", "nowhere"],
            capture_output=True,
        )
    except FileNotFoundError:
        return False
    return made.returncode == 0


watched = pytest.mark.skipif(not can_watch(), reason="no network of one's own can be made here")


def packets_of(home: Path, *command: str, **extra: str) -> int:
    """How many packets a command, with all that it starts, tries to send to anybody else."""
    (home / "user").mkdir(exist_ok=True)
    clean = {name: value for name, value in environment(home, **extra).items() if not name.startswith("ORT_")}
    done = subprocess.run(
        ["unshare", "-rnm", "sh", "-c", WATCHED, "sh", *command],
        env=clean | {"HOME": str(home / "user")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split("packets ")[-1])


@watched
def test_what_is_sent_is_seen(tmp_path: Path) -> None:
    sending = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'hello', ('10.77.0.9', 53))"
    assert packets_of(tmp_path, sys.executable, "-c", sending) > 0


EMBED = """
import asyncio
from edgecloud.local_engine.embedder import MiniLM
from edgecloud.models import resolve
from edgecloud.settings import Settings

embedder = MiniLM(resolve('minilm', Settings()).path)
asyncio.run(embedder.embed(["a text"]))
"""


@watched
def test_the_embedder_tells_nobody(tmp_path: Path) -> None:
    assert packets_of(tmp_path, sys.executable, "-c", EMBED) == 0
    assert not (tmp_path / "user" / ".cache").exists()


SERVE = """
import subprocess, sys, time
import httpx

server = subprocess.Popen([sys.executable, "-m", "edgecloud", *sys.argv[1:], "serve", "--port", "8484"])
http = httpx.Client(base_url="http://127.0.0.1:8484", timeout=120)
while True:
    try:
        if http.get("/health/ready").is_success:
            break
    except httpx.TransportError:
        pass
    time.sleep(0.2)
http.post("/v1/chat/completions", json=%r).raise_for_status()
http.post("/v1/embeddings", json={"model": "minilm", "input": "a text"}).raise_for_status()
time.sleep(40)
server.terminate()
sys.exit(server.wait())
"""


@watched
@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--offline"]])
def test_a_server_without_pools_tells_nobody(tmp_path: Path, flags: list[str]) -> None:
    script = SERVE % (chat(max_tokens=4),)
    assert packets_of(tmp_path, sys.executable, "-c", script, *flags) == 0
    assert os.listdir(tmp_path / "user") == ["resolv.conf"]
