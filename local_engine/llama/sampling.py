"""Drawing a token: a chain of samplers, and the candidates that one is applied to by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .context import Context, Logits
from .library import lib
from .model import Model


class Chain:
    """A chain of llama.cpp samplers: what is added first is applied first; the last one picks."""

    def __init__(self, model: Model) -> None:
        params = lib.llama_sampler_chain_default_params()
        self._model = model
        self._chain = lib.llama_sampler_chain_init(params)

    def logit_bias(self, bias: Mapping[int, float]) -> None:
        entries = (lib.llama_logit_bias * len(bias))(*bias.items())
        self._add(lib.llama_sampler_init_logit_bias(self._model.n_vocab, len(bias), entries))

    def penalties(
        self, window: int, repeat: float, frequency: float, presence: float, history: Sequence[int] = ()
    ) -> None:
        """Penalties over the last `window` tokens; `history` counts as drawn already."""
        sampler = lib.llama_sampler_init_penalties(self._model.n_vocab, window, repeat, frequency, presence)
        for token in history:
            lib.llama_sampler_accept(sampler, token)
        self._add(sampler)

    def top_k(self, k: int) -> None:
        self._add(lib.llama_sampler_init_top_k(k))

    def top_p(self, p: float) -> None:
        self._add(lib.llama_sampler_init_top_p(p, 1))

    def min_p(self, p: float) -> None:
        self._add(lib.llama_sampler_init_min_p(p, 1))

    def temperature(self, t: float) -> None:
        self._add(lib.llama_sampler_init_temp(t))

    def draw(self, seed: int) -> None:
        """End with a random draw; `seed` is 32 bits."""
        self._add(lib.llama_sampler_init_dist(seed))

    def greedy(self) -> None:
        """End with the most likely token."""
        self._add(lib.llama_sampler_init_greedy())

    def _add(self, sampler: Any) -> None:
        lib.llama_sampler_chain_add(self._chain, sampler)

    def sample(self, context: Context, index: int) -> int:
        """Draw from the logits of a batch position, and count the token as drawn."""
        token: int = lib.llama_sampler_sample(self._chain, context.handle, index)
        return token

    def pick(self, candidates: Candidates) -> int:
        """Draw from prepared candidates without counting it: follow with `accept`."""
        lib.llama_sampler_apply(self._chain, candidates.reference)
        return candidates.selected

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        if self._chain:
            lib.llama_sampler_free(self._chain)
            self._chain = None

    def __del__(self) -> None:
        self.close()


class Candidates:
    """A vocabulary's worth of (id, logit, p), for samplers that are applied by hand. One per context,
    reused.
    """

    _ROW = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

    def __init__(self, n_vocab: int) -> None:
        self._rows = np.zeros(n_vocab, self._ROW)
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._data = self._rows.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        self._array = lib.llama_token_data_array(self._data, n_vocab, -1, False)
        self.reference = ctypes.byref(self._array)

    def load(self, logits: Logits) -> None:
        self._rows["id"] = self._ids
        self._rows["logit"] = logits
        self._rows["p"] = 0.0
        self._reset(len(self._ids))

    def load_one(self, token: int) -> None:
        self._rows[0] = (token, 1.0, 0.0)
        self._reset(1)

    def _reset(self, size: int) -> None:
        self._array.data = self._data
        self._array.size = size
        self._array.selected = -1
        self._array.sorted = False

    def forbid(self, tokens: Sequence[int]) -> None:
        """Make candidates impossible; their order must still be the vocabulary's."""
        self._rows["logit"][tokens] = -np.inf

    def keep(self, allowed: NDArray[np.bool_]) -> None:
        """Make all others impossible, `allowed` [n_vocab]; their order must still be the vocabulary's."""
        self._rows["logit"][~allowed] = -np.inf

    @property
    def selected(self) -> int:
        """The id that the chain picked."""
        return int(self._array.data[self._array.selected].id)

    def any_possible(self) -> bool:
        """Whether any loaded candidate still has a finite logit."""
        return bool(np.isfinite(self._rows["logit"][: self._array.size]).any())

    def first_possible(self) -> bool:
        return bool(np.isfinite(self._rows["logit"][0]))
