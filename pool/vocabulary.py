"""A model's tokens for the pool: text to ids and ids to bytes, from a GGUF or from a model folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecloud import gguf
from edgecloud.errors import ModelLoadError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Tokens that end a turn in some family, whatever the file calls its end, and those that begin another file
# where a model fills in code; as llama.cpp has them.
_ENDS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>",
    "<|END_OF_TURN_TOKEN|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>",
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>",
    "<reponame>", "<|file_sep|>",
})  # fmt: skip


class FileVocabulary:
    """Implements `edgecloud.vocabulary.Vocabulary`. May be used from any thread.

    `eos` is -1 and `chat_template` '' where the model has none.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, bos: int, ends: Sequence[int], adds_bos: bool, chat_template: str
    ) -> None:
        from tokenizers import Tokenizer

        self._reads_control = tokenizer
        # The switch is a property of the whole tokenizer, and two threads may want it set differently.
        self._plain = Tokenizer.from_str(tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self.n_vocab = tokenizer.get_vocab_size()
        self.bos = bos
        self.adds_bos = adds_bos and bos >= 0
        self.chat_template = chat_template
        added = tokenizer.get_added_tokens_decoder()
        self._control = {id: token.content for id, token in added.items() if token.special}
        by_text = {text: id for id, text in self._control.items()}
        self.eos = ends[0] if ends else -1
        self.eog_ids = frozenset(ends) | {by_text[text] for text in _ENDS & by_text.keys()}
        self._verbatim = {id: token.content.encode() for id, token in added.items() if not token.special}
        self._strips_space = False
        self._pieces = self._decoded(json.loads(tokenizer.to_str()))

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of `text`; `parse_special` reads spelled control tokens as such."""
        ids: list[int] = (
            (self._reads_control if parse_special else self._plain).encode(text, add_special_tokens=False).ids
        )
        return [self.bos, *ids] if add_special and self.adds_bos else ids

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """Bytes of one token, perhaps half a character; control tokens are empty unless `special`."""
        if token_id in self._control:
            return self._control[token_id].encode() if special else b""
        return self._pieces[token_id] if 0 <= token_id < self.n_vocab else b""

    def token_text(self, token_id: int) -> str:
        """How the vocabulary spells a token; empty for ids that it has not."""
        return (self._reads_control.id_to_token(token_id) or "") if token_id >= 0 else ""

    def detokenize(self, ids: Sequence[int], *, special: bool = True) -> bytes:
        """Bytes of a whole sequence, without the space that the vocabulary puts before a text."""
        data = b"".join(self.token_bytes(token, special=special) for token in ids)
        return data.removeprefix(b" ") if self._strips_space else data

    def control_tokens(self) -> frozenset[str]:
        """How the vocabulary spells its control tokens: what user text must not be able to say."""
        return frozenset(self._control.values())

    def _decoded(self, description: dict[str, Any]) -> list[bytes]:
        decoder = description.get("decoder") or {}
        steps = decoder.get("decoders", [decoder])
        kinds = {step.get("type") for step in steps}
        self._strips_space = "Strip" in kinds or "Metaspace" in kinds
        decode = _byte_level if "ByteLevel" in kinds else _sentencepiece
        pieces = [b""] * self.n_vocab
        for text, token in self._reads_control.get_vocab(with_added_tokens=True).items():
            if token < self.n_vocab:
                pieces[token] = self._verbatim.get(token) or decode(text)
        return pieces


def from_gguf(path: Path) -> FileVocabulary:
    """Takes about a second. Raises `ModelLoadError` or `NotSupported`, as `load_tokenizer` does."""
    from edgecloud.gguf_tokenizer import load_tokenizer

    info = gguf.read_info(path)
    metadata = gguf.read_metadata(path)
    ends = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    return FileVocabulary(
        load_tokenizer(path),
        bos=-1 if info.bos_id is None else info.bos_id,
        ends=[end for end in ends if isinstance(end, int)],
        adds_bos=info.add_bos,
        chat_template=info.chat_template or "",
    )


def from_folder(folder: Path) -> FileVocabulary:
    """From `tokenizer.json` and its neighbours. Raises `ModelLoadError` for what is missing or damaged."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.exists():
        raise ModelLoadError(f"{folder.name} has no tokenizer.json: pull the whole model.")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more special
        raise ModelLoadError(
            f"{folder.name}/tokenizer.json is damaged ({error!r:.80}): pull it again."
        ) from None
    settings = read_json(folder / "tokenizer_config.json")
    by_text = {text: id for text, id in tokenizer.get_vocab(with_added_tokens=True).items()}
    bos = by_text.get(_text(settings.get("bos_token")), -1)
    ends: list[int] = []
    for source in (read_json(folder / "generation_config.json"), read_json(folder / "config.json")):
        found = source.get("eos_token_id")
        ends += found if isinstance(found, list) else [] if found is None else [found]
    eos = by_text.get(_text(settings.get("eos_token")))
    template = settings.get("chat_template")
    template_file = folder / "chat_template.jinja"
    if template_file.exists():
        template = template_file.read_text(encoding="utf-8")
    return FileVocabulary(
        tokenizer,
        bos=bos,
        ends=list(dict.fromkeys([*([] if eos is None else [eos]), *ends])),
        adds_bos=bos >= 0 and tokenizer.encode("a").ids[:1] == [bos],
        chat_template=template if isinstance(template, str) else "",
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; {} when there is none. Raises `ModelLoadError` for what is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise ModelLoadError(f"{path.parent.name}/{path.name} is damaged: pull it again.") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path.parent.name}/{path.name} is no JSON object: pull it again.")
    return value


def _text(token: Any) -> str:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _byte_level(text: str) -> bytes:
    return bytes(_BYTES[char] for char in text) if all(char in _BYTES for char in text) else text.encode()


def _sentencepiece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes.fromhex(text[3:5])
    return text.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the rest from code point 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(rest)}


_BYTES = _byte_alphabet()
