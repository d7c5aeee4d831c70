"""The innermost level of the grammar: numbers, names, brackets, functions, fractions, roots, matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ttc.answers.cursor import Cursor
from ttc.answers.nodes import Node, many, num
from ttc.answers.numerals import number
from ttc.answers.tokens import Token, Unparsed
from ttc.answers.vocabulary import (
    CURRENCIES,
    DECORATIONS,
    FENCES,
    FUNCTIONS,
    GREEK,
    INFINITY,
    LABELS,
    MATRICES,
    SETS,
    SEVERAL,
    WORDS,
)

MAX_PRODUCT_WORD = 4
"""Letters of a word that is still read as a product of variables."""


class Values(Cursor):
    """Reads one value."""

    def atom(self) -> Node:
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

    def group(self) -> Node:
        """A braced group, or the one value that LaTeX would take."""
        if not self.accept("{"):
            return self.atom()
        self.sink()
        node = self.sum()
        if self.accept(r"\choose"):
            node = Node("fn", ("binom", node, self.sum()))
        self.expect("}")
        self.depth -= 1
        return node

    # -- numbers and names -----------------------------------------------------------------------------------------
    def _number(self, token: Token) -> Node:
        return number(token.text)

    def _text(self, token: Token) -> Node:
        r"""Read a value inside words, as in `\text{5}` and `\text{(C)}`; other words end the parse."""
        inner = token.text.strip("() ")
        if len(inner) == 1 and inner.isalpha():
            return Node("sym", (inner,))
        raise Unparsed(f"the words {token.text[:40]!r}")

    def _word(self, token: Token) -> Node:
        name = token.text
        if name in CURRENCIES:
            return Node("quantity", (self.signed(), name))
        if name in INFINITY:
            return Node("inf")
        if name in WORDS:
            return Node("sym", (WORDS[name],))
        if name == "sqrt":
            return self._root()
        if name in FUNCTIONS:
            return self._function(FUNCTIONS[name])
        if len(name) > MAX_PRODUCT_WORD or not name.isascii():
            raise Unparsed(f"the word {name[:40]!r}")
        if len(name) == 1:
            return Node("sym", (self._marked(name),))
        if self._among_words(token):
            raise Unparsed(f"the word {name!r} in a sentence")
        # Letters side by side are a product: leave the rest for the next factor.
        self.at -= 1
        self.found[self.at] = Token("word", name[1:])
        return Node("sym", (name[0],))

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
    def _sequence(self, opening: str) -> Node:
        if opening == r"\{" and self.peek.kind == "word" and self.ahead(1).text in ("|", r"\mid", ":"):
            return self._set_builder()
        self.sink()
        bars, self.bars = self.bars, 0
        items: list[Node] = []
        closings = (")", "]") if opening in "([" else (SETS[opening],)
        while not self.accept(*closings):
            if items and not self.accept(",", ";"):
                raise Unparsed(f"expected a separator, found {self.peek.text[:40]!r}")
            items.append(self.relation())
        closing = self.last.text
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

    def _set_builder(self) -> Node:
        """{x | x > 3} is the solution set of its condition."""
        letter = self.take().text
        self.take()
        condition = self.relation()
        self.expect(r"\}")
        if condition.op != "rel" or condition.symbols() != {letter}:
            raise Unparsed("a set by a condition that is not understood")
        return condition

    def _fence(self, opening: str) -> Node:
        closing, name = FENCES[opening]
        self.bars += opening == "|"
        inner = self.sum()
        self.expect(closing)
        self.bars -= opening == "|"
        return Node("fn", (name, inner))

    # -- commands --------------------------------------------------------------------------------------------------
    def _command(self, name: str) -> Node:
        if name in _COMMANDS:
            return _COMMANDS[name](self)
        if name in GREEK:
            return Node("sym", (self._marked(name),))
        if name in FUNCTIONS:
            return self._function(FUNCTIONS[name])
        if name in DECORATIONS:
            return Node("sym", (f"{name}:{self._decorated()}",))
        if name.startswith("begin{"):
            return self._matrix(name[6:-1])
        raise Unparsed(f"the command {name[:40]!r}")

    def _fraction(self) -> Node:
        top = self._fraction_part()
        return Node("div", (top, self._fraction_part()))

    def _binomial(self) -> Node:
        upper = self._fraction_part()
        return Node("fn", ("binom", upper, self._fraction_part()))

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

    def _pi(self) -> Node:
        return Node("sym", ("pi",))

    def _infinity(self) -> Node:
        return Node("inf")

    def _empty(self) -> Node:
        return Node("empty")

    def _number_set(self) -> Node:
        return Node("sym", (f"set:{_name(self.group())}",))

    def _decorated(self) -> str:
        if self.peek.kind == "word":
            return self.take().text
        return _name(self.group())

    # -- functions -------------------------------------------------------------------------------------------------
    def _function(self, name: str) -> Node:
        base = self.group() if name == "log" and self.accept("_") else num(10) if name == "lg" else None
        raised = self.group() if self.accept("^") else None
        if name in SEVERAL:
            inside = self._sequence("(") if self.accept("(") else self.group()
            node = Node("fn", (name, *(inside.args[2:] if inside.op == "seq" else (inside,))))
        elif self.peek.text in ("(", "{", "["):
            node = Node("fn", (name, self.group()))
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
        factors = [self.signed()]
        while self.starts_factor() and self.peek.text.lstrip("\\") not in FUNCTIONS and self.peek.text not in "([":
            factors.append(self.power())
        return many("mul", factors)

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


_KINDS: Mapping[str, Callable[[Values, Token], Node]] = {
    "num": Values._number, "word": Values._word, "text": Values._text,
}  # fmt: skip
_COMMANDS: Mapping[str, Callable[[Values], Node]] = {
    "frac": Values._fraction, "sqrt": Values._root, "binom": Values._binomial, "dbinom": Values._binomial,
    "tbinom": Values._binomial, "pi": Values._pi, "infty": Values._infinity, "varnothing": Values._empty,
    "mathbb": Values._number_set,
}  # fmt: skip


def _name(node: Node) -> str:
    """The text of a subscript or a decorated name."""
    if node.op in ("num", "sym"):
        return str(node.args[0])
    if node.op == "mul":
        return "".join(_name(child) for child in node.children())
    raise Unparsed("a subscript that is not a name")
