"""Personal data and secrets by their shape, in English and Chinese text.

Each pattern is linear: nothing is repeated inside a repetition, and every repetition has an end. What has a
check digit is checked. A match says what was found, never the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import methodcaller

from .checks import has_digit_and_letter, is_card, is_chinese_id, is_iban, is_mailbox, is_public_address

Check = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of data: its label's last part, what a person reads, and how it is found."""

    kind: str
    what: str
    regexes: tuple[re.Pattern[str], ...]
    check: Check | None = None

    def is_in(self, text: str) -> bool:
        check = self.check
        if check is None:
            return any(map(methodcaller("search", text), self.regexes))
        return any(check(found[0]) for regex in self.regexes for found in regex.finditer(text))


def kinds(text: str) -> Iterator[Pattern]:
    """The kinds of personal data in a text, each once."""
    return (pattern for pattern in PATTERNS if pattern.is_in(text))


# ------------------------------------------------------------------------------------------------- patterns


def _words(*regexes: str, flags: re.RegexFlag = re.IGNORECASE) -> tuple[re.Pattern[str], ...]:
    # One by one and not as alternatives: an expression that begins with a letter of its own is found faster.
    return tuple(re.compile(regex, flags) for regex in regexes)


def _shapes(*regexes: str, flags: re.RegexFlag = re.NOFLAG) -> tuple[re.Pattern[str], ...]:
    return _words(*regexes, flags=flags)


PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        "secret",
        "a password or key",
        (
            *_shapes(
                r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----",
                r"\bA[KS]IA[0-9A-Z]{16}\b",
                r"\b[spr]k[-_](?:live|test|proj|ant|or)?[-_]?(?=[\w-]{0,60}\d)[A-Za-z0-9_-]{20,200}",
                r"\bgh[pousr]_[A-Za-z0-9]{30,100}\b",
                r"github_pat_\w{30,100}\b",
                r"glpat-[\w-]{20,100}",
                r"xox[abprs]-[\w-]{10,200}",
                r"AIza[\w-]{35}\b",
                r"hf_[A-Za-z0-9]{30,60}\b",
                r"eyJ[\w-]{10,400}\.eyJ[\w-]{10,1000}\.[\w-]{10,1000}",
                r"://[^\s/:@]{1,100}:[^\s/@]{1,100}@",
                r"(?:密码|口令|密钥)\s{0,3}(?:是|为|[:：=])\s{0,3}[^\s，。]{6,200}",
            ),
            *_words(
                r"(?:password|passwd|passphrase|api[_ -]?key|secret[_ -]?key|access[_ -]?token|"
                r"client[_ -]?secret)[\"']?\s{0,3}(?:is|[:=])\s{0,3}[\"']?"
                r"(?=[^\s\"']{0,40}[\d!@#$%^&*])[^\s\"'<>{}()\[\]]{6,200}",
            ),
        ),
    ),
    Pattern("card", "a card number", _shapes(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.]\d)"), is_card),
    Pattern(
        "iban",
        "a bank account number",
        _shapes(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"),
        is_iban,
    ),
    Pattern(
        "account",
        "an account number",
        _words(
            r"\baccount\s{0,3}(?:no\.?|number|#|nr\.?)?\s{0,3}(?:is|[:#])?\s{0,3}\d{6,20}\b",
            r"(?:账号|帐号|卡号|账户)\s{0,3}(?:是|为|[:：])?\s{0,3}\d{6,25}",
        ),
    ),
    Pattern(
        "id",
        "an identity number",
        _words(
            r"(?<![\d-])(?!000|666|9)\d{3}(?P<gap>[- ])(?!00)\d{2}(?P=gap)(?!0000)\d{4}(?![\d-])",
            r"\b(?:ssn|social security(?: number)?|passport(?: no\.?| number)?|driver'?s? licen[cs]e|"
            r"national insurance(?: number)?|tax id)\s{0,3}(?:is|[:#])?\s{0,3}"
            r"(?=[A-Z0-9-]{0,20}\d)[A-Z0-9][A-Z0-9 -]{5,20}\b",
            r"(?:护照号?码?|身份证号?码?|社保号)\s{0,3}(?:是|为|[:：])?\s{0,3}[A-Z0-9]{8,18}",
        ),
    ),
    Pattern(
        "id",
        "an identity number",
        _shapes(r"(?<!\d)[1-9]\d{5}(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])\d{3}[\dXx](?!\d)"),
        is_chinese_id,
    ),
    Pattern(
        "email",
        "an email address",
        _shapes(r"(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,5}"),
        is_mailbox,
    ),
    Pattern(
        "phone",
        "a phone number",
        _words(
            r"(?<![\w+])\+\d{1,3}[ .-]?\(?\d{1,4}\)?(?:[ .-]?\d{2,4}){2,4}(?!\d)",
            r"(?<![\w.+-])\(\d{3}\) ?\d{3}[-. ]\d{4}(?![\w-])",
            r"(?<![\w.+-])[2-9]\d{2}(?P<dash>[-.])\d{3}(?P=dash)\d{4}(?![\w-])",
            r"(?<![\w.+-])0\d{4} \d{6}(?!\d)",
            r"(?<![\d.])1[3-9]\d(?P<gap>[- ]?)\d{4}(?P=gap)\d{4}(?![\d.])",
            r"(?<![\d.])0\d{2,3}-\d{7,8}(?![\d-])",
            r"\b(?:call|phone|tel|mobile|fax|cell)\w{0,8}\.?\s{0,3}(?:me|us|it|him|her|no\.?|number|by)?\s{0,3}"
            r"(?:at|on|is|[:#])\s{0,3}\+?\(?\d[\d ().-]{6,18}\d",
        ),
    ),
    Pattern(
        "address",
        "a street address",
        _shapes(
            r"\b\d{1,5}[A-Za-z]? (?:[NSEW]\.? )?(?:[A-Z][a-z]{1,20} ){1,3}"
            r"(?:Street|St|Avenue|Ave|Road|Rd|Lane|Ln|Boulevard|Blvd|Drive|Dr|Court|Ct|Terrace|Square)\b\.?",
            r"[\u4e00-\u9fff]{2,12}(?:路|街|大道|巷|胡同|弄)\s?\d{1,5}\s?(?:号|弄)",
        ),
    ),
    Pattern(
        "birth",
        "a date of birth",
        _words(
            r"\b(?:date of birth|birth ?date|dob|born on)\s{0,3}(?:is|[:=])?\s{0,3}"
            r"(?:\d{1,4}|[A-Z][a-z]{2,8} \d)",
            r"(?:出生日期|生日)\s{0,3}(?:是|为|[:：])\s{0,3}\d{2,4}",
        ),
    ),
    Pattern(
        "device",
        "a network address",
        _shapes(r"(?<![\w:.-])[0-9A-Fa-f]{2}([:-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![\w:-])"),
        has_digit_and_letter,
    ),
    Pattern(
        "device",
        "a network address",
        _shapes(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)"),
        is_public_address,
    ),
    Pattern(
        "health",
        "a person's health",
        _words(
            r"\b(?:my|his|her|their|our|patient'?s?|your)\s(?:\w{2,15}\s){0,2}"
            r"(?:diagnos[ie]s|prescription|medical records?|hiv status|biopsy|"
            r"chemotherapy|pregnancy|depression|psychiatrist|therapist)\b",
            r"\b(?:i|he|she|they|patient) (?:was|were|have been|has been|am|is) diagnosed with\b",
            r"\b(?:MRN|medical record number)\s{0,3}[:#]?\s{0,3}\d{5,12}\b",
            r"(?:我|他|她|患者|病人)(?:的|被)?(?:病历|诊断|确诊|体检报告|处方)",
        ),
    ),
    Pattern(
        "person",
        "a letter to a person",
        _shapes(
            r"^\s{0,8}(?:Dear|Hi|Hello|Hey) "
            r"(?!Sir|Madam|Team|All|There|Everyone|Friend|World|Customer|Claude|Assistant)"
            r"(?:Mr\.? |Mrs\.? |Ms\.? |Dr\.? |Prof\.? )?"
            r"[A-Z][a-z]{1,20}\d{0,3}(?: [A-Z][a-z]{1,20})?\s?[,.!]",
            r"^\s{0,8}(?:Mr|Mrs|Ms|Dr|Prof)\. [A-Z][a-z]{1,20},",
            r"^\s{0,8}尊敬的[\u4e00-\u9fff]{1,4}(?:先生|女士|小姐|医生|老师|经理|总)",
            flags=re.MULTILINE,
        ),
    ),
)
