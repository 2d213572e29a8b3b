"""Why one prompt's answer must not serve another, however near their vectors are.

Opposites lie nearer to each other than paraphrases ('before' and 'after' at a cosine of 0.99), so this is
decided by words. A veto costs a hit that might have been right; what it prevents is a wrong answer. Every
rule is symmetric, and none ever holds between a text and itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from .reading import Reading
from .words import NEGATIONS, POLITE, SYMMETRIC, are_synonyms, has_synonyms, opposites_of, stem

Suspicion = Literal["", "added", "replaced"]

PLAIN_QUESTIONS = frozenset(["who", "when", "where", "why"])
"""Question words that ask for one thing each; 'what', 'which' and 'how' ask for anything."""

MIN_SHARED = 4
"""Clauses of fewer content words than this in all can't be told from a subject and an object."""


class Difference(NamedTuple):
    """Two readings laid side by side: the content words that only one has, and how many both have."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    num_shared: int
    num_opposites: int


def compare(a: Reading, b: Reading) -> Difference:
    """The difference in content words, synonyms and opposites taken out of it."""
    left, right = Counter(a.content), Counter(b.content)
    shared = sum((left & right).values())
    only_left, only_right = list((left - right).elements()), list((right - left).elements())
    words_a, words_b = _by_stem(a), _by_stem(b)
    for word in list(only_left):
        if not has_synonyms(words_a[word]):
            continue
        twin = next((other for other in only_right if are_synonyms(words_a[word], words_b[other])), None)
        if twin is not None:
            only_left.remove(word)
            only_right.remove(twin)
            shared += 1
    # 'without' is a negation already, and counted as one.
    tokens_a, tokens_b = set(a.tokens) - NEGATIONS, set(b.tokens) - NEGATIONS
    opposites = 0
    left_over = tokens_b - tokens_a
    for word in sorted(tokens_a - tokens_b):
        other = min(opposites_of(word) & left_over, default=None)
        if other is not None:
            opposites += 1
            left_over.discard(other)
            for stems, each in ((only_left, stem(word)), (only_right, stem(other))):
                if each in stems:
                    stems.remove(each)
    return Difference(tuple(only_left), tuple(only_right), shared, opposites)


def veto(a: Reading, b: Reading, difference: Difference) -> str:
    """The rule that forbids either prompt the other's answer, or ''."""
    if is_same(a, b):
        return ""
    return veto_at_once(a, b) or next((name for name, holds in _vetoes(a, b, difference) if holds), "")


def veto_at_once(a: Reading, b: Reading) -> str:
    """The first rules of `veto`, those that need no comparison of words, or ''."""
    if a.numbers != b.numbers:
        return "numbers"
    return "literals" if a.literals != b.literals else ""


def suspicion(a: Reading, b: Reading, difference: Difference) -> Suspicion:
    """What usually changes the answer, and in some traffic never does: one content word of the whole."""
    num_left, num_right = len(difference.left), len(difference.right)
    if is_same(a, b) or num_left > 1 or num_right > 1:
        return ""
    return ("", "added", "replaced")[num_left + num_right]


def is_same(a: Reading, b: Reading) -> bool:
    """Whether the two texts differ in nothing but case, spaces and punctuation."""
    return a.tokens == b.tokens and a.numbers == b.numbers and a.literals == b.literals


def _vetoes(a: Reading, b: Reading, difference: Difference) -> Iterator[tuple[str, bool]]:
    left, right, num_shared, num_opposites = difference
    yield "negation", (a.negations + b.negations + num_opposites) % 2 == 1
    yield "time", a.moments != b.moments
    yield "person", a.persons != b.persons or _own_otherwise(a, b)
    yield "names", not (a.names <= _stems(b) and b.names <= _stems(a))
    if not left and not right:
        # Of the same content words the small ones ask: when or where, you me or I you.
        yield "question", a.question != b.question and {a.question, b.question} <= PLAIN_QUESTIONS
        to_a, to_b = _done_to(a), _done_to(b)
        yield "order", not _same_order(a, b) or bool(to_a and to_b and to_a.isdisjoint(to_b))
    yield "nothing shared", num_shared == 0


def _by_stem(reading: Reading) -> dict[str, str]:
    return {
        stemmed: reading.tokens[place] for stemmed, place in zip(reading.content, reading.places, strict=True)
    }


def _own_otherwise(a: Reading, b: Reading) -> bool:
    """Whether something is mine in the one and yours in the other."""
    owned_a, owned_b = _owned(a), _owned(b)
    return any(
        (thing, other) in owned_b and (thing, owner) not in owned_b and (thing, other) not in owned_a
        for thing, owner in owned_a
        for other in ("my", "your")
        if other != owner
    )


def _owned(reading: Reading) -> set[tuple[str, str]]:
    """What is said to be whose: each 'my' or 'your' with the content word that follows."""
    owned: set[tuple[str, str]] = set()
    for place, token in enumerate(reading.tokens):
        if token in ("my", "your"):
            after = (word for word, at in zip(reading.content, reading.places, strict=True) if at > place)
            owned.update((thing, token) for thing in islice(after, 1))
    return owned


def _done_to(reading: Reading) -> set[str]:
    """To whom of the two who talk something is done: 'me' or 'you' after a content word, where no phrase of
    politeness has it ('tell me', 'you know').
    """
    tokens, first = reading.tokens, reading.places[0] if reading.places else len(reading.tokens)
    return {
        token
        for place, token in enumerate(tokens)
        if token in ("me", "you") and place > first and POLITE.isdisjoint(tokens[place - 1 : place + 2])
    }


def _stems(reading: Reading) -> frozenset[str]:
    return frozenset(stem(token) for token in reading.tokens)


def _same_order(a: Reading, b: Reading) -> bool:
    """Whether the content words of both stand in the same order, or in one that says the same."""
    shared = set(a.content) & set(b.content)
    orders_a, orders_b = (
        {tuple(word for word in order if word in shared) for order in _orders(reading)} for reading in (a, b)
    )
    if not orders_a.isdisjoint(orders_b):
        return True
    # A clause moved to the front is said as well at the end; with fewer words that could be a swap.
    return any(
        len(order) > MIN_SHARED and order[cut:] + order[:cut] in orders_b
        for order in orders_a
        for cut in range(2, len(order) - 1)
    )


def _orders(reading: Reading) -> set[tuple[str, ...]]:
    """The orders of a text's content words that mean what it says."""
    content, places, tokens = reading.content, reading.places, reading.tokens
    orders = {content}
    for index in range(len(content) - 1):
        between = tokens[places[index] + 1 : places[index + 1]]
        if "and" in between or "or" in between:
            orders |= {_swapped(order, index) for order in orders}
        if tokens[places[index]] in SYMMETRIC or content[index] in SYMMETRIC:
            orders.add((*content[index + 1 :], content[index], *content[:index]))
        if "by" in between:
            # Passive: 'the ball was thrown by Ann' is 'Ann threw the ball'.
            orders = {(*content[index + 1 :], content[index], *content[:index])}
    return orders


def _swapped(order: Sequence[str], index: int) -> tuple[str, ...]:
    return (*order[:index], order[index + 1], order[index], *order[index + 2 :])
