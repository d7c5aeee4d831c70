"""The kinds of answers: for each, how a final answer is found in a text and what its voting key is.

math     LaTeX or plain mathematics     boxes, tags, ####, phrases, or a text that is nothing but an answer
number   one number                     the same, and the last number of the text
choice   a letter                       the same, with the letter cut out: (C), C., option C
exact    a short string                 boxes, tags, ####, phrases, or the only line
expression  sums of a numbers game      the same as math; grouped by value and numbers used
code     a Python program               the last fenced block but trials of it, or a text that is nothing but Python
format   the whole text                 for tasks that judge the form and not the answer
structured  calls of functions, JSON    the whole text; equal calls and equal values are one class

Programs are read in `ttc.answers.code`.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from ttc.answers.code import bare_code, code_key, last_block, marked_code
from ttc.answers.extract import (
    MAX_FINAL,
    OR,
    OR_WORD,
    Extraction,
    Hit,
    Rule,
    answer_behind,
    cascade,
    denied,
    found,
    last_box,
    last_match,
    taken_back,
    unsure,
    usual_rules,
)
from ttc.answers.grammar import Alternatives, Unparsed, parse
from ttc.answers.keys import expression_key, math_key, same_class
from ttc.answers.nodes import UNITS, exact
from ttc.answers.plain import plain
from ttc.answers.shapes import shape
from ttc.answers.words import hashed, in_words, text_key, undressed
from ttc.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Kind:
    """How answers of a kind are found and grouped."""

    extract: Callable[[str], Extraction]
    key: Callable[[str], str]

    def final(self, text: str) -> str | None:
        """The final answer of a text alone."""
        return self.extract(text).final


def _same_by(key: Callable[[str], str]) -> Callable[[str, str], bool]:
    """Whether two boxes say one thing: the same text, or one class."""
    return lambda left, right: left.strip() == right.strip() or same_class(key(left), key(right))


# -- mathematics and numbers -------------------------------------------------------------------------------------------
_VALUES_OR = re.compile(
    rf"[\d}}$%)]\s*(?:[A-Za-z]{{1,12}}\s*)?,?\s*{OR}\s*(?:(?:maybe|perhaps|possibly|even)\s+)?[$(\\-]*[\d\\]",
    re.IGNORECASE,
)
"""Two values with an `or` between them: `1 or 4`, `5 cm, or maybe $6`."""
_WORDS_OR = re.compile(rf"\W*(?:either\s+)?[^\s,]{{1,40}}\s+{OR}\s+[^\s,]{{1,40}}", re.IGNORECASE)
"""Two words with an `or` between them, and nothing else: `either red or blue`."""
_NUMBER = re.compile(
    r"[-+−]?(?:\\?\$\s?)?(?:\d{1,3}(?:,\d{3})+(?![\d])|(?<![\w.,/])\d{1,3}(?:[~\xa0\u2009\u202f]\d{3})+(?![\d/])|\d+)"
    r"(?:\.\d+)?(?:\s?/\s?\d+(?!\.?\d))?"
    r"(?:[eE][+-]?\d{1,3}(?![\w]))?|[-+−]?\.\d+"
)
"""A number with its sign, currency, thousands, decimals, fraction or exponent: `-$1,234.5`, `3/4`, `1e5`, `.5`."""
_NUMBERED = re.compile(
    r"(?:\b(?:step|case|fig(?:ure|\.)|table|theorem|lemma|corollary|equation|eq\.)\s\(?|\[(?:insert|enter|your|put)\b[^\]\n]*)\Z",
    re.IGNORECASE,
)
"""Words before a number that is no value: `Step 7`, `Figure 3`, and a place to fill in, `[insert 5 here]`."""
_ITEM = re.compile(r"(?P<number>\d{1,2})[.)]\s*\Z")
"""A number that ends a text and may open an item of a list."""
_AT_ONCE = re.compile(r"[\s$*_(\[\\]*(?:[A-Za-z]\w?\s*=\s*)?")
"""What may stand between an answer phrase and a number that is the answer: nothing, marks, `x = `."""
_LEAD = re.compile(
    r"(?:(?:is|are|equal to|exactly|approximately|about|around|simply|just|the|that"
    r"|(?:option|choice)(?!\s(?-i:[AI]\s+[a-z])))\s+|[:：*\s`}]|__(?=[^_]+__)|</?(?:b|strong|em|i)>|~~[^~\n]{1,60}~~)+",
    re.IGNORECASE,
)
"""What may stand between an answer phrase and its answer."""
MAX_WORDS_BEFORE = 6
"""Words between an answer phrase and the only number of its clause."""
_TAIL = 20_000
"""Characters at the end of a text in which the last number is looked for."""
_FORMULA = r"\$\$.{1,4096}?\$\$|\$[^$\n]{1,4096}\$(?![\d<])|\\\(.{1,4096}?\\\)|\\\[.{1,4096}?\\\]"
r"""A formula between the marks of LaTeX: `$..$`, `\(..\)`, `$$..$$`, `\[..\]`."""
_INLINE = re.compile(_FORMULA, re.DOTALL)
_NEAR_INLINE = re.compile(rf".{{0,40}}?(?P<formula>{_FORMULA})", re.DOTALL)
"""A formula with at most forty characters before it."""
_NAMED = re.compile(r"[^$\n]{0,40}(?:\$[^$\n\d=<>]{1,40}\$|\\\([^$\n\d=<>()]{1,40}\\\))\s+(?:is|are|equals|must be)\s")
"""What a clause gives a value to: the largest $n$ is, the area of $ABCD$ is."""
_MATHEMATICS = re.compile(r"\\(?!\$|%|,)|[\^_{}<>≤≥≠=|±√²³∞!]|\d['′″‰]")
"""Signs of a formula."""
_INSIDE = re.compile(r"(?:[\^_{/*\\:'′<>≤≥≠±√|]|(?<![A-Za-z])[A-Za-z])\Z")
"""What stands before a number that is a part of something, one letter among it: x5."""
_GOES_ON = re.compile(
    r"(?!/(?:second|sec|minute|min|hour|hr|day|week|month|year|person|each|unit|kg|lb)s?\b)(?:[A-Za-z]+\d|[a-zA-Z](?![A-Za-z])|\s?[!^_{}'′″‰|√π½¼¾⅐-⅞]|[²³¹⁰⁴-⁹⁻]|:\d|\s?[*/+×÷·⋅]\s?[\d(A-Za-zα-ω]|\+(?!\w)|"
    r"(?:[\s~]|\\[,;:! ])*\\(?![)\],!;: %])|"
    r"\s?\(\s?\d|\s?[,;]\s?\d| \d{3}(?!\d)|"
    r"\s?[和与及、]\s?\d|\s*(?:and (?:a|an|one|two|three|\d)|(?:with (?:a |the )?)?remainder|"
    r"dozens?|half|halves|thirds?|quarters?|hundreds?|thousands?|millions?|"
    r"billions?|trillions?|lakhs?|crores?|mil|mln|bn|pi|fold|"
    r"squared|cubed|factorial|over \d|point \w|per (?:cent|mille)|pairs?|score|mod(?:ulo)?\b|"
    r"percent)\b|\s?[万亿億萬千百만억]|-fold\b)",
    re.IGNORECASE,
)
"""What follows a number that is a part of something; what it is counted by, as in 18/day, makes it no part."""
_STYLED_FROM = re.compile(
    r"(?:(?:\A|(?<=[\s(\"'=:$]))(?P<mark>\*{1,3}|__?)|\\(?:text\w{0,6}|math(?:bf|it|rm|sf))(?P<brace>\{)|>>)\Z"
)
"""What opens the emphasis of a number, or closes a calculation before it, as in <<9*2=18>>18."""
_STYLED_CHARS = 16
_PERCENT = re.compile(r"\s?\\?%")
_UNDER = re.compile(
    r"(?:\\(?!(?:quad|qquad|text\w*|math\w*|boxed|displaystyle|to|implies|Rightarrow|rightarrow|left|bf|rm)\b)[A-Za-z]+"
    r"|[<>≤≥≠±√≈]|[<>!]=)(?:[\s{(*$,~]|\\[,!;: ]|\\q?quad)*$"
)
"""A command or sign right before a number that makes another thing of it: a root, a bound, a plus-minus."""
_INNER = re.compile(
    r"(?:\d[,.]|(?<![\d.,])\d{1,3} |[\d)}\]][^\S\n]?[-+−*/×÷·⋅⁄]\s?[$(*_]*|[\d)] [x:] |\d[–'′]\s?"
    r"|\d\s?(?:R|r|remainder|out of|to(?=\s))\s?|(?<![A-Za-z])[A-Za-z]|\\[({][^$\n]{1,40}[,;]\s*"
    r"|[(\[](?:\\[a-z]+|(?![A-Za-z]{3})[^()\[\]$\n\\]){1,40}[,;]\s*)$"
)
"""What stands before a number that ends a longer one, a sum or a pair: 2,74 and 2 740 and 9 + 1 and (7, 6)."""
_COMPOUND_FROM = re.compile(r"(?:(?P<money>\$)\s?)?\d\s?(?P<unit>[A-Za-z]{1,12})?,?[^\S\n](?:and[^\S\n])?\Z")
_COMPOUND_TO = re.compile(r"\s?(?P<unit>[A-Za-z]{1,12})\b")
"""Beside a number that ends an amount in several units: 3 hours 20 minutes, 3 feet and 2 inches, $3 and 2 cents."""
_CALENDAR = frozenset({"time", "month", "year"})
_OPERATION = re.compile(
    r"\b(?:sqrt|log|ln|sin|cos|tan|(?:root|half|halves|third|quarter|square|cube|power|multiples?|remainder) of|plus|"
    r"minus|negative|times|divided by|multiplied by|under|below|over|above|between \S{1,20} and)[\s$(]*\Z"
    r"|\+/-\s?\Z|(?<!\S)–\Z",
    re.IGNORECASE,
)
"""Words before a number that make another thing of it."""
_CALCULATION = re.compile(
    r"(?:[\d.,$%()+\-−*/×÷ ]|(?<![A-Za-z])[A-Za-z]{3,20}(?![A-Za-z])|<<[^<>\n]{1,80}>>|=){3,400}"
    r"=\s?\**\s?(?:<<[^<>\n]{1,80}>>)?(?P<result>[-−]?\$?\d[\d,]*(?:\.\d+)?%?(?: [A-Za-z]{3,20}){0,3})"
)
"""Amounts of things that are worked out, down to a number: 25 bugs + 50 ants = 75."""
_SAID_TWICE = re.compile(r"(?P<number>[-$\d][^()]{0,80}?)\s\((?P<words>[A-Za-z -]{3,60})\)")
"""A number, and in brackets behind it words, which may say the same number."""
_SAID_IN_DIGITS = re.compile(r"(?P<words>[A-Za-z -]{3,60})\s\((?P<number>[-$\d][^()]{0,80})\)")
"""The other way round: fifteen (15)."""
_PROSE = re.compile(r"(?:let|we|i|to|first|not|as|in|by|using|unknown|unclear)\b", re.IGNORECASE)

_FENCED = re.compile(r"(?:^|(?<=\n))```(?:text|math|latex|plaintext)?[ \t]*\n(?P<value>[^\n]{1,4096})\n```\s*\Z")
"""A block of one line at the end of a text, in no language of programs."""

_DISPLAYED = re.compile(r"\$\$[^$]{1,4000}\$\$|\\\[(?:(?!\\\]).){1,4000}\\\]", re.DOTALL)
"""A text that is one displayed formula."""


def math_hedge(final: str) -> bool:
    """Whether a final answer offers alternatives: "1 or 4". Solutions of an equation, "x = 1 or x = 4", do not."""
    if not OR_WORD.search(final):
        return False
    try:
        parse(plain(final[: 2 * MAX_FINAL]))
    except Alternatives:
        return True
    except Unparsed:
        return bool(_VALUES_OR.search(final) or _WORDS_OR.fullmatch(final))
    return False


def _trim_math(clause: str) -> tuple[int, int] | None:
    """The mathematics of the clause after an answer phrase: all of it, an inline formula, a number, or a few words."""
    start, rest = _after_lead(clause)
    twice = _SAID_TWICE.fullmatch(rest) or _SAID_IN_DIGITS.fullmatch(rest)
    if twice and _same_value(twice["number"], twice["words"]):
        return start + twice.start("number"), start + twice.end("number")
    calculated = _CALCULATION.fullmatch(rest)
    for mark in ("**", "`"):
        is_inside = rest.count(mark) % 2 and clause.startswith(mark, start + len(rest)) and not calculated
        if is_inside and _parses(rest + mark):
            return start, start + len(rest + mark)  # x = **5**
    if _parses(rest):
        return start, start + len(rest)
    if named := _NAMED.match(clause):
        place = _trim_math(clause[named.end() :])
        return place and (named.end() + place[0], named.end() + place[1])
    if inline := _NEAR_INLINE.match(clause):
        return inline.start("formula"), inline.end() + unit_after(clause[inline.end() :])
    if calculated:
        return start + calculated.start("result"), start + calculated.end("result")
    if _MATHEMATICS.search(rest):
        return start, start + len(rest)  # a formula that is not understood, not the first number in it
    number = _NUMBER.search(clause)
    if number and _NUMBERED.search(clause[: number.start()]):
        return None
    if number and _part_of_more(clause, number):
        return start, start + len(rest)
    if number and (_AT_ONCE.fullmatch(clause[start : number.start()]) or _alone(clause, number)):
        return number.start(), number.end() + unit_after(clause[number.end() :])
    if verdict_of(rest) != rest:
        return start, start + len(rest)
    words = rest.strip("*\"'. ")
    return (start, start + len(rest)) if words and len(words.split()) <= 2 and not _PROSE.match(words) else None


def _part_of_more(text: str, number: re.Match[str]) -> bool:
    """Whether a number is only a part of a value: 5x, 5!, 1/(2*5), 5 dozen, 5 and a half, 12:30."""
    before, after = (
        text[max(0, number.start() - _STYLED_CHARS) : number.start()],
        text[number.end() : number.end() + 60],
    )
    if opening := _STYLED_FROM.search(before):
        mark = "}" if opening["brace"] else opening["mark"] or ""
        line, closing, rest = after.partition("\n")[0].partition(mark) if mark else (after, ">>", "")
        if closing:
            before, after = "", line + rest
    return bool(_INSIDE.search(before) or _GOES_ON.match(after))


def _ends_compound(before: str, after: str) -> bool:
    """Whether a number between these texts is the last one of an amount in several units."""
    start, end = _COMPOUND_FROM.search(before), _COMPOUND_TO.match(after)
    if start is None or end is None or not (start["unit"] or start["money"]):
        return False
    names = ("dollars" if start["money"] else start["unit"], end["unit"])
    kinds = [UNITS[name].dimension if name in UNITS else "" for name in names]
    return bool(kinds[0] and kinds[1]) and (kinds[0] == kinds[1] or _CALENDAR.issuperset(kinds))


def _after_lead(clause: str) -> tuple[int, str]:
    """Where the answer of a clause begins, and the clause from there on, without marks at its end."""
    lead = _LEAD.match(clause)
    start = lead.end() if lead else 0
    rest = clause[start:].rstrip(" *`_")
    while closing := _CLOSING.search(rest, max(0, len(rest) - 9)):
        rest = rest[: closing.start()].rstrip(" *`_")
    return start, rest


_COPULA = r"(?:です|である|になります|となります|입니다|이다)"
_CLOSING = re.compile(rf"(?:</(?:b|strong|em|i)>|(?<=[\d万萬億亿만억%$)}}\]]){_COPULA})\Z")
"""What closes an emphasis of HTML, or a sentence of Japanese or Korean behind a number, at the end of a clause."""


def _alone(clause: str, number: re.Match[str]) -> bool:
    """Whether the clause has this number only, early: "that he has 5 apples"."""
    early = len(re.findall(r"[A-Za-z]{2,}", clause[: number.start()])) <= MAX_WORDS_BEFORE
    return early and _NUMBER.search(clause, number.end()) is None


def unit_after(rest: str) -> int:
    """How long the percent sign, degree sign or known unit is that follows a number; 0 without one."""
    match = re.match(r"\s?(?:%|\\%|°|(?P<word>(?!in\s+\w)[A-Za-z]{2,14})\b)", rest)  # 5 in total are no inches
    unit = match and (match["word"] is None or match["word"] in UNITS or match["word"] == "percent")
    return match.end() if match and unit else 0


def _parses(text: str) -> bool:
    """Whether a text is an answer that the grammar knows; of words only those that say a value or a set."""
    if len(text) > MAX_FINAL:
        return False
    try:
        node = parse(plain(text))
        return node.op != "text" or shape(node) != node
    except Unparsed:
        return False


_THUS = re.compile(r"\s*(?:so|thus|hence|therefore)\b[\s,:]*", re.IGNORECASE)


def _bare_math(text: str, start: int) -> Hit:
    """The text itself, when it is one line and nothing but an answer, perhaps with a `so` before it."""
    end = len(text.rstrip(" .\n"))
    if lead := _THUS.match(text, start):
        rest = text[lead.end() : end]  # words alone go on with the reasoning
        if not {"\n", "="} & {*rest} and {*"0123456789\\$"} & {*rest} and _parses(rest):
            return found(text, lead.end(), end, "bare")
    body = text[start:].strip()
    if fenced := _FENCED.search(text, start):
        return found(text, *fenced.span("value"), "bare") if _parses(fenced["value"]) else None
    if _DISPLAYED.fullmatch(body):
        return found(text, start, len(text), "bare")
    if not body or "\n" in body or len(body) > MAX_FINAL:
        return None
    if math_hedge(body):
        return Extraction(None, None, "bare", "hedge") if len(body.split()) <= MAX_WORDS_BEFORE else None
    wrapped = _INLINE.fullmatch(body.rstrip(". "))
    return found(text, start, len(text), "bare") if wrapped or _parses(body) or len(body.split()) <= 2 else None


def _last_number(text: str, start: int) -> Hit:
    """The last number of a text, unless it is only a part of a value; one that is denied or offered is a hedge."""
    last = last_match(_NUMBER, text, max(start, len(text) - _TAIL))
    if last is None:
        return None
    begin = last.start()
    if text[begin] in "-+−" and begin > start and text[begin - 1].isalnum():
        begin += 1
    if text[begin] == "$" == text[last.end() : last.end() + 1]:
        begin += 1  # of a formula, which is no amount of money
    before = text[max(start, begin - 40) : begin]
    inner = _UNDER.search(before.removesuffix(">>")) or _INNER.search(before) or _OPERATION.search(before)
    inner = inner or _NUMBERED.search(before)
    if (
        inner
        or _opens_item(text, start, begin)
        or _part_of_more(text, last)
        or _ends_compound(before, text[last.end() : last.end() + 20])
    ):
        return None
    earlier = re.search(r"(\d[\d,.]*)\s+or\s+\$?$", text[max(start, begin - 40) : begin])
    unlike = earlier and math_key(earlier[1]) != math_key(text[begin : last.end()])
    if unlike or denied(text, begin, last.end()) or taken_back(text[last.end() :]):
        return Extraction(None, (begin, last.end()), "last_number", "hedge")
    percent = _PERCENT.match(text, last.end())
    return found(text, begin, percent.end() if percent else last.end(), "last_number")


def _opens_item(text: str, start: int, at: int) -> bool:
    """Whether the last number of a text only opens the next item of a list: 3. behind an item 2."""
    item = None if text[:at].rpartition("\n")[2].strip() else _ITEM.match(text, at)
    earlier = rf"^[ \t]*{int(item['number']) - 1}[.)]\s" if item else ""
    return bool(earlier and re.search(earlier, text[start:at], re.MULTILINE))


def _bare_number(text: str, start: int) -> Hit:
    """The text itself where it is understood as a whole: of "Total: 75" the last number is the answer."""
    hit = _bare_math(text, start)
    return None if hit is not None and hit.final is not None and not _parses(hit.final) else hit


_same_value = _same_by(math_key)

_ABOUT = re.compile(r"(?:about|approx\w*\.?|roughly|around)\s+(?P<value>\D?\d*(?P<places>\.\d*)?.*)", re.DOTALL | re.I)
"""A value that only approximates the one before it: `about 3.6`."""


def _same_rounded(about: re.Match[str], other: str) -> bool:
    """Whether a rounded value is that of the other; also where the other is not rational, as a root is not."""
    rounded, value = _rational(about["value"]), _rational(other)
    last_place = Fraction(1, 10 ** max(0, len(about["places"] or ".") - 1))
    return rounded is None or value is None or abs(rounded - value) < last_place


def _rational(text: str) -> Fraction | None:
    try:
        node = shape(parse(plain(text)))
    except Unparsed:
        return None
    return exact(node.args[0]) if node.op == "scalar" else None


def _same_number(left: str, right: str) -> bool:
    """Whether two boxes say one number; 50 % is 1/2, too, and `about 3.14` is 22/7."""
    if about := _ABOUT.fullmatch(left):
        return _same_rounded(about, right)
    return _same_value(left, right) or _same_value(_share(left), right) or _same_value(left, _share(right))


def _share(value: str) -> str:
    """A percentage as a fraction; all else as it is."""
    return rf"\frac{{{value.removesuffix('%').removesuffix(chr(92))}}}{{100}}" if value.endswith("%") else value


_box, _marks, _phrase = usual_rules(_same_number, math_hedge, _trim_math)


def _with_digits(rule: Rule) -> Rule:
    """The same rule, passing over answers without a digit."""

    def strict(text: str, start: int) -> Hit:
        hit = rule(text, start)
        if hit is None or not hit.final or re.search(r"\d|\\", plain(hit.final)):
            return hit
        return hit if in_words(plain(hit.final)) else None

    return strict


_MATH_RULES = (_box, *_marks, _phrase, answer_behind, _bare_math)
_NUMBER_RULES = (_box, *_marks, *map(_with_digits, (_phrase, answer_behind, _bare_number)), _last_number)
_EXPRESSION_RULES = (last_box(_same_by(expression_key), math_hedge), *_MATH_RULES[1:])


# -- letters: (C), C., option C, each with the letter cut out; a second letter beside it is a hedge --------------------
_LETTER = re.compile(
    r"(?:\\text(?:bf)?\s*\{|\\mathrm\s*\{|\\mathbf\s*\{|\\\(|[\"'*`$(\[（]|选项|选择|\b(?:first|second|third|fourth|fifth|last)\s(?=option|choice)|\boption\b,?|\bchoice\b,?|\banswer\b:?|\bletter\b"
    r"|\ba\s(?=[(*]{0,3}[B-Z]\b)|\b(?:la|el|die|opción|(?:a\s)?(?:opção|letra)|lettera|lettre|buchstabe|réponse|respuesta|risposta|resposta)\b|\s)*"
    r"(?P<letter>[A-Za-zＡ-Ｚ])(?![A-Za-z]|['’][A-Za-z])(?P<rest>.*)\Z",
    re.DOTALL | re.IGNORECASE,
)
r"""What may stand around a letter that is chosen, the letter, and the rest: `**(C)** 5`, `option C`, `\text{C}`."""
_STYLED = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_SECOND = re.compile(
    r"[\s})\]*$\"'.:(]*+(?:,(?!\s(?:al)?though\b)|/|&|or\b|and\b|as\swell\sas\b|或|和"
    r"|,?\s*(?:or\s)?alternatively\b,?|,?\s*else\b|to\b|vs\b|versus\b|-(?=[A-Z]\b)|[;|](?=\W{0,4}[A-Z]\W*\Z)"
    r"|[—–;,.\s]*+\b(?:no|actually|rather|I mean|make that)\b,?)"
    r"\s*[\s({\[*$\"'\\a-z]{0,12}?(?<![A-Za-z])(?P<letter>[A-Z])(?![A-Za-z'’])"
)
"""A second letter that a comma, a slash, an `or`, an `and` or a correction joins to the first: `, B`, `, no, D`."""
_BESIDE = re.compile(
    r"\s*\)\s*\((?P<letter>[A-Z])\)|[\s*]+(?P<bare>[A-Z])(?=\W*\Z|\s+[A-Z]\b)"
    r"|[.)]\s+(?P<listed>[A-Z])[.)]\s+[A-Z]\b(?![a-z])"
    r"|[^\S\n]*+\n[\s*(]*+(?P<below>[A-Z])[).*]*+[ \t]*+(?=\n|\Z)"
)
"""A second letter without a word between: (B)(C), B C, A. B. C., or on a line below; behind C. it is the value of C."""
_IF_OTHER = re.compile(
    r"[\s)\]*}$]*,?\s(?:if|when|for)\b[^.\n]{0,80}?(?<![A-Za-z])(?P<letter>[A-Z])[)\]*}$]*\s(?:if|when|for|otherwise)\b"
)
"""A second letter for another case: B if n is even and C if n is odd."""
_MAY_BE = re.compile(
    r"[\s)\]*}$,(]*(?:(?:but|though|although)\s)?"
    r"(?:(?:(?:it|this)\s)?(?:could|might|may)\s(?:also\s)?be\s[(*]*(?P<letter>[A-Z])\b"
    r"|[(*]*(?P<other>[A-Z])[)*]*\s(?:is\salso|could|might|may)\b)"
)
"""A second letter that may be right, too: `B (C is also possible)`, `B, but it could be C`."""
_SECONDS = (_SECOND, _BESIDE, _IF_OTHER, _MAY_BE)
_BEHIND_A_BOX = re.compile(
    r"[\s})\]*$,]*(?:(?:and/)?or|and|(?:or\s)?alternatively,?|vs\.?|versus|&|/)\s?"
    r"(?:option\s|choice\s)?[({*$]{0,3}(?P<letter>[A-Z])(?!['’\w]|\s[a-z])"
)
"""A second letter behind the box of the first: `\\boxed{B} or C`."""
_NONE = re.compile(r"[\s)\]*.,(]*\bor\s+none\b", re.IGNORECASE)
"""What is offered beside a letter: `C or none`."""
_ALONE = re.compile(r"(?:[Oo]ption|[Cc]hoice|[Aa]nswer|[Ll]etter)?[\s*$(\[\\{`a-z]*[A-Za-z][\s)\].:}*$,`!]")
"""A letter by itself or with a mark behind it, at the head of a short text: `C.`, `(C)`, `Option C:`."""
_GAP = re.compile(r"~|\\(?:[ ,;:!]|q?quad(?![A-Za-z]))")
r"""Spaces as LaTeX writes them: `~`, `\quad`."""
_APART = re.compile(r"(?<![A-Za-z])\(\s*(?P<letter>[A-Z])\s*\)")
"""A letter in brackets further on: `5 or (C) 6`."""
_ALTERNATIVE = re.compile(r"(?:\bor(?:\s+(?:option|choice))?|或者?)\s*\Z", re.IGNORECASE)
"""An `or` right before such a letter."""
_WORD_BEHIND = re.compile(r"[^\S\n]+[a-z]")
_NO_NOUN = re.compile(
    r"\s+(?:according|although|among|and|as|at|because|but|if|in|is|it|of|on|only|or|over|since|than|that|these|this|"
    r"there|when|where|whereas|which|based on|rather than|not [A-Z]|for (?:many|several|some|two|three) reasons|"
    r"(?:by|for|from|given|to|with)\s+(?:all|an?|each|its|my|our|that|the|these|this|those|which))"
    r"\b(?!-)"
)
"""Words that no noun begins with, so that the A before them is a letter: "A based on the text"."""

_DENIED = re.compile(
    r"[\s)\]}*$\"'.]{0,6}(?:(?:is|was|seems|looks)(?: \w+)? (?:not|wrong|incorrect|false)\b|(?:is|was)n['’]t\b)"
    r"|\s*(?:では(?:ありません|ない)|(?:가|이)\s*아|नहीं|değil\b)",
    re.IGNORECASE,
)
"""What says right behind a letter that it is not the one: `B is wrong`."""
_HALF_WIDTH = {ord(letter) + 0xFEE0: letter for letter in string.ascii_letters}
"""Full-width letters to those of ASCII."""
_IN_FORMULA = re.compile(
    r"\s?[+^_]\s?[\w{\\]|\s?[<>]\s?[A-Z]\b|[-/*][a-z]{1,2}(?![A-Za-z])|\s?=|\([a-z]\)"
    r"|\s?\\(?:pm|mp|times|cdot|div|frac|sqrt|le|ge|leq|geq|ne|neq|in|to|approx)(?![A-Za-z])"
)
r"""What makes a letter part of a formula: a+b, b^2, D_1, a-b, E = mc, B(x), `a \pm b`."""


def choice_letter(final: str) -> tuple[str, bool]:
    """The letter of a choice in upper case, and whether it is denied or a second one offered; ("", False) without any.

    An A before a word is the article and an I the pronoun, unless a mark or `option` sets them apart: "A) mammal".
    """
    match = _LETTER.match(_STYLED.sub(_unstyled, _GAP.sub(" ", final[:MAX_FINAL])))
    if match is None:
        return "", False
    letter = match["letter"].translate(_HALF_WIDTH)
    if (letter.islower() and re.match(r"\s+[a-z]", match["rest"])) or _IN_FORMULA.match(match["rest"]):
        return "", False
    if _word_of_a_sentence(letter, match[0][: match.start("letter")], match["rest"]):
        return "", False
    return letter.upper(), bool(_DENIED.match(match["rest"]) or {_second(match["rest"])} - {"", letter.upper()})


def _unstyled(styled: re.Match[str]) -> str:
    """Styled words without the command; a letter of its own stays set apart."""
    words = styled[1].strip()
    return f" ({words}) " if len(words) == 1 else f" {styled[1]} "


def _word_of_a_sentence(letter: str, before: str, rest: str) -> bool:
    """Whether a letter is the article or the pronoun: "A mammal", "I think"."""
    if letter not in ("A", "I") or not _WORD_BEHIND.match(rest) or re.search("option|choice", before, re.IGNORECASE):
        return False
    return letter == "I" or not _NO_NOUN.match(rest)


def _second(rest: str) -> str:
    """A second letter that is offered, right beside the first, or with a value between them: "5 or (C) 6"."""
    rest = _REASON.split(rest, maxsplit=1)[0]
    if _INSTEAD.match(rest):
        return ""
    if beside := next(filter(None, (pattern.match(rest) for pattern in _SECONDS)), None):
        return str(next(filter(None, beside.groups())))
    if _NONE.match(rest):
        return "none"
    apart = _APART.search(rest)
    return apart["letter"] if apart and _ALTERNATIVE.search(rest, 0, apart.start()) else ""


def choice_key(final: str) -> str:
    """The letter, or the case-folded words when there is none."""
    final = final.strip()  # behind a backslash a space would be LaTeX's, and end a letter
    return choice_letter(final)[0] or text_key(final)


def _trim_choice(clause: str) -> tuple[int, int] | None:
    start, rest = _after_lead(clause)
    return (start, start + len(rest)) if choice_letter(rest)[0] else None


_WRONG = re.compile(
    r"\b(?:is|are|was)(?: \w+)? (?:not|wrong|incorrect|false)\b|\b(?:isn|can|couldn|won)['’]t\b|\bcan ?not\b"
    r"|\b(?:excluded|ruled out|eliminated|discarded)\b",
    re.IGNORECASE,
)
"""Words that say of a choice that it is none: `is not`, `is clearly wrong`, `cannot`."""
_DEFINED = re.compile(
    r"[A-Z]\s+is\s+(?:an?|the)\s+(?!(?:only |most |single )?(?:correct|right|best|answer|option|choice|one)\b)"
)
"""A letter that stands for something: G is the constant of gravitation."""
_REASON = re.compile(r",?(?<! well)\s+(?:because|since|as(?! well\b))\b", re.IGNORECASE)
"""What parts a choice from its reasons, which may say that others are wrong."""
_INSTEAD = re.compile(
    r"[\s)\]*.,}$]*(?:(?:and|but)\s+)?(?:not|rather than|instead of)\s+(?:(?:option|choice)\s+)?[(*]*[A-Z]\b"
)
"""What sets a choice against another: C, not B."""

_COPIED = re.compile(r"[*(]{0,3}A[.):][^\n]*\n\s*[*(]{0,3}B[.):]\s")
"""The options themselves: A) 1, and on the next line B) 2."""


def _bare_choice(text: str, start: int) -> Hit:
    body = text[start:].strip()
    letter, hedged = choice_letter(body)
    if not letter or len(body) > 200 or (len(body) > 1 and not _ALONE.match(body + " ")) or _DEFINED.match(body):
        return None
    if (
        hedged
        or _COPIED.match(body)
        or taken_back(body)
        or _WRONG.search(_REASON.split(body.partition("\n")[0], maxsplit=1)[0])
    ):
        return Extraction(None, None, "bare", "hedge")
    plain_word = re.match(r"[AI]\s+[a-z]", body)
    return None if plain_word else found(text, start, len(text), "bare")


_SENTENCE = 200  # characters of such a sentence at most
_START, _CLAUSE_START = r"(?:\A|[.!?:\n])[\s*_]*", r"(?:\A|[.!?:,;\n])[\s*_]*"
_SO = r"(?i:(?:∴|(?:therefore|thus|hence|so|I\s(?:think|believe|(?:would|['’]d)\ssay)(?:\sthat)?)\b)[\s,]*)"
_NOUN = r"(?i:(?:the\s+)?(?:option|choice|answer|letter)\s+)?"
_CHOSEN = (
    _NOUN + r"[\"'*(\[]{0,4}(?P<letter>[A-ZＡ-Ｚ])[\"'*)\]]{0,4}"
    r"(?:(?<=\))\s(?:(?!\([A-Z]\)|\b(?:or|and|not|but|is)\b)[^\n.!?,;]){1,60}?)?"
)
"""A letter and, behind a bracket, the value that it stands for."""
_VERDICTS = tuple(
    re.compile(sentence + r"(?i:,?\s+(?:because|since|as|while|whereas)\b[^.!?\n]*)?[\s.!*]*\Z")
    for sentence in (
        rf"{_START}{_SO}?(?i:only\s+|(?:we|I)\s+conclude\s+that\s+)?{_CHOSEN}"
        r"(?:,[^,\n]{1,40},)?\s+(?:is\s+(?:the\s+)?(?:(?:correct|right|best)(?:\s+(?:one|answer|option|choice))?|answer)|it\s+is)",
        rf"{_CLAUSE_START}[^.!?\n]*?(?i:\b(?:leaves?|leaving)(?:\s+(?:us\s+with|only|just))?\s+){_CHOSEN}",
        rf"{_CLAUSE_START}{_SO}?(?i:(?:(?:I|we)(?:\s+would|\s+will|['’](?:d|ll|m)|\s+am)?\s+|let['’]s\s+)?"
        rf"(?:choose|pick|select|go(?:ing)?\s+with)\s+){_CHOSEN}",
        rf"{_START}{_SO}?(?i:(?:(?:it|this|that)\s+(?:is|must\s+be|has\s+to\s+be|matches|corresponds\s+to)|it['’]s"
        rf"|(?:the\s+)?(?:(?:correct|right)\s+)?letter\s+is)\s+){_CHOSEN}",
        rf"{_CLAUSE_START}(?:{_SO}(?i:it\s+(?:is|must\s+be)\s+)?|(?i:which\s+(?:is|gives|matches|corresponds\s+to)|i\.e\.,?)\s+|[^.!?\n]*(?:[→⇒]|->)\s*){_CHOSEN}",
        rf"{_CLAUSE_START}{_SO}?(?i:only\s+){_CHOSEN}(?i:\s+(?:remains|is\s+(?:left|true|correct|right)))",
        rf"(?:{_START}|[，。；])(?:答案|因此|所以)?(?:故|应该?|本题|此题)?选(?:择|项)?\s*[:：]?\s*{_CHOSEN}。?",
    )
)
"""A last sentence that takes one letter and says nothing else: "Therefore, (C) is correct." and "I choose C"."""

_EXPLAINED = re.compile(
    r"[\s*(]*+(?P<letter>[A-Z])[).:*]*+[ \t]*+\n\s*+[#*]*+\s*+"
    r"(?:explanation|reason(?:ing)?|rationale|justification|because|this is because|here['’]s why)\b",
    re.IGNORECASE,
)
"""A letter on a line of its own, and its explanation, which speaks of the others."""


def _explained(text: str, start: int) -> Hit:
    first = _EXPLAINED.match(text, start)
    if first is None:
        return None
    if taken_back(text[first.end() :]):
        return Extraction(None, first.span("letter"), "bare", "hedge")
    return found(text, *first.span("letter"), "bare")


def _last_sentence(text: str, start: int) -> Hit:
    tail = max(start, len(text) - _SENTENCE)
    verdict = next((match for rule in _VERDICTS if (match := rule.search(text[tail:]))), None)
    return verdict and found(text, tail + verdict.start("letter"), tail + verdict.end("letter"), "phrase")


_ON_A_LINE = re.compile(
    r"(?:\A|\n)[ \t]*(?:\*{1,3}|__)?[(\[]?(?P<letter>[A-Z])[)\].]?(?:\*{1,3}|__)?\.?[ \t]*(?=\n|\Z)"
)
"""A letter on a line of its own."""


def _last_line(text: str, start: int) -> Hit:
    """A letter alone on the last line, where no line before has another one alone, as a list of the choices would."""
    lines = list(_ON_A_LINE.finditer(text.rstrip(), start))
    if not lines or lines[-1].end() < len(text.rstrip()) or len({line["letter"] for line in lines}) > 1:
        return None
    return found(text, *lines[-1].span("letter"), "bare")


def _alone_in_box(box: Rule) -> Rule:
    """The rule of a box, behind which a second letter is a hedge."""

    def rule(text: str, start: int) -> Hit:
        hit = box(text, start)
        second = _BEHIND_A_BOX.match(text, hit.span[1]) if hit and hit.final and hit.span else None
        is_other = second and hit and hit.final and second["letter"] != choice_letter(hit.final)[0]
        return Extraction(None, hit.span, "box", "hedge") if hit and is_other else hit

    return rule


_box, _marks, _phrase = usual_rules(_same_by(choice_key), lambda final: choice_letter(final)[1], _trim_choice)
_CHOICE_RULES = (_alone_in_box(_box), *_marks, _phrase, _last_sentence, _explained, _last_line, _bare_choice)


# -- strings and forms -------------------------------------------------------------------------------------------------
_ONE_BLOCK = re.compile(r"\s*```[\w+.#-]{0,20}[ \t]*\n(?P<value>[^`]{1,4096})\n```\s*")
"""A text that is one block, in any language."""


def _only_line(text: str, start: int) -> Hit:
    if fenced := _ONE_BLOCK.fullmatch(text, start):
        return found(text, *fenced.span("value"), "bare")
    body = text[start:].strip()
    return found(text, start, len(text), "bare") if body and "\n" not in body else None


_END_OF_WORDS = re.compile(rf"(?<=[^\W\d_a-zA-Z]){_COPULA}\Z")
"""What ends a clause of words: 東京です."""


def _trim_words(clause: str) -> tuple[int, int] | None:
    """All of the clause, without a copula, and without the end of an emphasis that began before it."""
    words = _END_OF_WORDS.sub("", clause.rstrip())
    start = 0
    if clause.count("*") % 2 or clause.count("**") % 2:
        words = words.rstrip("*")
        start = len(words) - len(words.lstrip("*"))
    return (start, len(words)) if words.strip() else None


_VERDICT_FIRST = re.compile(
    r"\s*\**(?:yes|no|true|false)\**(?:\s*[,.;:!(]|\s+[-–—]|\s+(?:because|since|as)\b)(?![^\n]*\banswer)[^\n]*\s*",
    re.IGNORECASE,
)
"""A line that begins with a verdict and goes on with its reason, which announces nothing: "Yes, as the sum is even"."""

_VERDICT_LINE = re.compile(r"(?:\A|(?<=\n))[ \t*_]*+(?P<verdict>yes|no|true|false)[.!*_ \t]*+(?=\n|\Z)", re.IGNORECASE)
"""A verdict on a line of its own."""


def _verdict_first(text: str, start: int) -> Hit:
    """A line that begins with a verdict, or one on the first or last line, where the text announces no answer."""
    if _VERDICT_FIRST.fullmatch(text, start):
        return found(text, start, len(text), "bare")
    body = text[start:].rstrip()
    lines = list(_VERDICT_LINE.finditer(body))
    outer = [line for line in lines if not body[: line.start()].strip() or line.end() == len(body)]
    is_one = len({line["verdict"].lower() for line in lines}) == 1
    if not outer or not is_one or "answer" in body.lower() or taken_back(body):
        return None
    return found(text, start + outer[0].start("verdict"), start + outer[0].end("verdict"), "bare")


OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}
"""Verdicts, each with the other one."""
_ECHO = r"(?:it|they|he|she|there|that|we|you|i)\s(?:is|are|was|were|do|does|did|can|could|will|would|has|have|should)"
_REASONED = re.compile(
    rf"(?P<verdict>\w+)(?:\s*[,;:.!(]|\s+[-–—]|\s*—|\s+(?=because\b|since\b|as\b|(?i:{_ECHO})))(?P<reason>.*)",
    re.DOTALL,
)
"""A word, and behind a mark or `because` its reason: "No, because 4 is even", "Yes (7 is prime)", "Yes it is"."""
_ECHOED = re.compile(rf"\s*{_ECHO}(?P<no>n['’]t|\snot)?[\s.!]*", re.IGNORECASE)
"""A reason that only repeats the verdict: it is, it does not."""
_NO_REASON = re.compile(r"\s*(?:\d+\s*\Z|(?:only\s)?(?:if|when|unless|for|in|but|or|and|not)\b)", re.IGNORECASE)
"""What begins no reason: "No. 5", "Yes, if n > 2"."""
_DOUBTED = re.compile(
    r"\b(?:actually|however|otherwise|sorry|maybe|perhaps|unsure|not sure|unknown|unclear|i mean|"
    r"(?:can ?not|can['’]t|don['’]t) (?:answer|tell|say|know|decide))\b",
    re.IGNORECASE,
)
"""What takes a verdict back: "No, sorry", "No. Actually, it is"."""
_DETERMINER = re.compile(r"\bno\b(?=\s+(?!if\b|when\b|for\b)[a-z])", re.IGNORECASE)
"""The no of "Yes, no other number works"."""


def verdict_of(text: str) -> str:
    """The verdict that a text gives with its reason: the No of "No, because 4 is even"; else the text itself."""
    words = undressed(text).replace("*", "")
    match = _REASONED.fullmatch(words)
    other = OPPOSITES.get(match["verdict"].casefold()) if match else None
    if match is None or other is None or _NO_REASON.match(match["reason"]):
        return text
    if _DOUBTED.search(match["reason"]) or taken_back(match["reason"]):
        return text
    echo = _ECHOED.fullmatch(match["reason"])
    if echo and bool(echo["no"]) == (other in ("no", "false")):
        return text  # Yes, it is not
    reason = _DETERMINER.sub("", match["reason"])
    return text if re.search(rf"\b{other}\b", reason, re.IGNORECASE) else match["verdict"]


_SAID = re.compile(
    r"(?:\b(?:is|are|was|were|be|evaluates to|gives|equals|called|named)\b|[’'](?:s|re)\b):?\s+"
    r"|(?<=\w):\s+|(?<=\))\s==\s"
)
"""What stands right before the value that a sentence gives."""
_NOT_SAID = re.compile(
    r"\b(?:nobody|no one|none|if|whether|unless|think|thinks|thought|doubt\w*|wrong|false|than|instead|but|"
    r"although|though)\b",
    re.IGNORECASE,
)
_SO_FIRST = re.compile(r"(?:so|thus|hence|therefore),?\s+", re.IGNORECASE)


def said_in(sentence: str) -> Iterator[str]:
    """The values that one sentence may give: the Marie Curie of "It was Marie Curie.", where nothing takes it back."""
    words = sentence.strip()
    if "\n" in words or taken_back(words):
        return
    if lead := _SO_FIRST.match(words):
        yield words[lead.end() :]
    for copula in _SAID.finditer(words[: MAX_FINAL // 8]):
        before = words[: copula.start()]
        if not unsure(before, "") and not _NOT_SAID.search(before):
            yield words[copula.end() :]


_box, _marks, _phrase = usual_rules(_same_by(text_key), lambda _final: False, _trim_words, tag_is_answer=True)
_EXACT_RULES = (_box, *_marks, _verdict_first, _phrase, _only_line)


def _extract_all(text: str) -> Extraction:
    body = text.strip()
    if not body:
        return Extraction(None, reason="empty")
    start = len(text) - len(text.lstrip())
    return Extraction(body, (start, start + len(body)), "all")


def _by(rules: tuple[Rule, ...], key: Callable[[str], str]) -> Kind:
    return Kind(partial(cascade, rules=rules), key)


# -- calls of functions and JSON ---------------------------------------------------------------------------------------
_MARKS = re.compile(r"</?tool_call>|\[TOOL_CALLS\]")


def same_form(text: str) -> str | None:
    """The calls of `text`, or the JSON that it is, with their keys in order; None where it is words.

    Words before a call, and the order of several calls, do not matter.
    """
    words = text.strip()
    mark = _MARKS.search(words)
    calls = [] if mark is None else _values(_MARKS.sub(" ", words[mark.start() :]))
    values = [one for call in calls for one in (call if isinstance(call, list) else [call])] or _values(words)
    return "; ".join(sorted(json.dumps(value, sort_keys=True, separators=(",", ":")) for value in values)) or None


def _values(text: str) -> list[object]:
    """The JSON objects and lists that `text` consists of; empty where it holds anything else, or a name twice."""
    values: list[object] = []
    rest = text.strip(" \n\t;")
    while rest:
        if rest[0] not in "{[":
            return []
        try:
            value, end = json.JSONDecoder(object_pairs_hook=_each_once).raw_decode(rest)
        except (ValueError, RecursionError):
            return []
        values.append(value)
        rest = rest[end:].strip(" \n\t;")
    return values


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object of its names and values; raises ValueError for a name that stands there twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return value


def _structured(text: str) -> Extraction:
    """Calls or JSON in one spelling, or the words as they are."""
    return replace(_extract_all(text), final=same_form(text) or text.strip() or None)


KINDS: Mapping[str, Kind] = {
    "math": _by(_MATH_RULES, math_key),
    "number": _by(_NUMBER_RULES, math_key),
    "choice": _by(_CHOICE_RULES, choice_key),
    "code": _by((last_block, marked_code, bare_code), code_key),
    "exact": _by(_EXACT_RULES, text_key),
    "expression": _by(_EXPRESSION_RULES, expression_key),
    "format": Kind(_extract_all, hashed),
    "structured": Kind(_structured, hashed),
}


def extract(text: str, kind: str) -> Extraction:
    """Return the final answer of `text`, read as answers of `kind` are. Raises UnknownName for an unknown kind."""
    return kind_of(kind).extract(text)


def key(final: str, kind: str) -> str:
    """Return the voting class of a final answer. Raises UnknownName for an unknown kind."""
    return kind_of(kind).key(final)


def kind_of(kind: str) -> Kind:
    """Return how answers of `kind` are read and grouped. Raises UnknownName for an unknown kind."""
    if kind not in KINDS:
        raise UnknownName("answer kind", kind, KINDS)
    return KINDS[kind]
