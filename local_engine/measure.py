"""How fast a model file is on this machine, and how far its answers are from another file's.

A round is short and always does the same work, so that two files can be measured in turns (A B A B) and
compared under the same weather.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .llama import Context, Logits, Model

PREFILL_TOKENS = 256
NUM_TOGETHER = 8
ALONE_STEPS = 24
TOGETHER_STEPS = 12
KL_TOKENS = 384
_OUTPUTS = 32


class Speed(NamedTuple):
    """Tokens a second: computing a prompt, drawing alone, and drawing in 8 sequences (all together)."""

    prefill: float
    alone: float
    together: float


class Divergence(NamedTuple):
    """Mean KL divergence from the original in nats a token, and how often the likeliest token is the same."""

    kl: float
    same_top: float


class Probe:
    """One model file, loaded to be measured. Raises `ModelLoadError`."""

    def __init__(self, path: Path, *, threads: int, gpu_layers: int = -1) -> None:
        self.model = Model(path, gpu_layers=gpu_layers)
        try:
            self.context = Context(
                self.model,
                n_ctx=PREFILL_TOKENS + NUM_TOGETHER * (TOGETHER_STEPS + 32) + KL_TOKENS,
                num_sequences=NUM_TOGETHER,
                n_batch=PREFILL_TOKENS,
                num_outputs=_OUTPUTS,
                threads=threads,
            )
        except BaseException:
            self.model.close()
            raise

    def close(self) -> None:
        self.context.close()
        self.model.close()

    def tokens(self) -> list[int]:
        """The text that everything is measured on, at most `KL_TOKENS` long."""
        text = resources.files(__package__).joinpath("data", "tune.txt").read_text(encoding="utf-8")
        return self.model.tokenize(text, add_special=True)[:KL_TOKENS]

    def round(self) -> Speed:
        """One measurement of each kind; about 500 tokens of work."""
        tokens = self.tokens()
        prompt = (tokens * (PREFILL_TOKENS // len(tokens) + 1))[:PREFILL_TOKENS]
        return Speed(
            prefill=PREFILL_TOKENS / self._prefill(prompt),
            alone=ALONE_STEPS / self._decode(tokens, 1, ALONE_STEPS),
            together=NUM_TOGETHER * TOGETHER_STEPS / self._decode(tokens, NUM_TOGETHER, TOGETHER_STEPS),
        )

    def _prefill(self, prompt: Sequence[int]) -> float:
        self.context.clear()
        self.context.batch.clear()
        self.context.batch.add(prompt, 0, 0, last=True)
        return self._timed_decode()

    def _decode(self, tokens: Sequence[int], num_sequences: int, steps: int) -> float:
        """Seconds for `steps` steps of one token for each sequence, after one that isn't counted."""
        self.context.clear()
        seconds = 0.0
        for step in range(steps + 1):
            self.context.batch.clear()
            for sequence in range(num_sequences):
                self.context.batch.add_one(tokens[(step + 7 * sequence) % len(tokens)], step, sequence)
            took = self._timed_decode()
            seconds += took if step else 0.0
        return seconds

    def _timed_decode(self) -> float:
        start = time.perf_counter()
        code = self.context.decode()
        # llama.cpp computes behind our back on a GPU: reading a logit waits for it.
        self.context.logits(self.context.batch.size - 1)
        if code != 0:
            raise RuntimeError(f"decode of {self.context.batch.size} tokens returned {code}")
        return time.perf_counter() - start


def divergence(original: Probe, candidate: Probe) -> Divergence:
    """Compare the distributions of two files of one vocabulary over the measuring text, token by token."""
    tokens = original.tokens()
    total, num_same = 0.0, 0
    pairs = zip(
        original.context.logits_of(tokens, chunk=_OUTPUTS),
        candidate.context.logits_of(tokens, chunk=_OUTPUTS),
        strict=True,
    )
    for ours, theirs in pairs:
        total += _kl(ours, theirs)
        num_same += int(ours.argmax() == theirs.argmax())
    return Divergence(total / len(tokens), num_same / len(tokens))


def _kl(original: Logits, candidate: Logits) -> float:
    """KL(original || candidate) = sum of p (log p - log q), in nats."""
    log_p, log_q = _log_softmax(original), _log_softmax(candidate)
    return float(np.sum(np.exp(log_p) * (log_p - log_q)))


def _log_softmax(logits: Logits) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result
