"""Words as IFEval counts them: runs of word characters, and tokens in the manner of the Penn Treebank.

The tokens serve the count of words in capitals only, so what cannot change that count (splitting off a full stop) is
left out. Linear in the text.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+")
_APART = re.compile(r"\.{2,}|--|[;*@#$%&?!\[\](){}<>\"“”«»„‘’`–—]|[:,](?!\d)|''")
_ENDINGS = re.compile(r"(?<=[^\s'])(?=(?:'(?:s|m|d|ll|re|ve)|n't)(?=\s|\Z))", re.IGNORECASE)
_JOINED = re.compile(
    r"\b(?:(can)(not)|(d)('ye)|(gim)(me)|(gon)(na)|(got)(ta)|(lem)(me)|(more)('n)|(wan)(na))(?=\s|\Z)"
    r"|(?<=\s)('t)(is|was)\b",
    re.IGNORECASE,
)
_EDGE_QUOTE = re.compile(r"(?<=\S)'(?=\s|\Z)")


def count_words(text: str) -> int:
    """The number of runs of letters, digits and underscores."""
    return sum(1 for _ in _WORD.finditer(text))


def count_capital_words(text: str) -> int:
    """The number of tokens that have letters, all of them capitals: `I`, `NATO`, `GPT-4`; `DON'T` is two."""
    spaced = _APART.sub(" ", f" {text} ")
    spaced = _EDGE_QUOTE.sub(" ", _ENDINGS.sub(" ", spaced))
    spaced = _JOINED.sub(lambda match: " ".join(part for part in match.groups() if part), spaced)
    return sum(token.isupper() for token in spaced.split())
