"""`edgecloud models`, as a process."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from click.testing import CliRunner

from edgecloud.app.cli.models import models
from edgecloud.app.cli.shell import State
from tests.ground.gguf_files import write_gguf
from tests.ground.hub_server import HubServer

from .shell import edgecloud


def out(home: Path, *arguments: str, **extra: str) -> str:
    done = edgecloud(home, "models", *arguments, **extra)
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout
    return done.stdout.decode()


def test_list_shows_names_kinds_sizes_and_roles(tmp_path: Path) -> None:
    write_gguf(tmp_path / "data/models/Other-Q8_0.gguf")

    rows = [line.split() for line in out(tmp_path, "list").splitlines()]
    assert rows[0] == ["smollm2", "chat", "98", "MB", "default"]
    assert rows[1] == ["minilm", "embedding", "23", "MB", "embedder"]
    assert rows[2][:2] == ["other-q8_0", "chat"]

    listed = json.loads(out(tmp_path, "list", "--json"))
    assert [(row["name"], row["role"]) for row in listed] == [
        ("smollm2", "default"),
        ("minilm", "embedder"),
        ("other-q8_0", ""),
    ]


def test_info_describes_the_default_and_a_named_model(tmp_path: Path) -> None:
    facts = json.loads(out(tmp_path, "info", "--json"))
    assert (facts["name"], facts["quantisation"], facts["parameters"]) == ("smollm2", "Q4_1", 134_515_008)
    assert facts["kv_bytes_per_token"] == 23_040

    shown = out(tmp_path, "info", str(write_gguf(tmp_path / "a.gguf")))
    assert "architecture      llama" in shown
    assert "context           512" in shown
    assert "chat template" in shown
    assert "True" not in shown
    assert "23 kB a token, 189 MB for its whole context" in out(tmp_path, "info")
    assert "minilm" in out(tmp_path, "info", "minilm")
    assert out(tmp_path, "info", "auto") == out(tmp_path, "info")


def test_text_from_a_file_cannot_drive_the_terminal(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "evil.gguf", general__description="x")
    path.write_bytes(path.read_bytes().replace(b"Tiny", b"\x1b[2J"))

    assert "␛[2J" in out(tmp_path, "info", str(path))


def test_a_model_is_pulled_made_default_and_removed(tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "source.gguf").read_bytes()
    with HubServer({"some/Tiny-GGUF": {"Tiny-Q8_0.gguf": content}}) as server:
        assert out(tmp_path, "pull", "hf:some/Tiny-GGUF", HF_ENDPOINT=server.url) == "tiny-q8_0\n"

    assert out(tmp_path, "default", "tiny-q8_0") == ""
    assert tomllib.loads((tmp_path / "config.toml").read_text()) == {"model": "tiny-q8_0"}
    assert out(tmp_path, "default") == "tiny-q8_0\n"
    assert out(tmp_path, "list").split()[:2] == ["tiny-q8_0", "chat"]

    # The same file by another of its names.
    spec = "hf:some/Tiny-GGUF"
    assert out(tmp_path, "list", EDGECLOUD_MODEL=spec).splitlines()[0].split()[-1] == "default"

    assert out(tmp_path, "rm", "tiny-q8_0") == ""
    assert "tiny" not in out(tmp_path, "list")


def test_an_embedding_model_becomes_the_embedder_and_a_path_stays_one(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "embed.gguf", embedding=True)

    out(tmp_path, "default", str(path))
    assert tomllib.loads((tmp_path / "config.toml").read_text()) == {"embedder": str(path)}


def test_what_goes_wrong_is_one_line_and_a_code(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    expected = {
        ("info", "nope"): (2, "There is no model named 'nope'"),
        ("info", str(tmp_path / "broken.gguf")): (2, "broken.gguf is truncated or damaged"),
        ("info", "hf:a/b-GGUF:Q4_0"): (2, "edgecloud models pull hf:a/b-GGUF:Q4_0"),
        ("default", str(tmp_path / "gone.gguf")): (2, f"There is no file {tmp_path}/gone.gguf"),
        ("rm", str(tmp_path / "broken.gguf")): (2, "delete the file itself"),
        ("rm", "smollm2"): (2, "not ours to delete"),
        ("pull", "smollm2"): (2, "comes as a package"),
        ("pull", "nope"): (2, "write hf:owner/repo:QUANT"),
        ("tune", "minilm"): (2, "only chat models are tuned"),
        ("tune", "smollm2", "--try", "Q99"): (2, "Q99 is not a candidate"),
    }
    for arguments, (code, words) in expected.items():
        done = edgecloud(tmp_path, "models", *arguments)
        assert done.returncode == code, arguments
        assert words in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1
        assert done.stdout == b""


def test_a_pool_can_be_the_default(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[[pool]]\nname = 'big'\nurl = 'http://x/v1'\nmodel = 'm'\n")

    assert out(tmp_path, "default", "big") == ""
    assert out(tmp_path, "default") == "big\n"
    assert edgecloud(tmp_path, "models", "list").stderr == b""


def test_offline_nothing_is_pulled(tmp_path: Path) -> None:
    done = edgecloud(tmp_path, "--offline", "models", "pull", "hf:a/b:Q4_0")

    assert done.returncode == 3
    assert "Offline mode is on" in done.stderr.decode()


def test_undoing_what_was_never_tuned_is_no_error(tmp_path: Path) -> None:
    assert out(tmp_path, "tune", "smollm2", "--undo") == ""


def test_every_command_explains_itself() -> None:
    for name in models.commands:
        assert CliRunner().invoke(models, [name, "--help"], obj=State()).exit_code == 0
