"""Phrases to look for in a text: words with alternatives and short gaps, found in linear time by construction.

    i (can't|cannot|can not) * help (you with|with)       * stands for up to three words

There is nothing else in the language, so no phrase can make the search explode: every gap is bounded and everything
else is literal. A text is searched as plain words: NFKC, case and accents folded, invisible characters and punctuation
dropped, so `C.a.n.n.o.t` is not found but `CAN\u200bNOT` is.
"""

from __future__ import annotations

import re
import unicodedata

from ttc.errors import ConfigError

__all__ = ["compiled", "plain_words"]

MAX_PHRASE = 200
MAX_GAPS = 3
GAP = r"(?:[^ ]+ ){0,3}"
_PIECE = re.compile(r"\(([^()*]+)\)|(\*)|([^()*\s|]+)|(\s+)")
_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "`": "'"})
_NOT_WORD = re.compile(r"[^\w']+")


def plain_words(text: str) -> str:
    """The words of a text, each followed by one space, with one space in front."""
    # Marks go before the folding too: sorting a long run of them takes quadratic time.
    folded = _without_marks(unicodedata.normalize("NFKD", _without_marks(text.translate(_APOSTROPHES)))).casefold()
    return f" {' '.join(_NOT_WORD.sub(' ', folded).split())} "


def _without_marks(text: str) -> str:
    if text.isascii():
        return text
    marks = [c for c in set(text) if unicodedata.combining(c) or unicodedata.category(c) in ("Mn", "Cf")]
    return text.translate(dict.fromkeys(map(ord, marks)))


def compiled(phrase: str, where: str) -> re.Pattern[str]:
    """A pattern to search `plain_words` with; raises ConfigError naming `where` for a broken phrase."""
    pieces = list(_PIECE.finditer(phrase))
    if "".join(piece[0] for piece in pieces) != phrase or len(phrase) > MAX_PHRASE:
        raise ConfigError(f"{where}: a phrase is words, (a|b) and *, of at most {MAX_PHRASE} characters: {phrase!r}")
    if sum(bool(piece[2]) for piece in pieces) > MAX_GAPS:
        raise ConfigError(f"{where}: a phrase has at most {MAX_GAPS} gaps: {phrase!r}")
    parts = []
    for choice, gap, word, _space in (piece.groups() for piece in pieces):
        if choice:
            parts.append("(?:" + "|".join(_literal(option) for option in choice.split("|")) + ")")
        elif gap:
            parts.append(GAP)
        elif word:
            parts.append(_literal(word))
    if not "".join(parts).replace(GAP, ""):
        raise ConfigError(f"{where}: a phrase needs a word: {phrase!r}")
    return re.compile(" " + "".join(parts))


def _literal(text: str) -> str:
    words = plain_words(text).split()
    return "".join(re.escape(word) + " " for word in words)
