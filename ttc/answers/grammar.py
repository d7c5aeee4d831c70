r"""Parse a short answer into a `Node`, or refuse it: a recursive-descent grammar over LaTeX and plain notation.

Every token must be consumed: a partial parse is a refusal, never a smaller expression. Depth and sizes are capped, the
time is linear, nothing is evaluated. Mixed numbers, thousands, percent, units, sets, tuples, intervals, unions,
inequality chains, ratios, bases, matrices, plus-minus and the usual functions are understood.
Left out: sums, products, integrals, limits, sequences with dots (`math-verify` may know them, in a worker).
"""

from __future__ import annotations

import re
from fractions import Fraction

from ttc.answers.nodes import Node, many, num
from ttc.answers.tokens import Alternatives, Token, TooLarge, Unparsed, tokens
from ttc.answers.units import UNITS

MAX_DEPTH = 40
MAX_DIGITS = 1000
MAX_POSTFIX = 6

RELATIONS = {"=": "=", "<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\ne": "!=", r"\approx": "=", r"\in": "in"}
GREEK = frozenset(
    [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "varepsilon",
        "zeta",
        "eta",
        "theta",
        "vartheta",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "rho",
        "sigma",
        "tau",
        "phi",
        "chi",
        "psi",
        "omega",
        "Gamma",
        "Delta",
        "Theta",
        "Lambda",
        "Sigma",
        "Phi",
        "Psi",
        "Omega",
        "ell",
    ]
)
FUNCTIONS = {
    name: name
    for name in [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "sinh",
        "cosh",
        "tanh",
        "ln",
        "log",
        "exp",
        "arcsin",
        "arccos",
        "arctan",
        "min",
        "max",
        "gcd",
        "lcm",
        "det",
    ]
} | {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "abs": "abs", "floor": "floor", "ceil": "ceil"}
WORDS = {"pi": "pi", "theta": "theta", "alpha": "alpha", "beta": "beta", "lambda": "lambda", "phi": "phi"}
INFINITY = frozenset({"inf", "infinity", "infty", "oo", "Infinity"})
SETS = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle"}
FENCES = {"|": ("|", "abs"), r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceil")}
VALUES = frozenset({"frac", "sqrt", "pi", "infty", "binom", "dbinom", "tbinom", "mathbb", "{", "langle", "varnothing"})
MATRICES = frozenset({"matrix", "pmatrix", "bmatrix", "vmatrix", "Bmatrix", "array", "smallmatrix"})


def parse(text: str) -> Node:
    """Return the tree of a plain answer (see `plain.plain`). Raises Unparsed, or TooLarge beyond a cap."""
    found = tokens(text)
    if len(found) == 1:
        raise Unparsed("empty")
    if _only_words(found):
        return Node("text", (" ".join(token.text for token in found[:-1]),))
    parser = _Parser(found)
    node = parser.answer()
    if parser.peek.kind != "end":
        raise Unparsed(f"{parser.peek.text!r} left over")
    return node


def _only_words(found: list[Token]) -> bool:
    """Words without a sign of mathematics: `Tuesday`, `no solution`; one letter is a variable, `pi` a constant."""
    words = [token for token in found[:-1] if token.kind in ("word", "text") or token.text in "-'\"?!"]
    if len(words) < len(found) - 1 or words[0].kind == "mark":
        return False
    only = words[0].text
    if len(words) > 1 or words[0].kind == "text":
        return only not in FUNCTIONS and (len(words) > 1 or len(only.strip("() ")) > 1)
    return len(only) > 1 and only not in WORDS and only not in INFINITY and only not in FUNCTIONS


class _Parser:
    """A cursor over tokens; each method reads one level of precedence."""

    def __init__(self, found: list[Token]) -> None:
        self.found, self.at, self.depth, self.bars = found, 0, 0, 0

    # -- the cursor ------------------------------------------------------------------------------------------------
    @property
    def peek(self) -> Token:
        return self.found[self.at]

    def ahead(self, by: int) -> Token:
        return self.found[min(self.at + by, len(self.found) - 1)]

    def take(self) -> Token:
        token = self.found[self.at]
        if token.kind == "end":
            raise Unparsed("unexpected end")
        self.at += 1
        return token

    def accept(self, *texts: str) -> bool:
        if self.peek.kind not in ("end", "text") and self.peek.text in texts:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise Unparsed(f"expected {text!r}, found {self.peek.text!r}")

    def sink(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH}")

    # -- lists, relations, unions ----------------------------------------------------------------------------------
    def answer(self) -> Node:
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
            return Node("union", tuple(items))
        return items[0] if len(items) == 1 else Node("list", tuple(items))

    def _joiner(self) -> str | None:
        word = self.peek.text.strip().lower()
        if self.peek.kind in ("word", "text") and word in ("and", "or"):
            self.at += 1
            return word
        return None

    def relation(self) -> Node:
        operands, operators = [self.union()], []
        while self.peek.kind in ("mark", "cmd") and self.peek.text in RELATIONS:
            operators.append(RELATIONS[self.take().text])
            operands.append(self.union())
        if not operators:
            return operands[0]
        return Node("rel", (tuple(operators), *operands))

    def union(self) -> Node:
        items = [self.ratio()]
        while self.accept(r"\cup") or (self._cup() and self.accept("U")):
            items.append(self.ratio())
        return items[0] if len(items) == 1 else Node("union", tuple(items))

    def _cup(self) -> bool:
        """Whether a letter U stands for the union of two intervals."""
        return self.peek.text == "U" and self.found[self.at - 1].text in (")", "]")

    def ratio(self) -> Node:
        items = [self.sum()]
        while self.accept(":"):
            items.append(self.sum())
        return items[0] if len(items) == 1 else Node("ratio", tuple(items))

    # -- arithmetic ------------------------------------------------------------------------------------------------
    def sum(self) -> Node:
        self.sink()
        terms = [] if self.peek.text == r"\pm" else [self.product()]
        either: list[Node] = []
        while True:
            if self.accept("+"):
                terms.append(self.product())
            elif self.accept("-"):
                terms.append(Node("neg", (self.product(),)))
            elif self.accept(r"\pm", r"\mp"):
                either.append(self.product())
            else:
                break
        self.depth -= 1
        if len(either) > 1:
            raise Unparsed("more than one plus-minus sign")
        node = many("add", terms) if terms else num(0)
        return Node("pm", (node, either[0])) if either else node

    def product(self) -> Node:
        above, below = [self.signed()], list[Node]()
        while True:
            if self.accept("*", r"\times", r"\cdot"):
                above.append(self.signed())
            elif self.accept("/", r"\div"):
                below.append(self.signed())
            elif self.accept("%", r"\%"):
                return Node("quantity", (_ratio(above, below), "%"))
            elif not self._starts_factor():
                break
            elif unit := self._unit(above + below):
                return Node("quantity", (_ratio(above, below), unit))
            elif not below and _whole(above[-1]) and (mixed := self._mixed(above[-1])):
                above[-1] = mixed
            elif self.peek.kind == "num" and self._runs_on():
                raise Unparsed("a number runs on from what precedes it")
            else:
                above.append(self.power())
        return _ratio(above, below)

    def _runs_on(self) -> bool:
        """Whether a number runs on from what stands before it: after a number, or a letter without a space."""
        before = self.found[self.at - 1].kind
        return before == "num" or (before == "word" and not self.peek.spaced)

    def _mixed(self, whole: Node) -> Node | None:
        start, kept = self.at, self.found[self.at : self.at + 3]
        if self.peek.kind == "num" and self.ahead(1).text == "/" and self.ahead(2).kind == "num":
            top, _, bottom = self.take().text, self.take(), self.take().text
            part = (top, bottom)
        elif self.peek.text == r"\frac":
            self.take()
            part = (self._digits_group(), self._digits_group())
        else:
            return None
        if not (part[0].isdigit() and part[1].isdigit() and int(part[1]) and int(part[0]) < int(part[1])):
            self.at = start
            self.found[start : start + len(kept)] = kept
            return None
        return num(whole.args[0] + Fraction(int(part[0]), int(part[1])))

    def _digits_group(self) -> str:
        """The digits of `{12}` or `1`; an empty string when it is anything else (the caller rewinds)."""
        if self.accept("{"):
            inner = self.peek.text if self.peek.kind == "num" else ""
            self.at += 1
            return inner if self.peek.text == "}" and self.take() else ""
        token = self.peek
        if token.kind != "num" or len(token.text) > 2:
            return ""
        if len(token.text) == 2:
            # \frac12: both digits lie in one token; leave the second for the next call.
            self.found[self.at] = Token("num", token.text[1])
            return token.text[0]
        return self.take().text

    def _unit(self, left: list[Node]) -> str:
        """Words after a number, as a unit; empty when what follows is not one. A bare letter counts after a space."""
        if not all(_numeric(node) for node in left):
            return ""
        start, words = self.at, []
        while self.peek.kind in ("word", "text") and self.peek.text.lower() not in ("and", "or"):
            token = self.take()
            words.append(token.text)
            if self.accept("^"):
                exponent = self._digits_group()
                words[-1] += f"^{exponent}"
            if self.peek.text == "/" and self.ahead(1).kind in ("word", "text"):
                self.take()
                words.append("/")
        name = " ".join(words).replace(" / ", "/")
        if name and self._ends_item() and self._is_unit(self.found[start], name):
            return name
        self.at = start
        return ""

    def _ends_item(self) -> bool:
        token = self.peek
        return token.kind == "end" or token.text in (",", ";", ")", "]", r"\}", r"\rangle", "and", "or")

    @staticmethod
    def _is_unit(first: Token, name: str) -> bool:
        head = re.split("[/^ ]", name, maxsplit=1)[0]
        if first.kind == "text":
            return True
        if head in WORDS or head in FUNCTIONS or head in INFINITY or head in ("e", "i", "x", "y", "z", "n"):
            return False
        if head in UNITS:
            return first.spaced or len(head) > 1
        return first.spaced and len(head) > 2

    def _starts_factor(self) -> bool:
        token = self.peek
        if token.kind == "num":
            return True
        if token.kind in ("word", "text"):
            return token.text.lower() not in ("and", "or") and not self._cup()
        if token.kind == "mark":
            return token.text in "([{" or (token.text == "|" and not self.bars)
        name = token.text[1:]
        return name in GREEK or name in FUNCTIONS or token.text in FENCES or name in VALUES or name.startswith("begin{")

    def signed(self) -> Node:
        minus = False
        while self.peek.kind == "mark" and self.peek.text in "+-":
            minus ^= self.take().text == "-"
        if not minus:
            return self.power()
        node = self.power()
        if _whole(node) and (mixed := self._mixed(node)):
            node = mixed
        return Node("neg", (node,))

    def power(self) -> Node:
        node = self.atom()
        for _ in range(MAX_POSTFIX):
            if self.accept("^"):
                if self.accept(r"\circ"):
                    node = Node("quantity", (node, "degree"))
                    continue
                raised = self.group(power=True)
                node = Node("quantity", (node, "degree")) if raised.op == "degree" else Node("pow", (node, raised))
            elif self.accept("!"):
                node = Node("fn", ("factorial", node))
            elif self.accept("%", r"\%"):
                node = Node("quantity", (node, "%"))
            elif node.op == "num" and self.accept("_"):
                node = self._based(node)
            else:
                return node
        raise TooLarge(f"more than {MAX_POSTFIX} signs after one value")

    def _based(self, digits: Node) -> Node:
        base = self.group()
        if base.op == "text" or base.op != "num" or base.args[0].denominator != 1 or digits.args[1] is not None:
            raise Unparsed("a base that is not an integer")
        return Node("base", (str(digits.args[0]), int(base.args[0])))

    def group(self, power: bool = False) -> Node:
        """A braced group, or the one atom that LaTeX would take."""
        if self.accept("{"):
            if power and self.accept(r"\circ"):
                self.expect("}")
                return Node("degree")
            self.sink()
            node = self.sum()
            self.expect("}")
            self.depth -= 1
            return node
        if power and self.peek.text in ("-", "+"):
            return self.signed()
        return self.atom()

    # -- atoms -----------------------------------------------------------------------------------------------------
    def atom(self) -> Node:
        self.sink()
        node = self._atom()
        self.depth -= 1
        return node

    def _atom(self) -> Node:
        token = self.take()
        if token.kind == "num":
            return number(token.text)
        if token.kind == "word":
            return self._word(token)
        if token.kind == "text":
            return self._text(token)
        if token.text == "{":
            self.at -= 1
            return self.group()
        if token.text in SETS:
            return self._sequence(token.text)
        if token.text in FENCES:
            return self._fence(token.text)
        if token.kind == "cmd":
            return self._command(token.text)
        raise Unparsed(f"{token.text!r} not understood")

    def _text(self, token: Token) -> Node:
        r"""Read a value inside words, as in `\text{5}` and `\text{(C)}`; other words end the parse."""
        inner = token.text.strip("() ")
        if len(inner) == 1 and inner.isalpha():
            return Node("sym", (inner,))
        if inner.replace(".", "", 1).isdigit() and inner.isascii():
            return number(inner)
        raise Unparsed(f"the words {token.text[:40]!r}")

    def _word(self, token: Token) -> Node:
        name = token.text
        if name in ("USD", "EUR"):
            return Node("quantity", (self.signed(), name))
        if name in INFINITY:
            return Node("inf")
        if name in WORDS:
            return Node("sym", (WORDS[name],))
        if name == "sqrt":
            return self._root()
        if name in FUNCTIONS:
            return self._function(FUNCTIONS[name])
        if len(name) > 4 or not name.isascii():
            raise Unparsed(f"the word {name[:40]!r}")
        if len(name) > 1:
            # Letters side by side are a product: leave the rest for the next factor.
            self.at -= 1
            self.found[self.at] = Token("word", name[1:])
        letter = name[0]
        if len(name) == 1 and self.accept("_"):
            subscript = self.group()
            letter += f"_{_name(subscript)}"
        while len(name) == 1 and self.accept("'"):
            letter += "'"
        return Node("sym", (letter,))

    def _sequence(self, opening: str) -> Node:
        self.sink()
        bars, self.bars = self.bars, 0
        items: list[Node] = []
        closings = (")", "]") if opening in "([" else (SETS[opening],)
        while not self.accept(*closings):
            if items and not self.accept(",", ";"):
                raise Unparsed(f"expected a separator, found {self.peek.text!r}")
            items.append(self.relation())
        closing = self.found[self.at - 1].text
        self.depth -= 1
        self.bars = bars
        if opening == r"\{":
            return Node("seq", ("{", "}", *items)) if items else Node("empty")
        if len(items) == 1 and (opening, closing) in (("(", ")"), ("[", "]")):
            return items[0]
        if len(items) < 2 or (opening + closing in ("(]", "[)") and len(items) != 2):
            raise Unparsed("brackets without items")
        opening, closing = ("(", ")") if opening == r"\langle" else (opening, closing)
        return Node("seq", (opening, closing, *items))

    def _fence(self, opening: str) -> Node:
        closing, name = FENCES[opening]
        self.bars += opening == "|"
        inner = self.sum()
        self.expect(closing)
        self.bars -= opening == "|"
        return Node("fn", (name, inner))

    def _command(self, text: str) -> Node:
        name = text[1:]
        if name == "frac":
            top = self._fraction_part()
            return Node("div", (top, self._fraction_part()))
        if name == "sqrt":
            return self._root()
        if name in ("binom", "dbinom", "tbinom"):
            upper = self._fraction_part()
            return Node("fn", ("binom", upper, self._fraction_part()))
        if name == "pi":
            return Node("sym", ("pi",))
        if name == "infty":
            return Node("inf")
        if name == "varnothing":
            return Node("empty")
        if name in GREEK:
            letter = name
            if self.accept("_"):
                letter += f"_{_name(self.group())}"
            return Node("sym", (letter,))
        if name in FUNCTIONS:
            return self._function(name)
        if name == "mathbb":
            return Node("sym", (f"set:{_name(self.group())}",))
        if name.startswith("begin{"):
            return self._matrix(name[6:-1])
        raise Unparsed(f"the command {text[:40]!r}")

    def _fraction_part(self) -> Node:
        r"""A group; `\frac12` takes one digit at a time."""
        token = self.peek
        if token.kind == "num" and len(token.text) > 1 and token.text.isdigit():
            self.found[self.at] = Token("num", token.text[1:])
            return num(int(token.text[0]))
        return self.group()

    def _root(self) -> Node:
        if self.accept("["):
            degree = self.sum()
            self.expect("]")
            return Node("fn", ("root", self.group(), degree))
        return Node("fn", ("sqrt", self.group()))

    def _function(self, name: str) -> Node:
        base = self.group() if name == "log" and self.accept("_") else None
        raised = self.group(power=True) if self.accept("^") else None
        if name in ("min", "max", "gcd", "lcm"):
            inside = self._sequence("(") if self.accept("(") else self.group()
            args = inside.args[2:] if inside.op == "seq" else (inside,)
            node = Node("fn", (name, *args))
        elif self.peek.text in ("(", "{", "["):
            node = Node("fn", (name, self.group() if self.peek.text == "{" else self.atom()))
        else:
            node = Node("fn", (name, self._argument()))
        if base is not None:
            node = Node("div", (Node("fn", ("ln", node.args[1])), Node("fn", ("ln", base))))
        if raised is None:
            return node
        if raised == Node("neg", (num(1),)):
            return Node("fn", (f"arc{name}", *node.args[1:]))
        return Node("pow", (node, raised))

    def _argument(self) -> Node:
        """An argument without brackets: `sin 2x`, `ln 5`; a product up to the next sign or function."""
        node = self.signed()
        while self._starts_factor() and self.peek.text.lstrip("\\") not in FUNCTIONS and self.peek.text not in "([":
            node = Node("mul", (node, self.power()))
        return node

    def _matrix(self, name: str) -> Node:
        if name not in MATRICES:
            raise Unparsed(f"the environment {name!r}")
        self.sink()
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
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
        node = Node("matrix", tuple(rows))
        return Node("fn", ("det", node)) if name == "vmatrix" else node


def number(text: str) -> Node:
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


def _ratio(above: list[Node], below: list[Node]) -> Node:
    top = many("mul", above)
    return Node("div", (top, many("mul", below))) if below else top


def _whole(node: Node) -> bool:
    """An unsigned integer literal, which may open a mixed number."""
    return node.op == "num" and node.args[1] is None


def _numeric(node: Node) -> bool:
    return not node.symbols() and not node.has("quantity", "seq", "inf", "pm", "base", "matrix")


def _name(node: Node) -> str:
    """The text of a subscript."""
    if node.op == "num":
        return str(node.args[0])
    if node.op == "sym":
        return str(node.args[0])
    if node.op == "mul":
        return "".join(_name(child) for child in node.children())
    raise Unparsed("a subscript that is not a name")
