# ruff: noqa: E501
"""The wrapper: files that are no models, text and tokens, states, grammars that are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgecloud.errors import BadRequest, ModelLoadError
from edgecloud.gguf import read_info
from edgecloud.local_engine.llama import (
    Candidates,
    Context,
    EmbeddingContext,
    Grammar,
    Model,
    quantize,
)
from edgecloud.local_engine.llama import model as model_module

from .conftest import words

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"GGUF",
        lambda data: b"PK\x03\x04" + data[4:5000],
        lambda data: data[:1_000_000],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[:4] + b"\xff\xff\xff\xff" + data[8:],
        lambda data: data[:16] + b"\xff" * 8 + data[24:],
        lambda data: data.replace(b"llama.block_count", b"llama.block_cxunt"),
        lambda data: data.replace(b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama", b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0xxxxx"),
        lambda data: data[:200] + b"\xff" * 3000 + data[3200:],
    ],
    ids=["empty", "magic", "zip", "header", "half", "last-byte", "version", "counts", "key", "architecture", "noise"],
)  # fmt: skip
def test_a_file_that_is_no_model_is_one_sentence(
    tmp_path: Path, model_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(damage(model_path.read_bytes()))
    with pytest.raises(ModelLoadError) as error:
        Model(broken)
    assert "\n" not in error.value.message
    assert str(tmp_path) not in error.value.message


def test_a_load_tells_how_far_it_is_and_ends_when_it_is_not_wanted(model_path: Path) -> None:
    shares: list[float] = []
    Model(model_path, progress=lambda share: shares.append(share) or True).close()  # type: ignore[func-returns-value]

    assert len(shares) > 10
    assert shares == sorted(shares)
    assert shares[-1] == 1.0

    calls: list[float] = []
    with pytest.raises(ModelLoadError):
        Model(model_path, progress=lambda share: calls.append(share) or len(calls) < 3)  # type: ignore[func-returns-value]
    assert len(calls) == 3


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError):
        Model(tmp_path / "nothing.gguf")


@pytest.mark.parametrize(
    "text", ["", "Hello", " leading", "two\n\nlines", "日本語 👍🏽", "\x00\x01", "a" * 5000]
)
def test_text_survives_tokens(model: Model, text: str) -> None:
    ids = model.tokenize(text)
    assert model.detokenize(ids).decode() == text
    assert b"".join(model.token_bytes(token) for token in ids).decode() == text


def test_spelled_control_tokens_are_read_only_when_asked(model: Model) -> None:
    assert len(model.tokenize("<|im_end|>", parse_special=True)) == 1
    assert len(model.tokenize("<|im_end|>")) > 1
    assert "<|im_end|>" in model.control_tokens()
    (end,) = model.tokenize("<|im_end|>", parse_special=True)
    assert end in model.eog_ids
    assert model.token_bytes(end) == b""
    assert model.token_bytes(end, special=True) == b"<|im_end|>"


def test_a_prompt_of_many_messages_is_handed_over_in_parts(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp takes the square of the length that it gets at once."""
    turns = ["  spaced ", "\n\n", "word " * 40, "", "<|im_en", "<|im_end|><|im_end|>", "ä€😀"]
    prompt = "".join(f"<|im_start|>user\n{turns[at % 7]}<|im_end|>\n" for at in range(300))
    whole = model._tokenize(prompt, False, True)
    lengths: list[int] = []
    real = model_module.lib.llama_tokenize

    def tokenize(vocab: object, data: bytes, size: int, *rest: object) -> int:
        lengths.append(size)
        return int(real(vocab, data, size, *rest))

    monkeypatch.setattr(model_module, "PART", 100)
    monkeypatch.setattr(model_module.lib, "llama_tokenize", tokenize)
    assert model.tokenize(prompt, parse_special=True) == whole
    assert sum(lengths) == len(prompt.encode())
    assert max(lengths) < 400


def test_what_the_file_says_is_there(model: Model) -> None:
    assert (model.n_vocab, model.n_ctx_train) == (49152, 8192)
    assert model.can_share_prefixes
    assert model.token_text(-1) == ""
    assert len(model.fingerprint()) == 32


def test_a_saved_state_comes_back_with_the_same_logits(
    model: Model, make_context: Callable[..., Context]
) -> None:
    context = make_context()
    prompt = words(model, 40)
    context.batch.add(prompt, 0, 3, last=True)
    assert context.decode() == 0
    state = context.save(3)

    def next_logits() -> np.ndarray:
        context.batch.clear()
        index = context.batch.add_one(17, 40, 3)
        assert context.decode() == 0
        return context.logits(index).copy()

    expected = next_logits()
    context.clear()
    assert context.last_position(3) == -1
    assert context.restore(3, state)
    assert context.last_position(3) == 39
    np.testing.assert_array_equal(next_logits(), expected)
    context.close()


def test_logits_of_a_token_list_are_those_of_one_pass(
    model: Model, make_context: Callable[..., Context]
) -> None:
    context = make_context()
    tokens = words(model, 70)
    rows = [row.argmax() for row in context.logits_of(tokens, start=10)]
    assert len(rows) == 60
    context.clear()
    context.batch.clear()
    index = context.batch.add(tokens, 0, 0, last=True)
    assert context.decode() == 0
    assert context.logits(index).argmax() == rows[-1]
    with pytest.raises(IndexError):
        context.logits(0)
    context.close()


def test_an_embedding_context_pools_each_input_by_itself(model: Model) -> None:
    context = EmbeddingContext(model, n_ctx=256, num_sequences=4)
    inputs = [words(model, size, start=size) for size in (5, 40, 9, 20, 60, 7)]
    together = context.embed(inputs)
    assert together.shape == (6, model.n_embd)
    alone = np.concatenate([context.embed([each]) for each in inputs])
    cosine = (together * alone).sum(1) / np.linalg.norm(together, axis=1) / np.linalg.norm(alone, axis=1)
    assert cosine.min() > 0.999
    with pytest.raises(BadRequest):
        context.embed([words(model, 300)])
    context.close()


def test_requantising_tells_how_far_it_is(model: Model, model_path: Path, tmp_path: Path) -> None:
    progress: list[float] = []
    target = tmp_path / "small.gguf"
    quantize(model_path, target, "q8_0", threads=1, progress=progress.append)
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    copy = Model(target)
    assert read_info(target).file_type == "Q8_0"
    assert copy.tokenize("same words") == model.tokenize("same words")
    copy.close()
    with pytest.raises(BadRequest):
        quantize(model_path, target, "Q9_9")


# --------------------------------------------------------------------------------------------------- grammars

BROKEN_GRAMMARS = [
    "", " ", "\n\n", "root", "root ::=", "root := \"a\"", "rot ::= \"a\"", "root ::= missing", 'root ::= "a', "root ::= [a-",
    "root ::= (\"a\"", "root ::= \"a\")", "root ::= root \"a\"", "root ::= a\na ::= b\nb ::= a", "root ::= \"a\"{2", "root ::= \"a\"{x}",
    "root ::= \"a\"{999999999999}", "root ::= \"a\"{5000}", "root ::= *", "root ::= +\"a\"", "root ::= ?", 'root ::= "\\x"', 'root ::= "\\q"',
    "root ::= <[999999999]>", "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, 'root ::= "a"\0', "{}", "null", "SELECT 1",
    "root ::= \"a\" root2\nroot2 ::= root2", "::= \"a\"", "root ::= | |", "r" * 600_000,
]  # fmt: skip


@pytest.mark.parametrize("source", BROKEN_GRAMMARS, ids=range(len(BROKEN_GRAMMARS)))
def test_a_broken_grammar_is_refused_or_at_least_constrains(model: Model, source: str) -> None:
    try:
        grammar = Grammar(model, source)
    except BadRequest as refusal:
        sentence = refusal.message
        assert len(sentence) < 400
        return
    # What llama.cpp takes must not let everything through.
    candidates = Candidates(model.n_vocab)
    candidates.load(np.zeros(model.n_vocab, np.float32))
    grammar.mask(candidates)
    assert not np.isfinite(candidates._rows["logit"]).all()


def test_a_clone_of_a_grammar_goes_its_own_way(model: Model) -> None:
    first, scratch = Grammar(model, 'root ::= "a" "b"'), Candidates(model.n_vocab)
    (a,), (b,) = model.tokenize("a"), model.tokenize("b")
    second = first.clone()
    first.accept(a)
    assert first.allows(b, scratch)
    assert not second.allows(b, scratch)
    assert second.allows(a, scratch)
