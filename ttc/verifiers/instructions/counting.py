"""Count English sentences, words, and words in capitals as IFEval does, without a trained model or its download.

A word that ends in a full stop, a question or an exclamation mark ends a sentence, unless it is a known abbreviation
or an initial before a name, an ellipsis, or the number of a list before a word in lower case. Marks that close a
quotation or a bracket stay with the sentence they close. The rules are those of Punkt (Kiss and Strunk 2006), which
IFEval counts with, oddities included ("i.e." ends a sentence); of its learnt tables, the abbreviations of general use
and the words that open sentences stand here. Linear in the text. Known differences: which words Punkt has seen in
lower case (they open a sentence after an abbreviation) is told by a short list, and its collocations are left out.

Words are runs of word characters; the tokens in the manner of the Penn Treebank serve the count of words in capitals
only, so what cannot change that count (splitting off a full stop) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_WORD = re.compile(r"\S+")
_STOP = re.compile(r"[.?!](?=[)\";}\]*:@'({\[?!‘’“”«»]|\Z)")
_CLOSING = re.compile(r"[\"')\]}‘’“”«»]+(?=--|\Z)")
_INITIAL = re.compile(r"[^\W\d]\.")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*")
_EDGES = "\"'()[]{}*_<>:;,“”‘’`"
_ABBREVIATIONS = frozenset({
    "a.m", "adm", "ala", "ariz", "aug", "ave", "bros", "c", "calif", "cie", "co", "col", "colo", "conn", "corp",
    "cos", "ct", "d.c", "dec", "dr", "f", "feb", "fla", "fri", "ft", "ga", "gen", "h", "ill", "inc", "jan", "jr",
    "kan", "ky", "l", "lt", "ltd", "m", "maj", "md", "messrs", "mg", "mich", "minn", "mr", "mrs", "ms", "n", "n.c",
    "n.j", "n.y", "nev", "nov", "oct", "ok", "okla", "ore", "p.m", "pa", "ph.d", "prof", "r", "rep", "reps", "s",
    "s.c", "sen", "sep", "sept", "sr", "st", "sw", "t", "tenn", "tues", "u.k", "u.n", "u.s", "u.s.a", "u.s.s.r", "v",
    "va", "vs", "vt", "w", "w.va", "wash", "wed", "wis", "yr",
})  # fmt: skip
_OPENINGS = frozenset({
    "according", "although", "both", "but", "certainly", "currently", "despite", "does", "early", "even",
    "eventually", "finally", "following", "furthermore", "he", "hence", "her", "here", "however", "i", "if", "in",
    "indeed", "instead", "it", "many", "meanwhile", "moreover", "most", "neither", "nevertheless", "nonetheless",
    "nor", "overall", "please", "recent", "separately", "similarly", "since", "so", "some", "sometimes", "still",
    "such", "thank", "thanks", "the", "there", "therefore", "these", "they", "this", "though", "through", "thus",
    "together", "typically", "ultimately", "under", "unfortunately", "unless", "using", "various", "were", "when",
    "whereas", "whether", "which", "while", "without", "yes", "yet", "your",
})  # fmt: skip


def count_sentences(text: str) -> int:
    """The number of sentences of `text`; 0 for a text without any word."""
    count, left = 0, False
    for word, following in _words(text):
        rest = _rest(word)
        if rest is None or not _ends(word[: len(word) - len(rest)], rest, following):
            left = True
            continue
        count += 1
        left = bool(_CLOSING.sub("", rest, count=1) if rest else "")
    return count + left


def _words(text: str) -> Iterator[tuple[str, str]]:
    """Each word with the one after it; the last word has an empty one."""
    before = ""
    for match in _WORD.finditer(text):
        if before:
            yield before, match[0]
        before = match[0]
    if before:
        yield before, ""


def _rest(word: str) -> str | None:
    """What stands behind the last mark of `word` that may end a sentence; None without one."""
    last = None
    for last in _STOP.finditer(word):  # noqa: B007 - the last one
        pass
    return None if last is None else word[last.end() :]


def _ends(word: str, rest: str, following: str) -> bool:
    """Whether a sentence ends behind `word`, whose last character is a mark; `rest` is what stuck to it."""
    if not (rest or following):
        return False
    if word[-1] != ".":
        return True
    following = rest if rest else following
    bare = word.lstrip(_EDGES)
    if bare.endswith(".."):
        return _opens(following)
    core = bare[:-1].casefold()
    if _INITIAL.fullmatch(bare):
        return core not in _ABBREVIATIONS and (_opens(following) or not following[:1].isalpha())
    if core in _ABBREVIATIONS or core.rpartition("-")[2] in _ABBREVIATIONS:
        return _opens(following)
    if _NUMBER.fullmatch(core):
        return not following[:1].islower()
    return True


def _opens(word: str) -> bool:
    """Whether `word` is a capitalised word that often begins a sentence."""
    bare = word.strip(_EDGES + ".?!")
    return bare[:1].isupper() and bare.casefold() in _OPENINGS


_TERM = re.compile(r"\w+")
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
    return sum(1 for _ in _TERM.finditer(text))


def count_capital_words(text: str) -> int:
    """The number of tokens that have letters, all of them capitals: `I`, `NATO`, `GPT-4`; `DON'T` is two."""
    spaced = _APART.sub(" ", f" {text} ")
    spaced = _EDGE_QUOTE.sub(" ", _ENDINGS.sub(" ", spaced))
    spaced = _JOINED.sub(lambda match: " ".join(part for part in match.groups() if part), spaced)
    return sum(token.isupper() for token in spaced.split())
