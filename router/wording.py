"""The words of a question as numbers: each word and each pair of neighbours by a hash of 16 bits."""

from __future__ import annotations

import re
import zlib
from itertools import pairwise

NUM_BUCKETS = 1 << 16
_WORD = re.compile(r"\w\w+")


def wording(text: str) -> tuple[int, ...]:
    """The buckets of a text's words and pairs, each once, in rising order; case does not count."""
    words = _WORD.findall(text.lower())
    pairs = [f"{one} {next_one}" for one, next_one in pairwise(words)]
    return tuple(sorted({zlib.crc32(each.encode()) % NUM_BUCKETS for each in (*words, *pairs)}))
