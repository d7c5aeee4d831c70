"""Classes of pairs about sets, tuples, intervals, matrices, equations, functions and expressions."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.verifier_redteam.pairs import Golds, Maker, Pair, boxed

Forms = tuple[str, str]
"""A gold and an answer."""


def _drawn(draw: Callable[..., Forms], right: bool, question: str, *form: str) -> Maker:
    def maker(rng: random.Random, golds: Golds) -> Pair:
        gold, answer = draw(rng, *form)
        return Pair(question, gold, boxed(rng, answer), right)

    return maker


def _members(rng: random.Random, count: int) -> list[int]:
    return rng.sample(range(-20, 60), count)


def _listed(rng: random.Random, form: str) -> Forms:
    items = _members(rng, rng.randint(3, 5))
    spoken = ", ".join(map(str, items))
    turned = ", ".join(map(str, reversed(items)))
    gold = {"set": r"\{" + spoken + r"\}", "tuple": f"({spoken})", "list": spoken}[form.split()[0]]
    answer = {
        "set permuted": r"\{" + turned + r"\}", "set shorter": r"\{" + ", ".join(map(str, items[1:])) + r"\}",
        "set longer": r"\{" + spoken + ", 77" + r"\}", "list permuted": turned,
        "list repeated": ", ".join(map(str, [*items[:-1], items[0]])), "tuple permuted": f"({turned})",
        "tuple as a set": r"\{" + spoken + r"\}", "tuple longer": f"({spoken}, 77)",
        "list counted": f"{spoken}, {items[0]}",
        "set one changed": r"\{" + ", ".join(map(str, [78, *items[1:]])) + r"\}",
    }[form]  # fmt: skip
    return gold, answer


def multiplicities(rng: random.Random) -> Forms:
    """The same members, each another number of times."""
    a, b = _members(rng, 2)
    return f"{a},{a},{b}", f"{a},{b},{b}"


def _named(rng: random.Random, form: str) -> Forms:
    a, b = _members(rng, 2)
    answers = {
        "swapped": f"{b}, {a}",
        "names swapped": f"x={b}, y={a}",
        "order": f"y={b}, x={a}",
        "other": f"x={a}, z={b}",
    }
    return f"x={a}, y={b}", answers[form]


def _interval(rng: random.Random, form: str) -> Forms:
    low, high = sorted(_members(rng, 2))
    high += low == -high  # else turned round it would be itself
    answers = {
        "closed": f"[{low},{high}]",
        "end": f"[{low},{high + 1})",
        "ends only": rf"\{{{low},{high}\}}",
        "chain": rf"{low} \le x < {high}",
        "two": rf"x \ge {low} \text{{ and }} x < {high}",
        "turned": f"[{-high},{-low})",
        "or": rf"x \ge {low} \text{{ or }} x < {high}",
    }
    return f"[{low},{high})", answers[form]


def _ray(rng: random.Random, form: str) -> Forms:
    n = rng.randint(2, 60)
    answers = {
        "turned": f"x<{n}",
        "closed": rf"x\ge {n}",
        "sides": f"{n}<x",
        "signs": f"-x<-{n}",
        "sign": f"x>-{n}",
        "open interval": rf"({n},\infty)",
    }
    return f"x>{n}", answers[form]


def _matrix(rng: random.Random, form: str) -> Forms:
    a, b, c, d = _members(rng, 4)
    rows = {
        "changed": f"{a} & {b} \\\\ {c} & {d + 1}", "transposed": f"{a} & {c} \\\\ {b} & {d}",
        "brackets": f"{a} & {b} \\\\ {c} & {d}", "flat": f"{a} & {b} & {c} & {d}",
    }[form]  # fmt: skip
    gold = rf"\begin{{pmatrix}} {a} & {b} \\ {c} & {d} \end{{pmatrix}}"
    return gold, rf"\begin{{bmatrix}} {rows} \end{{bmatrix}}"


def _line(rng: random.Random, form: str) -> Forms:
    a, b = rng.randint(2, 9), rng.randint(2, 60)
    answers = {
        "moved": f"{a}x - y + {b} = 0",
        "changed": f"y = {a}x + {b + 1}",
        "turned": f"y = {a}x - {b}",
        "doubled": f"2y = {2 * a}x + {2 * b}",
        "inequality": f"y < {a}x + {b}",
    }
    return f"y = {a}x + {b}", answers[form]


def _ratio(rng: random.Random, form: str) -> Forms:
    a, b, k = (*rng.choice(((2, 3), (1, 2), (3, 5), (4, 7))), rng.randint(2, 3))
    answers = {"turned": f"{b}:{a}", "changed": f"{a + 1}:{b}", "multiplied": f"{a * k}:{b * k}", "zero": f"0:{b}"}
    return f"{a}:{b}", answers[form]


def _polynomial(rng: random.Random, form: str) -> Forms:
    a, b = rng.randint(2, 30), rng.randint(31, 60)
    answers = {
        "factored": f"(x+{a})(x+{b})",
        "reordered": f"{a * b} + {a + b}x + x^2",
        "constant": f"x^2+{a + b}x+{a * b + 1}",
        "coefficient": f"x^2+{a + b + 1}x+{a * b}",
        "sign": f"x^2-{a + b}x+{a * b}",
        "letter": f"y^2+{a + b}y+{a * b}",
        "degree": f"x^3+{a + b}x+{a * b}",
        "tiny": f"x^2+{a + b}x+{a * b}+10^{{-150}}",
    }
    return f"x^2+{a + b}x+{a * b}", answers[form]


def _radical(rng: random.Random, form: str) -> Forms:
    a, b = rng.randint(2, 30), rng.choice((2, 3, 5, 7))
    answers = {
        "inside": rf"\sqrt{{{a * a * b}}}",
        "without": f"{a * b}",
        "changed": rf"{a + 1}\sqrt{{{b}}}",
        "power": f"{a}\\cdot {b}^{{1/2}}",
        "rounded": f"{a * b**0.5:.2f}",
        "over": rf"\frac{{{a * b}}}{{\sqrt{{{b}}}}}",
        "sum": rf"{a}+\sqrt{{{b}}}",
    }
    return rf"{a}\sqrt{{{b}}}", answers[form]


def _breakpoint(rng: random.Random, form: str) -> Forms:
    """Functions that agree over a range that is usually sampled, and differ beyond a point."""
    n = rng.choice((4, 7, 10, 25, 60, 100, 1000, 12_345))
    k = rng.randint(2, 9)
    return {
        "absolute": (f"{n}-x", f"|x-{n}|"), "minimum": ("x", rf"\min(x,{n})"),
        "maximum": (f"{k}x", rf"\max({k}x,-{n})"),
        "even root": (f"x+{n}", rf"\sqrt{{(x+{n})^2}}"),
        "floor": (r"\lfloor\sqrt{n-1}\rfloor", r"\lfloor n-1\rfloor"),
        "ceiling": (r"\lfloor x\rfloor + 1", r"\lceil x\rceil"),
        "sign": (f"{n}", rf"\frac{{{n}|x|}}{{x}}"), "rounded": ("x", r"\lfloor x + \frac{1}{2}\rfloor"),
    }[form]  # fmt: skip


def _restated(rng: random.Random, golds: Golds) -> Pair:
    fact = golds.fact(rng, 12, 9000)
    a, b, c = rng.randint(2, 99), rng.randint(2, 99), rng.randint(2, 9)
    value = (a + b) * c
    expression = f"({a}+{b})*{c}"
    text = rng.choice(
        (expression, rf"({a}+{b})\cdot {c}", rf"({a}+{b})\times {c}", f"{c}({a}+{b})", f"{a * c}+{b * c}")
    )
    del fact
    return Pair(f"Compute {expression}.", str(value), boxed(rng, text), False)


def _asked(draw: Callable[[random.Random], tuple[str, str, str]], right: bool) -> Maker:
    """A gold that is an expression, and in the box the gold itself, or the question's own expression."""

    def maker(rng: random.Random, golds: Golds) -> Pair:
        question, gold, copied = draw(rng)
        return Pair(question, gold, boxed(rng, gold if right else copied), right)

    return maker


def to_factor(rng: random.Random) -> tuple[str, str, str]:
    """A polynomial to be factored, given back."""
    a, b = rng.randint(2, 30), rng.randint(31, 60)
    text = f"x^2+{a + b}x+{a * b}"
    return f"Factor ${text}$.", f"(x+{a})(x+{b})", text


def to_expand(rng: random.Random) -> tuple[str, str, str]:
    """A product to be expanded, given back."""
    a, b = rng.randint(2, 30), rng.randint(31, 60)
    text = f"(x+{a})(x+{b})"
    return f"Expand ${text}$.", f"x^2+{a + b}x+{a * b}", text


def to_simplify(rng: random.Random) -> tuple[str, str, str]:
    """A radical to be simplified, given back."""
    a, b = rng.randint(2, 30), rng.choice((2, 3, 5, 7))
    text = rf"\sqrt{{{a * a * b}}}"
    return f"Simplify ${text}$.", rf"{a}\sqrt{{{b}}}", text


def of_an_angle(rng: random.Random) -> tuple[str, str, str]:
    """A sine to be evaluated, given back."""
    degrees, gold = rng.choice(((60, r"\frac{\sqrt{3}}{2}"), (45, r"\frac{\sqrt{2}}{2}"), (30, r"\frac{1}{2}")))
    text = rf"\sin {degrees}^\circ"
    return f"Compute ${text}$.", gold, text


_SET, _PAIR, _FIND = "Find all solutions of the equation.", "Find the point.", "Find the set of all $x$."
_LINE, _FUNCTION, _VALUE = "Find the equation of the line.", "Find the function of $x$.", "Find the exact length."
CLASSES: dict[str, Maker] = {
    "set permuted, right": _drawn(_listed, True, _SET, "set permuted"),
    "set without a member": _drawn(_listed, False, _SET, "set shorter"),
    "set with one more": _drawn(_listed, False, _SET, "set longer"),
    "set with one changed": _drawn(_listed, False, _SET, "set one changed"),
    "list permuted, right": _drawn(_listed, True, _SET, "list permuted"),
    "list with a repeat": _drawn(_listed, False, _SET, "list repeated"),
    "list with multiplicities": _drawn(multiplicities, False, "List the roots with multiplicity."),
    "tuple permuted": _drawn(_listed, False, _PAIR, "tuple permuted"),
    "tuple with one more": _drawn(_listed, False, _PAIR, "tuple longer"),
    "tuple as a set": _drawn(_listed, False, _PAIR, "tuple as a set"),
    "names dropped, order turned": _drawn(_named, False, "Solve for $x$ and $y$.", "swapped"),
    "names turned": _drawn(_named, False, "Solve for $x$ and $y$.", "names swapped"),
    "another name": _drawn(_named, False, "Solve for $x$ and $y$.", "other"),
    "names in any order, right": _drawn(_named, True, "Solve for $x$ and $y$.", "order"),
    "interval closed": _drawn(_interval, False, _FIND, "closed"),
    "interval with another end": _drawn(_interval, False, _FIND, "end"),
    "interval by its ends": _drawn(_interval, False, _FIND, "ends only"),
    "interval turned": _drawn(_interval, False, _FIND, "turned"),
    "interval by or": _drawn(_interval, False, _FIND, "or"),
    "interval as a chain, right": _drawn(_interval, True, _FIND, "chain"),
    "interval as two, right": _drawn(_interval, True, _FIND, "two"),
    "inequality turned": _drawn(_ray, False, _FIND, "turned"),
    "inequality closed": _drawn(_ray, False, _FIND, "closed"),
    "inequality with another sign": _drawn(_ray, False, _FIND, "sign"),
    "inequality by sides, right": _drawn(_ray, True, _FIND, "sides"),
    "inequality by signs, right": _drawn(_ray, True, _FIND, "signs"),
    "inequality as an interval, right": _drawn(_ray, True, _FIND, "open interval"),
    "matrix changed": _drawn(_matrix, False, "Find the matrix.", "changed"),
    "matrix transposed": _drawn(_matrix, False, "Find the matrix.", "transposed"),
    "matrix flat": _drawn(_matrix, False, "Find the matrix.", "flat"),
    "matrix brackets, right": _drawn(_matrix, True, "Find the matrix.", "brackets"),
    "line changed": _drawn(_line, False, _LINE, "changed"),
    "line turned": _drawn(_line, False, _LINE, "turned"),
    "line as an inequality": _drawn(_line, False, _LINE, "inequality"),
    "line moved, right": _drawn(_line, True, _LINE, "moved"),
    "line doubled, right": _drawn(_line, True, _LINE, "doubled"),
    "ratio turned": _drawn(_ratio, False, "Find the ratio.", "turned"),
    "ratio changed": _drawn(_ratio, False, "Find the ratio.", "changed"),
    "ratio with zero": _drawn(_ratio, False, "Find the ratio.", "zero"),
    "ratio multiplied, right": _drawn(_ratio, True, "Find the ratio.", "multiplied"),
    "polynomial factored, right": _drawn(_polynomial, True, _FUNCTION, "factored"),
    "polynomial reordered, right": _drawn(_polynomial, True, _FUNCTION, "reordered"),
    "polynomial with another constant": _drawn(_polynomial, False, _FUNCTION, "constant"),
    "polynomial with another coefficient": _drawn(_polynomial, False, _FUNCTION, "coefficient"),
    "polynomial with another sign": _drawn(_polynomial, False, _FUNCTION, "sign"),
    "polynomial in another letter": _drawn(_polynomial, False, _FUNCTION, "letter"),
    "polynomial of another degree": _drawn(_polynomial, False, _FUNCTION, "degree"),
    "polynomial and a trifle": _drawn(_polynomial, False, _FUNCTION, "tiny"),
    "radical inside, right": _drawn(_radical, True, _VALUE, "inside"),
    "radical as a power, right": _drawn(_radical, True, _VALUE, "power"),
    "radical over, right": _drawn(_radical, True, _VALUE, "over"),
    "radical dropped": _drawn(_radical, False, _VALUE, "without"),
    "radical changed": _drawn(_radical, False, _VALUE, "changed"),
    "radical rounded": _drawn(_radical, False, _VALUE, "rounded"),
    "radical added": _drawn(_radical, False, _VALUE, "sum"),
    **{
        f"function with a breakpoint: {form}": _drawn(_breakpoint, False, _FUNCTION, form)
        for form in ("absolute", "minimum", "maximum", "even root", "floor", "ceiling", "sign", "rounded")
    },
    "question restated": _restated,
    "question copied, factor": _asked(to_factor, False),
    "question copied, expand": _asked(to_expand, False),
    "question copied, simplify": _asked(to_simplify, False),
    "question copied, sine": _asked(of_an_angle, False),
    "factored, right": _asked(to_factor, True),
    "expanded, right": _asked(to_expand, True),
    "simplified, right": _asked(to_simplify, True),
}
