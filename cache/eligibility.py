"""Which prompts another prompt's answer may serve at all, before any vector is compared.

Similarity can't tell that 'transfer 50 euros' is to be done twice, that 'today' moves on, or that a second
poem should be another poem. These are rules on the words of one prompt alone; each says its reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from .language import language_of

DAY_S = 86_400.0
FRESH_S = 300.0

MIN_WORDS = 3
"""A shorter turn ('continue', 'yes', 'fix it') means what came before it, and is like every other one."""

MAX_CHARACTERS = 900
"""About the 256 word pieces that the starter embedder reads; what lies beyond is invisible to it."""


class Verdict(NamedTuple):
    """A prompt's language, how long its answer keeps, and why the semantic tier may not serve it, if so."""

    language: str
    lifetime_s: float
    reason: str


_MOMENT = re.compile(
    r"""\b(today|tonight|tomorrow|yesterday|now|nowadays|currently|current|latest|newest|recent|recently|
    this\ (?:morning|afternoon|evening|week|month|year|weekend)|(?:next|last)\ (?:week|month|year|weekend)|
    so\ far|as\ of|up\ to\ date|breaking|live\ score|weather|forecast|news|headlines|
    what\ time|the\ time|what\ day|what's\ the\ date|what\ is\ the\ date|
    (?:stock|share|bitcoin|gas|oil|gold)\ price|exchange\ rate\ (?:for|from|to|of|between|in)|
    (?:whats?|how|tell|give|show|know|check|see|find)\b.{0,80}?\b(?:exchange\ rate|my\ (?:\w+\ )?balance)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
_SENTENCE = re.compile(r"(?<=[.?!])\s+|\n+")
# What somebody tells of an event of theirs; the moment of it is not what is asked for.
_STATEMENT = re.compile(
    r"""^\W*(?:(?:and|but|so|hi|hello|hey|ok|well|also|because)\W+)*
    (?:(?:i|we)\b|(?:i|we)['’]?(?:ve|m|re|d)\b|
       (?:the|this|that|an?|my|our|it|there|some\w+|yesterday|today|recently)\b.*?
       \b(?:is|was|were|has|have|had|did|does|got|went|made|can|\w{2,}ed|\w+n['’]?t)\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_WISH = re.compile(
    r"""\?|\b(?:whats?|when|who|how|which|where|whether|tell|show|give|know|find|check|see|look|list|wonder)\b|
    \b(?:want|need|like)\b(?!\ to\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_ACTION = re.compile(
    r"""^\W*(?:(?:please|kindly|hey|hi|ok|now|then)\W+)*
    (?:(?:can|could|would|will)\ you\ (?:please\ )?|i\ (?:want|need|would\ like)\ you\ to\ |
       let's\ |go\ ahead\ and\ )?
    (?:please\ )?
    (send|transfer|pay|buy|purchase|order|book|reserve|schedule|reschedule|remind|call|text|email|post|
     publish|delete|remove|cancel|unsubscribe|subscribe|deposit|withdraw|wire|deploy|run|execute|restart|
     turn\ (?:on|off)|set\ (?:an?\ )?(?:alarm|timer|reminder)|add\ .+\ to\ my|play|pause|stop|start)\b
    (?!\ (?:of|by|and|words?|stack|office|dates?|times?|recommendations?|reviews?)\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_PIECE = r"(?:poems?|haikus?|limericks?|stor(?:y|ies)|lyrics|songs?|raps?|sonnets?|slogans?|taglines?)"
_VARIETY = re.compile(
    rf"""\b(?:
    haikus?|limericks?|jokes?|puns?|riddles?|slogans?|taglines?|brainstorm|surprise\ me|roll\ a|flip\ a|
    pick\ a|invent|imagine|rephrase|reword|try\ (?:it\ )?again\W*$|regenerate|redo|once\ more|
    (?:write|compose|create|make|generate|sing|rap|tell|give|draft|want|need|like|hear|know)\b.{{0,40}}?\b{_PIECE}|
    (?:give|pick|choose|generate|tell|show|name|say|write|suggest|draw|make)\b.{{0,30}}?\brandom(?:ly)?|
    (?:say|said|tell|ask|repeat|explain|write|show|hear|play|do\ (?:it|that|this))\b.{{0,40}}?\bagain|
    another\ (?:one|way|idea|example|option|version|suggestion|{_PIECE})s?|
    something\ (?:else|different|new)|different\ (?:one|version|idea)s?|
    other\ (?:ideas?|options?|suggestions?)|more\ (?:ideas|examples|options|suggestions))\b|
    ^\W*(?:an?|another|again|some|\w+)?\W*(?:{_PIECE}|again)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_LITERAL = re.compile(
    r"""```|\d\s*[-+*/^×÷%]\s*\d|[=<>!]=|[{};]\s*$|\bdef\ \w+\(|\b\w+\(\)|</?\w+>|
    \bSELECT\b.{0,200}?\bFROM\b|^\s*\$\ """,
    re.VERBOSE | re.MULTILINE,
)


def judge(text: str, *, languages: Collection[str], lifetime_s: float) -> Verdict:
    """What the caches may do with a prompt whose last turn is `text`.

    `languages` are those that the embedder knows. `lifetime_s` is that of an answer that time doesn't change;
    one of a prompt about now lives for five minutes.
    """
    language = language_of(text)
    if _asks_about_a_moment(text):
        return Verdict(language, FRESH_S, "it asks about a moment, and its answer grows old")
    return Verdict(language, lifetime_s, _reason(text, language, languages))


def _asks_about_a_moment(text: str) -> bool:
    return any(
        _MOMENT.search(sentence) and (_WISH.search(sentence) or not _STATEMENT.search(sentence))
        for sentence in _SENTENCE.split(text)
    )


def _reason(text: str, language: str, languages: Collection[str]) -> str:
    if len(text.split()) < MIN_WORDS:
        return "so short a prompt means what came before it"
    if len(text) > MAX_CHARACTERS:
        return "it is longer than the embedder reads"
    if language not in languages:
        return "the embedder is not known to understand its language"
    if _ACTION.search(text):
        return "it asks for something to be done, not said"
    if _VARIETY.search(text):
        return "it asks for something new each time"
    if _LITERAL.search(text):
        return "it holds code or sums, where a character changes the answer"
    return ""
