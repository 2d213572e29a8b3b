"""Which language a prompt is in, told by its letters and its commonest words.

The semantic tier needs to know only one thing: whether its embedder and its vetoes understand the text. So a
doubtful text is of no language, '', and is left to the exact tier.
"""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")

# The commonest words of each language that hardly occur in the others.
_COMMON = {
    "en": """the of and to is in what how i my do can are for you it on with have does be this why not me
             who where when which an that if get was did will should would from your there any or a give
             tell explain please make write show much many best has at up""",
    "de": """der die das und ist nicht ich ein eine wie was warum für mit auf den dem wo wer kann mein sind
             zu von wird werden bitte oder ohne über wenn""",
    "fr": """le la les et est pas je un une comment que pourquoi pour avec sur des du où qui peut mon sont
             dans ce cette quel quelle quelles sans moi""",
    "es": """el los las y es no yo un una cómo como qué que por para con del dónde quién puede mi son en
             cuál cuáles sin está más""",
    "it": """il lo gli e è non io un una come che perché per con della del dove chi può mio sono di quale
             senza più""",
    "pt": """o os as e é não eu um uma como que por para com da do dos onde quem pode meu são em qual sem
             mais você""",
    "nl": """de het een en is niet ik hoe wat waarom voor met op van waar wie kan mijn zijn ook zonder""",
}
_SETS = {code: frozenset(words.split()) for code, words in _COMMON.items()}

_SCRIPTS = {"CJK": "zh", "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "CYRILLIC": "ru", "ARABIC": "ar"}
"""Unicode's name of a script to the language that is meant by it; Japanese is told by its kana."""


def language_of(text: str) -> str:
    """The ISO 639-1 code of the text's language, or '' where that can't be told."""
    letters = [character for character in text if character.isalpha()]
    foreign = [character for character in letters if ord(character) >= 0x250]
    if foreign:
        return _by_script(foreign) if 3 * len(foreign) > len(letters) else ""
    words = [word.lower() for word in _WORD.findall(text)]
    if not words:
        return ""
    scores = {code: sum(word in common for word in words) for code, common in _SETS.items()}
    best = max(scores, key=lambda code: scores[code])
    if list(scores.values()).count(scores[best]) > 1:
        # 'de', 'no', 'la', 'me' alone prove nothing; a few words in plain ASCII are English most often.
        return "en" if scores["en"] == scores[best] and _is_ascii(words) else ""
    if scores[best] * 8 < len(words):
        return ""
    return best


def _is_ascii(words: list[str]) -> bool:
    return all(word.isascii() for word in words)


def _by_script(characters: list[str]) -> str:
    counts: dict[str, int] = {}
    for character in characters:
        script = unicodedata.name(character, "").split(" ")[0]
        if script in _SCRIPTS:
            counts[_SCRIPTS[script]] = counts.get(_SCRIPTS[script], 0) + 1
    if not counts:
        return ""
    return "ja" if "ja" in counts else max(counts, key=lambda code: counts[code])
