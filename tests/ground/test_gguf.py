"""Reading GGUF headers: the facts of real files, and one sentence for every broken one."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from gguf import GGUFReader

from edgecloud import gguf
from edgecloud.errors import ModelLoadError
from edgecloud.models import resolve
from edgecloud.settings import Settings
from tests.ground.gguf_files import write_bert, write_gguf


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


def refusal(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        gguf.read_info(path)
    return caught.value.message


def test_the_starter_model_is_described() -> None:
    info = gguf.read_info(resolve("smollm2", Settings(), tuned=False).path)

    assert (info.architecture, info.file_type, info.context_length) == ("llama", "Q4_1", 8192)
    assert (info.block_count, info.head_count, info.head_count_kv, info.key_length) == (30, 9, 3, 64)
    assert info.n_params == 134_515_008
    assert info.vocab_size == 49_152
    assert info.kv_width == 30 * 3 * (64 + 64)
    assert (info.bos_id, info.add_bos) == (1, False)
    assert info.chat_template is not None
    assert "<|im_start|>" in info.chat_template
    assert not info.is_embedding


def test_an_embedding_model_is_known_by_its_pooling(tmp_path: Path) -> None:
    assert gguf.read_info(write_bert(tmp_path / "bert.gguf")).is_embedding
    assert gguf.read_info(write_gguf(tmp_path / "pooled.gguf", llama__pooling_type=3)).is_embedding
    assert not gguf.read_info(write_gguf(tmp_path / "ranks.gguf", llama__pooling_type=4)).is_embedding


def test_the_tensor_index_agrees_with_the_gguf_package(tiny: Path) -> None:
    tensors = gguf.read_tensors(tiny)

    theirs = {each.name: each for each in GGUFReader(tiny).tensors}
    assert tensors.keys() == theirs.keys()
    for name, tensor in tensors.items():
        assert tensor.offset == theirs[name].data_offset
        assert tensor.size == theirs[name].n_bytes
        assert tensor.shape == tuple(theirs[name].shape)
        assert tensor.type == theirs[name].tensor_type.name


def test_the_metadata_is_read_whole_when_asked(tiny: Path) -> None:
    tokens = gguf.read_metadata(tiny)["tokenizer.ggml.tokens"]

    assert tokens[4999] == "token4999"
    assert len(tokens) == gguf.read_info(tiny).vocab_size == 5000


def test_a_file_type_that_is_not_stated_is_counted_from_the_tensors(tmp_path: Path) -> None:
    assert gguf.read_info(write_gguf(tmp_path / "a.gguf", general__file_type=999)).file_type == "F32"


def test_a_fingerprint_follows_the_content_and_not_the_name(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "a.gguf")
    same = write_gguf(tmp_path / "b.gguf")
    other_weights = write_gguf(tmp_path / "c.gguf", seed=1)
    other_template = write_gguf(tmp_path / "d.gguf", tokenizer__chat_template="{{ messages }}")

    prints = [gguf.fingerprint(path) for path in (first, same, other_weights, other_template)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_a_file_cut_at_any_point_is_truncated(tiny: Path) -> None:
    whole = tiny.read_bytes()
    cut = tiny.with_name("cut.gguf")
    for length in [*range(1, 1400), *range(1400, len(whole), 997), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        assert "cut.gguf" in refusal(cut)
    cut.write_bytes(whole)
    assert gguf.read_info(cut).name == "Tiny"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"GGUF", "truncated"),
        (b"PK\x03\x04 a zip file, not a model", "not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "damaged"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 8, 1 << 62), "damaged"),
        (b"GGUF" + struct.pack("<IQQQ1sII", 3, 0, 1, 1, b"a", 9, 9) + bytes(64), "damaged"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"\xff", 4) + bytes(4), "isn't text"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(8), "no tensors"),
    ],
)
def test_what_is_not_a_model_is_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)

    assert words in refusal(path)


def test_a_missing_file_a_folder_and_an_unreadable_one_are_told_apart(tmp_path: Path) -> None:
    assert "no file gone.gguf" in refusal(tmp_path / "gone.gguf")
    assert "is a folder" in refusal(tmp_path)
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    assert "cannot be read" in refusal(loop)
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    assert "not a file" in refusal(pipe)


def test_flipped_bytes_never_do_worse_than_a_refusal(tiny: Path) -> None:
    """Anything but `ModelLoadError` fails here; time and memory are bounded by the limits on counts."""
    whole = tiny.read_bytes()
    damaged = tiny.with_name("damaged.gguf")
    chance = random.Random(7)
    num_refused = 0
    for _ in range(1500):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 1, 4))):
            content[chance.randrange(1200)] = chance.randrange(256)
        damaged.write_bytes(content)
        try:
            gguf.read_info(damaged)
        except ModelLoadError:
            num_refused += 1
    assert num_refused > 300


def test_what_would_end_the_process_in_llama_cpp_is_refused(tmp_path: Path) -> None:
    assert "2147483650 layers" in refusal(write_gguf(tmp_path / "a.gguf", llama__block_count=2**31 + 2))
    assert "special token" in refusal(write_gguf(tmp_path / "b.gguf", tokenizer__ggml__eos_token_id=5000))
    twice = write_gguf(tmp_path / "c.gguf")
    twice.write_bytes(twice.read_bytes().replace(b"token4999", b"token4998"))
    assert "a token twice" in refusal(twice)


def test_shards_are_read_as_one_model_and_a_missing_one_is_named(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "big-00001-of-00002.gguf", split__count=2)
    assert "big-00002-of-00002.gguf is missing" in refusal(first)

    second = write_gguf(tmp_path / "big-00002-of-00002.gguf", split__count=2)
    assert "appears twice" in refusal(first)

    renamed = second.read_bytes().replace(b"token_embd.weight", b"token_embe.weight")
    second.write_bytes(renamed.replace(b"output_norm.weight", b"output_morn.weight"))
    info = gguf.read_info(first)
    assert info.shards == 2
    assert info.tensor_bytes == 2 * (50 * 64 * 4 + 64 * 2)


def test_a_shard_that_lost_its_name_is_refused(tmp_path: Path) -> None:
    assert "give the shards their names back" in refusal(write_gguf(tmp_path / "lost.gguf", split__count=2))
