"""The pool's tokens are llama.cpp's: same ids, same bytes, same ends, from a GGUF and from a model folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgecloud.errors import ModelLoadError
from edgecloud.gguf_tokenizer import load_tokenizer
from edgecloud.local_engine.llama import Model
from edgecloud.models import STARTER, resolve
from edgecloud.pool.vocabulary import FileVocabulary, from_folder, from_gguf
from edgecloud.settings import Settings

TEXTS = [
    "Hello, world!",
    "  two  spaces\n\n",
    "日本語 🦀 é",
    "1234567 x=3;",
    "<|im_start|>user\nhi<|im_end|>",
    "",
]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve(STARTER, Settings(), tuned=False).path


@pytest.fixture(scope="module")
def oracle(path: Path) -> Iterator[Model]:
    model = Model(path, vocab_only=True)
    yield model
    model.close()


@pytest.fixture(scope="module")
def folder(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    load_tokenizer(path).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": "x"}
        )
    )
    return folder


@pytest.fixture(scope="module", params=["gguf", "folder"])
def vocabulary(request: pytest.FixtureRequest, path: Path, folder: Path) -> FileVocabulary:
    return from_gguf(path) if request.param == "gguf" else from_folder(folder)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [True, False])
def test_a_text_has_the_same_ids_and_comes_back(
    vocabulary: FileVocabulary, oracle: Model, text: str, special: bool
) -> None:
    ids = vocabulary.tokenize(text, parse_special=special)
    assert ids == oracle.tokenize(text, parse_special=special)
    assert vocabulary.detokenize(ids).decode() == text


def test_every_token_has_the_same_bytes(vocabulary: FileVocabulary, oracle: Model) -> None:
    assert vocabulary.n_vocab == oracle.n_vocab
    differing = [
        token
        for token in range(oracle.n_vocab)
        for special in (True, False)
        if vocabulary.token_bytes(token, special=special) != oracle.token_bytes(token, special=special)
    ]
    assert differing == []


def test_ends_beginnings_and_control_tokens_are_the_same(vocabulary: FileVocabulary, oracle: Model) -> None:
    assert vocabulary.eog_ids == oracle.eog_ids
    assert (vocabulary.bos, vocabulary.eos, vocabulary.adds_bos) == (oracle.bos, oracle.eos, oracle.adds_bos)
    assert vocabulary.control_tokens() == oracle.control_tokens()
    assert vocabulary.token_bytes(oracle.n_vocab) == b""


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        from_folder(tmp_path)


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match="damaged"):
        from_folder(tmp_path)
