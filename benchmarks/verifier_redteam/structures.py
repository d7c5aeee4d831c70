"""Classes of pairs about sets, tuples, intervals, matrices, equations, functions and expressions."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.verifier_redteam.pairs import Golds, Maker, Pair, boxed

Forms = tuple[str, str]
"""A gold and an answer."""


def _drawn(draw: Callable[[random.Random], Forms], right: bool, question: str) -> Maker:
    def maker(rng: random.Random, golds: Golds) -> Pair:
        gold, answer = draw(rng)
        return Pair(question, gold, boxed(rng, answer), right)

    return maker


def _members(rng: random.Random, count: int) -> list[int]:
    return rng.sample(range(-20, 60), count)


def _listed(form: str) -> Callable[[random.Random], Forms]:
    def draw(rng: random.Random) -> Forms:
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

    return draw


def multiplicities(rng: random.Random) -> Forms:
    """The same members, each another number of times."""
    a, b = _members(rng, 2)
    return f"{a},{a},{b}", f"{a},{b},{b}"


def _named(form: str) -> Callable[[random.Random], Forms]:
    def draw(rng: random.Random) -> Forms:
        a, b = _members(rng, 2)
        answers = {
            "swapped": f"{b}, {a}",
            "names swapped": f"x={b}, y={a}",
            "order": f"y={b}, x={a}",
            "other": f"x={a}, z={b}",
        }
        return f"x={a}, y={b}", answers[form]

    return draw


def _interval(form: str) -> Callable[[random.Random], Forms]:
    def draw(rng: random.Random) -> Forms:
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

    return draw


def _ray(form: str) -> Callable[[random.Random], Forms]:
    def draw(rng: random.Random) -> Forms:
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

    return draw


def _matrix(form: str) -> Callable[[random.Random], Forms]:
    def draw(rng: random.Random) -> Forms:
        a, b, c, d = _members(rng, 4)
        rows = {
            "changed": f"{a} & {b} \\\\ {c} & {d + 1}", "transposed": f"{a} & {c} \\\\ {b} & {d}",
            "brackets": f"{a} & {b} \\\\ {c} & {d}", "flat": f"{a} & {b} & {c} & {d}",
        }[form]  # fmt: skip
        gold = rf"\begin{{pmatrix}} {a} & {b} \\ {c} & {d} \end{{pmatrix}}"
        return gold, rf"\begin{{bmatrix}} {rows} \end{{bmatrix}}"

    return draw


def _line(form: str) -> Callable[[random.Random], Forms]:
    def draw(rng: random.Random) -> Forms:
        a, b = rng.randint(2, 9), rng.randint(2, 60)
        answers = {
            "moved": f"{a}x - y + {b} = 0",
            "changed": f"y = {a}x + {b + 1}",
            "turned": f"y = {a}x - {b}",
            "doubled": f"2y = {2 * a}x + {2 * b}",
            "inequality": f"y < {a}x + {b}",
        }
        return f"y = {a}x + {b}", answers[form]

    return draw


def _ratio(form: str) -> Callable[[random.Random], Forms]:
    def draw(rng: random.Random) -> Forms:
        a, b, k = (*rng.choice(((2, 3), (1, 2), (3, 5), (4, 7))), rng.randint(2, 3))
        answers = {"turned": f"{b}:{a}", "changed": f"{a + 1}:{b}", "multiplied": f"{a * k}:{b * k}", "zero": f"0:{b}"}
        return f"{a}:{b}", answers[form]

    return draw


def _polynomial(form: str) -> Callable[[random.Random], Forms]:
    def draw(rng: random.Random) -> Forms:
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

    return draw


def _radical(form: str) -> Callable[[random.Random], Forms]:
    def draw(rng: random.Random) -> Forms:
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

    return draw


def _breakpoint(form: str) -> Callable[[random.Random], Forms]:
    """Functions that agree over a range that is usually sampled, and differ beyond a point."""

    def draw(rng: random.Random) -> Forms:
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

    return draw


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


def _copied(draw: Callable[[random.Random], tuple[str, str, str]]) -> Maker:
    """A gold that is an expression, and the question's own expression in the box."""

    def maker(rng: random.Random, golds: Golds) -> Pair:
        question, gold, answer = draw(rng)
        return Pair(question, gold, boxed(rng, answer), False)

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


def _right(pair: Callable[[random.Random], tuple[str, str, str]]) -> Maker:
    def maker(rng: random.Random, golds: Golds) -> Pair:
        question, gold, _ = pair(rng)
        return Pair(question, gold, boxed(rng, gold), True)

    return maker


_SET, _PAIR, _FIND = "Find all solutions of the equation.", "Find the point.", "Find the set of all $x$."
_LINE, _FUNCTION, _VALUE = "Find the equation of the line.", "Find the function of $x$.", "Find the exact length."
CLASSES: dict[str, Maker] = {
    "set permuted, right": _drawn(_listed("set permuted"), True, _SET),
    "set without a member": _drawn(_listed("set shorter"), False, _SET),
    "set with one more": _drawn(_listed("set longer"), False, _SET),
    "set with one changed": _drawn(_listed("set one changed"), False, _SET),
    "list permuted, right": _drawn(_listed("list permuted"), True, _SET),
    "list with a repeat": _drawn(_listed("list repeated"), False, _SET),
    "list with multiplicities": _drawn(multiplicities, False, "List the roots with multiplicity."),
    "tuple permuted": _drawn(_listed("tuple permuted"), False, _PAIR),
    "tuple with one more": _drawn(_listed("tuple longer"), False, _PAIR),
    "tuple as a set": _drawn(_listed("tuple as a set"), False, _PAIR),
    "names dropped, order turned": _drawn(_named("swapped"), False, "Solve for $x$ and $y$."),
    "names turned": _drawn(_named("names swapped"), False, "Solve for $x$ and $y$."),
    "another name": _drawn(_named("other"), False, "Solve for $x$ and $y$."),
    "names in any order, right": _drawn(_named("order"), True, "Solve for $x$ and $y$."),
    "interval closed": _drawn(_interval("closed"), False, _FIND),
    "interval with another end": _drawn(_interval("end"), False, _FIND),
    "interval by its ends": _drawn(_interval("ends only"), False, _FIND),
    "interval turned": _drawn(_interval("turned"), False, _FIND),
    "interval by or": _drawn(_interval("or"), False, _FIND),
    "interval as a chain, right": _drawn(_interval("chain"), True, _FIND),
    "interval as two, right": _drawn(_interval("two"), True, _FIND),
    "inequality turned": _drawn(_ray("turned"), False, _FIND),
    "inequality closed": _drawn(_ray("closed"), False, _FIND),
    "inequality with another sign": _drawn(_ray("sign"), False, _FIND),
    "inequality by sides, right": _drawn(_ray("sides"), True, _FIND),
    "inequality by signs, right": _drawn(_ray("signs"), True, _FIND),
    "inequality as an interval, right": _drawn(_ray("open interval"), True, _FIND),
    "matrix changed": _drawn(_matrix("changed"), False, "Find the matrix."),
    "matrix transposed": _drawn(_matrix("transposed"), False, "Find the matrix."),
    "matrix flat": _drawn(_matrix("flat"), False, "Find the matrix."),
    "matrix brackets, right": _drawn(_matrix("brackets"), True, "Find the matrix."),
    "line changed": _drawn(_line("changed"), False, _LINE),
    "line turned": _drawn(_line("turned"), False, _LINE),
    "line as an inequality": _drawn(_line("inequality"), False, _LINE),
    "line moved, right": _drawn(_line("moved"), True, _LINE),
    "line doubled, right": _drawn(_line("doubled"), True, _LINE),
    "ratio turned": _drawn(_ratio("turned"), False, "Find the ratio."),
    "ratio changed": _drawn(_ratio("changed"), False, "Find the ratio."),
    "ratio with zero": _drawn(_ratio("zero"), False, "Find the ratio."),
    "ratio multiplied, right": _drawn(_ratio("multiplied"), True, "Find the ratio."),
    "polynomial factored, right": _drawn(_polynomial("factored"), True, _FUNCTION),
    "polynomial reordered, right": _drawn(_polynomial("reordered"), True, _FUNCTION),
    "polynomial with another constant": _drawn(_polynomial("constant"), False, _FUNCTION),
    "polynomial with another coefficient": _drawn(_polynomial("coefficient"), False, _FUNCTION),
    "polynomial with another sign": _drawn(_polynomial("sign"), False, _FUNCTION),
    "polynomial in another letter": _drawn(_polynomial("letter"), False, _FUNCTION),
    "polynomial of another degree": _drawn(_polynomial("degree"), False, _FUNCTION),
    "polynomial and a trifle": _drawn(_polynomial("tiny"), False, _FUNCTION),
    "radical inside, right": _drawn(_radical("inside"), True, _VALUE),
    "radical as a power, right": _drawn(_radical("power"), True, _VALUE),
    "radical over, right": _drawn(_radical("over"), True, _VALUE),
    "radical dropped": _drawn(_radical("without"), False, _VALUE),
    "radical changed": _drawn(_radical("changed"), False, _VALUE),
    "radical rounded": _drawn(_radical("rounded"), False, _VALUE),
    "radical added": _drawn(_radical("sum"), False, _VALUE),
    **{
        f"function with a breakpoint: {form}": _drawn(_breakpoint(form), False, _FUNCTION)
        for form in ("absolute", "minimum", "maximum", "even root", "floor", "ceiling", "sign", "rounded")
    },
    "question restated": _restated,
    "question copied, factor": _copied(to_factor),
    "question copied, expand": _copied(to_expand),
    "question copied, simplify": _copied(to_simplify),
    "question copied, sine": _copied(of_an_angle),
    "factored, right": _right(to_factor),
    "expanded, right": _right(to_expand),
    "simplified, right": _right(to_simplify),
}
