"""The innermost level of the grammar: numbers, names, brackets, functions, fractions, roots, matrices.

Also what all levels share: the words and commands that are known, and a cursor over tokens with a cap of its depth.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from fractions import Fraction

from ttc.answers.nodes import Term, many, num
from ttc.answers.tokens import Token, TooLarge, Unparsed

RELATIONS = {"=": "=", "<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\ne": "!=", r"\approx": "~", r"\in": "in"}
"""Spelling of a relation to its operator."""
GREEK = frozenset({
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "kappa", "lambda",
    "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda",
    "Sigma", "Phi", "Psi", "Omega", "ell", "hbar",
})  # fmt: skip
FUNCTIONS = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "ln": "ln", "log": "log", "lg": "lg", "exp": "exp", "arcsin": "arcsin",
    "arccos": "arccos", "arctan": "arctan", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "min": "min",
    "max": "max", "gcd": "gcd", "lcm": "lcm", "det": "det", "abs": "abs", "floor": "floor", "ceil": "ceil",
}  # fmt: skip
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
FENCES = {"|": ("|", "abs"), r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceil")}
"""Opening fence to the closing one and the function that both mean."""
MATRICES = frozenset({"matrix", "pmatrix", "bmatrix", "vmatrix", "Bmatrix", "array", "smallmatrix"})
VALUES = frozenset({"frac", "sqrt", "pi", "infty", "binom", "dbinom", "tbinom", "mathbb", "{", "langle", "varnothing"})
"""Further commands that begin a value."""
NEVER_UNITS = frozenset({"e", "i", "x", "y", "z", "n"})
"""Letters that are variables even after a number and a space."""
MAX_DIGITS, MAX_DEPTH = 1000, 40


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


class Cursor(ABC):
    """Reads tokens one by one; `sum`, `relation`, ... are the levels of precedence that call each other."""

    def __init__(self, found: list[Token]) -> None:
        self.found, self.at, self.depth, self.bars = found, 0, 0, 0

    @property
    def peek(self) -> Token:
        """The next token."""
        return self.found[self.at]

    @property
    def last(self) -> Token:
        """The token before the next one."""
        return self.found[max(self.at - 1, 0)]

    def ahead(self, by: int) -> Token:
        """The token `by` places after the next one."""
        return self.found[min(self.at + by, len(self.found) - 1)]

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

    @abstractmethod
    def relation(self) -> Term:
        """A chain of sides joined by relation signs."""

    @abstractmethod
    def sum(self) -> Term:
        """Terms joined by plus, minus and plus-minus."""

    @abstractmethod
    def signed(self) -> Term:
        """A factor with its signs."""

    @abstractmethod
    def power(self) -> Term:
        """A value with what is attached to it: exponents, factorials, percent signs."""

    @abstractmethod
    def starts_factor(self) -> bool:
        """Whether the next token can begin a factor without a sign before it."""


MAX_PRODUCT_WORD = 4
"""Letters of a word that is still read as a product of variables."""


class Values(Cursor):
    """Reads one value."""

    def atom(self) -> Term:
        """A value without anything attached to it."""
        self.sink()
        token = self.take()
        if token.kind in _KINDS:
            node = _KINDS[token.kind](self, token)
        elif token.text == "{":
            self.at -= 1
            node = self.group()
        elif token.text in SETS:
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
    def _number(self, token: Token) -> Term:
        return number(token.text)

    def _text(self, token: Token) -> Term:
        r"""Read a value inside words, as in `\text{5}` and `\text{(C)}`; other words end the parse."""
        inner = token.text.strip("() ")
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
        if len(name) > MAX_PRODUCT_WORD or not name.isascii():
            raise Unparsed(f"the word {name[:40]!r}")
        if len(name) == 1:
            return Term("sym", (self._marked(name),))
        if self._among_words(token):
            raise Unparsed(f"the word {name!r} in a sentence")
        # Letters side by side are a product: leave the rest for the next factor.
        self.at -= 1
        self.found[self.at] = Token("word", name[1:])
        return Term("sym", (name[0],))

    def _among_words(self, token: Token) -> bool:
        """Whether white space parts a word from another or from a number, as in a sentence."""
        wordy = ("word", "text", "num")
        before = self.found[self.at - 2] if self.at > 1 else None
        after = self.peek.spaced and self.peek.kind in wordy
        return after or (token.spaced and before is not None and before.kind in wordy)

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
        if opening == r"\{" and self.peek.kind == "word" and self.ahead(1).text in ("|", r"\mid", ":"):
            return self._set_builder()
        self.sink()
        bars, self.bars = self.bars, 0
        items: list[Term] = []
        closings = (")", "]") if opening in "([" else (SETS[opening],)
        while not self.accept(*closings):
            if items and not self.accept(",", ";"):
                raise Unparsed(f"expected a separator, found {self.peek.text[:40]!r}")
            items.append(self.relation())
        closing = self.last.text
        self.depth -= 1
        self.bars = bars
        if opening == r"\{":
            return Term("seq", ("{", "}", *items)) if items else Term("empty")
        if len(items) == 1 and (opening, closing) in (("(", ")"), ("[", "]")):
            return items[0]
        if len(items) < 2 or (opening + closing in ("(]", "[)") and len(items) != 2):
            raise Unparsed("brackets without items")
        opening, closing = ("(", ")") if opening == r"\langle" else (opening, closing)
        return Term("seq", (opening, closing, *items))

    def _set_builder(self) -> Term:
        """{x | x > 3} is the solution set of its condition."""
        letter = self.take().text
        self.take()
        condition = self.relation()
        self.expect(r"\}")
        if condition.op != "rel" or condition.symbols() != {letter}:
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
        top = self._fraction_part()
        return Term("div", (top, self._fraction_part()))

    def _binomial(self) -> Term:
        upper = self._fraction_part()
        return Term("fn", ("binom", upper, self._fraction_part()))

    def _fraction_part(self) -> Term:
        r"""A group; `\frac12` takes one digit at a time."""
        token = self.peek
        if token.kind == "num" and len(token.text) > 1 and token.text.isdigit():
            self.found[self.at] = Token("num", token.text[1:])
            return num(int(token.text[0]))
        return self.group()

    def _root(self) -> Term:
        if self.accept("["):
            degree = self.sum()
            self.expect("]")
            return Term("fn", ("root", self.group(), degree))
        return Term("fn", ("sqrt", self.group()))

    def _pi(self) -> Term:
        return Term("sym", ("pi",))

    def _infinity(self) -> Term:
        return Term("inf")

    def _empty(self) -> Term:
        return Term("empty")

    def _number_set(self) -> Term:
        return Term("sym", (f"set:{_name(self.group())}",))

    def _decorated(self) -> str:
        if self.peek.kind == "word":
            return self.take().text
        return _name(self.group())

    # -- functions -------------------------------------------------------------------------------------------------
    def _function(self, name: str) -> Term:
        base = self.group() if name == "log" and self.accept("_") else num(10) if name == "lg" else None
        raised = self.group() if self.accept("^") else None
        if name in SEVERAL:
            inside = self._sequence("(") if self.accept("(") else self.group()
            node = Term("fn", (name, *(inside.args[2:] if inside.op == "seq" else (inside,))))
        elif self.peek.text in ("(", "{", "["):
            node = Term("fn", (name, self.group()))
        else:
            node = Term("fn", (name, self._argument()))
        if base is not None:
            node = Term("div", (Term("fn", ("ln", node.args[1])), Term("fn", ("ln", base))))
        if raised is None:
            return node
        if raised == Term("neg", (num(1),)):
            return Term("fn", (f"arc{name}", *node.args[1:]))
        return Term("pow", (node, raised))

    def _argument(self) -> Term:
        """An argument without brackets: `sin 2x`, `ln 5`; a product up to the next sign or function."""
        factors = [self.signed()]
        while self.starts_factor() and self.peek.text.lstrip("\\") not in FUNCTIONS and self.peek.text not in "([":
            factors.append(self.power())
        return many("mul", factors)

    def _matrix(self, name: str) -> Term:
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
        node = Term("matrix", tuple(rows))
        return Term("fn", ("det", node)) if name == "vmatrix" else node


_KINDS: Mapping[str, Callable[[Values, Token], Term]] = {
    "num": Values._number, "word": Values._word, "text": Values._text,
}  # fmt: skip
_COMMANDS: Mapping[str, Callable[[Values], Term]] = {
    "frac": Values._fraction, "sqrt": Values._root, "binom": Values._binomial, "dbinom": Values._binomial,
    "tbinom": Values._binomial, "pi": Values._pi, "infty": Values._infinity, "varnothing": Values._empty,
    "mathbb": Values._number_set,
}  # fmt: skip


def _name(node: Term) -> str:
    """The text of a subscript or a decorated name."""
    if node.op in ("num", "sym"):
        return str(node.args[0])
    if node.op == "mul":
        return "".join(_name(child) for child in node.children())
    raise Unparsed("a subscript that is not a name")
