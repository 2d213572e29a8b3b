"""Whether the beginning of a local draft is good enough to be shown, or another engine should answer.

    log-odds(right) = log-odds(estimate before the draft) + 3.9 * (mean logprob of its tokens + 0.23)

The slope and the centre are a fit on 3,000 answers of Llama-3.1-8B to questions about documents, where the
mean logprob tells right from wrong answers with an AUC of 0.58, 0.71 and 0.78 by set, and better than asking
the model whether it is sure. Form comes first: no logprob makes up for a refusal or a loop.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .decision import Estimate

SLOPE, CENTRE = 3.9, -0.23

_REFUSAL = re.compile(
    r"\W*(?:(?:i'?m|i am) (?:very |really |so )?(?:sorry|afraid|unable|not able)|sorry,|(?:i apologi[sz]e)|"
    r"i (?:can'?t|cannot|can not|won'?t|don'?t (?:know|have)|do not (?:know|have)|am not sure)|"
    r"(?:unfortunately,? (?:i|as an)|as an? (?:ai|artificial|large)\b)|"
    r"抱歉|对不起|很遗憾|我(?:不能|无法|不知道|没有办法)|作为(?:一个|一名)?(?:ai|人工智能|语言模型))",
    re.IGNORECASE,
)
# The same piece, with a letter in it, four times in a row; lines of dashes and runs of zeros are no loops.
_LOOP = re.compile(r"(.{2,40}?)\1{3,}", re.DOTALL)

Objection = Literal["empty", "refusal", "loop", "form", "unsure"]


@dataclass(frozen=True, slots=True)
class Draft:
    """What the local engine has said so far, not yet shown: text, and the natural logprob of each token under
    the model's own distribution. `finished` if this is all of it.
    """

    text: str
    logprobs: tuple[float, ...]
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the draft is shown; `p_ok` is its chance of being right, `objection` what spoke against it."""

    accepted: bool
    p_ok: float
    objection: Objection | None = None


def judge(draft: Draft, before: Estimate, floor: float, *, json: bool = False) -> Verdict:
    """Whether the draft is good enough: form first, then a chance of at least `floor`.

    `before` is the estimate without the draft; `json` is whether the answer has to be JSON.
    """
    p_ok = chance(before.mean, draft.logprobs)
    objection = _form(draft, json)
    if objection is not None:
        return Verdict(False, p_ok, objection)
    if p_ok < floor:
        return Verdict(False, p_ok, "unsure")
    return Verdict(True, p_ok)


def chance(before: float, logprobs: Sequence[float]) -> float:
    """The chance of a right answer, given its chance before and the logprobs of its first tokens."""
    before = min(max(before, 1e-6), 1 - 1e-6)
    log_odds = math.log(before / (1 - before))
    if logprobs:
        # A grammar can force a token of logprob minus infinity, which says no more than a low one.
        log_odds += SLOPE * (sum(max(one, -20.0) for one in logprobs) / len(logprobs) - CENTRE)
    return 1 / (1 + math.exp(-min(max(log_odds, -50.0), 50.0)))


def _form(draft: Draft, json: bool) -> Objection | None:
    text = draft.text.strip()
    if not text:
        # Tokens without a letter are whitespace that might go on for ever.
        return "empty"
    if _REFUSAL.match(text):
        return "refusal"
    loop = _LOOP.search(text)
    if loop and any(character.isalpha() for character in loop[1]):
        return "loop"
    if json and not text.startswith(("{", "[")):
        return "form"
    return None
