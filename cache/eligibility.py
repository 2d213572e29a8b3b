"""Which prompts another prompt's answer may serve at all, before any vector is compared.

Similarity can't tell that 'transfer 50 euros' is to be done twice, that 'today' moves on, or that a second
poem should be another poem. These are rules on the words of one prompt alone; each says its reason. They
speak English and Chinese, so a prompt in another language is left to the exact tier.
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


RULED = ("en", "zh")
"""Languages in which these rules can tell what asks for a moment, for a deed, or for something new."""


UNSPACED = ("zh", "ja")
"""Languages that the vetoes can't read, whatever the embedder knows."""


class Verdict(NamedTuple):
    """A prompt's language and how long its answer keeps; `reason` is why the semantic tier may not serve it,
    `only_words` why it may serve it the answer to the very same words and no others, if so.
    """

    language: str
    lifetime_s: float
    reason: str
    only_words: str


_MOMENT = re.compile(
    r"""\b(today|tonight|tomorrow|yesterday|now|nowadays|currently|current|latest|newest|recent|recently|
    this\ (?:morning|afternoon|evening|week|month|year|weekend)|(?:next|last)\ (?:week|month|year|weekend)|
    so\ far|as\ of|up\ to\ date|breaking|live\ score|weather|forecast|news|headlines|
    (?:what|the)\ time(?!\ ?zone)|what\ day|what's\ the\ date|what\ is\ the\ date|
    (?:stock|share|bitcoin|gas|oil|gold)\ price|exchange\ rate\ (?:for|from|to|of|between|in)|
    (?:whats?|how|tell|give|show|know|check|see|find)\b.{0,80}?\b(?:exchange\ rate|my\ (?:\w+\ )?balance)
    )\b|
    今[天日晚早年]|明[天日晚早年]|[后昨前]天|昨[日晚]|去年|现在|現在|目前|当前|當前|最近|最新|实时|
    [这這本上下]个?個?(?:周|週|星期|月)|天气|天氣|气温|新闻|新聞|头条|几点|幾點|[几幾][号號]|星期几|股价|汇率|余额""",
    re.IGNORECASE | re.VERBOSE,
)
# What is only spoken of: 'today' in quotes, or what somebody wants to say in Spanish, is a word and no day.
_MENTION = re.compile(
    r"""“[^”\n]{0,200}”|"[^"\n]{0,200}"|「[^」\n]{0,200}」|
    \bhow\ (?:do|does|did|would|can|could|should|to)\b.{0,40}?\b(?:say|spell|pronounce)\b.*""",
    re.IGNORECASE | re.VERBOSE,
)
_SENTENCE = re.compile(r"(?<=[.?!])\s+|(?<=[。？！])|\n+")
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
    (?!\ (?:of|by|and|words?|stack|office|dates?|times?|recommendations?|reviews?)\b)|
    ^\W*(?:请|請|麻烦你?|帮我|幫我|替我|给我|现在|你?能不?能|可以)*
    (?:发送|发给|转账|支付|付款|购买|下单|预订|预约|订[一购张个]|取消|删除|刪除|提醒|打电话|呼叫|打开|關閉|关闭|
       播放|暂停|停止|执行|运行|部署|设[置定]?(?:一个)?(?:闹钟|提醒|定时))""",
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
    ^\W*+(?:\w+\W*+)?(?:{_PIECE}|again)\b|
    [写寫作编編讲講说說来來].{{0,12}}?(?:诗|詩|故事|笑话|笑話|歌词|谜语|口号|标语|段子|文案)|随机|隨機|头脑风暴|
    再(?:来|來|说|說|写|寫|讲|試|试)|[换換](?:一?个|一?個|种|種)|另(?:一|外)|重(?:新|写|寫|说)|改写|
    掷|抛.{{0,3}}硬币|其他的?(?:想法|例子|建议)""",
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
        return Verdict(language, FRESH_S, "it asks about a moment, and its answer grows old", "")
    is_known = language in languages
    reason = _reason(text) or ("" if is_known or language in RULED else _UNKNOWN)
    return Verdict(language, lifetime_s, reason, _only_words(text, language) if is_known else _UNKNOWN)


_UNKNOWN = "the embedder is not known to understand its language"


def _asks_about_a_moment(text: str) -> bool:
    return any(
        _MOMENT.search(sentence) and (_WISH.search(sentence) or not _STATEMENT.search(sentence))
        for sentence in _SENTENCE.split(_MENTION.sub("", text))
    )


def _reason(text: str) -> str:
    if _num_words(text) < MIN_WORDS:
        return "so short a prompt means what came before it"
    if _ACTION.search(text):
        return "it asks for something to be done, not said"
    if _VARIETY.search(text):
        return "it asks for something new each time"
    return ""


def _only_words(text: str, language: str) -> str:
    if language in UNSPACED:
        return "its words are not parted by spaces, so what tells two prompts apart can't be read"
    if len(text) > MAX_CHARACTERS:
        return "it is longer than the embedder reads"
    if _LITERAL.search(text):
        return "it holds code or sums, where a character changes the answer"
    return ""


def _num_words(text: str) -> int:
    # Chinese has no spaces; two characters are a word, more or less.
    return len(text.split()) + sum("\u3400" <= character <= "\u9fff" for character in text) // 2
