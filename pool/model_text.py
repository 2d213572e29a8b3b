"""The text side of a served model: its names, vocabulary, chat template and answer masks. No tensors."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from edgecloud.errors import BadRequest
from edgecloud.prompt import constraint_on
from edgecloud.templates import ChatTemplate
from edgecloud.types import ChatRequest
from edgecloud.vocabulary import Vocabulary

if TYPE_CHECKING:
    from edgecloud.schemas import SchemaCompiler

    from .runner import TokenMask
    from .vocabulary import FileVocabulary


class ModelText:
    """`name` is what clients ask for, `fingerprint` what makes computed prefixes interchangeable. May be used
    from any thread.
    """

    def __init__(
        self,
        name: str,
        vocabulary: Vocabulary,
        template: ChatTemplate | None = None,
        *,
        variant: str = "",
        fingerprint: str = "",
    ) -> None:
        self.name = name
        self.variant = variant
        self.fingerprint = fingerprint or name
        self.vocabulary = vocabulary
        self.template = template
        markup = template.markup_tokens if template else frozenset()
        # Control tokens that the template uses as markup: a parser has to see them.
        self.markup_ids = frozenset(
            token for text in markup for token in vocabulary.tokenize(text, parse_special=True)[:1]
        )

    def spell(self, token: int) -> bytes:
        """The bytes that a drawn token adds to the answer, before markup is taken out of it."""
        return self.vocabulary.token_bytes(token, special=token in self.markup_ids)

    def mask(self, request: ChatRequest) -> TokenMask | None:
        """What the answer must match; None if it may be anything.

        Raises `BadRequest` when that can't be enforced.
        """
        constraint = constraint_on(self.template, request)
        if constraint is None:
            return None
        if constraint.kind == "grammar":
            raise BadRequest(
                "A pool follows JSON schemas and no GBNF grammars: send response_format, or ask a model "
                "on your own machine.",
                param=constraint.param,
            )
        return self._schemas.compile(constraint)

    @cached_property
    def _schemas(self) -> SchemaCompiler:
        from edgecloud.schemas import SchemaCompiler

        return SchemaCompiler(self.vocabulary, self.markup_ids)


def read_model_text(
    vocabulary: FileVocabulary,
    name: str,
    *,
    variant: str = "",
    fingerprint: str = "",
    chat_template: str = "",
) -> ModelText:
    """The text side of what a file or folder holds; `chat_template`, if given, replaces its template."""
    source = chat_template or vocabulary.chat_template
    template = None
    if source:
        template = ChatTemplate(
            source,
            bos=vocabulary.token_text(vocabulary.bos),
            eos=vocabulary.token_text(vocabulary.eos),
            control_tokens=vocabulary.control_tokens(),
        )
    return ModelText(name, vocabulary, template, variant=variant, fingerprint=fingerprint)
