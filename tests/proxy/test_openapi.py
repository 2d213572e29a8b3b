from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.requests import client

from .conftest import Serve


def test_our_document_names_every_route(serve: Serve) -> None:
    with client(serve().url) as http:
        document = http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path in ("/v1/chat/completions", "/v1/models/{model}", "/health", "/tokenize", "/metrics"):
        assert path in document["paths"]
    for path, operations in document["paths"].items():
        if "post" in operations:
            assert operations["post"]["requestBody"]["content"]["application/json"]["schema"]["required"], (
                path
            )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_schemathesis_finds_no_5xx(serve: Serve, tmp_path: Path) -> None:
    # The name that `auto` means by default: what would be routed is asked too.
    live = serve(FakeEngine(name="smollm2"))
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        f"{live.url}/openapi.json",
        "--checks=not_a_server_error",
        "--phases=examples,coverage,fuzzing",
        "--max-examples=25",
        "--seed=7",
        "--no-color",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
