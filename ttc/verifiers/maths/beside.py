r"""Read a gold and an answer together: what the one leaves open is read as the other and the question have it.

On texts: what a letter runs over, `2^k for all k > 0` (`without_domain`). On shapes (`read_beside`): the letters of
constants and of periods, decimal commas, 45k, j for the imaginary unit, the unit that is asked for, residues, bounds by
an absolute value, vectors over axes, and the last side of an equation that only works a value out. The gold is read as
the answer has it only where that says the same. Left out: which kind a shape is read as beside another kind
(`comparing.read_alike`), and whether both are equal.
"""

from __future__ import annotations

import re
from fractions import Fraction

from ttc.answers.grammar import MAX_PRODUCT_WORD
from ttc.answers.nodes import CONSTANTS, Term, exact, holds, num, renamed, unit, unnamed
from ttc.answers.shapes import ALL, AXES, FLIP, components, least_residue, shape, shape_of, span
from ttc.verifiers.maths.asked import asks, asks_unit
from ttc.verifiers.maths.comparing import has_pi


# -- both together -----------------------------------------------------------------------------------------------------
def read_beside(gold: Term, left: str, answer: Term, right: str, letter: str, question: str) -> tuple[Term, Term]:
    """The shapes of a gold and of an answer, of these plain texts, read together.

    `letter` is one of the gold that may be any number.
    """
    first, second = _as_product(left, gold, right, answer), _as_product(right, answer, left, gold)
    second = _by_free_letter(first, _decimal(first, right, second), letter, question)
    return _read_together(first, second, question)


def _read_together(gold: Term, answer: Term, question: str) -> tuple[Term, Term]:
    """Both answers with what each leaves open read as the other one and the question have it."""
    answer = _worked_out(gold, _valued(gold, _electrical(gold, answer)))
    gold = _read_bounds(gold, answer)
    answer = _read_constants(gold, _read_turns(gold, answer, question), question)
    gold = _in_unit(gold, answer, asks_unit(question))
    gold, answer = _read_residues(gold, answer, question if asks("residue", question) else "")
    return _read_axes(gold, answer)


# -- what a letter runs over -------------------------------------------------------------------------------------------
_SECOND = r"(?:(?:\s*,\s*|\s*\\text\s?\{\s*and\s*\}\s*)[A-Za-z](?:_\d)?)?"
"""A second letter of which the same is said, which is no factor of the value before it."""
_QUALIFIED = re.compile(
    r"(?P<value>.*?[^\s,;])(?:(?P<comma>\s*[,;]\s*)|\s+|(?=\\text))"
    r"(?P<words>\\text\s?\{[\s,]*(?:(?:for|where|with)(?: (?:all|any|every|each|some))?)?"
    r"(?: (?:real|positive|arbitrary|fixed|non-?negative|natural))*(?: (?:constants?|integers?|numbers?))?\s*\})?\s*"
    rf"(?P<open>\()?(?P<letters>[A-Za-z](?:_\d)?(?(comma){_SECOND}|(?(words){_SECOND}|)))\s*"
    r"(?P<bound>(?:>|\\ge)\s*[01]|\\in\s*\\mathbb\s?\{?[CNQRZ]\}?(?:[\^_]\{?[+*>0]{1,3}\}?)?"
    r"|\\ne\s*-?\d+(?:\s*,\s*-?\d+)*"
    r"|\\text\s?\{\s*is an?y? (?:arbitrary |real |positive )*(?:constant|integer|number)\s*\})?\s*(?(open)\)\s*)"
)
"""A value, and behind it what its letter runs over: 2^k for all k > 0, 2x + c where c is a constant."""
_BOUND_OR_PERIOD = re.compile(r"[<>]|\\(?:le|ge|ne|in|pi)(?![A-Za-z])")
"""Signs of a value that its domain may change: a bound, or a period, which holds for whole numbers of both signs."""
_DOMAINS = (
    ("any", re.compile(r"\\mathbb\s?\{?R\}?(?!\s*[\^_])|\b(?:real|arbitrary|any) (?:\w+ )?(?:constant|number)s?\b")),
    ("from 0", re.compile(r"\\ge\s*0|non-?negative")),
    (
        "from 1",
        re.compile(r"\\ge\s*1|\\mathbb\s?\{?N|[\^_]\s?\{?\s?(?:\+|>\s*0)|\b(?:positive|natural) (?:integer|number)"),
    ),
)
"""What is said of the letter of a family of values, by how it is said."""


def without_domain(text: str, other: str, is_gold: bool, /) -> tuple[str, str]:
    """A text without what its letter runs over, and the letter, which may have another name where it is any number.

    An answer may say what its letter runs over where the gold does not.
    """
    match = _QUALIFIED.fullmatch(text) if "\\" in text or "," in text else None
    if match is None or not (match["words"] or match["bound"]):
        return text, ""
    value, limits = match["value"], match["bound"] or ""
    kind, beside = _domain(match), _QUALIFIED.fullmatch(other)
    if kind != "any" and (beside is not None or is_gold) and (beside is None or kind != _domain(beside)):
        return text, ""
    if limits.startswith(r"\ne") and r"\frac" not in value:
        return text, ""  # c x^2 without c = 0 is another family
    letters = re.findall(r"(?<![A-Za-z\\])[A-Za-z](?:_\d)?(?![A-Za-z])", match["letters"])
    node = None if _BOUND_OR_PERIOD.search(value) else shape_of(value)
    if node is None or not node.symbols().issuperset(letters):
        return text, ""
    return value, letters[0] if kind == "any" and len(letters) == 1 else ""


def _domain(match: re.Match[str]) -> str:
    """What is said of a letter: any number, the words for what is no real number, or nothing that is known."""
    limits = f"{match['words']} {match['bound']}"
    return next((kind for kind, pattern in _DOMAINS if pattern.search(limits)), limits)


_UNKNOWNS = frozenset("xyz")


def _by_free_letter(gold: Term, answer: Term, letter: str, question: str) -> Term:
    """An answer with the gold's letter for a number that may be any: kx beside cx for any real c."""
    others = answer.symbols() - gold.symbols()
    if not letter or letter in answer.symbols() or len(others) != 1:
        return answer
    (other,) = others
    is_known = other in _UNKNOWNS or re.search(rf"(?<![A-Za-z]){other}(?![A-Za-z])", question)
    return answer if is_known else renamed(answer, other, letter)


# -- an answer read beside its gold ------------------------------------------------------------------------------------
def _as_product(text: str, node: Term, beside: str, other: Term) -> Term:
    r"""A short word as the product of its letters beside a formula of just these letters: ab beside `a \cdot b`.

    A formula has more than letters: `cat` is no product beside `act`, nor beside `a c t`.
    """
    short = node.op == "text" and text.isascii() and text.isalpha() and len(text) <= MAX_PRODUCT_WORD
    if not short or other.op != "scalar" or re.fullmatch(r"[A-Za-z\s]*", beside):
        return node
    return (shape_of(" ".join(text)) or node) if other.symbols() == frozenset(text) - CONSTANTS else node


_IN_THOUSANDS = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)\s?(?:\\(?:text|mathrm)\s?\{\s?)?(?P<size>[kKM])\s?\}?")
"""A number with the letter of a thousand or a million behind it: 45k, 4.5M."""
_DECIMAL_COMMA = re.compile(r"\A(-?(?:USD |EUR )?(?:0|[1-9]\d*)),(\d+)(?=\D*\Z)")
_MIXED = re.compile(r"(?<![\d.,])(\d+)(?: and |\s?\\text\s?\{\s*and\s*\}\s?)(?=\d+/\d+(?!\d)|\\frac)")
"""A whole number and a fraction that one says together: 1 and 1/2."""
_THOUSAND = 1000
_LAKHS = re.compile(r"-?(?:USD |INR )?[1-9]\d?(?:,\d\d)+,\d{3}")


def _decimal(gold: Term, text: str, answer: Term) -> Term:
    """What is one number beside a gold that is one: 2,5 by its comma, 12,34,567 as in India, 45k, 1 and 1/2."""
    if gold.op == "scalar" and (short := _IN_THOUSANDS.fullmatch(text)) and (exact(gold.args[0]) or 0) >= _THOUSAND:
        size = "thousand" if short["size"] in "kK" else "million"
        return shape_of(f"{short[1]} {size}") or answer
    if answer.op not in ("set", "text") or gold.op not in ("scalar", "quantity"):
        return answer
    pointed = text.replace(",", "") if _LAKHS.fullmatch(text) else _DECIMAL_COMMA.sub(r"\1.\2", text)
    pointed = _MIXED.sub(r"\1 ", pointed)
    number = shape_of(pointed) if pointed != text else None
    return number if number is not None and number.op in ("scalar", "quantity") else answer


def _in_unit(gold: Term, answer: Term, asked: str) -> Term:
    """A bare gold in the unit that is `asked`, beside an answer in one of its kind: 75 cents are 0.75 dollars."""
    amount = unnamed(answer)
    if not asked or gold.op != "scalar" or amount.op not in ("quantity", "duration"):
        return gold
    is_alike = unit(amount.args[1]).dimension == unit(asked).dimension
    return Term("quantity", (gold.args[0], asked)) if is_alike else gold


def _electrical(gold: Term, answer: Term) -> Term:
    """An answer with j for the imaginary unit, beside a complex number: 3 - 4j beside 3 - 4i."""
    is_complex = gold.op == "scalar" and gold.args[0].op == "add" and not gold.symbols() and holds(gold, _IMAGINARY)
    return renamed(answer, "j", "i") if is_complex and answer.symbols() == {"j"} else answer


_IMAGINARY = Term("sym", ("i",))
_OF_ONE_LETTER = frozenset({"abs", "sin", "cos", "tan", "cot", "sec", "csc"})
_EXTREMES = frozenset({"min", "max"})


def _valued(gold: Term, answer: Term) -> Term:
    """The number that an answer gives to what is asked, beside a gold that is a number: m + n = 5, |z| = 5, min f = 5.

    What is asked has several letters and no number: of 2x = 5 the answer would be x.
    """
    if gold.op not in ("scalar", "quantity") or gold.args[0].symbols() or answer.op != "rel":
        return answer
    operators, unknown, *sides = answer.args
    if set(operators) != {"="} or any(side.symbols() for side in sides):
        return answer
    of_letters = len(unknown.symbols()) > 1 and not unknown.has("num", "pow", "fn")
    of_letter = unknown.op == "fn" and unknown.args[0] in _OF_ONE_LETTER and unknown.args[1].op == "sym"
    first = unknown.args[0] if unknown.op == "mul" else unknown  # min f(x) is read as a product
    is_extreme = first.op == "fn" and first.args[0] in _EXTREMES and not unknown.has("num")
    if not (of_letters or of_letter or is_extreme):
        return answer
    return shape(sides[0] if len(sides) == 1 else Term("rel", (operators[1:], *sides)))


def _worked_out(gold: Term, answer: Term) -> Term:
    """The last side of an equation that holds for all values, beside a gold in variables: x^2 - 1 = (x - 1)(x + 1)."""
    if gold.op != "scalar" or not gold.args[0].symbols() or answer.op != "rel" or set(answer.args[0]) != {"="}:
        return answer
    from ttc.answers.normal import identical  # most answers are no equations

    *sides, last = answer.args[1:]
    return shape(last) if all(identical(side, last) for side in sides) else answer


# -- golds and answers that say one thing in unlike ways ---------------------------------------------------------------
def _read_bounds(gold: Term, answer: Term) -> Term:
    """A gold |x - a| < b as its interval, and |x - a| > b as its two, beside an answer that is no such relation.

    An answer is not read so: it may only repeat the question.
    """
    if gold.op != "rel" or answer.op == "rel" or len(gold.args) != 3:
        return gold
    (operator,), left, right = gold.args
    if right.op == "fn":
        operator, left, right = FLIP.get(operator, ""), right, left
    bound = exact(right)
    if left.op != "fn" or left.args[0] != "abs" or bound is None or bound <= 0:
        return gold
    inner = left.args[1]
    name, centre = next(iter(inner.symbols()), ""), _centre(inner)
    if centre is None or name in _COMPLEX:
        return gold
    low, high = (Term("scalar", (num(end),)) for end in (centre - bound, centre + bound))
    is_closed = operator.endswith("=")
    if operator in ("<", "<="):
        return Term("named", (name, span(low, high, is_closed, is_closed)))
    below, above = ALL.args
    both = Term("union", (span(below, low, False, is_closed), span(high, above, is_closed)))
    return Term("named", (name, both)) if operator in (">", ">=") else gold


_COMPLEX = frozenset("zw")
"""Letters of complex numbers, of which |z| < 1 is a disc."""


def _centre(node: Term) -> Fraction | None:
    """The a of x - a; None for all else."""
    if node.op == "sym" and node.symbols():
        return Fraction(0)
    if node.op != "add" or len(node.args) != 2:
        return None
    letters = [item for item in node.args if item.op == "sym"]
    rest = [exact(item) for item in node.args if item.op != "sym"]
    return -rest[0] if len(letters) == len(rest) == 1 and letters[0].symbols() and rest[0] is not None else None


def _read_turns(gold: Term, answer: Term, question: str) -> Term:
    """The integer of a solution by the gold's letter: x = pi/6 + n pi beside x = pi/6 + k pi.

    Other solutions than periodic ones have letters of their own only where the question names none: n = 2^k.
    """
    if gold.op not in ("named", "tuple") or not (has_pi(gold) or question):
        return answer
    own, other = gold.symbols() - answer.symbols(), answer.symbols() - gold.symbols()
    if len(own) != 1 or len(other) != 1 or not own | other <= _INTEGERS:
        return answer
    if not has_pi(gold) and any(re.search(rf"(?<![A-Za-z]){letter}(?![A-Za-z])", question) for letter in own | other):
        return answer
    return renamed(answer, *other, *own)


_INTEGERS = frozenset("klmnt")


_ARBITRARY = re.compile(r"[CcKk](?:_\{?\d\}?)?|[AB]")
_DIFFERENTIAL = re.compile(r"\bdifferential equation|[a-z]'|\\frac\s?\{\s?d|\bd[a-z]\s?/\s?d[a-z]|\\dot", re.IGNORECASE)


def _read_constants(gold: Term, answer: Term, question: str) -> Term:
    """The arbitrary constants of a solution by the gold's letters, where a question has a differential equation."""
    own, other = sorted(gold.symbols() - answer.symbols()), sorted(answer.symbols() - gold.symbols())
    if {"C_1", "C_2"} <= gold.symbols() & answer.symbols():
        return _in_order(gold, answer)
    if not own or len(own) != len(other) or not all(map(_ARBITRARY.fullmatch, (*own, *other))):
        return answer
    letters = {letter for letter in (*own, *other) if re.search(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", question)}
    if letters or not _DIFFERENTIAL.search(question):
        return answer
    for letter, name in zip(other, own, strict=True):
        answer = renamed(answer, letter, name)
    return answer


def _in_order(gold: Term, answer: Term) -> Term:
    """A solution with C_1 for C_2, where both sides have both, by the terms of the gold: neither comes first."""
    other = renamed(renamed(renamed(answer, "C_1", "C_0"), "C_2", "C_1"), "C_0", "C_2")
    terms, as_said, swapped = (set(_terms(node)) for node in (gold, answer, other))
    return other if len(terms & swapped) > len(terms & as_said) else answer


def _terms(node: Term) -> tuple[Term, ...]:
    """The terms of the sum that a name or a scalar is."""
    body = unnamed(node)
    return body.args[0].args if body.op == "scalar" and body.args[0].op == "add" else ()


def _read_residues(gold: Term, answer: Term, question: str) -> tuple[Term, Term]:
    """A residue beside a number: 3 answers 3 mod 7, and 3 mod 7 answers 3 in a `question` on a remainder by 7."""
    if any(map(_has_residue, (gold, answer))):
        gold, answer = _progression(gold), _progression(answer)
    body = unnamed(answer)
    if gold.op == "residue" and body.op == "scalar":
        return gold.args[0], answer
    if question and gold.op == "scalar" and body.op == "residue" and body.args[0].op == "scalar":
        least = least_residue(body)
        if least is not None and least == exact(body.args[0].args[0]) and _has_modulus(question, body.args[1]):
            return gold, body.args[0]  # 10 mod 7 is no remainder
    return gold, answer


def _progression(node: Term) -> Term:
    """Numbers n = 6k + 1, or several such, as the residue classes that they are; all else as it is."""
    if node.op != "named":
        return _residue_class(node)
    body = node.args[1]
    classes = tuple(map(_residue_class, body.args if body.op == "set" else (body,)))
    return Term("named", (node.args[0], Term("set", classes) if body.op == "set" else classes[0]))


def _has_residue(node: Term) -> bool:
    """Whether a shape is a residue class, or several, perhaps under a name."""
    body = unnamed(node)
    return body.op == "residue" or (body.op == "set" and any(item.op == "residue" for item in body.args))


def _residue_class(node: Term) -> Term:
    """The numbers 6k + 1 as a residue class; all else as it is."""
    if node.op != "scalar":
        return node
    inner = node.args[0]
    letter = next(iter(inner.symbols()), "")
    from ttc.answers.normal import line  # seldom needed

    slope, start = line(inner, letter) if letter in _INTEGERS and len(inner.symbols()) == 1 else (None, None)
    if slope is None or start is None or slope.denominator != 1 or start.denominator != 1 or abs(slope) < 2:
        return node
    return Term("residue", (Term("scalar", (num(start % abs(slope)),)), Term("scalar", (num(abs(slope)),))))


def _has_modulus(question: str, modulus: Term) -> bool:
    """Whether a question has that modulus, where it is a number."""
    size = exact(modulus.args[0]) if modulus.op == "scalar" else None
    return size is None or re.search(rf"(?<![\d.,]){size}(?![\d/]|[.,]\d)", question.replace("{,}", "")) is not None


# -- vectors over axes -------------------------------------------------------------------------------------------------
def _read_axes(left: Term, right: Term) -> tuple[Term, Term]:
    r"""Two sums over axes that are written in unlike ways, `2\hat{i} - \hat{j}` and 2i - j, as vectors."""
    if left.op != "scalar" or right.op != "scalar":
        return left, right
    letters = [node.symbols() & frozenset(AXES) for node in (left, right)]
    marks = [{name.partition(":")[0] for name in side if ":" in name} for side in letters]
    if marks[0] == marks[1] or min(map(len, letters)) < 2:
        return left, right
    sides = [components(node.args[0], 3) for node in (left, right)]
    if not all(sides):
        return left, right
    first, second = (Term("tuple", tuple(Term("scalar", (item,)) for item in side)) for side in sides)
    return first, second
