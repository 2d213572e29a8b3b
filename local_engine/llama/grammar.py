"""llama.cpp's own grammars, written in GBNF."""

from __future__ import annotations

import re

from edgecloud.errors import BadRequest

from .library import complaining, lib, messages
from .model import Model
from .sampling import Candidates


class Grammar:
    """A GBNF grammar's state along one answer; `param` is the field of the request that it came in. Raises
    `BadRequest` when the text is not a grammar with a `root`.
    """

    MAX_BYTES = 512 << 10
    MAX_DEPTH = 2000

    def __init__(self, model: Model, source: str, *, param: str = "grammar") -> None:
        self.param = param
        data = source.encode(errors="replace")
        # llama.cpp takes an empty grammar as 'no constraint'.
        if not data.strip():
            raise BadRequest("The grammar is empty.", param=param)
        if len(data) > self.MAX_BYTES:
            raise BadRequest(
                f"The grammar is {len(data)} bytes and the limit is {self.MAX_BYTES}.", param=param
            )
        # llama.cpp parses groups by recursion in C, where too deep is a crash of the process.
        if b"\0" in data or _nesting(source) > self.MAX_DEPTH:
            raise BadRequest("The grammar is nested too deeply or holds a NUL byte.", param=param)
        with complaining:
            messages.complaints.clear()
            self._sampler = lib.llama_sampler_init_grammar(model.vocab, data, b"root")
            complaints = list(messages.complaints)
        if not self._sampler:
            reason = complaints[0][:200] if complaints else "it has no rules"
            raise BadRequest(f"The grammar is not valid GBNF: {reason.rstrip('.')}.", param=param)

    def clone(self) -> Grammar:
        """Another answer under the same grammar, from the state this one is in."""
        twin = Grammar.__new__(Grammar)
        twin.param = self.param
        twin._sampler = lib.llama_sampler_clone(self._sampler)
        return twin

    def mask(self, candidates: Candidates) -> None:
        """Set the logit of every candidate that can't come next to minus infinity."""
        lib.llama_sampler_apply(self._sampler, candidates.reference)

    def allows(self, token: int, scratch: Candidates) -> bool:
        scratch.load_one(token)
        self.mask(scratch)
        return scratch.first_possible()

    def accept(self, token: int) -> None:
        """Advance. The token must be allowed: llama.cpp ends the process otherwise."""
        lib.llama_sampler_accept(self._sampler, token)

    def close(self) -> None:
        if self._sampler:
            lib.llama_sampler_free(self._sampler)
            self._sampler = None

    def __del__(self) -> None:
        if hasattr(self, "_sampler"):
            self.close()


def _nesting(grammar: str) -> int:
    """How deep the groups of a GBNF text go; literals and character classes are skipped."""
    depth = deepest = 0
    for match in re.finditer(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|[()]', grammar, re.DOTALL):
        if match[0] == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] == ")":
            depth -= 1
    return deepest
