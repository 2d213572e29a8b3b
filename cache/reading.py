"""What a prompt says, word by word: the parts that two prompts are compared by."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from .words import FEMALE, FUNCTION, MALE, MOMENTS, NEGATIONS, NUMBER_WORDS, PLURAL, QUESTION, stem

# A literal is what a character changes: quoted text, addresses, paths, options, names in code, ids.
_LITERAL = re.compile(
    r"""`[^`]+` | "[^"\n]{1,80}" | “[^”\n]{1,80}” | https?://\S+ | \b[\w.+-]+@[\w-]+\.\w+
    | (?<![\w-])--?[A-Za-z][\w-]* | \b\w+(?:_\w+)+\b | \b[a-z]+[A-Z]\w* | \b\w+\(\) | (?<!\w)[~.]?/[\w./-]+
    | \b\w+\.(?:py|js|ts|c|h|cpp|rs|go|java|md|csv|json|ya?ml|toml|sh|sql|html|css|pdf|txt|zip)\b
    | \b(?=\w*\d)(?=\w*[A-Za-z])(?!\d+(?:st|nd|rd|th)\b)\w{2,}\b""",
    re.VERBOSE,
)
_TOKEN = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+(?:[.'’-][^\W\d_]+)*\.?")
_NUMBER = re.compile(r"\d")
_NOT = re.compile(r"n['’]t$")


class Reading(NamedTuple):
    """One prompt, read. Words are lower-case; `content` has stems in order, `places` their token numbers."""

    tokens: tuple[str, ...]
    content: tuple[str, ...]
    places: tuple[int, ...]
    names: frozenset[str]
    numbers: tuple[str, ...]
    literals: frozenset[str]
    negations: int
    moments: frozenset[str]
    persons: tuple[str, ...]
    question: str


@lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    """The reading of a text; of equal texts the same object."""
    tokens: list[str] = []
    content: list[str] = []
    places: list[int] = []
    names: set[str] = set()
    numbers: list[str] = []
    persons: list[str] = []
    negations = 0
    starts_sentence = True
    for match in _TOKEN.finditer(text):
        raw = match.group()
        if _NUMBER.match(raw):
            numbers.append(raw.replace(",", ""))
            starts_sentence = False
            continue
        word, is_negated = _plain(raw)
        if not word:
            continue
        negations += is_negated or word in NEGATIONS
        if word in NUMBER_WORDS:
            numbers.append(NUMBER_WORDS[word])
        tokens.append(word)
        for person, words in (("he", MALE), ("she", FEMALE), ("they", PLURAL)):
            if word in words:
                persons.append(person)
        if word not in FUNCTION and word not in NEGATIONS and not is_negated:
            content.append(stem(word))
            places.append(len(tokens) - 1)
            if raw[0].isupper() and not starts_sentence:
                names.add(stem(word))
        end = text[match.end() : match.end() + 1]
        starts_sentence = end in ".!?" and end != ""
    return Reading(
        tuple(tokens),
        tuple(content),
        tuple(places),
        frozenset(names),
        tuple(sorted(numbers)),
        frozenset(found.strip('`"“”').lower() for found in _LITERAL.findall(text)),
        negations,
        frozenset(MOMENTS.intersection(tokens)),
        tuple(persons),
        next((word for word in tokens if word in QUESTION), ""),
    )


def _plain(raw: str) -> tuple[str, bool]:
    """The word in lower case without its possessive, and whether it ends in n't."""
    word = raw.replace("’", "'").lower().rstrip(".").replace(".", "")
    if _NOT.search(word) or word in ("cant", "dont", "wont", "didnt", "doesnt", "isnt"):
        return _NOT.sub("", word), True
    if word.endswith("'s") or word.endswith("s'"):
        word = word[:-2] if word.endswith("'s") else word[:-1]
    return word.replace("'", ""), False
