r"""Answers that are read as a whole: dates, telephone numbers, codes, chemical formulas, numbers in words, other words.

A date, a telephone number, a code, a chemical formula, a bearing or a permutation (`designation`) is neither sum nor
product, though it has digits, hyphens and letters, 2019-2020 or H_2O. It stands for its spelling; all but numbers and
codes have one however they are written. A number in words (`in_words`) may be a fraction, a mixed number or a dozen,
and may count something: `three and a half`, `five apples`; words that nobody would say for a number (`one two three`)
are none. Other words are the same whatever their case, quotes and marks of LaTeX and Markdown are (`text_key`). Left
out: numbers in words other than English ones.
"""

from __future__ import annotations

import hashlib
import re
from fractions import Fraction
from itertools import takewhile

from ttc.answers.nodes import Term, is_unit, num
from ttc.answers.plain import MAX_CHARS

# -- dates, telephone numbers, codes, chemistry, directions, permutations ----------------------------------------------
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_YEAR, _DAY = r"(?P<year>(?:1[5-9]|20)\d\d)", r"(?P<day>0?[1-9]|[12]\d|3[01])"
_MONTH = r"(?P<month>0?[1-9]|1[0-2])"
_MONTH_NAME = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DATES = (
    re.compile(rf"{_YEAR}(?P<mark>[-/.]){_MONTH}(?P=mark){_DAY}"),
    re.compile(rf"{_DAY}\.{_MONTH}\.{_YEAR}"),
    re.compile(rf"{_MONTH_NAME} {_DAY}(?:st|nd|rd|th)?,? {_YEAR}", re.IGNORECASE),
    re.compile(rf"{_DAY}(?:st|nd|rd|th)?(?: of)? {_MONTH_NAME},? {_YEAR}", re.IGNORECASE),
)
_WEEKDAY = re.compile(r"(?:mon|tues|wednes|thurs|fri|satur|sun)day,? (?=\w+ \w)", re.IGNORECASE)
"""The day of the week before a date."""
_DAYS = (
    re.compile(rf"{_MONTH_NAME} {_DAY}(?:st|nd|rd|th)?", re.IGNORECASE),
    re.compile(rf"{_DAY}(?:st|nd|rd|th)?(?: of)? {_MONTH_NAME}", re.IGNORECASE),
)
"""Dates without a year."""
_DATE_OF_TWO_ORDERS = re.compile(rf"(?P<first>\d\d?)(?P<mark>[-/])(?P<second>\d\d?)(?P=mark){_YEAR}")
"""The day may come first or second."""
_PHONE = re.compile(r"(?:\+?\d{1,3}-)?(?:\d{3}-|\(\d{3}\) ?)?[2-9]\d\d-\d{4}")
"""A telephone number: 555-0142, (212) 555-0142, +1-212-555-0142."""
_YEARS = re.compile(r"([12]\d{3})-([12]\d{3}|\d\d)")
"""Two years: 2019-2020, 2019-20."""
_PARTS = r"(?:[A-Za-z]+|\d+)(?:-(?:[A-Za-z]+|\d+))+"
_CODE = re.compile(rf"(?=(?:\w+-)*0\d){_PARTS}|(?=[A-Z]{{3,}}-)(?=.*\d){_PARTS}|[A-Z]+(?:-\d+){{2,}}")
"""Parts with hyphens: one begins with a zero (4-07), the first has three capitals or more and a number follows (ABC-1),
or two numbers follow capitals (AB-2-3); x-1-2 and AB-2 remain differences.
"""
_IN_TEXT = re.compile(r"\\(?:text|textbf|textrm|mbox|mathrm)\s*\{([^{}]*)\}")
r"""An answer that is all words in a style: `\text{twelve}`."""
_ELEMENT = (
    r"(?:A[cglmrstu]|B[aehikr]?|C[adeflmnorsu]?|D[bsy]|E[rsu]|F[elmr]?|G[ade]|H[efgos]?|I[nr]?|Kr?|L[airuv]|M[cdgnot]"
    r"|N[abdehiop]?|O[gs]?|P[abdmortu]?|R[abefghnu]|S[bcegimnr]?|T[abcehilms]|U|V|W|Xe|Yb?|Z[nr])"
)
_ATOMS = rf"{_ELEMENT}(?:[2-9]|[1-9]\d)?"
_CHEMICAL = re.compile(
    rf"(?=.*[\d^])(?P<atoms>(?:{_ATOMS}|\((?:{_ATOMS})+\)(?:[2-9]|[1-9]\d)?)+)"
    r"(?:\^(?:(?P<size>[2-9]?)(?P<sign>[-+])|(?P<before>[-+])(?P<after>[2-9])))?"
)
"""A molecule or an ion by its elements, each with how often it stands there: H2SO4, Ca(OH)2, Fe^3+."""
_IN_BRACKETS = re.compile(r"\\(?:text|mathrm)\s?\{\s*\([A-Za-z ]{3,30}\)\s*\}\s*\Z")
"""The name of a molecule behind its formula: `CH_4 \\text{ (methane)}`."""
_ARROW, _PLUS = re.compile(r"\\to(?![A-Za-z])|->|→"), re.compile(r"(?<![\^\d])\+|(?<=\d)\+(?=\d?[A-Ze(])|(?<=[-+])\+")
_NUCLIDE = re.compile(
    r"(?:\\ce\s?\{\s*)?(?:\{\s?\})?\s*(?:\^\s?\{?(?P<mass>\d{1,3})\}?\s*_\s?\{?(?P<number>\d{1,3})\}?"
    r"|_\s?\{?(?P<below>\d{1,3})\}?\s*\^\s?\{?(?P<above>\d{1,3})\}?)\s*(?:\\(?:text|mathrm)\s?\{\s*)?"
    rf"(?P<element>{_ELEMENT})[\s}}]*"
)
r"""A kind of atom with its mass and its number: `{}^{14}_{7}\text{N}`."""
_HYBRID = re.compile(r"(?=.*\d)(?:d\^?2)?sp(?:\^?[23])?(?:d(?:\^?2)?)?")
"""Mixed orbitals of an atom: sp^3, sp^3d^2."""
_CHEMICAL_MARKS = re.compile(r"\\(?:text|mathrm|ce|rm)(?![A-Za-z])|[{}_\s]")
MAX_REACTION, MAX_DESIGNATION = 250, 64
"""Characters of the longest reaction, and of the longest date, code or chemical formula."""


def chemical(text: str) -> str:
    """A chemical formula or a reaction in one spelling; empty for anything else."""
    if nuclide := _NUCLIDE.fullmatch(text):
        return f"{nuclide['mass'] or nuclide['above']}_{nuclide['number'] or nuclide['below']}{nuclide['element']}"
    if "_" not in text and (hybrid := _HYBRID.fullmatch(_CHEMICAL_MARKS.sub("", text))):
        return hybrid[0].replace("^", "")
    bare = _CHEMICAL_MARKS.sub("", _ARROW.sub("->", _IN_BRACKETS.sub("", text)))
    sides = bare.split("->")
    if len(sides) == 1:
        return _molecule(bare)
    terms = [[_times_molecule(term) for term in _PLUS.split(side)] for side in sides]
    return "->".join("+".join(sorted(side)) for side in terms) if all(map(all, terms)) else ""


def _times_molecule(text: str) -> str:
    """A molecule or an atom with its number: 2H2O, 4Fe."""
    number, formula = re.fullmatch(r"(\d{0,2})(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    spelling = _molecule(formula) or (formula if re.fullmatch(rf"(?:{_ATOMS})+|e\^-", formula) else "")
    return spelling and number.removeprefix("1" if number == "1" else "") + spelling


def _molecule(text: str) -> str:
    match = _CHEMICAL.fullmatch(text)
    if match is None:
        return ""
    sign = match["sign"] or match["before"] or ""
    return match["atoms"] + (f"^{match['size'] or match['after'] or ''}{sign}" if sign else "")


def designation(text: str) -> str:
    """The date, code, formula, bearing or permutation that a plain text is, by its spelling; empty for all else.

    A date has one spelling however it is written, but 3/4/2024, which may be in March or in April, has its own.
    """
    if styled := _IN_TEXT.fullmatch(text):
        text = styled[1].strip()
    if len(text) > (MAX_REACTION if "->" in text or r"\to" in text else MAX_DESIGNATION):
        return ""
    if "\\" in text:
        return chemical(text) or _bearing(text) or _date(" ".join(_IN_TEXT.sub(r" \1 ", text).split()))
    code = _PHONE.fullmatch(text) or _span_of_years(text) or _CODE.fullmatch(text)
    return _date(text) or chemical(text) or _bearing(text) or _cycles(text) or (text if code else "")


_BEARING = re.compile(
    r"(?:\\text\s?\{)?\s*(?P<from>[NSEW])\s*\}?\s*(?P<angle>\d{1,2}(?:\.\d{1,4})?)\s*\^\s?\{?\s?\\circ\s?\}?\s*"
    r"(?:\\text\s?\{)?\s*(?P<to>[NSEW])\s*\}?"
)

_AWAY = re.compile(
    r"(?P<angle>\d{1,2}(?:\.\d{1,4})?)\s*(?:\^\s?\{?\s?\\circ\s?\}?|degrees?)\s*(?:\\text\s?\{)?\s*"
    r"(?P<to>north|south|east|west) of (?:due )?(?P<from>north|south|east|west)\s*\}?",
    re.IGNORECASE,
)
"""A direction by how far it lies from one of the four: 30 degrees north of east."""


def _bearing(text: str) -> str:
    """A direction by the compass, N 30 degrees E or 30 degrees north of east, which is no product."""
    if match := _BEARING.fullmatch(text):
        return f"{match['from']}{match['angle']}{match['to']}"
    away = _AWAY.fullmatch(text)
    return f"{away['from'][0].upper()}{away['angle']}{away['to'][0].upper()}" if away else ""


_CYCLES = re.compile(r"(?:\(\s?\d{1,3}(?: \d{1,3})+\s?\)\s?)+")


def _cycles(text: str) -> str:
    """A permutation by its cycles, (1 3 2)(4 5): each from its least number on, in order; a pair alone is none."""
    cycles = [cycle.split() for cycle in re.findall(r"[\d ]{3,}", text)] if _CYCLES.fullmatch(text) else []
    if not cycles or len(cycles) + len(cycles[0]) == 3:
        return ""
    if len({number for cycle in cycles for number in cycle}) < sum(map(len, cycles)):
        return ""  # not disjoint, so that their order counts
    places = [cycle.index(min(cycle, key=int)) for cycle in cycles]
    turned = [(*cycle[at:], *cycle[:at]) for cycle, at in zip(cycles, places, strict=True)]
    return "".join(f"({' '.join(cycle)})" for cycle in sorted(turned))


def _date(text: str) -> str:
    text = _WEEKDAY.sub("", text, count=1) if _WEEKDAY.match(text) else text
    for match in filter(None, (pattern.fullmatch(text) for pattern in (*_DATES, *_DAYS))):
        month = match["month"].lower()
        number = int(month) if month.isdigit() else _MONTHS.index(month[:3]) + 1
        return f"{match.groupdict().get('year', '')}-{number:02}-{int(match['day']):02}"
    either = _DATE_OF_TWO_ORDERS.fullmatch(text)
    return _date_of_two_orders(int(either["first"]), int(either["second"]), either["year"]) if either else ""


def _date_of_two_orders(first: int, second: int, year: str) -> str:
    low, high = sorted((first, second))
    if low < 1 or low > 12 or high > 31:
        return ""
    return f"{year}-{low:02}-{high:02}" if high > 12 or low == high else f"{first}/{second}/{year}"


def _span_of_years(text: str) -> bool:
    """Whether a text is like 2019-2024 or 2019-20: two years in order, or one and the next."""
    match = _YEARS.fullmatch(text)
    if match is None:
        return False
    first, last = int(match[1]), int(match[2])
    return first < last if len(match[2]) == 4 else (first + 1) % 100 == last


# -- numbers in words --------------------------------------------------------------------------------------------------
ONES = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19,
}  # fmt: skip
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_PARTS_OF_ONE = {
    "half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "twelfth": 12, "hundredth": 100, "halves": 2, "thirds": 3, "quarters": 4, "fourths": 4, "fifths": 5,
    "sixths": 6, "sevenths": 7, "eighths": 8, "ninths": 9, "tenths": 10, "twelfths": 12, "hundredths": 100,
}  # fmt: skip
_ALL_SPOKEN = frozenset({"a", "and", "hundred", "dozen", *ONES, *_TENS, *_LARGE, *_PARTS_OF_ONE})
_SPOKEN = re.compile(r"(?:[A-Za-z]+(?:-|,? |\Z)){1,16}")
"""Up to sixteen words, with a space, a comma or a hyphen between: twenty-one thousand, five hundred."""


def in_words(text: str) -> Term | None:
    """The number that words alone say, perhaps of something: twelve, two thirds, three and a half, five apples."""
    if styled := _IN_TEXT.fullmatch(text):
        text = styled[1].strip()
    if not text[:1].isalpha() or not _SPOKEN.fullmatch(text):
        return None
    words = re.split(r"[-, ]+", text.lower())
    minus = words[0] in ("minus", "negative")
    spoken = list(takewhile(_ALL_SPOKEN.__contains__, words[minus:]))
    value = _mixed_words(spoken)
    if value is None:
        return None
    node = Term("neg", (num(value),)) if minus else num(value)
    thing = words[minus + len(spoken) :]
    if not thing:
        return node
    return Term("quantity", (node, thing[0])) if len(thing) == 1 and is_unit(thing[0]) else None


def _mixed_words(words: list[str]) -> Fraction | None:
    """A whole number, a fraction, or both with an `and` between them."""
    if not words or words[-1] not in _PARTS_OF_ONE:
        whole = _whole_words(words)
        return None if whole is None else Fraction(whole)
    joint = max((at for at, word in enumerate(words) if word == "and"), default=-1)
    whole = _whole_words(words[:joint]) if joint >= 0 else 0
    counted = words[joint + 1 : -1]
    above = 1 if counted == ["a"] or (words == ["half"]) else _whole_words(counted)
    below = _PARTS_OF_ONE[words[-1]]
    if above is None or whole is None or words[-1].endswith("s") != (above != 1):
        return None
    return Fraction(above, below) + whole if joint < 0 or 0 < above < below else None


def _whole_words(words: list[str]) -> int | None:
    """The whole number that is said; None where the words are not what one says for it."""
    if words and words[-1] == "dozen":
        count = _whole_words(words[:-1]) if words[:-1] not in ([], ["a"]) else 1
        return None if count is None else 12 * count
    total = part = 0
    plain_words = list[str]()
    for at, word in enumerate(words):
        if word == "and" and at < len(words) - 1 and words[at - 1] in ("hundred", *_LARGE):
            continue
        if not part and word in ("hundred", *_LARGE):
            plain_words.append("one")
        plain_words += [] if word == "a" and not at else [word]
        part += ONES.get(word, 0) + _TENS.get(word, 0)
        part = (part or 1) * 100 if word == "hundred" else part
        total, part = (total + (part or 1) * _LARGE[word], 0) if word in _LARGE else (total, part)
    value = total + part
    hundreds = [*_said(value // 100), "hundred", *(_said(value % 100) if value % 100 else ())]
    return value if plain_words in (_said(value), hundreds) else None


def _said(value: int) -> list[str]:
    """A whole number in words, without any `and`."""
    for name, size in reversed(_SIZES_IN_WORDS):
        if value >= size:
            return [*_said(value // size), name, *(_said(value % size) if value % size else ())]
    tens = next((name for name, size in _TENS.items() if size <= value < size + 10), "")
    rest = value % 10 if tens else value
    return [word for word in (tens, "" if tens and not rest else _NAMES_OF_ONES[rest]) if word]


_NAMES_OF_ONES = list(ONES)
_SIZES_IN_WORDS = (("hundred", 100), *_LARGE.items())


# -- one spelling of words -------------------------------------------------------------------------------------------
_STYLE = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt)|mbox|emph|operatorname)\s*\{([^{}]*)\}"
)
r"""Words in a style: `\text{yes}`, `\textbf{yes}`."""
_ESCAPED = re.compile(r"\\([&%_#${}])")
r"""A sign that LaTeX wants a backslash before: `\%`, `\}`."""
_TIED = re.compile(r"(?<=\w)(?:~|\\[ ,])(?=\w)")
"""What LaTeX writes for a space between words: `New~York`."""
_MATHS_MARKS = re.compile(r"\$([^$]+)\$|\\\((.+)\\\)", re.DOTALL)
r"""A formula as a whole: `$x$`, `\(x\)`."""

_EMPHASIS = re.compile(r"(?P<mark>\*{1,3})(?P<words>[^*]+)(?P=mark)\.?")
QUOTES = "\"'`“”„‘’‚«»"
"""Quotation marks, which are no part of the words inside."""
_STRAIGHT = str.maketrans("‘’‚“”„", "'''\"\"\"")


def undressed(text: str) -> str:
    r"""Words in straight quotes without what LaTeX and Markdown add, \text{..}, **..**, \& for &, ~ for space."""
    text = text.strip().translate(_STRAIGHT)
    if emphasis := _EMPHASIS.fullmatch(text):
        text = emphasis["words"].strip()
    if formula := _MATHS_MARKS.fullmatch(text):
        text = formula[1] or formula[2]
    return _ESCAPED.sub(r"\1", _TIED.sub(" ", _STYLE.sub(r"\1", text)))


_LITERAL = re.compile(r"[\[({].*[\])}]", re.DOTALL)
"""A list, a tuple or a mapping as a program prints it."""
_QUOTED = re.compile(r"('[^'\\\n]*'|\"[^\"\\\n]*\")")
_BESIDE_A_MARK = re.compile(r"\s*([\[\](){},:])\s*")


def literal_spelling(words: str) -> str:
    """A printed list, tuple or mapping in one spelling, [1,2] for [1, 2] and 'a' for "a"; all else as it is."""
    if not _LITERAL.fullmatch(words):
        return words
    pieces = _QUOTED.split(words)
    plain_quotes = (f"'{piece[1:-1]}'" if piece[:1] == '"' and "'" not in piece else piece for piece in pieces[1::2])
    return "".join(
        between + quoted
        for between, quoted in zip(
            (_BESIDE_A_MARK.sub(r"\1", piece) for piece in pieces[::2]), (*plain_quotes, ""), strict=True
        )
    )


def text_key(final: str) -> str:
    """The class of words: case, white space, outer quotes and marks of LaTeX and Markdown do not matter."""
    words = " ".join(undressed(final).split()).strip(QUOTES).rstrip(".").casefold()
    words = literal_spelling(words)
    return words if len(words) <= MAX_CHARS else hashed(words)


_ARTICLE = re.compile(r"\A(?:an?|the) (?=[a-z]{3})")


def word_key(node: Term) -> str:
    """The class of a text without an article before it: a parabola is what `parabola` is; kinds of numbers in order."""
    words = _ARTICLE.sub("", text_key(node.args[0]), count=1)
    kinds = words.split()
    return " ".join(sorted({*kinds} - {"all"})) if _OF_NUMBERS.issuperset(kinds) else words


_OF_NUMBERS = frozenset({
    "all", "odd", "even", "positive", "negative", "nonnegative", "non-negative", "real", "rational", "irrational",
    "natural", "whole", "prime", "integers", "numbers",
})  # fmt: skip
"""Words that say which numbers are meant, in any order: all odd positive integers."""


def hashed(text: str) -> str:
    """The class of a text too long to look at."""
    return "#" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
