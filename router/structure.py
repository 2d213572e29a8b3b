"""How a question is built: what can be said of its difficulty from the text alone, in English and Chinese.

No model, no vector: this is what is left when both are missing or out of their domain, and what the learned
estimates have to beat.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgecloud.types import Message

from .facts import Language, Structure
from .form import OPTIONS, form_of

# The tail of a very long prompt says what is wanted; measuring all of a pasted book says nothing more.
MEASURED_CHARS = 20_000
GIST_HEAD, GIST_TAIL = 400, 600

# "yes", "ok continue", "sounds good, go ahead!", "好的，继续吧": what is wanted was said before.
_APPROVAL = re.compile(
    r"\W*(?:(?:yes|yep|yeah|sure|ok|okay|y|please|thanks|thank you|great|good|perfect|fine|right|correct|"
    r"continue|proceed|go on|go ahead|go for it|do it|do that|do so|carry on|keep going|next|more|again|"
    r"sounds good|looks good|lgtm|that works|i agree|agreed|and|then|now|with it|with that|it|that|"
    r"fix it|fix that|try again|"
    r"好|好的|行|可以|是|是的|对|没错|继续|请|吧|同意|没问题|谢谢|下一步|开始|做吧|再来|就这样)\W*)+",
    re.IGNORECASE,
)
_LONGEST_APPROVAL = 60

_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*|\d+")
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_OTHER_SCRIPT = re.compile(r"[\u0370-\u1fff\u3040-\u30ff\uac00-\ud7af]")
_MATHS = re.compile(
    r"\\(?:frac|sum|int|sqrt|begin|left|mathbb|cdot)|[=<>≤≥≠±√∑∫∞πθλ∂^]|\d\s*[-+*/×÷%]\s*\d"
    r"|\b(?:integral|derivative|matrix|eigen\w*|probability|equation|polynomial|modulo|theorem)\b|方程|积分|矩阵|概率|导数",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"```|^\s{0,99}(?:def|class|import|from|function|const|let|var|public|SELECT|#include|fn|func)\b|[;{}]\s*$|\w\(\w*\)"
    r"|=>|->|==|!=",
    re.MULTILINE,
)
_NEGATIONS = re.compile(
    r"\b(?:not|never|except|least|without|neither|nor|cannot|false|incorrect)\b|n't\b|不|没有|除了|以外|错误",
    re.IGNORECASE,
)
_REASONING = re.compile(
    r"\b(?:prove|proof|deriv\w+|deduc\w+|show that|explain why|justify|step[- ]by[- ]step|first principles|"
    r"compar\w+|trade-?offs?|evaluat\w+|analy[sz]\w+|optimi[sz]\w+|design|architect\w*|"
    r"debug|root cause|refactor\w*|implement\w*|plan|strateg\w+)\b"
    r"|证明|推导|比较|权衡|分析|设计|为什么|优化|评估|方案|根因",
    re.IGNORECASE,
)
_EXPERTISE = re.compile(
    # law
    r"\b(?:contract\w*|liab\w+|statut\w+|plaintiff|defendant|tort\w*|jurisdiction|clause|negligen\w+|copyright|patent\w*|"
    # medicine and biology
    r"diagnos\w+|symptom\w*|dos(?:e|age)\w*|patholog\w+|syndrome|enzym\w+|protein\w*|gene\w*|receptor\w*|clinical\w*|"
    # chemistry and physics
    r"react\w+|molecul\w+|isomer\w*|catal\w+|electron\w*|oxid\w+|titrat\w+|spectr\w+|quantum|entropy|hamiltonian|"
    r"orbital\w*|\w+(?:ane|ene|ol|one|ide|ate)\s+with|"
    # economics and computing
    r"elasticit\w+|equilibri\w+|monetar\w+|complexity|asymptotic\w*|concurren\w+|consensus|cryptograph\w+|throughput"
    r")\b|合同|侵权|法律|诉讼|诊断|症状|剂量|蛋白|基因|反应|分子|催化|量子|熵|并发|一致性|复杂度",
    re.IGNORECASE,
)


def question(messages: Sequence[Message]) -> str:
    """The text that says what is wanted: the last user turn, or what a short approval approves.

    An approval is followed back to the last turn of the user that is none, with the proposal that was
    approved: 'yes' to a plan is as hard as the plan.
    """
    approved = ""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "assistant" and not approved and index < len(messages) - 1:
            approved = message.content
        if message.role != "user":
            continue
        text = message.content.strip()
        if not is_approval(text):
            return f"{text}\n{approved}" if approved and index < _last_user(messages) else text
    return messages[-1].content if messages else ""


def gist(text: str) -> str:
    """What of a question is embedded: all, or where it is long its beginning and its end.

    An embedder reads a few hundred tokens and no more; what is wanted stands before what is pasted, or after.
    """
    if len(text) <= GIST_HEAD + GIST_TAIL:
        return text
    return f"{text[:GIST_HEAD]}\n{text[-GIST_TAIL:]}"


def is_approval(text: str) -> bool:
    """Whether a turn only says to go on with what came before it; an empty one does."""
    return len(text) <= _LONGEST_APPROVAL and (
        not text.strip() or _APPROVAL.fullmatch(text.strip()) is not None
    )


def measure(text: str) -> Structure:
    """The structure of a question; see `Structure` for units."""
    text = text[-MEASURED_CHARS:]
    length = max(len(text), 1)
    words = _WORD.findall(text)
    is_ascii = text.isascii()
    han = 0 if is_ascii else len(_HAN.findall(text))
    # `map` over a method counts several times as fast as a generator, and every request passes here.
    blank, spoken = sum(map(str.isspace, text)), sum(map(str.isalnum, text))
    return Structure(
        num_chars=len(text),
        # A Chinese word is a little under two characters.
        num_words=len(words) + round(han / 1.7),
        num_lines=text.count("\n") + 1,
        mean_word=sum(map(len, words)) / len(words) if words else 0.0,
        digits=sum(map(str.isdigit, text)) / length,
        capitals=sum(map(str.isupper, text)) / length,
        symbols=(len(text) - spoken - blank) / length,
        maths=len(_MATHS.findall(text)),
        code=len(_CODE.findall(text)),
        questions=text.count("?") + text.count("？"),
        options=len(OPTIONS.findall(text)),
        negations=len(_NEGATIONS.findall(text)),
        reasoning=len(_REASONING.findall(text)),
        expertise=len(_EXPERTISE.findall(text)),
        language="en" if is_ascii else _language(text, han),
        form=form_of(text),
    )


def _language(text: str, han: int) -> Language:
    """Of the letters: mostly Latin, mostly Han, or something else that our word lists do not know."""
    latin = sum(character.isascii() and character.isalpha() for character in text)
    other = len(_OTHER_SCRIPT.findall(text))
    if other > latin / 4 and other > han / 2:
        return "other"
    # One Han character says about as much as four letters.
    return "zh" if han * 4 > latin else "en"


def _last_user(messages: Sequence[Message]) -> int:
    return max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
