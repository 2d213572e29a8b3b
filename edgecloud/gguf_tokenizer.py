"""A `tokenizers` tokenizer from a GGUF, for engines that don't run on llama.cpp.

Gives the token ids that llama.cpp gives for the same file: byte-level BPE (`gpt2`) with the splitting rules
of the families below, and SentencePiece BPE (`llama`). Another vocabulary is a `NotSupported`: near enough is
not the same model. (Code points that Unicode has not assigned are the one exception: there the two differ.)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecloud import gguf
from edgecloud.errors import ModelLoadError, NotSupported

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# How each family cuts text into words before merging; the rules are those of its published tokenizer.json.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _MODERN.format(digits=r"\p{N}{1,3}")
_QWEN2 = _MODERN.format(digits=r"\p{N}")
_SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "mellum", "a.x-4.0", "mpt", "olmo", "jais"), (_GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2"), (_LLAMA3,)),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), (_QWEN2,)),
}
# Whole words that are tokens are taken as such, whatever the merges say.
_WHOLE_WORDS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2", "glm4"}

_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model, loaded in about a second.

    `encode(text)` begins with BOS where the model wants one; `add_special_tokens=False` leaves it out.
    Control tokens spelled in the text are read as such unless `encode_special_tokens` is set, as it must be
    for what users wrote. Raises `NotSupported` for an unknown kind of vocabulary, `ModelLoadError` for a
    damaged file.
    """
    metadata = gguf.read_metadata(path)
    kind = metadata.get("tokenizer.ggml.model")
    try:
        if kind == "gpt2":
            tokenizer = _byte_level(metadata)
        elif kind == "llama":
            tokenizer = _sentencepiece(metadata)
        else:
            raise NotSupported(
                f"{path.name} has a vocabulary of kind {kind!r}, which only llama.cpp can read."
            )
        _add_special(tokenizer, metadata)
    except NotSupported:
        raise
    except Exception as error:  # tokenizers raises nothing more special
        raise ModelLoadError(
            f"{path.name} has a damaged vocabulary ({error!r:.80}): pull it again."
        ) from None
    return tokenizer


def _byte_level(metadata: dict[str, Any]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

    family = metadata.get("tokenizer.ggml.pre", "default")
    if family not in _SPLITS:
        raise NotSupported(f"The vocabulary is split by the rules of {family!r}, which only llama.cpp knows.")
    # A token may begin with the space that separates the two halves of a merge.
    merges = [_halves(merge) for merge in metadata["tokenizer.ggml.merges"]]
    vocab = _vocabulary(metadata)
    tokenizer = Tokenizer(BPE(vocab, merges, ignore_merges=family in _WHOLE_WORDS))
    splits: list[Any] = [Split(Regex(pattern), "isolated") for pattern in _SPLITS[family]]
    steps: list[Any] = [*splits, ByteLevel(add_prefix_space=False, use_regex=False)]
    # A byte without a token is dropped, but nothing is merged across where it was.
    lacking = [character for character in ByteLevel.alphabet() if character not in vocab]
    steps += [Split(character, "isolated") for character in lacking]
    tokenizer.pre_tokenizer = Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: dict[str, Any]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE

    vocab = _vocabulary(metadata)
    unknown = metadata["tokenizer.ggml.tokens"][metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    tokenizer = Tokenizer(
        BPE(vocab, _merges(metadata, vocab), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    has_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    escape = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), escape]) if has_prefix else escape
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if has_prefix else []))
    return tokenizer


def _merges(metadata: dict[str, Any], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Merges that a SentencePiece vocabulary implies: tokens that join to another, by that one's score."""
    scores, types = metadata["tokenizer.ggml.scores"], metadata["tokenizer.ggml.token_type"]
    ranked: list[tuple[float, int, str, str]] = []
    for token, index in vocab.items():
        if types[index] in (_CONTROL, _USER_DEFINED, _BYTE):
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                ranked.append((-scores[index], index, left, right))
    return [(left, right) for _, _, left, right in sorted(ranked)]


def _add_special(tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing

    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    added: dict[int, list[AddedToken]] = {_CONTROL: [], _USER_DEFINED: []}
    for token, kind in zip(tokens, types, strict=True):
        if kind in added:
            added[kind].append(AddedToken(token, normalized=False, special=kind == _CONTROL))
    tokenizer.add_special_tokens(added[_CONTROL])
    tokenizer.add_tokens(added[_USER_DEFINED])
    wants_bos = metadata.get("tokenizer.ggml.add_bos_token")
    if wants_bos is None:
        family = metadata.get("tokenizer.ggml.pre")
        wants_bos = metadata["tokenizer.ggml.model"] == "llama" or family in _WHOLE_WORDS - {"glm4"}
    if wants_bos:
        bos = metadata["tokenizer.ggml.bos_token_id"]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{tokens[bos]}:0 $A:0", special_tokens=[(tokens[bos], bos)]
        )


def _vocabulary(metadata: dict[str, Any]) -> dict[str, int]:
    return {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}


def _halves(merge: str) -> tuple[str, str]:
    cut = merge.index(" ", 1)
    return merge[:cut], merge[cut + 1 :]
