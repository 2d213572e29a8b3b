"""Weights and vocabulary of one GGUF file."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from edgecloud import gguf
from edgecloud.errors import ModelLoadError

from .library import complaining, lib, load_reason, messages

# Characters of a text that are handed to llama.cpp together. For every stretch between two control tokens it
# looks for each of those from there to the end of the text: the square of a prompt of many messages.
PART = 16384


class Model:
    """Weights and vocabulary of one GGUF file (its first shard, if it is split).

    `progress` is called from this thread with the share of the weights that is there, tensor by tensor; once
    it returns False the load is given up. Raises `ModelLoadError` with one sentence when the file can't be
    loaded.
    """

    def __init__(
        self,
        path: Path,
        *,
        gpu_layers: int = -1,
        vocab_only: bool = False,
        progress: Callable[[float], bool] | None = None,
    ) -> None:
        self.path = path
        # llama.cpp trusts what it reads: a damaged header must not get that far.
        gguf.read_info(path)
        params = lib.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.vocab_only = vocab_only
        if progress is not None:
            # Held by a name: ctypes frees what nobody holds, and llama.cpp would call into nothing.
            callback = lib.llama_progress_callback(lambda share, _user_data: progress(share))
            params.progress_callback = callback
        with complaining:
            messages.complaints.clear()
            self._model = lib.llama_model_load_from_file(os.fsencode(path), params)
            complaints = list(messages.complaints)
        if not self._model:
            raise ModelLoadError(f"{path.name} can't be loaded: {load_reason(complaints)}.")
        self._vocab = lib.llama_model_get_vocab(self._model)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(self._model)
        self.n_embd: int = lib.llama_model_n_embd(self._model)
        self.size: int = lib.llama_model_size(self._model)
        # Recurrent state holds one position only: it can't be cut back to a prefix.
        self.can_share_prefixes = not (
            lib.llama_model_is_recurrent(self._model) or lib.llama_model_is_hybrid(self._model)
        )
        self.bos: int = lib.llama_vocab_bos(self._vocab)
        self.eos: int = lib.llama_vocab_eos(self._vocab)
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(self._vocab))
        self.eog_ids = frozenset(t for t in range(self.n_vocab) if lib.llama_vocab_is_eog(self._vocab, t))
        self._pieces: dict[int, bytes] = {}
        self._special_pieces: dict[int, bytes] = {}

    @property
    def handle(self) -> Any:
        return self._model

    @property
    def vocab(self) -> Any:
        return self._vocab

    def close(self) -> None:
        if self._model:
            lib.llama_model_free(self._model)
            self._model = None

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of `text`; `parse_special` reads spelled control tokens as such."""
        if not parse_special or add_special or len(text) <= PART:
            return self._tokenize(text, add_special, parse_special)
        return [token_id for part in self._parts(text) for token_id in self._tokenize(part, False, True)]

    def _parts(self, text: str) -> Iterator[str]:
        """The text cut before control tokens, which no other token reaches across."""
        start = 0
        for match in self._cuts.finditer(text):
            if match.start() - start >= PART:
                yield text[start : match.start()]
                start = match.start()
        yield text[start:]

    @cached_property
    def _cuts(self) -> re.Pattern[str]:
        """Control tokens that a text may be cut before: those that take no blanks from what precedes them."""
        strips = int(lib.LLAMA_TOKEN_ATTR_LSTRIP)
        spelled = sorted(
            (
                self.token_text(t)
                for t in range(self.n_vocab)
                if lib.llama_vocab_is_control(self._vocab, t)
                and not lib.llama_vocab_get_attr(self._vocab, t) & strips
            ),
            key=len,
            reverse=True,
        )
        return re.compile("|".join(re.escape(token) for token in spelled if len(token) > 1) or r"(?!)")

    def _tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode("utf-8", errors="replace")
        capacity = len(data) + 8
        buffer = (lib.llama_token * capacity)()
        count = lib.llama_tokenize(self._vocab, data, len(data), buffer, capacity, add_special, parse_special)
        if count < 0:
            buffer = (lib.llama_token * -count)()
            count = lib.llama_tokenize(
                self._vocab, data, len(data), buffer, -count, add_special, parse_special
            )
        return buffer[:count]  # type: ignore[no-any-return]

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """Bytes of one token, perhaps half a character; control tokens are empty unless `special`."""
        cache = self._special_pieces if special else self._pieces
        piece = cache.get(token_id)
        if piece is None:
            buffer = ctypes.create_string_buffer(256)
            size = lib.llama_token_to_piece(self._vocab, token_id, buffer, len(buffer), 0, special)
            if size < 0:
                buffer = ctypes.create_string_buffer(-size)
                size = lib.llama_token_to_piece(self._vocab, token_id, buffer, len(buffer), 0, special)
            piece = cache[token_id] = buffer.raw[:size]
        return piece

    def detokenize(self, ids: Sequence[int], *, special: bool = True) -> bytes:
        """Bytes of a whole sequence, with the vocabulary's rule about leading spaces applied."""
        tokens = (lib.llama_token * len(ids))(*ids)
        capacity = 8 * len(ids) + 64
        buffer = ctypes.create_string_buffer(capacity)
        size = lib.llama_detokenize(self._vocab, tokens, len(ids), buffer, capacity, False, special)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = lib.llama_detokenize(self._vocab, tokens, len(ids), buffer, -size, False, special)
        return buffer.raw[:size]

    def control_tokens(self) -> frozenset[str]:
        """How the vocabulary spells its control tokens: what user text must not be able to say."""
        texts = (
            lib.llama_vocab_get_text(self._vocab, t)
            for t in range(self.n_vocab)
            if lib.llama_vocab_is_control(self._vocab, t)
        )
        return frozenset(text.decode(errors="replace") for text in texts if text)

    def token_text(self, token_id: int) -> str:
        """How the vocabulary spells a token; empty for ids below 0 (the vocabulary has no such token)."""
        if token_id < 0:
            return ""
        text: bytes | None = lib.llama_vocab_get_text(self._vocab, token_id)
        return (text or b"").decode(errors="replace")

    def fingerprint(self) -> str:
        """Names the file's content; changes when it does."""
        return gguf.fingerprint(self.path)
