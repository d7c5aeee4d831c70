"""How repetitive a text is: the share of its word n-grams that have occurred before."""

from __future__ import annotations

import re

_EAST = "\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
_WORD = re.compile(rf"[{_EAST}]|[^\W{_EAST}]+")
MAX_CHARS = 200_000
"""Characters in which repetition is looked for."""


def repetition(text: str, size: int) -> float:
    """The share of n-grams of `size` words that have occurred before; 0 for a text with fewer words.

    A word is a run of letters and digits; a character of Chinese, Japanese or Korean is a word of its own. At most the
    first MAX_CHARS characters are read.
    """
    words = _WORD.findall(text[:MAX_CHARS].casefold())
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
