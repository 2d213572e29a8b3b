"""The tokenizer from a GGUF gives llama.cpp's token ids, on the starter and on every family of rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf as gguf_package
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecloud.errors import ModelLoadError, NotSupported
from edgecloud.gguf import read_metadata
from edgecloud.gguf_tokenizer import load_tokenizer
from edgecloud.local_engine.llama import Model
from edgecloud.models import resolve
from edgecloud.settings import Settings

CORPUS = [
    "Hello, world! It's 12:30 and we've 1,234.56 things; don't you'll I'd THEY'RE.",
    "def f(x):\n\treturn {'a': [x ** 2 for x in range(10)]}  # comment\n\n\n\nclass A:\n    pass\r\n\r\n",
    "   leading and   inner    spaces and trailing   ",
    "\t\t\n \n  \n\u00a0\u2003\u3000x",
    "naïve café Ünïcödé straße ﬁne ½ ² Ⅷ ١٢٣ 中文字符 日本語テキスト 한국어 हिन्दी العربية עברית",
    "🤷‍♀️👩‍👩‍👧‍👦🇩🇪 emoji\u200d\ufe0f zero\u200bwidth \ufeff bom",
    "e\u0301 combining a\u0300\u0301\u0302 z̷͙̎a̸͖͝l̵̗͠g̶̺͝o̶̧͐",
    '{"json": "with \\"escapes\\"", "n": -1.5e-10, "u": "\\u00e9"}',
    "https://example.org/path?q=1&b=2#frag user@example.org C:\\Windows\\x",
    "a" * 300 + " " * 300 + "\n" * 50 + "1" * 50 + "!?" * 50,
    "\x00\x01\x7f\x1b[31m control",
    "'''\"\"\"``` 'S 'LL 'd's",
    "",
    " ",
    "\n",
]
# Neither lone surrogates, which are no text, nor unassigned code points, where llama.cpp has its own rules.
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=60)


@pytest.fixture(scope="module")
def starter() -> Path:
    return resolve("smollm2", Settings(), tuned=False).path


def write_vocabulary(path: Path, source: dict[str, Any], **changes: Any) -> Path:
    """A GGUF with a vocabulary and one tensor, which llama.cpp can load for tokenizing."""
    writer = gguf_package.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    values = {key: value for key, value in source.items() if key.startswith("tokenizer.ggml")}
    values |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    import numpy as np

    writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def sentencepiece_vocabulary() -> dict[str, Any]:
    """A SentencePiece-like vocabulary trained here on this file's own corpus."""
    from tokenizers import Tokenizer, models, normalizers, trainers

    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, max_token_length=12)
    trained.train_from_iterator([text.replace("\x00", "") for text in CORPUS[:8]] * 4, trainer)
    learned = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    special = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<|user|>", 3), ("<tool>", 4)]
    byte_tokens = [(f"<0x{byte:02X}>", 6) for byte in range(256)]
    normal = [(token, 1) for token, _ in learned]
    tokens = [*special, *byte_tokens, *normal]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [token for token, _ in tokens],
        "tokenizer.ggml.token_type": [kind for _, kind in tokens],
        "tokenizer.ggml.scores": [0.0] * (len(tokens) - len(normal))
        + [-float(rank) for rank in range(len(normal))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def check_same(path: Path, texts: list[str]) -> None:
    ours, theirs = load_tokenizer(path), Model(path, vocab_only=True)
    for text in texts:
        for special in (True, False):
            ours.encode_special_tokens = not special
            for begin in (True, False):
                expected = theirs.tokenize(text, add_special=begin, parse_special=special)
                assert ours.encode(text, add_special_tokens=begin).ids == expected, (text, special, begin)
    theirs.close()


def test_the_starters_ids_are_those_of_llama_cpp(starter: Path) -> None:
    check_same(starter, [*CORPUS, "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>", "".join(CORPUS)])


def test_nothing_is_merged_across_a_byte_that_has_no_token(starter: Path) -> None:
    check_same(starter, ["%\x06(", "!\x06=", "( \x04[", "R^\x06\\", " \x16\U0001f397", "\x06\x06"])


def test_any_text_has_the_ids_of_llama_cpp(starter: Path) -> None:
    ours, theirs = load_tokenizer(starter), Model(starter, vocab_only=True)

    @settings(max_examples=400, deadline=None)
    @given(TEXT)
    def same(text: str) -> None:
        assert ours.encode(text).ids == theirs.tokenize(text)

    same()


def test_what_is_decoded_is_what_was_encoded(starter: Path) -> None:
    tokenizer = load_tokenizer(starter)

    for text in CORPUS:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_control_tokens_are_read_only_where_they_may_be(starter: Path) -> None:
    tokenizer = load_tokenizer(starter)

    assert tokenizer.encode("<|im_end|>").ids == [2]
    tokenizer.encode_special_tokens = True
    assert 2 not in tokenizer.encode("<|im_end|>").ids


@pytest.mark.parametrize("family", ["gpt-2", "llama-bpe", "qwen2", "starcoder", "dbrx"])
def test_every_family_of_rules_splits_as_llama_cpp_does(family: str, starter: Path, tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "vocab.gguf", read_metadata(starter), pre=family)

    check_same(path, CORPUS)


@pytest.mark.parametrize("bos", [True, False])
def test_bos_is_added_where_the_file_says_so(bos: bool, starter: Path, tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "vocab.gguf", read_metadata(starter), add_bos_token=bos)

    assert (load_tokenizer(path).encode("hi").ids[0] == 1) is bos
    check_same(path, ["hi", ""])


@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentencepiece_has_the_ids_of_llama_cpp(has_prefix: bool, tmp_path: Path) -> None:
    vocabulary = sentencepiece_vocabulary()
    path = write_vocabulary(tmp_path / "vocab.gguf", vocabulary, add_space_prefix=has_prefix)

    check_same(path, [*CORPUS, "a<|user|>b <|user|> c<tool>d", "<tool>", "x"])


def test_a_vocabulary_that_only_llama_cpp_knows_is_refused(starter: Path, tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="'t5'"):
        load_tokenizer(write_vocabulary(tmp_path / "t5.gguf", read_metadata(starter), model="t5"))
    with pytest.raises(NotSupported, match="'tekken'"):
        load_tokenizer(write_vocabulary(tmp_path / "tekken.gguf", read_metadata(starter), pre="tekken"))


def test_a_damaged_vocabulary_is_one_sentence(starter: Path, tmp_path: Path) -> None:
    metadata = read_metadata(starter)
    for index, changes in enumerate(
        ({"merges": ["nospace"]}, {"token_type": [1]}, {"merges": ["zz qq"]}, {"tokens": 3})
    ):
        with pytest.raises(ModelLoadError, match="damaged vocabulary"):
            load_tokenizer(write_vocabulary(tmp_path / f"{index}.gguf", metadata, **changes))
