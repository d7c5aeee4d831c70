"""Classes of pairs about one number: its digits, its form, its unit, its size."""

from __future__ import annotations

import random
from fractions import Fraction

from benchmarks.verifier_redteam.pairs import PEN, Golds, Maker, Pair, boxed, other, put


def _whole(text: str, right: bool, *, low: int = 2, high: int = 10**7) -> Maker:
    """A class on a whole number n: `text` is a template with the places {n}, {m} (another number) and {k} (small)."""

    def maker(rng: random.Random, golds: Golds) -> Pair:
        fact = golds.fact(rng, low, high)
        small = rng.randint(2, 9)
        inner = _filled(text, fact.value, other(rng, fact.value), small)
        return Pair(fact.question, str(fact.value), boxed(rng, inner), right)

    return maker


def _filled(template: str, value: int, wrong: int, small: int) -> str:
    places = {
        "n": str(value),
        "m": str(wrong),
        "k": str(small),
        "n-k": str(value - small),
        "n*k": str(value * small),
        "comma": f"{value:,}",
        "latex": f"{value:,}".replace(",", "{,}"),
        "thin": f"{value:,}".replace(",", r"\,"),
        "bang": f"{value:,}".replace(",", r",\!"),
        "neg": str(-value),
    }
    return put(template, places)


def _digits(change: str) -> Maker:
    """A class on the digits of a number, each change making another number."""

    def maker(rng: random.Random, golds: Golds) -> Pair:
        fact = golds.fact(rng, 12)
        digits = list(str(fact.value))
        at = rng.randrange(len(digits))
        if change == "changed":
            digits[at] = rng.choice([d for d in "123456789" if d != digits[at]])
        elif change == "dropped":
            del digits[at]
        elif change == "added":
            digits.insert(at, rng.choice("123456789"))
        else:
            rng.shuffle(digits)
        text = "".join(digits) or "0"
        wrong = text if text != str(fact.value) and int(text) != fact.value else str(fact.value + 10)
        return Pair(fact.question, str(fact.value), boxed(rng, wrong), False)

    return maker


def spaced_digits(rng: random.Random, golds: Golds) -> Pair:
    """Two numbers that read like the gold when white space is dropped."""
    fact = golds.fact(rng, 12)
    text = str(fact.value)
    at = rng.randrange(1, len(text))
    if len(text) - at == 3 and at <= 3:
        at = len(text) - 1  # before three digits a space is a separator
    gap = rng.choice((" ", r"\ ", r"\;", r"\quad ", "~", ", "))
    return Pair(fact.question, text, boxed(rng, text[:at] + gap + text[at:]), False)


def misplaced_comma(rng: random.Random, golds: Golds) -> Pair:
    """A comma where no separator of thousands stands: two numbers."""
    fact = golds.fact(rng, 1000)
    text = str(fact.value)
    at = rng.choice([i for i in range(1, len(text)) if len(text) - i not in (3, 6)])
    return Pair(fact.question, text, boxed(rng, f"{text[:at]},{text[at:]}"), False)


def _mixed(right: bool) -> Maker:
    def maker(rng: random.Random, golds: Golds) -> Pair:
        whole, bottom = rng.randint(1, 9), rng.randint(3, 9)
        top = rng.randint(1, bottom - 1)
        value = Fraction(top, bottom) + whole
        gap = rng.choice(("", r"\,", " ")) if right else ""
        form = rf"{whole}{gap}\frac{{{top}}}{{{bottom}}}" if rng.random() < 0.5 else f"{whole} {top}/{bottom}"
        gold = f"{value}" if right else f"{whole}{top}/{bottom}"
        if not right and Fraction(gold) == value:
            return maker(rng, golds)
        return Pair("How many cups are left?", gold, boxed(rng, form), right)

    return maker


def _fraction(form: str, right: bool) -> Maker:
    def maker(rng: random.Random, golds: Golds) -> Pair:
        bottom = (
            rng.choice((2, 4, 5, 8, 10, 20, 25, 3, 6, 7, 9, 11)) if form != "decimal" else rng.choice((4, 5, 8, 25))
        )
        top = rng.choice([n for n in range(1, 40) if Fraction(n, bottom).denominator == bottom])
        k = rng.randint(2, 5)
        decimal = f"{top / bottom:.2f}"
        inner = {
            "inverted": rf"\frac{{{bottom}}}{{{top}}}", "changed": rf"\frac{{{top + 1}}}{{{bottom}}}",
            "multiplied": rf"\frac{{{top * k}}}{{{bottom * k}}}", "slash": f"{top}/{bottom}",
            "tfrac": rf"\tfrac{{{top}}}{{{bottom}}}", "decimal": f"{top / bottom:.4f}".rstrip("0"),
            "rounded": decimal, "run on": f"{top}{bottom}", "negative": rf"-\frac{{{top}}}{{{bottom}}}",
        }[form]  # fmt: skip
        if (form == "rounded" and Fraction(decimal) == Fraction(top, bottom)) or (form == "inverted" and top == bottom):
            return maker(rng, golds)
        gold = rf"\frac{{{top}}}{{{bottom}}}"
        if form == "inverted" and top == 1 and bottom == 1:
            return maker(rng, golds)
        return Pair("What is the probability?", gold, boxed(rng, inner), right)

    return maker


def _unit(answer: str, right: bool, gold: str = "<n> \\text{ cm}") -> Maker:
    def maker(rng: random.Random, golds: Golds) -> Pair:
        n = rng.randint(2, 900)
        places = {"n": str(n), "100n": str(100 * n), "10n": str(10 * n), "m": str(other(rng, n))}
        texts = [put(text, places).replace("<thing>", rng.choice(PEN)) for text in (gold, answer)]
        return Pair("How long is the rope?", texts[0], boxed(rng, texts[1]), right)

    return maker


def _percent(gold: str, answer: str, right: bool, question: str = "What is the probability?") -> Maker:
    def maker(rng: random.Random, golds: Golds) -> Pair:
        n = rng.choice([n for n in range(2, 98) if n % 10])
        places = {
            "n": str(n),
            "n/100": f"{n / 100:g}",
            "n/10000": f"{n / 10000:.4f}",
            "frac": rf"\frac{{{n}}}{{100}}",
            "m": str(other(rng, n)),
        }
        return Pair(question, put(gold, places), boxed(rng, put(answer, places)), right)

    return maker


def _size(gold: str, answer: str, right: bool) -> Maker:
    def maker(rng: random.Random, golds: Golds) -> Pair:
        n = rng.randint(2, 99)
        word, zeros = rng.choice((("million", 6), ("thousand", 3), ("billion", 9)))
        places = {"n": str(n), "word": word, "long": f"{n * 10**zeros}", "long,": f"{n * 10**zeros:,}"}
        return Pair("How many people live there?", put(gold, places), boxed(rng, put(answer, places)), right)

    return maker


def tiny_difference(rng: random.Random, golds: Golds) -> Pair:
    """Two powers too small for rounding to tell apart."""
    base, exponent = rng.choice((2, 3, 7, 10)), rng.randint(60, 300)
    gold, wrong = rf"\frac{{1}}{{{base}^{{{exponent}}}}}", rf"\frac{{1}}{{{base}^{{{exponent - 1}}}}}"
    return Pair("What is the probability?", gold, boxed(rng, wrong), False)


def _clock(right: bool) -> Maker:
    def maker(rng: random.Random, golds: Golds) -> Pair:
        hour, minute = rng.randint(1, 12), rng.choice((0, 5, 10, 15, 20, 30, 45, rng.randrange(60)))
        gold = f"{hour}:{minute:02d}"
        if right:
            return Pair(
                "At what time do they meet?", gold, boxed(rng, rng.choice((f"{hour:02d}:{minute:02d}", gold))), True
            )
        away = rng.choice(((hour % 12 + 1, minute), (2 * hour, (2 * minute) % 60), (hour, (minute + 5) % 60)))
        text = f"{away[0]}:{away[1]:02d}"
        return Pair("At what time do they meet?", gold, boxed(rng, text), text == gold)

    return maker


def _half_of_day(right: bool) -> Maker:
    def maker(rng: random.Random, golds: Golds) -> Pair:
        clock = f"{rng.randint(1, 12)}:{rng.randrange(60):02d}"
        halves = rng.sample(("am", "pm"), 2)
        gold = rf"{clock} \text{{ {halves[0]}}}"
        half = halves[0] if right else halves[1]
        text = rng.choice((rf"{clock} \text{{ {half}}}", rf"{clock}\text{{ {half[0]}.m.}}", f"{clock} {half}"))
        return Pair("At what time do they meet?", gold, boxed(rng, text), right)

    return maker


def based(rng: random.Random, golds: Golds) -> Pair:
    """A number in another base."""
    digits = rng.choice(("11", "101", "110", "212", "1011"))
    return Pair("What is the number?", digits, boxed(rng, f"{digits}_{{{rng.randint(3, 9)}}}"), False)


CLASSES: dict[str, Maker] = {
    "digit changed": _digits("changed"),
    "digit dropped": _digits("dropped"),
    "digit added": _digits("added"),
    "digits shuffled": _digits("shuffled"),
    "another number": _whole("<m>", False),
    "sign turned": _whole("<neg>", False),
    "digits spaced": spaced_digits,
    "comma misplaced": misplaced_comma,
    "mixed number run together": _mixed(False),
    "mixed number, right": _mixed(True),
    "left as a sum": _whole("<n-k>+<k>", False, low=12),
    "left as a difference": _whole("<m>-(<m>-<n>)", False),
    "left as a product": _whole(r"<n>\cdot 1", False),
    "left as a quotient": _whole(r"\frac{<n*k>}{<k>}", False),
    "left as a root": _whole(r"\sqrt{<n>^2}", False),
    "left as a sum, with zero": _whole("<n>+0", False),
    "grouped digits, right": _whole("<comma>", True),
    "braced comma, right": _whole("<latex>", True),
    "thin space, right": _whole(r"<thin>", True),
    "comma and back space, right": _whole("<bang>", True, low=1000),
    "decimal zero, right": _whole("<n>.0", True),
    "dollars, right": _whole(r"\$<n>", True),
    "in text, right": _whole(r"\text{<n>}", True),
    "bold, right": _whole(r"\mathbf{<n>}", True),
    "named, right": _whole("x = <n>", True),
    "worked out in the box, right": _whole("<n-k> + <k> = <n>", True, low=12),
    "false equation": _whole("<n-k> + <k> = <m>", False, low=12),
    "about another value": _whole(r"<n> \approx <m>", False),
    "fraction turned round": _fraction("inverted", False),
    "fraction changed": _fraction("changed", False),
    "fraction negative": _fraction("negative", False),
    "fraction rounded": _fraction("rounded", False),
    "fraction without its bar": _fraction("run on", False),
    "fraction, right": _fraction("slash", True),
    "fraction not reduced, right": _fraction("multiplied", True),
    "fraction as a decimal, right": _fraction("decimal", True),
    "small fraction, right": _fraction("tfrac", True),
    "another unit": _unit(r"<n> \text{ m}", False),
    "another kind of unit": _unit(r"<n> \text{ kg}", False),
    "unit and another number": _unit(r"<m> \text{ cm}", False),
    "unit converted, right": _unit(r"<10n> \text{ mm}", True),
    "unit left out, right": _unit("<n>", True),
    "unit added, right": _unit(r"<n> \text{ <thing>}", True, gold="<n>"),
    "percent of a bare value": _percent("<n/100>", r"<n/100>\%", False),
    "percent of a bare fraction": _percent("<frac>", r"\frac{<n>}{100}\%", False),
    "percent changed": _percent(r"<n>\%", r"<m>\%", False),
    "percent a hundredth": _percent(r"<n>\%", r"<n/100>\%", False),
    "percent as a word, right": _percent(r"<n>\%", r"<n> \text{ percent}", True),
    "percent as a value, right": _percent("<n/100>", r"<n>\%", True),
    "percent asked for, right": _percent("<n>", r"<n>\%", True, "What percent of the balls are red?"),
    "percent asked for, a value": _percent("<n>", "<n/100>", False, "What percent of the balls are red?"),
    "million as a unit": _size("<n> \\text{ <word>}", "<n>", False),
    "million of a bare number": _size("<n>", "<n> \\text{ <word>}", False),
    "million written out, right": _size("<n> \\text{ <word>}", "<long,>", True),
    "million in words, right": _size("<long>", "<n> \\text{ <word>}", True),
    "tiny difference": tiny_difference,
    "clock": _clock(False),
    "clock, right": _clock(True),
    "half of the day": _half_of_day(False),
    "half of the day, right": _half_of_day(True),
    "another base": based,
}
