"""Parse a short answer into a `Term`, or refuse it: a recursive-descent grammar over LaTeX and plain notation.

Every token must be consumed: a partial parse is a refusal, never a smaller expression. Depth and sizes are capped, the
time is linear, nothing is evaluated. Mixed numbers, thousands, percent, units, sets, tuples, intervals, unions,
inequality chains, ratios, bases, matrices, plus-minus and the usual functions are understood; so are units of
measurement and currency that follow or precede a number.
Left out: sums, products, integrals, limits, sequences with dots (`math-verify` may know them, in a worker).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ttc.answers.nodes import Term, many, num
from ttc.answers.tokens import Alternatives, Token, TooLarge, Unparsed, tokens
from ttc.answers.values import (
    DECORATIONS,
    FENCES,
    FUNCTIONS,
    GREEK,
    INFINITY,
    NEVER_UNITS,
    RELATIONS,
    VALUES,
    WORDS,
    Values,
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A dimension with a factor to its base unit; the dimension is empty for an unknown word."""

    dimension: str
    factor: Fraction


def _table() -> dict[str, Unit]:
    rows: dict[str, list[tuple[str, str]]] = {
        "length": [
            ("1", "m metre metres meter meters"), ("1/100", "cm centimetre centimetres centimeter centimeters"),
            ("1/1000", "mm millimetre millimetres millimeter millimeters"),
            ("1000", "km kilometre kilometres kilometer kilometers"), ("254/10000", "inch inches"),
            ("3048/10000", "ft foot feet"), ("9144/10000", "yd yard yards"), ("1609344/1000", "mi mile miles"),
        ],
        "mass": [
            ("1", "kg kilogram kilograms"), ("1/1000", "g gram grams"), ("1/1000000", "mg milligram milligrams"),
            ("45359237/100000000", "lb lbs pound pounds"), ("45359237/1600000000", "oz ounce ounces"),
        ],
        "time": [
            ("1", "s sec secs second seconds"), ("60", "min mins minute minutes"), ("3600", "h hr hrs hour hours"),
            ("86400", "day days"), ("604800", "week weeks"), ("1/1000", "ms millisecond milliseconds"),
        ],
        "angle": [("1", "deg degree degrees"), ("0", "rad radian radians")],
        "volume": [("1", "L l litre litres liter liters"), ("1/1000", "ml mL millilitre milliliter milliliters")],
        "money:usd": [("1", "USD usd dollar dollars"), ("1/100", "cent cents")],
        "money:eur": [("1", "EUR euro euros")],
        "money:gbp": [("1", "GBP")],
        "money:jpy": [("1", "JPY yen")],
        "money:inr": [("1", "INR rupee rupees")],
        "month": [("1", "month months")],
        "year": [("1", "yr yrs year years")],
        "celsius": [("1", "C")],
        "fahrenheit": [("1", "F")],
        "kelvin": [("1", "K")],
    }  # fmt: skip
    return {
        name: Unit(dimension, Fraction(factor))
        for dimension, entries in rows.items()
        for factor, names in entries
        for name in names.split()
    }


UNITS = _table()
_POWER = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}


def unit(text: str) -> Unit:
    """Read a unit such as `cm`, `square feet`, `cm^2`, `km/h`, `miles per hour`; unknown words have no dimension."""
    text = text.removeprefix("degree ") if text in ("degree C", "degree F") else text
    top, _, bottom = text.replace(" per ", "/").partition("/")
    upper, lower = _simple(top), _simple(bottom) if bottom.strip() else None
    if lower is None:
        return upper
    if not upper.dimension or not lower.dimension or not lower.factor:
        return Unit("", Fraction(1))
    return Unit(f"{upper.dimension}/{lower.dimension}", upper.factor / lower.factor)


def _simple(text: str) -> Unit:
    words, power = text.split(), 1
    if words and words[0] in _POWER:
        power, words = _POWER[words[0]], words[1:]
    name = words[0] if len(words) == 1 else ""
    name, _, exponent = name.partition("^")
    if exponent in ("2", "3"):
        power = int(exponent)
    entry = UNITS.get(name) or UNITS.get(name.lower())
    if entry is None:
        return Unit("", Fraction(1))
    return entry if power == 1 else Unit(f"{entry.dimension}^{power}", entry.factor**power)


MAX_POSTFIX = 6


def parse(text: str) -> Term:
    """Return the tree of a plain answer (see `tokens.plain`). Raises Unparsed, or TooLarge beyond a cap."""
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


def _only_words(found: list[Token]) -> bool:
    """Words without a sign of mathematics: `Tuesday`, `no solution`; one letter is a variable, `pi` a constant."""
    words = [token for token in found if token.kind in ("word", "text")]
    marks = [token.text for token in found if token.kind not in ("word", "text")]
    if not words or found[0].kind == "mark" or any(mark not in ("-", "'", '"', "?", "!") for mark in marks):
        return False
    first = words[0].text
    if first in FUNCTIONS or (len(words) == 1 and (first in WORDS or first in INFINITY)):
        return False
    # A hyphen joins words; between single letters it is a minus.
    shortest = 3 if "-" in marks else 1
    long_enough = all(len(token.text.strip("() ")) >= shortest for token in words)
    return long_enough and any(len(token.text.strip("() ")) > 1 for token in words)


class _Grammar(Values):
    """The outer levels: arithmetic, relations, lists."""

    # -- lists, relations, unions ----------------------------------------------------------------------------------
    def answer(self) -> Term:
        """A whole answer: items joined by commas, `and` or `or`. Raises Alternatives for "1 or 4"."""
        items = [self.relation()]
        alternatives = False
        while True:
            if self.accept(",", ";"):
                self._joiner()
            elif (joiner := self._joiner()) is None:
                break
            else:
                alternatives |= joiner == "or"
            if self.peek.kind == "end":
                raise Unparsed("an item is missing after a separator")
            items.append(self.relation())
        if alternatives and not all(item.op == "rel" for item in items):
            raise Alternatives("alternatives")
        if alternatives and any(item.args[0] != ("=",) for item in items):
            return Term("union", tuple(items))
        return many("list", items)

    def _joiner(self) -> str | None:
        word = self.peek.text.strip().lower()
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
        return Term("rel", (tuple(operators), *operands)) if operators else operands[0]

    def _union(self) -> Term:
        items = [self._ratio()]
        while self.accept(r"\cup") or (self._cup() and self.accept("U")):
            items.append(self._ratio())
        return many("union", items)

    def _cup(self) -> bool:
        """Whether a letter U stands for the union of two intervals."""
        return self.peek.text == "U" and self.last.text in (")", "]")

    def _ratio(self) -> Term:
        items = [self.sum()]
        while self.accept(":"):
            items.append(self.sum())
        return many("ratio", items)

    # -- arithmetic ------------------------------------------------------------------------------------------------
    def sum(self) -> Term:
        """Terms joined by plus, minus and at most one plus-minus."""
        self.sink()
        terms = [] if self.peek.text == r"\pm" else [self._product()]
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
            if self.accept("*", r"\times", r"\cdot"):
                above.append(self.signed())
            elif self.accept("/", r"\div"):
                below.append(self.signed())
            elif self.accept("%", r"\%"):
                return Term("quantity", (_quotient(above, below), "%"))
            elif not self.starts_factor():
                return _quotient(above, below)
            elif unit := self._unit(above + below):
                return Term("quantity", (_quotient(above, below), unit))
            elif not below and _whole(above[-1]) and (mixed := self._mixed(above[-1])):
                above[-1] = mixed
            elif self.peek.kind == "num" and self._runs_on():
                raise Unparsed("a number runs on from what precedes it")
            else:
                above.append(self.power())

    def _runs_on(self) -> bool:
        """Whether a number runs on from what stands before it: after a number, or a letter without a space."""
        return self.last.kind == "num" or (self.last.kind == "word" and not self.peek.spaced)

    def starts_factor(self) -> bool:
        """Whether the next token can begin a factor without a sign before it."""
        token = self.peek
        if token.kind == "num":
            return True
        if token.kind in ("word", "text"):
            return token.text.lower() not in ("and", "or") and not self._cup()
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
            if self.accept("^"):
                node = self._raised(node)
            elif self.accept("!"):
                if self.peek.text == "!":
                    raise Unparsed("a double factorial")
                node = Term("fn", ("factorial", node))
            elif self.accept("%", r"\%"):
                node = Term("quantity", (node, "%"))
            elif node.op == "num" and self.accept("_"):
                node = self._based(node)
            else:
                return node
        raise TooLarge(f"more than {MAX_POSTFIX} signs after one value")

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
        base = self.group()
        if base.op != "num" or base.args[0].denominator != 1 or not _whole(digits):
            raise Unparsed("a base that is not an integer")
        return Term("base", (str(digits.args[0]), int(base.args[0])))

    # -- mixed numbers and units -----------------------------------------------------------------------------------
    def _mixed(self, whole: Term) -> Term | None:
        start, kept = self.at, self.found[self.at : self.at + 4]
        if self.peek.kind == "num" and self.ahead(1).text == "/" and self.ahead(2).kind == "num":
            top, _, bottom = self.take().text, self.take(), self.take().text
        elif self.accept(r"\frac"):
            top, bottom = self._digits_group(), self._digits_group()
        else:
            return None
        if top.isdigit() and bottom.isdigit() and int(top) < int(bottom):
            return num(whole.args[0] + Fraction(int(top), int(bottom)))
        self.at = start
        self.found[start : start + len(kept)] = kept
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
            self.found[self.at] = Token("num", token.text[1])
            return token.text[0]
        return self.take().text

    def _unit(self, left: list[Term]) -> str:
        """Words after a number, as a unit; empty when what follows is not one. A bare letter counts after a space."""
        if not all(_numeric(node) for node in left):
            return ""
        start, words = self.at, []
        while self.peek.kind in ("word", "text") and self.peek.text.lower() not in ("and", "or"):
            words.append(self.take().text)
            if self.accept("^"):
                words[-1] += f"^{self._digits_group()}"
            if self.peek.text == "/" and self.ahead(1).kind in ("word", "text"):
                self.at += 1
                words.append("/")
        name = " ".join(words).replace(" / ", "/")
        if name and self._ends_item() and _begins_value(self.found[start], name):
            return name
        self.at = start
        return ""

    def _ends_item(self) -> bool:
        token = self.peek
        return token.kind == "end" or token.text in (",", ";", ")", "]", r"\}", r"\rangle", "=", "and", "or")


def _begins_value(first: Token, name: str) -> bool:
    head = re.split("[/^ ]", name, maxsplit=1)[0]
    if first.kind == "text":
        return True
    if head in WORDS or head in FUNCTIONS or head in INFINITY or head in NEVER_UNITS:
        return False
    if head in UNITS:
        return first.spaced or len(head) > 1
    return first.spaced and len(head) > 2


def _quotient(above: list[Term], below: list[Term]) -> Term:
    top = many("mul", above)
    return Term("div", (top, many("mul", below))) if below else top


def _whole(node: Term) -> bool:
    """An unsigned integer literal, which may open a mixed number."""
    return node.op == "num" and node.args[1] is None


def _numeric(node: Term) -> bool:
    return not node.symbols() and not node.has("quantity", "seq", "inf", "pm", "base", "matrix")
