r"""Parse a short answer into a `Term`, or refuse it: a recursive-descent grammar over LaTeX and plain notation.

Every token must be consumed: a partial parse is a refusal, never a smaller expression. Depth and sizes are capped, the
time is linear, nothing is evaluated. It reads the usual operators and functions, mixed numbers, thousands, percent,
words of size (5 million), bases, plus-minus; sets, tuples, intervals, unions, matrices; chains of inequalities, sets by
a condition, residues; ratios, times by the clock and in several units; units of measurement and currencies before or
after a number. White space never joins digits, and words after a number are its unit only where they can be one. Dates,
codes and numbers in words are read first, as a whole (`ttc.answers.words`). Tokens are numbers, letters, words,
commands and marks; a comma between groups of three digits parts thousands outside brackets, and items inside them.

Each level is made of the next one:

    answer      items with commas, `and`, `or` between them
    relation    sides with =, <, \in between them, perhaps under a modulus
    union       sets with a cup between them; a set without another
    ratio       1:2, a time by the clock, a time in several units
    sum         terms with +, -, \pm between them
    product     factors, beside each other or with signs; a fraction, a mixed number, a unit behind
    signed      a factor with its signs
    power       a value with exponents, factorials, percent signs, a word of size, a base
    atom        a number, a name, brackets, a fence, a command

Left out: what `otherwise` means in a function by cases; sums, products, integrals, limits, sequences with dots
(`math-verify` may know them, in a worker).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from ttc.answers.nodes import PERCENTS, SIDE_BY_SIDE, UNITS, Term, duration, is_unit, known_unit, many, num
from ttc.answers.plain import MAX_CHARS
from ttc.answers.words import ONES, designation, in_words

RELATIONS = {
    "=": "=", "<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\ne": "!=", r"\approx": "~", r"\in": "in",
    r"\equiv": "==",
}  # fmt: skip
"""Spelling of a relation to its operator."""
SIGNS_OF_LOGIC = {r"\lor": "or", r"\land": "and"}
GREEK = frozenset({
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "kappa", "lambda",
    "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda",
    "Sigma", "Phi", "Psi", "Omega", "ell", "hbar",
})  # fmt: skip
_CIRCULAR = ("sin", "cos", "tan", "cot", "sec", "csc")
_HYPERBOLIC = ("sinh", "cosh", "tanh", "coth", "sech", "csch")
_OTHERS = ("ln", "log", "lg", "exp", "cis", "min", "max", "gcd", "lcm", "det", "abs", "floor", "ceil")
FUNCTIONS = {
    **{name: name for name in (*_CIRCULAR, *_HYPERBOLIC, *_OTHERS)},
    **{prefix + name: f"arc{name}" for name in (*_CIRCULAR, *_HYPERBOLIC[:3]) for prefix in ("arc", "a")},
    **{f"ar{name}": f"arc{name}" for name in _HYPERBOLIC[:3]},
}
"""Spelling of a function to its name."""
SEVERAL = frozenset({"min", "max", "gcd", "lcm"})
"""Functions of several arguments."""
DECORATIONS = frozenset({"vec", "hat", "bar", "overline", "tilde", "overrightarrow", "triangle", "angle"})
"""Commands that make a name out of what follows."""
LABELS = frozenset({r"\odot", r"\oplus", r"\perp", r"\parallel", r"\infty"})
"""Signs that stand as the subscript of a letter."""
WORDS = {"pi": "pi", "theta": "theta", "alpha": "alpha", "beta": "beta", "lambda": "lambda", "phi": "phi"}
"""Words that are symbols."""
INFINITY = frozenset({"inf", "infinity", "infty", "oo", "Infinity"})
CURRENCIES = frozenset({"USD", "EUR", "GBP", "JPY", "INR"})
SETS = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle"}
"""Opening bracket to closing one."""
CLOSINGS = {"(": (")", "]"), "[": ("]", ")"), "]": ("]",)}
"""What closes an interval that opens so; ]1, 3[ is open at both ends."""
AFTER_INTERVAL = frozenset({"", r"\cup", "U", ",", ";", ")", "}", r"\}", "and", "or"})
"""What may follow the bracket that closes [0, 1[."""
FENCES = {"|": ("|", "abs"), r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceil")}
"""Opening fence to the closing one and the function that both mean."""
MATRICES = frozenset(
    {"matrix", "pmatrix", "bmatrix", "vmatrix", "Bmatrix", "array", "smallmatrix", "psmallmatrix", "bsmallmatrix"}
)
OTHERWISE = frozenset({"otherwise", "else"})
CONDITIONS = OTHERWISE | {"if", "for", "when", "where"}
"""Words before the condition of a case, and for all other cases."""
VALUES = frozenset({"frac", "sqrt", "pi", "infty", "binom", "dbinom", "tbinom", "mathbb", "{", "langle", "varnothing"})
"""Further commands that begin a value."""
NEVER_UNITS = frozenset({"e", "i", "x", "y", "z", "n"})
"""Letters that are variables even after a number and a space."""
MAX_DIGITS, MAX_DEPTH = 1000, 40
MAX_PRODUCT_WORD = 4
"""Letters of a word that is still read as a product of variables."""
SHORTENED = frozenset({"s", "t", "d", "ll", "re", "ve"})
"""What may follow the apostrophe of a word."""
MAX_POSTFIX = 6
SIZES = {
    "hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "hundreds": 2, "thousands": 3,
    "millions": 6, "billions": 9, "lakh": 5, "lakhs": 5, "crore": 7, "crores": 7,
    "万": 4, "萬": 4, "億": 8, "亿": 8, "만": 4, "억": 8,
}  # fmt: skip
"""Words of size to the power of ten that they multiply by."""
HALVES = {"am": "am", "pm": "pm"}
HALVES_AT_TWELVE = {"noon": "pm", "midnight": "am"}
TEN = 10
"""The base of a numeral that names none."""
MAX_BASE = 36
"""The largest base that digits and letters are enough for."""
MAX_HOUR = 12
"""Of a half of the day."""
_CLOCK = re.compile(r"\d{1,2}:[0-5]\d")


# -- tokens ------------------------------------------------------------------------------------------------------------
MAX_TOKENS = 1500


class Unparsed(Exception):
    """The answer is not in the grammar; carries a short reason. Internal: verifiers turn it into a verdict."""


class TooLarge(Unparsed):
    """A size cap of the parser was exceeded."""


class Alternatives(Unparsed):
    """Several answers offered as alternatives ("1 or 4")."""


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is num, base, word, text, cmd, mark or end; `spaced` says whether white space came before."""

    kind: str
    text: str
    spaced: bool = False


_LITERAL = re.compile(
    r"""(?P<grouped>[1-9]\d{0,2}(?:,\d{3})+(?!\d)(?:\.\d+)?)
      | (?P<science>\d+(?:\.\d*)?[eE][+-]?\d{1,4}(?![\dA-Za-z]))
      | (?P<repeat>\d*\.\d*(?:\\overline|\\dot|\\bar)\ ?\{\d+\})
      | (?P<decimal>\d+\.\d+|\.\d+|\d+\.(?!\.))
      | (?P<integer>\d+)""",
    re.VERBOSE,
)
_TEXT = re.compile(
    r"\\(text|textnormal|mbox|textrm|textbf|textit|textsf|texttt|mathrm|mathbf|mathsf|mathit|operatorname\*?|hbox)\s*\{([^{}]*)\}"
)
r"""Words in a style: `\text{cm}`."""
_STYLED = re.compile(r"\\(?:mathrm|mathbf|mathit|mathsf)\s+([A-Za-z])(?![A-Za-z])")
r"""A letter in a style without braces: `\mathrm x`."""
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]+")
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{([A-Za-z]+\*?)\}(?:\{[lcr|]*\})?")
r"""The begin or the end of an environment, with the columns of an array: `\begin{array}{cc}`."""


def tokens(text: str) -> list[Token]:
    """Return the tokens of `text`, closed by one of kind `end`. Raises Unparsed or TooLarge."""
    if len(text) > MAX_CHARS:
        raise TooLarge(f"more than {MAX_CHARS} characters")
    items: list[Token] = []
    at, depth, spaced = 0, 0, False
    while at < len(text):
        if text[at].isspace():
            at, spaced = at + 1, True
            continue
        token, at = _next(text, at, spaced, nested=depth != 0)
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        items.append(token)
        spaced = False
        if len(items) > MAX_TOKENS:
            raise TooLarge(f"more than {MAX_TOKENS} tokens")
    return [*items, Token("end", "")]


_OPENING = frozenset({"(", "[", r"\{", r"\langle"})
_CLOSING = frozenset({")", "]", r"\}", r"\rangle"})


def _next(text: str, at: int, spaced: bool, nested: bool) -> tuple[Token, int]:
    char = text[at]
    if char.isdigit() or (char == "." and text[at + 1 : at + 2].isdigit()):
        return _number(text, at, spaced, nested)
    if char == "\\":
        return _command(text, at, spaced)
    if word := _WORD.match(text, at):
        return Token("word", word[0], spaced), word.end()
    return Token("mark", char, spaced), at + 1


_IN_A_LIST = re.compile(r"\d,\Z")
"""A number right behind 36, is an item of a list: of 36,36,108 the last two are no 36108."""


def _number(text: str, at: int, spaced: bool, nested: bool) -> tuple[Token, int]:
    match = _LITERAL.match(text, at)
    if match is None:
        raise Unparsed(f"digit {text[at]!r} not understood")
    if match.lastgroup == "grouped" and (nested or _IN_A_LIST.search(text, max(at - 2, 0), at)):
        end = at + len(match[0].partition(",")[0])
        return Token("num", text[at:end], spaced), end
    return Token("num", match[0], spaced), match.end()


def _command(text: str, at: int, spaced: bool) -> tuple[Token, int]:
    if match := _TEXT.match(text, at):
        words = match[2].strip()
        styled_letter = len(words) == 1 and match[1] not in ("text", "mbox", "hbox")
        is_word = styled_letter or match[1].startswith("operatorname")
        return Token("word" if is_word else "text", words, spaced), match.end()
    if match := _STYLED.match(text, at):
        return Token("word", match[1], spaced), match.end()
    if match := _ENVIRONMENT.match(text, at):
        return Token("cmd", rf"\{match[1]}{{{match[2]}}}", spaced), match.end()
    match = _COMMAND.match(text, at)
    if match is None:
        raise Unparsed("a lone backslash")
    return Token("cmd", match[0], spaced), match.end()


# -- the tree ----------------------------------------------------------------------------------------------------------
_INTEGER = re.compile(r"-?[0-9]+")


def parse(text: str) -> Term:
    """Return the tree of a plain answer (see `ttc.answers.plain`). Raises Unparsed, or TooLarge beyond a cap."""
    if _INTEGER.fullmatch(text):  # as most answers are
        return parse_expression(text)
    spelling = designation(text)
    if spelling:
        return Term("designation", (spelling,))
    return _in_large_base(text) or in_words(text) or parse_expression(text)


_LARGE_BASE = re.compile(
    r"(?:\(\s?(?P<inside>[0-9A-Za-z]+)\s?\)|\\(?:text|mathrm)\s?\{(?P<styled>[0-9A-Za-z]+)\}|(?P<digits>[0-9A-Za-z]+))"
    r"\s?_\s?\{?\s?(?P<base>1[1-9]|[23]\d)\s?\}?"
)


def _in_large_base(text: str) -> Term | None:
    """A numeral with letters among its digits, 2A3_{16}, in either case; None for all else."""
    match = _LARGE_BASE.fullmatch(text)
    if match is None:
        return None
    digits, base = (match["inside"] or match["styled"] or match["digits"]).upper(), int(match["base"])
    is_numeral = digits[0].isdigit() or len(digits) > 1
    fits = all(int(digit, 36) < base for digit in digits) if base <= MAX_BASE else False
    return Term("base", (digits, base)) if is_numeral and fits and not digits.isdigit() else None


def parse_expression(text: str) -> Term:
    """`parse` where everything is to be computed, what is spelt as a date or a code too: 2019-2020 is -1."""
    items = tokens(text)
    if len(items) == 1:
        raise Unparsed("empty")
    if _only_words(items[:-1]):
        return Term("text", (" ".join(token.text for token in items[:-1]),))
    grammar = _Grammar(items)
    node = grammar.answer()
    if grammar.peek.kind != "end":
        raise Unparsed(f"{grammar.peek.text[:40]!r} left over")
    return node


def _only_words(items: list[Token]) -> bool:
    """Words without a sign of mathematics: `Tuesday`, `no solution`; one letter is a variable, `pi` a constant."""
    words = [token for token in items if token.kind in ("word", "text")]
    marks = [token.text for token in items if token.kind not in ("word", "text")]
    if not words or items[0].kind == "mark" or any(mark not in ("-", "'", '"', "?", "!") for mark in marks):
        return False
    first = words[0].text
    if first in FUNCTIONS or (len(words) == 1 and (first in WORDS or first in INFINITY)):
        return False
    # A hyphen joins words; between single letters it is a minus.
    shortest = 3 if "-" in marks else 1
    long_enough = all(len(token.text.strip("() ")) >= shortest for token in words)
    return long_enough and any(len(token.text.strip("() ")) > 1 for token in words)


def number(text: str) -> Term:
    """A number token as an exact fraction. Raises TooLarge beyond MAX_DIGITS digits."""
    if len(text) > MAX_DIGITS:
        raise TooLarge(f"a number of more than {MAX_DIGITS} digits")
    text = text.replace(",", "").replace(" ", "")
    if repeat := re.fullmatch(r"(\d*)\.(\d*)\\[a-z]+\{(\d+)\}", text):
        whole, fixed, cycle = repeat.groups()
        value = Fraction(int(cycle), 10 ** len(fixed) * (10 ** len(cycle) - 1))
        return num(value + Fraction(int((whole + fixed) or "0"), 10 ** len(fixed)))
    mantissa, _, exponent = text.lower().partition("e")
    whole, point, fraction = mantissa.partition(".")
    if exponent and abs(int(exponent)) > MAX_DIGITS:
        raise TooLarge("an exponent too large")
    value = Fraction(int((whole + fraction) or "0"), 10 ** len(fraction)) * Fraction(10) ** int(exponent or 0)
    digits = len((whole + fraction).lstrip("0")) if point and fraction else None
    return num(value, digits)


class _Grammar:
    """Reads tokens one by one; the levels of precedence call each other, from `answer` down to `atom`."""

    def __init__(self, items: list[Token]) -> None:
        self.tokens, self.at, self.depth, self.bars = items, 0, 0, 0

    @property
    def peek(self) -> Token:
        """The next token."""
        return self.tokens[self.at]

    @property
    def last(self) -> Token:
        """The token before the next one."""
        return self.tokens[max(self.at - 1, 0)]

    def ahead(self, by: int) -> Token:
        """The token `by` places after the next one."""
        return self.tokens[min(self.at + by, len(self.tokens) - 1)]

    def take(self) -> Token:
        """Consume the next token. Raises Unparsed at the end."""
        token = self.peek
        if token.kind == "end":
            raise Unparsed("unexpected end")
        self.at += 1
        return token

    def accept(self, *texts: str) -> bool:
        """Consume the next token if it is one of `texts`."""
        if self.peek.kind not in ("end", "text") and self.peek.text in texts:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Consume `text`. Raises Unparsed when something else comes."""
        if not self.accept(text):
            raise Unparsed(f"expected {text!r}, found {self.peek.text[:40]!r}")

    def sink(self) -> None:
        """Go one level deeper; the caller comes up again. Raises TooLarge beyond MAX_DEPTH."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH}")

    # -- lists, relations, unions ----------------------------------------------------------------------------------
    def answer(self) -> Term:
        """A whole answer: items joined by commas, `and` or `or`. Raises Alternatives for "1 or 4"."""
        items = [self.relation()]
        starts = [0]
        alternatives = together = False
        while True:
            if self.accept(",", ";"):
                joiner = self._joiner()
            elif (joiner := self._joiner()) is None:
                break
            else:
                alternatives |= joiner == "or"
                together |= joiner == "and"
            if self.peek.kind == "end":
                raise Unparsed("an item is missing after a separator")
            starts += [len(items)] if joiner == "or" else []
            items.append(self.relation())
        items = _with_modulus(items)
        if alternatives and not all(item.op in ("rel", "mod") for item in items):
            raise Alternatives("alternatives")
        if alternatives and any(item.op == "rel" and item.args[0] != ("=",) for item in items):
            return Term("union", tuple(items))
        if len(starts) > 1 and (either := _either(items, starts)):
            return either
        if together and len(items) == 2 and all(item.op == "rel" and item.args[0][0] in "<=>=" for item in items):
            return Term("meet", tuple(items))
        return many("list", items)

    def _joiner(self) -> str | None:
        word = self.peek.text.strip().lower()
        if sign := SIGNS_OF_LOGIC.get(word):
            self.at += 1
            return sign
        if self.peek.kind in ("word", "text") and word in ("and", "or"):
            self.at += 1
            return word
        return None

    def relation(self) -> Term:
        """A chain of sides joined by relation signs."""
        operands, operators = [self._union()], []
        while self.peek.kind in ("mark", "cmd") and self.peek.text in RELATIONS:
            operators.append(RELATIONS[self.take().text])
            operands.append(self._union())
        if self.accept(r"\pmod"):
            return _residue(operators, operands, self.group())
        return Term("rel", (tuple(operators), *operands)) if operators else operands[0]

    def _union(self) -> Term:
        items = [self._difference()]
        while self.accept(r"\cup") or (self._cup() and self.accept("U")):
            items.append(self._difference())
        return many("union", items)

    def _difference(self) -> Term:
        """A set, perhaps without the members of another."""
        whole = self._ratio()
        return Term("without", (whole, self._ratio())) if self.accept(r"\setminus") else whole

    def _cup(self) -> bool:
        """Whether a letter U stands for the union of two intervals."""
        return self.peek.text == "U" and self.last.text in (")", "]")

    def _ratio(self) -> Term:
        if time := self._time() or self._duration():
            return self._until(time)
        items = [self.sum()]
        while self.accept(":"):
            items.append(self.sum())
        while items[-1].op == "num" and self.ahead(1).kind == "num" and self._says_to():
            items.append(self.sum())
        return many("ratio", items)

    def _until(self, start: Term) -> Term:
        """A time, or the pair of both ends where a second one follows: 9:30 am to 11 am."""
        if start.op != "time" or not (self.accept("-") or self._says_to()):
            return start
        end = self._time()
        if end is None:
            raise Unparsed("no time behind another")
        return Term("seq", ("(", ")", start, end))

    def _says_to(self) -> bool:
        """Consume a `to`."""
        is_next = self.peek.kind in ("word", "text") and self.peek.text.strip() == "to"
        self.at += is_next
        return is_next

    def _time(self) -> Term | None:
        """A time by the clock, 7:05 or 19:30 or 7:05 pm; None when it is not one."""
        hour, colon, minute = (self.ahead(by) for by in range(3))
        if hour.kind == "num" and (full := self._full_hour(hour.text)):
            return full
        if colon.text != ":" or not _CLOCK.fullmatch(f"{hour.text}:{minute.text}"):
            return None
        half, length = self._half_of_day(3)
        after = self.ahead(3)
        if not half and not (after.kind == "end" or after.text in (",", ";", "and", "or", "to", "-", ")", "}")):
            return None
        self.at += 3 + length
        if not half and hour.text.startswith("0"):
            half = "am"  # 03:30 is written where the day has 24 hours
        return Term("time", (int(hour.text), int(minute.text), half))

    def _full_hour(self, hour: str) -> Term | None:
        """5 pm and 12 noon as times; None for all else."""
        half, length = self._half_of_day(1)
        if not half or not hour.isdigit() or not 1 <= int(hour) <= MAX_HOUR:
            return None
        if self.ahead(1).text.lower() in HALVES_AT_TWELVE and int(hour) != MAX_HOUR:
            return None
        self.at += 1 + length
        return Term("time", (int(hour), 0, half))

    def _duration(self) -> Term | None:
        """A time, a length or a weight in several units, 3 hours 20 minutes; None when it is not one."""
        start, parts = self.at, list[Term]()
        while self.peek.kind == "num" and self.ahead(1).kind in ("word", "text"):
            amount, name = self.take().text, self.take().text.removesuffix(" and")
            if name not in UNITS:
                break
            parts.append(Term("quantity", (number(amount), name)))
        whole = duration(parts, SIDE_BY_SIDE) if self._ends_item() else None
        self.at = self.at if whole else start
        return whole

    def _half_of_day(self, by: int) -> tuple[str, int]:
        r"""The am or pm that comes `by` tokens ahead, and its length in tokens: pm, `\text{p.m.}`, p.m."""
        first, dot, second = (self.ahead(by + more) for more in range(3))
        letters = HALVES.get((first.text + second.text).lower(), "") if dot.text == "." else ""
        if letters:
            return letters, 4 if self.ahead(by + 3).text == "." else 3
        name = first.text.replace(".", "").replace(" ", "").lower()
        half = HALVES.get(name, "") or HALVES_AT_TWELVE.get(name, "")
        return half, 1 if half else 0

    # -- arithmetic ------------------------------------------------------------------------------------------------
    def sum(self) -> Term:
        """Terms joined by plus, minus and at most one plus-minus."""
        self.sink()
        terms = [] if self.peek.text in (r"\pm", r"\mp") else [self._product()]
        either: list[Term] = []
        while True:
            if self.accept("+"):
                terms.append(self._product())
            elif self.accept("-"):
                terms.append(Term("neg", (self._product(),)))
            elif self.accept(r"\pm", r"\mp"):
                either.append(self._product())
            else:
                break
        self.depth -= 1
        if len(either) > 1:
            raise Unparsed("more than one plus-minus sign")
        node = many("add", terms) if terms else num(0)
        return Term("pm", (node, either[0])) if either else node

    def _product(self) -> Term:
        above, below = [self.signed()], list[Term]()
        while True:
            if self._signed_factor(above, below):
                continue
            if unit := self._percent() or self._unit(above + below):
                return Term("quantity", (_quotient(above, below), unit))
            if not self.starts_factor():
                return _quotient(above, below)
            above[-1:] = self._with_next(above[-1], is_divided=bool(below))

    def _signed_factor(self, above: list[Term], below: list[Term]) -> bool:
        """Take a sign of multiplication or division and its factor, above or below the line; whether there is one."""
        side = above if self.accept("*", r"\times", r"\cdot") else below if self.accept("/", r"\div") else None
        if side is not None:
            side.append(self.signed())
        return side is not None

    def _percent(self) -> str:
        return "%" if self.accept("%", r"\%") else ""

    def _with_next(self, last: Term, is_divided: bool) -> list[Term]:
        """The last factor and what stands right beside it: another factor, or the fraction of a mixed number."""
        if not is_divided and _whole(last) and (mixed := self._mixed(last)):
            return [self._in_degrees(mixed)]
        if self.peek.kind == "num" and self._runs_on():
            raise Unparsed("a number runs on from what precedes it")
        return [last, self.power()]

    def _runs_on(self) -> bool:
        """Whether a number runs on from what stands before it: after a number, or a letter without a space."""
        is_power = self.ahead(1).text == "^" and len(self.last.text) == 1  # n2^{n-1} is n times a power
        return self.last.kind == "num" or (self.last.kind == "word" and not self.peek.spaced and not is_power)

    def starts_factor(self) -> bool:
        """Whether the next token can begin a factor without a sign before it."""
        token = self.peek
        if token.kind == "num":
            return True
        if token.kind in ("word", "text"):
            return token.text.lower() not in ("and", "or", "to") and not self._cup()
        if token.text == "[" and self.ahead(1).text in AFTER_INTERVAL:
            return False
        if token.kind == "mark":
            return token.text in "([{" or (token.text == "|" and not self.bars)
        name = token.text[1:]
        begins_value = name in GREEK or name in FUNCTIONS or name in VALUES or name in DECORATIONS
        return begins_value or token.text in FENCES or name.startswith("begin{")

    def signed(self) -> Term:
        """A factor with its signs."""
        minus = False
        while self.peek.kind == "mark" and self.peek.text in "+-":
            minus ^= self.take().text == "-"
        node = self.power()
        if minus and _whole(node) and (mixed := self._mixed(node)):
            node = mixed
        return Term("neg", (node,)) if minus else node

    def power(self) -> Term:
        """A value with what is attached to it: exponents, factorials, percent signs, degrees, a base."""
        node = self.atom()
        for _ in range(MAX_POSTFIX):
            longer = self._with_postfix(node)
            if longer is None:
                return node
            node = longer
        raise TooLarge(f"more than {MAX_POSTFIX} signs after one value")

    def _with_postfix(self, node: Term) -> Term | None:
        """A value with the next sign that is attached to it; None where none is."""
        if self.accept("^"):
            return self._raised(node)
        if self.accept("!"):
            if self.peek.text == "!":
                raise Unparsed("a double factorial")
            return Term("fn", ("factorial", node))
        if self.accept("%", r"\%"):
            return Term("quantity", (node, "%"))
        if node.op == "num" and self.peek.kind in ("word", "text") and (size := self._size()):
            return num(node.args[0] * Fraction(10) ** size)
        return self._based(node) if node.op == "num" and self.accept("_") else None

    def _in_degrees(self, mixed: Term) -> Term:
        """A mixed number with the sign of degrees that may follow: 7 1/2 degrees."""
        is_angle = self.peek.text == "^" and r"\circ" in (self.ahead(1).text, self.ahead(2).text)
        return self._raised(mixed) if is_angle and self.accept("^") else mixed

    def _raised(self, node: Term) -> Term:
        braced = self.peek.text == "{" and self.ahead(1).text == r"\circ" and self.ahead(2).text == "}"
        if braced or self.peek.text == r"\circ":
            self.at += 3 if braced else 1
            scale = self.peek.text in ("C", "F") and self.take().text
            return Term("quantity", (node, f"degree {scale}" if scale else "degree"))
        exponent = self.signed() if self.peek.text in ("-", "+") else self.group()
        if self.accept("^"):
            # Plain towers without braces group from the right.
            self.sink()
            exponent = self._raised(exponent)
            self.depth -= 1
        return Term("pow", (node, exponent))

    def _based(self, digits: Term) -> Term:
        braced = self.peek.text == "{" and self.ahead(1).kind == "text" and self.ahead(1).text in ONES
        if braced:
            base, self.at = num(ONES[self.ahead(1).text]), self.at + 3
        else:
            base = self.group()
        if base.op != "num" or base.args[0].denominator != 1 or not _whole(digits):
            raise Unparsed("a base that is not an integer")
        return digits if base.args[0] == TEN else Term("base", (str(digits.args[0]), int(base.args[0])))

    # -- mixed numbers and units -----------------------------------------------------------------------------------
    def _mixed(self, whole: Term) -> Term | None:
        start, kept = self.at, self.tokens[self.at : self.at + 4]
        if self.peek.kind == "num" and self.ahead(1).text == "/" and self.ahead(2).kind == "num":
            top, _, bottom = self.take().text, self.take(), self.take().text
        elif self.accept(r"\frac"):
            top, bottom = self._digits_group(), self._digits_group()
        else:
            return None
        if top.isdigit() and bottom.isdigit() and int(top) < int(bottom):
            return num(whole.args[0] + Fraction(int(top), int(bottom)))
        self.at = start
        self.tokens[start : start + len(kept)] = kept
        return None

    def _digits_group(self) -> str:
        """The digits of `{12}` or `1`; an empty string when it is anything else (the caller rewinds)."""
        if self.peek.text == "{":
            digits = self.ahead(1)
            if digits.kind != "num" or self.ahead(2).text != "}":
                return ""
            self.at += 3
            return digits.text
        token = self.peek
        if token.kind != "num" or len(token.text) > 2:
            return ""
        if len(token.text) == 2:
            # \frac12: both digits lie in one token; leave the second for the next call.
            self.tokens[self.at] = Token("num", token.text[1])
            return token.text[0]
        return self.take().text

    def _unit(self, left: list[Term]) -> str:
        """Words after a number, as a unit; empty when what follows is not one. A bare letter counts after a space.

        Behind an expression with variables only a known unit or a plural in upright letters is one.
        """
        if self.peek.kind not in ("word", "text") or not self.starts_factor():
            return ""
        has_letters = any(node.symbols() for node in left)
        if has_letters and (self.peek.kind != "text" or self.ahead(1).kind not in ("end", "mark")):
            return ""
        if any(node.has(*_NO_AMOUNTS) for node in left):
            return ""
        start = self.at
        name = self._unit_name()
        if has_letters and not _PLURAL.fullmatch(name) and known_unit(name) is None:
            name = ""
        if name and self._ends_item() and _begins_value(self.tokens[start], name) and is_unit(name):
            return "%" if name.lower() in PERCENTS else name
        self.at = start
        return ""

    def _unit_name(self) -> str:
        """Words with their powers, the negative ones below a slash: m s^{-1} is m/s; empty where they are letters."""
        above, below, dotted, upright = list[str](), list[str](), False, self.peek.kind == "text"
        while self.peek.kind in ("word", "text") and self.peek.text.lower() not in ("and", "or"):
            word = self.take().text
            minus, power = self._unit_power() if self.accept("^") else (False, "")
            if minus and " " in word:
                first, _, word = word.rpartition(" ")  # the power in \text{m s}^{-2} is that of s alone
                above.append(first)
            (below if minus else above).append(word + power)
            if self.peek.text in ("/", r"\cdot") and self.ahead(1).kind in ("word", "text"):
                slash = self.take().text == "/"
                above += ["/"] if slash else []
                dotted |= not slash
        if (below and not above and not upright) or (dotted and not below):
            return ""
        return "/".join([" ".join(above).replace(" / ", "/"), *below])

    def _unit_power(self) -> tuple[bool, str]:
        """Whether the power of a unit is negative, and how its size is written; of -1 nothing is left below a slash."""
        braced = self.peek.text == "{" and self.ahead(1).text == "-"
        size = self.ahead(1 + braced)
        if self.ahead(int(braced)).text != "-" or not size.text.isdigit() or (braced and self.ahead(3).text != "}"):
            return False, f"^{self._digits_group()}"
        self.at += 2 + 2 * braced
        return True, "" if size.text == "1" else f"^{size.text}"

    def _size(self) -> int:
        """Consume a word of size and return its power of ten; 0 when the next word is none."""
        first, _, rest = self.peek.text.strip().partition(" ")
        size = SIZES.get(first.lower(), 0)
        if size and rest:
            self.tokens[self.at] = Token("text", rest.strip(), spaced=True)
        elif size:
            self.at += 1
        return size

    def _ends_item(self) -> bool:
        token = self.peek
        return token.kind == "end" or token.text in (",", ";", ")", "]", r"\}", r"\rangle", "=", "and", "or")

    # -- values ----------------------------------------------------------------------------------------------------
    def atom(self) -> Term:
        """A value without anything attached to it."""
        self.sink()
        token = self.take()
        if token.kind in _KINDS:
            node = _KINDS[token.kind](self, token)
        elif token.text == "{":
            self.at -= 1
            node = self.group()
        elif token.text in SETS or token.text == "]":
            node = self._sequence(token.text)
        elif token.text in FENCES:
            node = self._fence(token.text)
        elif token.kind == "cmd":
            node = self._command(token.text[1:])
        else:
            raise Unparsed(f"{token.text!r} not understood")
        self.depth -= 1
        return node

    def group(self) -> Term:
        """A braced group, or the one value that LaTeX would take."""
        if not self.accept("{"):
            return self.atom()
        self.sink()
        node = self.sum()
        if self.accept(r"\choose"):
            node = Term("fn", ("binom", node, self.sum()))
        self.expect("}")
        self.depth -= 1
        return node

    # -- numbers and names -----------------------------------------------------------------------------------------
    def _text(self, token: Token) -> Term:
        r"""Read a value or a function inside words, as in `\text{(C)}` and `\text{ln}`; other words end the parse."""
        inner = token.text.strip("() ")
        if inner in CURRENCIES:
            return Term("quantity", (self.signed(), inner))
        if inner in INFINITY:
            return Term("inf")
        if inner in FUNCTIONS:
            return self._function(FUNCTIONS[inner])
        if len(inner) == 1 and inner.isalpha():
            return Term("sym", (inner,))
        raise Unparsed(f"the words {token.text[:40]!r}")

    def _word(self, token: Token) -> Term:
        name = token.text
        if name in CURRENCIES:
            return Term("quantity", (self.signed(), name))
        if name in INFINITY:
            return Term("inf")
        if name in WORDS:
            return Term("sym", (WORDS[name],))
        if name == "sqrt":
            return self._root()
        if name in FUNCTIONS:
            return self._function(FUNCTIONS[name])
        if name in ONES and not self._among_words(token):
            return num(ONES[name])
        if len(name) > MAX_PRODUCT_WORD or not name.isascii():
            raise Unparsed(f"the word {name[:40]!r}")
        if name == "C" and self.peek.text == "(" and not self.peek.spaced and (coefficient := self._chosen()):
            return coefficient
        if len(name) == 1:
            return Term("sym", (self._marked(name),))
        if self._among_words(token) or self._is_shortened():
            raise Unparsed(f"the word {name!r} in a sentence")
        # Letters side by side are a product: leave the rest for the next factor.
        self.at -= 1
        self.tokens[self.at] = Token("word", name[1:])
        return Term("sym", (name[0],))

    def _chosen(self) -> Term | None:
        """The two numbers of C(10, 3), a binomial coefficient or a point named C; None for any other bracket."""
        start, depth, kept = self.at, self.depth, self.tokens[self.at :]
        inside = self.group()
        if inside.op == "seq" and inside.args[:2] == ("(", ")") and len(inside.args) == 4:
            return Term("fn", ("choose", *inside.args[2:]))
        self.at, self.depth, self.tokens[start:] = start, depth, kept
        return None

    def _among_words(self, token: Token) -> bool:
        """Whether white space parts a word from another or from a number, as in a sentence."""
        wordy = ("word", "text", "num")
        before = self.tokens[self.at - 2] if self.at > 1 else None
        if before is not None and before.kind == "num" and self.at > 2 and self.tokens[self.at - 3].text == r"\frac":
            before = None  # of \frac12 ab
        after = self.peek.spaced and self.peek.kind in wordy
        return after or (token.spaced and before is not None and before.kind in wordy)

    def _is_shortened(self) -> bool:
        """Whether an apostrophe and the rest of a word come next: It's, we'll."""
        rest = self.ahead(1)
        return self.peek.text == "'" and not rest.spaced and rest.text in SHORTENED and not self._glued(2)

    def _glued(self, by: int) -> bool:
        """Whether the token `by` places ahead follows without white space."""
        token = self.ahead(by)
        return token.kind != "end" and not token.spaced

    def _marked(self, letter: str) -> str:
        """A letter with its subscript and primes, in either order."""
        subscript, primes = "", ""
        while self.accept("_", "'"):
            if self.last.text == "'":
                primes += "'"
            elif subscript:
                raise Unparsed("two subscripts")
            else:
                subscript = f"_{self._subscript()}"
        return letter + subscript + primes

    def _subscript(self) -> str:
        r"""The name below a letter: `_1`, `_{ij}`, and words as in `_{\max}` and `_{\text{out}}`."""
        braces = int(self.peek.text == "{")
        token = self.ahead(braces)
        if not self._is_label(token) or (braces and self.ahead(2).text != "}"):
            return _name(self.group())
        self.at += 1 + 2 * braces
        return token.text.lstrip("\\").strip()

    @staticmethod
    def _is_label(token: Token) -> bool:
        return token.kind == "text" or token.text.lstrip("\\") in FUNCTIONS or token.text in LABELS

    # -- brackets --------------------------------------------------------------------------------------------------
    def _sequence(self, opening: str) -> Term:
        if opening == r"\{" and self.peek.kind == "word" and self.ahead(1).text in ("|", r"\mid", ":", r"\in"):
            return self._set_builder()
        after_item = self.ahead(-2).text in ("[", ",", ";")
        self.sink()
        bars, self.bars = self.bars, 0
        rows = self._rows_until_closing(opening)
        closing = self.last.text
        self.depth -= 1
        self.bars = bars
        return _bracketed(opening, closing, rows, is_row=after_item and self.peek.text in (",", ";", "]"))

    def _rows_until_closing(self, opening: str) -> list[list[Term]]:
        """What stands between brackets, a row up to each semicolon; the closing bracket is consumed, too."""
        rows: list[list[Term]] = [[]]
        closings = CLOSINGS.get(opening) or (SETS[opening],)
        while not (self.accept(*closings) or (opening in "[]" and sum(map(len, rows)) == 2 and self.accept("["))):
            if rows[-1] and not self.accept(",", ";"):
                raise Unparsed(f"expected a separator, found {self.peek.text[:40]!r}")
            if rows[-1] and self.last.text == ";":
                rows.append([])
            rows[-1].append(self.relation())
        return rows

    def _set_builder(self) -> Term:
        """{x | x > 3} and {x in R : x < 1 or x > 3} are the solution sets of their conditions."""
        letter = self.take().text
        if self.accept(r"\in") and not (self.accept(r"\mathbb") and _name(self.group()) == "R"):
            raise Unparsed("a set of other than real numbers")
        if not self.accept("|", r"\mid", ":"):
            raise Unparsed("a set without a condition")
        condition = self.answer()
        self.expect(r"\}")
        sides = [condition] if condition.op == "rel" else list(condition.children())
        if not sides or any(side.op != "rel" or side.symbols() != {letter} for side in sides):
            raise Unparsed("a set by a condition that is not understood")
        return condition

    def _fence(self, opening: str) -> Term:
        closing, name = FENCES[opening]
        self.bars += opening == "|"
        inner = self.sum()
        self.expect(closing)
        self.bars -= opening == "|"
        return Term("fn", (name, inner))

    # -- commands --------------------------------------------------------------------------------------------------
    def _command(self, name: str) -> Term:
        if name in _COMMANDS:
            return _COMMANDS[name](self)
        if name in _SIGNS:
            return _SIGNS[name]
        if name in GREEK:
            return Term("sym", (self._marked(name),))
        if name in FUNCTIONS:
            return self._function(FUNCTIONS[name])
        if name in DECORATIONS:
            return Term("sym", (f"{name}:{self._decorated()}",))
        if name.startswith("begin{"):
            return self._matrix(name[6:-1])
        raise Unparsed(f"the command {name[:40]!r}")

    def _fraction(self) -> Term:
        return Term("div", (self._fraction_part(), self._fraction_part()))

    def _binomial(self) -> Term:
        return Term("fn", ("binom", self._fraction_part(), self._fraction_part()))

    def _fraction_part(self) -> Term:
        r"""A group; `\frac12` takes one digit at a time."""
        token = self.peek
        if token.kind == "num" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = Token("num", token.text[1:])
            return num(int(token.text[0]))
        return self.group()

    def _root(self) -> Term:
        if self.accept("["):
            degree = self.sum()
            self.expect("]")
            return Term("fn", ("root", self.group(), degree))
        return Term("fn", ("sqrt", self.group()))

    def _number_set(self) -> Term:
        name = f"set:{_name(self.group())}"
        return Term("sym", (f"{name}_{self._subscript()}" if self.accept("_") else name,))

    def _decorated(self) -> str:
        if self.peek.kind == "word":
            return self.take().text
        return _name(self.group())

    # -- functions -------------------------------------------------------------------------------------------------
    def _function(self, name: str) -> Term:
        base = self.group() if name == "log" and self.accept("_") else num(10) if name == "lg" else None
        raised = self.group() if self.accept("^") else None
        if name in SEVERAL:
            self._skip_range()
            inside = self._sequence("(") if self.accept("(") else self.group()
            items = inside.args[2:] if inside.op == "seq" else (inside,)
            node = Term("fn", (name, *sorted(items, key=repr)))
        elif self.peek.text in ("(", "{", "["):
            node = Term("fn", (name, self.group()))
        else:
            node = Term("fn", (name, self._argument()))
        if base is not None:
            node = Term("div", (Term("fn", ("ln", node.args[1])), Term("fn", ("ln", base))))
        elif name in _WRITTEN_OUT:
            node = _WRITTEN_OUT[name](node.args[1])
        if raised is None:
            return node
        if raised == Term("neg", (num(1),)):
            return Term("fn", (f"arc{name}", *node.args[1:]))
        return Term("pow", (node, raised))

    def _skip_range(self) -> None:
        r"""Read what a minimum is over, the `_{x > 0}` of `\min_{x > 0} f`, which is no part of its value."""
        if not self.accept("_"):
            return
        if self.accept("{"):
            self.answer()
            self.expect("}")
        else:
            self.atom()

    def _argument(self) -> Term:
        """An argument without brackets: `sin 2x`, `ln 5`; a product up to the next sign or function."""
        factors = [self.signed()]
        while self.starts_factor() and self.peek.text.lstrip("\\") not in FUNCTIONS and self.peek.text not in "([":
            factors.append(self.power())
        return many("mul", factors)

    def _cases(self, closing: str) -> Term:
        r"""A function by cases: rows of a value and its condition, `x & \text{if } x > 0`."""
        self.sink()
        rows: list[Term] = []
        while not self.accept(closing):
            value = self.sum()
            self.accept(",")
            self.accept("&")
            rows.append(Term("case", (value, self._condition())))
            self.accept(",", ".", ";")
            if not self.accept("\\\\") and self.peek.text != closing:
                raise Unparsed("broken cases")
        if not rows:
            raise Unparsed("cases without rows")
        self.depth -= 1
        return Term("cases", tuple(rows))

    def _condition(self) -> Term:
        """The condition of a case behind `if`; `otherwise` is a text."""
        words = ""
        while self.peek.kind in ("word", "text") and (words := self.peek.text.strip(" ,").lower()) in CONDITIONS:
            self.at += 1
            if words in OTHERWISE:
                return Term("text", ("otherwise",))
        return self.relation()

    def _matrix(self, name: str) -> Term:
        if name in ("cases", "dcases", "rcases"):
            return self._cases(rf"\end{{{name}}}")
        if name not in MATRICES:
            raise Unparsed(f"the environment {name!r}")
        self.sink()
        rows: list[tuple[Term, ...]] = []
        row: list[Term] = []
        closing = rf"\end{{{name}}}"
        while not self.accept(closing):
            row.append(self.sum())
            if self.accept("&"):
                continue
            rows.append(tuple(row))
            row = []
            if not self.accept("\\\\") and self.peek.text != closing:
                raise Unparsed("a broken matrix")
        if row or not rows:
            raise Unparsed("a broken matrix")
        self.depth -= 1
        if name == "array" and len(rows) == len(rows[0]) == 1:
            return rows[0][0]
        node = Term("matrix", tuple(rows))
        return Term("fn", ("det", node)) if name == "vmatrix" else node


_KINDS: Mapping[str, Callable[[_Grammar, Token], Term]] = {
    "num": lambda _grammar, token: number(token.text), "word": _Grammar._word, "text": _Grammar._text,
}  # fmt: skip
_COMMANDS: Mapping[str, Callable[[_Grammar], Term]] = {
    "frac": _Grammar._fraction, "sqrt": _Grammar._root, "binom": _Grammar._binomial, "dbinom": _Grammar._binomial,
    "tbinom": _Grammar._binomial, "mathbb": _Grammar._number_set,
}  # fmt: skip
_WRITTEN_OUT: Mapping[str, Callable[[Term], Term]] = {
    "exp": lambda inner: Term("pow", (Term("sym", ("e",)), inner)),
    "cis": lambda inner: Term(
        "add", (Term("fn", ("cos", inner)), Term("mul", (Term("sym", ("i",)), Term("fn", ("sin", inner)))))
    ),
}
"""Functions that stand for another expression: exp x for e^x, cis x for cos x + i sin x."""
_SIGNS = {"pi": Term("sym", ("pi",)), "infty": Term("inf"), "varnothing": Term("empty")}


def _begins_value(first: Token, name: str) -> bool:
    head = re.split("[/^ ]", name, maxsplit=1)[0]
    if first.kind == "text":
        return True
    if head in FUNCTIONS and head in UNITS:
        return name.partition("/")[0] == head  # 15 min, where a function would have an argument: 3 sec x
    if head in WORDS or head in FUNCTIONS or head in INFINITY or head in NEVER_UNITS:
        return False
    if head in UNITS:
        return first.spaced or len(head) > 1
    return first.spaced and len(head) > 2


def _residue(operators: list[str], operands: list[Term], modulus: Term) -> Term:
    """The class of whole numbers that x = 3 mod 7 and 3 mod 7 tell; of several sides the last is the residue."""
    if not set(operators) <= {"=", "=="}:
        raise Unparsed("a modulus behind something else than a residue")
    return Term("mod", (operands[-1], modulus, *(operands[:1] if operators else ())))


def _with_modulus(items: list[Term]) -> list[Term]:
    """Items of a list that share the modulus of the last one: x = 1, 3 mod 7. Raises Unparsed where none has one."""
    last = items[-1]
    if last.op == "mod" and len(last.args) == 2 and not any(item.op == "mod" for item in items[:-1]):
        shared = last.args[1]
        pairs = [(item.args[0], list(item.args[1:])) if item.op == "rel" else ((), [item]) for item in items[:-1]]
        items = [*(_residue(list(operators), sides, shared) for operators, sides in pairs), last]
    if any(item.op == "rel" and "==" in item.args[0] for item in items):
        raise Unparsed("a congruence without a modulus")
    return items


def _either(items: list[Term], starts: list[int]) -> Term | None:
    """Equations with `or` between them in several unknowns; None in one unknown, of which they are the values.

    x = 1 or y = 2 is a union, x = 1, y = 2 or x = 2, y = 1 are two pairs. `starts` says where each alternative begins.
    """
    if any(item.op != "rel" or len(item.args) != 3 for item in items) or len({item.args[1] for item in items}) == 1:
        return None
    groups = [sorted(items[start:end], key=repr) for start, end in pairwise((*starts, len(items)))]
    unknowns = {tuple(item.args[1] for item in group) for group in groups}
    if len(unknowns) > 1 or len(groups[0]) == 1:
        return Term("union", tuple(items))
    return many("list", [Term("seq", ("(", ")", *(item.args[2] for item in group))) for group in groups])


def _bracketed(opening: str, closing: str, rows: list[list[Term]], is_row: bool) -> Term:
    """Items in brackets as a set, a tuple, an interval or the rows of a matrix; one item in round ones is itself.

    `is_row` says that brackets stand among others like them, so that [[1], [2]] is a matrix. ]1, 3[ is (1, 3).
    """
    is_french = opening == "]" or closing == "["
    opening, closing = opening.replace("]", "("), closing.replace("[", ")")
    items = _rows(rows) if opening + closing == "[]" else [item for row in rows for item in row]
    if opening + closing == "[]" and len(items) == 1 and (is_row or items[0].args[:2] == ("[", "]")):
        return Term("seq", ("[", "]", items[0]))
    if opening == r"\{":
        return Term("seq", ("{", "}", *items)) if items else Term("empty")
    if len(items) == 1 and (opening, closing) in (("(", ")"), ("[", "]")):
        return items[0]
    if len(items) < 2 or ((is_french or opening + closing in ("(]", "[)")) and len(items) != 2):
        raise Unparsed("brackets without items")
    opening, closing = ("(", ")") if opening == r"\langle" else (opening, closing)
    return Term("seq", (opening, closing, *items))


def _rows(rows: list[list[Term]]) -> list[Term]:
    """What stands in square brackets: the rows of [1, 2; 3, 4], or all items where a semicolon parts each."""
    if len(rows) == 1 or not all(len(row) == len(rows[0]) > 1 for row in rows):
        return [item for row in rows for item in row]
    return [Term("seq", ("[", "]", *row)) for row in rows]


def _quotient(above: list[Term], below: list[Term]) -> Term:
    top = many("mul", above)
    return Term("div", (top, many("mul", below))) if below else top


def _whole(node: Term) -> bool:
    """An unsigned integer literal, which may open a mixed number."""
    return node.op == "num" and node.args[1] is None


_NO_AMOUNTS = ("quantity", "seq", "inf", "base", "matrix")
"""What has no unit."""
_PLURAL = re.compile(r"[a-z]{3,20}s")


def _name(node: Term) -> str:
    """The text of a subscript or a decorated name."""
    if node.op in ("num", "sym"):
        return str(node.args[0])
    if node.op == "mul":
        return "".join(_name(child) for child in node.children())
    if node.op == "neg":
        return f"-{_name(node.args[0])}"
    if node.op == "add":
        return "+".join(map(_name, node.args)).replace("+-", "-")
    if node.op == "div":
        return "/".join(map(_name, node.args))
    raise Unparsed("a subscript that is not a name")
