r"""What a question asks for, and answers of another form: left unevaluated, restated, not what was asked.

The value alone does not make an answer: `2+3\cdot 4` is no answer to "Compute 2+3*4". A gold that is a numeral (a sign,
digits, a fraction, a decimal, a unit) asks for a numeral, and a power of one, 2^{-3} or (1/2)^{10}, alone, in a
fraction or as a factor, is as good as one where the question has no powers, as published graders hold; a constant such
as `2\sqrt 3` asks for no function that it does not have itself (no `\sin`, no `!`); an expression of the question,
where it is not the gold's own, is a restatement; "factor", "expand" and "simplify" ask for a product, a sum, and roots
without square factors, and "simplify" and "lowest terms" for a reduced fraction.

A gold that is itself written as an expression (`2^{10}`, `3!`) lets the answer be one. What is asked is read from the
gold's own form and, where the target brings it, the question; a declared `form` overrules both, and `any` turns all of
this off. Cautious: whatever is not one of the above is no fault. Left out: significant digits.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Literal

from ttc.answers.grammar import Unparsed, parse
from ttc.answers.nodes import UNITS, Term, exact, holds, num, unnamed
from ttc.answers.plain import CHANGE, plain
from ttc.answers.shapes import shape
from ttc.answers.words import ONES
from ttc.core import Form, Target

FORMS: Mapping[Form, frozenset[str]] = {
    "": frozenset(), "any": frozenset(), "expression": frozenset({"scalar", "quantity"}),
    "number": frozenset({"scalar", "quantity"}), "set": frozenset({"set", "empty", "tuple", "brackets", "scalar"}),
    "list": frozenset({"set", "tuple", "brackets"}),
    "interval": frozenset({"interval", "tuple", "union", "without", "set", "rel"}),
    "matrix": frozenset({"matrix", "tuple", "brackets"}), "equation": frozenset({"rel", "named"}),
    "choice": frozenset({"scalar", "text"}), "time": frozenset({"time"}),
    "quantity": frozenset({"scalar", "quantity", "duration"}),
}  # fmt: skip
"""The shapes that answer each form."""
_SURDS = frozenset({"sqrt", "root", "abs"})
_FAMILIES = (
    frozenset({"sin", "cos", "tan", "cot", "sec", "csc"}), frozenset({"ln", "log"}),
    frozenset({"exp", "sinh", "cosh", "tanh", "coth", "sech", "csch"}),
    frozenset({"arcsin", "arccos", "arctan", "arccot", "arcsec", "arccsc"}),
    frozenset({"arcsinh", "arccosh", "arctanh", "ln"}),
)  # fmt: skip
_FORMULA = re.compile(r"\$\$?([^$]{1,400})\$\$?|\\\((.{1,400}?)\\\)|\\\[(.{1,400}?)\\\]", re.DOTALL)
_PERCENT = re.compile(
    r"(?:what|which|find the|how many|as an?|the|in)\s+(?:\w+\s+){0,2}?(?:percentage|percent\b|per cent\b|%)",
    re.IGNORECASE,
)
_GIVEN_PERCENT = re.compile(r"\d\s*(?:\\?%|percent|per cent)", re.IGNORECASE)
_UNIT_PERCENT = re.compile(r"unit of the answer is (?:\\?%|percent)", re.IGNORECASE)
_FACTOR = re.compile(r"(?:^|[.:;]\s+|\b(?:please|completely|fully)\s+)\s*factor(?:i[sz]e)?\b(?!\s+of)", re.IGNORECASE)
_EXPAND = re.compile(r"(?:^|[.:;]\s+)\s*expand\b", re.IGNORECASE)
_SIMPLIFY = re.compile(r"\bsimplif|simplest (?:radical )?form", re.IGNORECASE)
_PRIMES = re.compile(r"\bprime factor|\bproduct of (?:its )?prime", re.IGNORECASE)
_TOPICS = {
    # 10:20 is no time then.
    "ratio": r"\bratio\b|\bproportion",
    # A ratio may be odds then.
    "chance": r"\bprobabilit|\bodds\b|\bchances?\b|\blikel",
    # 3 mod 7 answers it as 3 does.
    "residue": r"\bremainder|\bmodulo|\\?[bp]?mod\b|\bcongruen|\bresidue",
    # Things are wanted in an order: "Order them from least to greatest".
    "order": r"(?:^|[.?!:;,]\s+|\bplease\s)\s*(?:order|arrange|rank|sort|put)\b[^.?!]{0,120}"
    r"\b(?:least|greatest|smallest|largest|lowest|highest|shortest|longest|(?:a|de)scending|(?:in|de)creasing)\b",
}
"""What a question may speak of, and the words that show it."""
_TENS = re.compile(r"\b10\s*(?:\^|\*\*)")
"""A power of ten in a question, which its answer must not repeat."""
_POWERS = re.compile(
    r"[\d)}\]]\s*(?:\^(?!\s*\{?\s*\\circ)|\*\*)|[⁰¹²³⁴-⁹⁻]|\b(?:power|square|cube|expon)", re.IGNORECASE
)
"""A power in a question, in signs or in words, so that one in its answer may be work that was not done."""
_REDUCE = re.compile(r"\bsimplif|simplest form|lowest terms|\breduce", re.IGNORECASE)
_IN_UNIT = re.compile(
    r"\b(?:how many(?: more| additional)?|in|number of)\s+(?P<unit>[a-z]{3,12}s|feet)\b", re.IGNORECASE
)
_WHOLE = re.compile(r"[1-9][0-9]{0,17}")
_NAMES_OF_BASES = {2: ("binary",), 8: ("octal",), 16: ("hexadecimal", "hex")}
_INTEGER = re.compile(r"\b(positive )?integers? \$?([a-z])\$?(?![a-z])")
MAX_QUESTION = 4000
"""Characters at the end of a question that are read."""


def asks_percent(question: str) -> bool:
    """Whether a question wants so many per cent: "What percent of ..", not "If 20 percent of .."."""
    last = re.split(r"(?<=[.?!])\s", question.strip())[-1] if question else ""
    return bool(_PERCENT.search(_GIVEN_PERCENT.sub(" ", last)) or _UNIT_PERCENT.search(last))


_UP = re.compile(r"increas|gain|profit|rise|rais|rose|grow|grew|markup|mark up|higher|more\b|appreciat", re.IGNORECASE)
_DOWN = re.compile(
    r"decreas|loss|lose|lost|discount|reduc|drop|declin|markdown|mark down|fall|fell|lower|less\b|\boff\b|fewer|shrink"
    r"|depreciat",
    re.IGNORECASE,
)


def _ways(text: str) -> set[str]:
    return {name for name, words in (("up", _UP), ("down", _DOWN)) if words.search(text)}


def other_way(gold: str, answer: str, question: str) -> bool:
    """Whether an answer is a change in another direction than the gold's or the question's: a 20% decrease.

    Where neither names a direction, a change is one for the better.
    """
    change = CHANGE.search(answer.strip()) if "%" in answer else None
    if change is None:
        return False
    own = CHANGE.search(gold.strip())
    ways = _ways(own["to"] or own["from"]) if own else _ways(question)
    return _ways(change["to"] or change["from"]).isdisjoint(ways or {"up"})


def asks_unit(question: str) -> str:
    """The unit that a question wants an amount in, `dollars` or `hours`; empty where it names none or several."""
    last = re.split(r"(?<=[.?!])\s", question.strip())[-1] if question else ""
    units = {match["unit"].lower() for match in _IN_UNIT.finditer(last)} & UNITS.keys()
    return units.pop() if len(units) == 1 else ""


def asks(topic: Literal["ratio", "chance", "residue", "order"], question: str) -> bool:
    """Whether a question speaks of that."""
    return bool(question) and re.search(_TOPICS[topic], question, re.IGNORECASE) is not None


def asks_base(question: str, base: int) -> bool:
    """Whether a question names a base, as in "Write it in base 7" and "in binary", so that its answer need not."""
    word = next((word for word, value in ONES.items() if value == base), str(base))
    spelt = "|".join((rf"base[- $_]*(?:{base}|{word})", *_NAMES_OF_BASES.get(base, ())))
    return re.search(rf"\b(?:{spelt})(?![A-Za-z\d])", question, re.IGNORECASE) is not None


def domains(question: str) -> tuple[tuple[str, str], ...]:
    """Variables that a question calls integers: "for every positive integer $n$"."""
    return tuple((match[2], "positive integer" if match[1] else "integer") for match in _INTEGER.finditer(question))


def with_question(answer: str, question: str) -> Target:
    """The target of a dataset's row: the answer alone where the question changes nothing, else both.

    A numeral asks for a numeral whatever the question is; it decides what per cent and 10:20 are, and which expressions
    would only restate it.
    """
    try:
        node = num(int(answer)) if _WHOLE.fullmatch(answer) else None  # as most golds of large files are
        golds = list(scalars(shape(parse(plain(answer))))) if node is None else [node]
    except (Unparsed, RecursionError):
        return Target(answer)
    settled = bool(golds) and all(map(numeral, golds)) and "%" not in answer
    by_question = asks_percent(question) or (asks("ratio", question) and ":" in answer) or bool(asks_unit(question))
    odds = asks("chance", question) and any(node.op == "div" for node in golds)
    by_question |= odds or asks("residue", question)
    by_question |= bool(_POWERS.search(question)) or (asks("order", question) and "," in answer)
    by_question |= bool(_REDUCE.search(question)) and any(node.op == "div" for node in golds)
    needed = not settled or by_question
    return Target(answer, question[-MAX_QUESTION:]) if needed else Target(answer)


def fault(gold: Term, answer: Term, form: Form, question: str) -> str:
    """Why an answer of the right value is not what was asked: unevaluated, restated, form; empty when it is."""
    if form == "any" or gold == answer:
        return ""
    if (allowed := FORMS[form]) and (answer if form == "equation" else unnamed(answer)).op not in allowed:
        return "form"
    golds, answers = list(scalars(gold)), list(scalars(answer))
    amounts = gold.args if gold.op in ("set", "tuple") else (gold,)
    if all(item.op == "quantity" and item.args[1].startswith("degree") for item in amounts) and all(
        map(_turn, answers)
    ):
        return ""
    if form != "expression" and _unevaluated(golds, [_written_out(node, question) for node in answers]):
        return "unevaluated"
    return _against_question(golds, answers, question[-MAX_QUESTION:]) if question else ""


def _turn(node: Term) -> bool:
    """An angle in radians as one writes it: a fraction of pi."""
    if node.op == "div":
        return _turn(node.args[0]) and node.args[1].op == "num"
    pi = Term("sym", ("pi",))
    return node == pi or (node.op == "mul" and len(node.args) == 2 and numeral(node.args[0]) and node.args[1] == pi)


def scalars(node: Term) -> Iterator[Term]:
    """The expressions inside a shape."""
    if node.op in ("scalar", "quantity", "duration"):
        yield node.args[0]
    elif node.op == "named":
        yield from scalars(node.args[1])
    elif node.op == "rel":
        yield from node.args[1:]
    elif node.op not in ("base", "text", "empty", "time", "designation"):
        for child in node.children():
            yield from scalars(child)
        for row in node.args if node.op == "matrix" else ():
            for cell in row:
                yield from scalars(cell)


# -- values ------------------------------------------------------------------------------------------------------------
def _unevaluated(golds: list[Term], answers: list[Term]) -> bool:
    values = [node for node in golds if not node.has("inf")]
    if any(node.symbols() for node in values):
        return False
    if all(numeral(node) for node in values):
        return not all(numeral(node) or node.has("inf") for node in answers)
    if any(exact(node) is not None and not numeral(node) for node in values):
        return False  # the gold is left as an expression too
    allowed = _SURDS | _related(frozenset().union(*map(Term.functions, values)))
    allowed |= {"sin", "cos"} if any(map(_in_polar_form, values)) else set()
    return any(not (node.functions() <= allowed) or _plain_sum(node) for node in answers)


def _in_polar_form(node: Term) -> bool:
    """Whether a number is written as r e^{i t}, for which r cis t may stand."""
    base, imaginary = Term("sym", ("e",)), Term("sym", ("i",))
    return any(part.op == "pow" and part.args[0] == base and holds(part.args[1], imaginary) for part in node.walk())


def numeral(node: Term) -> bool:
    """A number as one writes it down: a sign, digits, a proper fraction, a decimal, times a power of ten."""
    if node.op == "neg":
        return node.args[0].op != "neg" and numeral(node.args[0])
    if node.op == "num":
        return True
    if node.op == "div":
        return _fraction(*node.args)
    if node.op == "mul" and len(node.args) == 2:
        return node.args[0].op == "num" and _power_of_ten(node.args[1])
    return node.op == "quantity" and numeral(node.args[0])


def _fraction(top: Term, bottom: Term) -> bool:
    """A quotient of two numbers that is no whole number: 24/4 is a division that was not done."""
    above, bottom = (part.args[0] if part.op == "neg" else part for part in (top, bottom))
    if above.op != "num" or bottom.op != "num" or not bottom.args[0]:
        return False
    whole = above.args[0].denominator == bottom.args[0].denominator == 1
    return bool(whole and (above.args[0] / bottom.args[0]).denominator != 1)


def _power_of_ten(node: Term) -> bool:
    if node.op != "pow" or node.args[0] != Term("num", (10, None)):
        return False
    exponent = node.args[1].args[0] if node.args[1].op == "neg" else node.args[1]
    return bool(exponent.op == "num")


def _written_out(node: Term, question: str) -> Term:
    """What is written with powers of numbers, where the question has none, as the number it is; all else as it is."""
    if node.op in ("neg", "quantity"):
        return Term(node.op, (_written_out(node.args[0], question), *node.args[1:]))
    if node.op == "div":
        return Term("div", tuple(_written_out(part, question) for part in node.args))
    is_product = node.op == "mul" and any(child.op == "pow" for child in node.args)
    factors = node.args if is_product else (node,)
    powers = [child for child in factors if child.op == "pow"]
    is_known = all(map(_power_of_number, powers)) and all(numeral(child) for child in factors if child.op != "pow")
    if not powers or not is_known or any(_repeats(power, question) for power in powers):
        return node
    value = exact(node)
    return node if value is None else Term("num", (value, None))


def _power_of_number(node: Term) -> bool:
    """A number, a proper fraction perhaps, to the power of a whole number."""
    exponent = node.args[1].args[0] if node.args[1].op == "neg" else node.args[1]
    return numeral(node.args[0]) and exponent.op == "num" and exponent.args[0].denominator == 1


def _repeats(power: Term, question: str) -> bool:
    """Whether a question has a power such as this, of ten or of any number."""
    return bool((_TENS if _power_of_ten(power) else _POWERS).search(question))


def _plain_sum(node: Term) -> bool:
    """A rational number that is not written as one."""
    return not node.has("inf") and exact(node) is not None and not numeral(node)


def _related(names: frozenset[str]) -> frozenset[str]:
    return names.union(*(family for family in _FAMILIES if family & names))


# -- the question ------------------------------------------------------------------------------------------------------
def _against_question(golds: list[Term], answers: list[Term], question: str) -> str:
    if _FACTOR.search(question) and any(map(_product, golds)) and not all(map(_product, answers)):
        return "form"
    if _PRIMES.search(question) and all(map(_of_primes, golds)) and not all(map(_of_primes, answers)):
        return "unevaluated"
    if _EXPAND.search(question) and not any(map(_has_bracket, golds)) and any(map(_has_bracket, answers)):
        return "form"
    if _SIMPLIFY.search(question) and not any(map(_square_inside, golds)) and any(map(_square_inside, answers)):
        return "unevaluated"
    if _REDUCE.search(question) and not any(map(_reducible, golds)) and any(map(_reducible, answers)):
        return "unevaluated"
    formulas = _formulas(question)
    own = {_tree(node) for node in golds}
    if own & formulas:
        return ""  # the question names the answer among other things
    copies = [node for node in answers if not numeral(node) and node.op != "sym" and _tree(node) in formulas]
    return "restated" if copies else ""


def _product(node: Term) -> bool:
    if node.op == "neg":
        return _product(node.args[0])
    has_sum = any(child.op == "add" or (child.op == "pow" and child.args[0].op == "add") for child in node.children())
    return (node.op == "mul" and has_sum) or (node.op == "pow" and node.args[0].op == "add")


def _of_primes(node: Term) -> bool:
    """A product of powers of primes: 2^4 * 3 * 7."""
    factors = node.args if node.op == "mul" else (node,)
    bases = [exact(item.args[0] if item.op == "pow" else item) for item in factors]
    return all(base is not None and base.denominator == 1 and _is_prime(int(base)) for base in bases)


def _is_prime(number: int) -> bool:
    return 1 < number < 10**12 and all(number % other for other in range(2, math.isqrt(number) + 1))


def _has_bracket(node: Term) -> bool:
    """A product or a power of a sum with variables."""
    products = (part for part in node.walk() if part.op in ("mul", "pow"))
    return any(child.op == "add" and child.symbols() for product in products for child in product.children())


def _reducible(node: Term) -> bool:
    """A quotient of whole numbers with a common factor: 24/36."""
    if node.op in ("neg", "quantity"):
        return _reducible(node.args[0])
    parts = node.args if node.op == "div" else ()
    sizes = [abs(part.args[0].args[0] if part.op == "neg" else part.args[0]) for part in parts if _is_whole(part)]
    return len(sizes) == len(parts) > 0 and math.gcd(*map(int, sizes)) > 1


def _is_whole(node: Term) -> bool:
    number = node.args[0] if node.op == "neg" else node
    return number.op == "num" and number.args[0].denominator == 1


def _square_inside(node: Term) -> bool:
    """A root of a whole number that a square divides."""
    values = [exact(part.args[1]) for part in node.walk() if part.op == "fn" and part.args[0] == "sqrt"]
    sizes = [int(value) for value in values if value is not None and value.denominator == 1 and 0 < value < 10**8]
    return any(size % root**2 == 0 for size in sizes for root in range(2, min(math.isqrt(size), 1000) + 1))


@functools.lru_cache(maxsize=512)
def _formulas(question: str) -> frozenset[str]:
    """The trees of the formulas of a question, each side of an equation too."""
    trees: set[str] = set()
    for match in _FORMULA.finditer(question):
        try:
            node = parse(plain(match[1] or match[2] or match[3]))
        except (Unparsed, RecursionError):
            continue
        trees.update(_tree(side) for side in scalars(shape(node)))
    return frozenset(trees)


def _tree(node: Term) -> str:
    """A tree with the order of sums and products taken out, and nothing worked out."""
    if node.op in ("add", "mul"):
        return f"{node.op}({','.join(sorted(_flat(node, node.op)))})"
    parts = [_tree(arg) if isinstance(arg, Term) else str(arg) for arg in node.args]
    return f"{node.op}({','.join(parts)})"


def _flat(node: Term, op: str) -> Iterator[str]:
    for child in node.args:
        if child.op == op:
            yield from _flat(child, op)
        else:
            yield _tree(child)
