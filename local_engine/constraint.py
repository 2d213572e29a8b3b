"""What an answer must match, as the request says: a schema, a pattern, calls of its tools, a GBNF grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgecloud.prompt import constraint_on
from edgecloud.types import ChatRequest, Constraint

if TYPE_CHECKING:
    from .loaded import LoadedModel
    from .sampler import TokenGrammar


def make_grammar(loaded: LoadedModel, request: ChatRequest) -> TokenGrammar | None:
    """The grammar of a request, or None if it may be answered with anything.

    Raises `BadRequest` when it can't be enforced.
    """
    from .llama import Grammar

    constraint = constraint_on(loaded.template, request)
    if constraint is None:
        return None
    if constraint.kind == "grammar":
        return Grammar(loaded.model, constraint.source, param=constraint.param)
    return loaded.schemas.compile(constraint)


def check_constraint(constraint: Constraint) -> None:
    """Raise the `BadRequest` that `make_grammar` would, as far as it can be told before a model is loaded."""
    from edgecloud.schemas import check

    check(constraint)
