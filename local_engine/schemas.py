"""Schemas as grammars of the sampler: the ground's answer masks, laid over llama.cpp's candidates."""

from __future__ import annotations

import numpy as np

from edgecloud import schemas
from edgecloud.types import Constraint

from .llama import Candidates, Model


class SchemaCompiler:
    """Compiles for one model. `markup_ids` are control tokens that come out as the text they spell."""

    def __init__(self, model: Model, markup_ids: frozenset[int] = frozenset()) -> None:
        self._n_vocab = model.n_vocab
        self._compiler = schemas.SchemaCompiler(model, markup_ids)

    def compile(self, constraint: Constraint) -> SchemaGrammar:
        """The grammar of a constraint of any kind but 'grammar'. Raises `BadRequest` for what is none or
        can't be enforced.
        """
        return SchemaGrammar(self._compiler.compile(constraint), self._n_vocab)


class SchemaGrammar:
    """Implements `TokenGrammar`."""

    def __init__(self, grammar: schemas.SchemaGrammar, n_vocab: int) -> None:
        self._grammar = grammar
        self._n_vocab = n_vocab

    @property
    def param(self) -> str:
        return self._grammar.param

    def clone(self) -> SchemaGrammar:
        return SchemaGrammar(self._grammar.clone(), self._n_vocab)

    def allows(self, token: int, _scratch: Candidates) -> bool:
        return self._grammar.allows(token)

    def mask(self, candidates: Candidates) -> None:
        bits = np.frombuffer(self._grammar.allowed(), np.uint8)
        candidates.keep(np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_))

    def accept(self, token: int) -> None:
        self._grammar.accept(token)

    def close(self) -> None:
        """Nothing is held outside of Python."""
