"""The parsed form of a short answer: one small frozen tree, built by `grammar`, and its value.

Operators and their arguments:

    num        value: Fraction, digits: int | None (significant digits of a decimal literal, None for an integer)
    sym        name; `e`, `i` and `pi` are constants
    add mul    nodes...          neg  node           div pow  node, node
    fn         name, nodes...    (sqrt, root, sin, log, abs, floor, ceil, factorial, binom, ...);
                                 choose is the binom that is written C(n, k), which may be a point, too
    pm         node, node        a plus-minus b
    inf        no arguments      empty  no arguments (the empty set)
    seq        opening, closing, nodes...    ( ) [ ] { } < > with two or more items, or a set with any number
    list       nodes...          items separated by commas without brackets: order does not matter
    rel        operators, nodes...           a chain such as 1 <= x < 2; `~` is about equal
    without    node, node        a set without the members of another
    union      nodes...          ratio  nodes...     matrix  rows of nodes
    cases      case nodes        case  value, condition (a relation, or the text otherwise)
    mod        residue, modulus, perhaps what is congruent to the residue
    base       digits, base      11_7        time  hour, minute, half of the day (am, pm or empty)
    meet       two relations, both of which hold
    quantity   node, unit        a number with a unit; the unit `%` is percent
    duration   node, unit        a time in several units (3 h 20 min), summed in the smallest of them
    text       string            words                designation  string   a date, a telephone number or a code

Their values are exact rationals where possible, numbers in a given context of `mpmath` otherwise. Real-valued
conventions: an odd root of a negative number is the real one; any other step that leaves the real line makes the value
undefined, unless the expression itself contains the imaginary unit. Work is capped before it is done. A unit of
measurement or money is a dimension and a factor; other plain words may be units, too (`is_unit`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True, slots=True)
class Term:
    """One operator with its arguments (terms or plain values)."""

    op: str
    args: tuple[Any, ...] = ()

    def children(self) -> Iterator[Term]:
        """The arguments that are nodes."""
        for arg in self.args:
            if isinstance(arg, Term):
                yield arg
            elif isinstance(arg, tuple):
                yield from (item for item in arg if isinstance(item, Term))

    def walk(self) -> Iterator[Term]:
        """This node and all below it."""
        yield self
        for child in self.children():
            yield from child.walk()

    def with_parts(self, change: Callable[[Term], Term]) -> Term:
        """The same operator over its arguments, of which `change` makes others where they are nodes."""
        return Term(self.op, tuple(change(arg) if isinstance(arg, Term) else arg for arg in self.args))

    def symbols(self) -> frozenset[str]:
        """Names of the variables below this node (constants excluded)."""
        return frozenset(node.args[0] for node in self.walk() if node.op == "sym") - CONSTANTS

    def has(self, *ops: str) -> bool:
        """Whether one of the operators occurs at or below this node."""
        return any(node.op in ops for node in self.walk())

    def functions(self) -> frozenset[str]:
        """Names of the functions at or below this node."""
        return frozenset(node.args[0] for node in self.walk() if node.op == "fn")


CONSTANTS = frozenset({"e", "i", "pi"})


def num(value: Fraction | int, digits: int | None = None) -> Term:
    """A rational literal; `digits` are the significant digits of a decimal one."""
    return Term("num", (Fraction(value), digits))


def many(op: str, items: list[Term]) -> Term:
    """An n-ary node, or the item itself when there is one."""
    return items[0] if len(items) == 1 else Term(op, tuple(items))


def unnamed(node: Term) -> Term:
    """What a name is given to, the 5 of x = 5; the node itself where it has no name."""
    return node.args[1] if node.op == "named" else node


def holds(node: Term, part: Term) -> bool:
    """Whether `part` stands at or below `node`."""
    return part in node.walk()


def renamed(node: Term, name: str, other: str) -> Term:
    """A tree with another name for one of its variables."""
    if node == Term("sym", (name,)):
        return Term("sym", (other,))
    return node.with_parts(lambda part: renamed(part, name, other))


_CONSTANTS = re.compile(r"C(?:_[01])?|[cK](?:_1)?|k")
"""What a constant of integration is called."""


def constant_of(node: Term) -> str:
    """The name of the constant of integration in a sum, a term by itself that stands nowhere else; empty without."""
    items = node.args if node.op == "add" else ()
    names = [str(item.args[0]) for item in items if item.op == "sym" and _CONSTANTS.fullmatch(str(item.args[0]))]
    places = [item for item in items if names and names[0] in item.symbols()]
    return names[0] if len(names) == len(places) == 1 else ""


MAX_BITS = 14_000
"""Bits of an exact value; below the number of digits that Python converts to text."""
MAX_FACTORIAL = 500
MAX_POWER = 1e9


class Undefined(ArithmeticError):
    """The expression has no value here (division by zero, outside the real line, not a scalar)."""


class TooCostly(ArithmeticError):
    """Computing the value would exceed a cap."""


def exact(node: Term) -> Fraction | None:
    """The rational value of `node`, or None when it is not rational, not defined or too large to write out."""
    op, args = node.op, node.args
    if op == "num":
        value: Fraction = args[0]
        return value
    if op == "neg":
        inner = exact(args[0])
        return None if inner is None else -inner
    if op == "fn":
        return _exact_function(args[0], args[1:])
    if op not in ("add", "mul", "div", "pow"):
        return None
    parts = [exact(arg) for arg in args]
    values = [part for part in parts if part is not None]
    if len(values) < len(parts):
        return None
    if op == "add":
        return _small(sum(values, Fraction(0)))
    if op == "mul":
        return _product(values)
    if op == "div":
        return _small(values[0] / values[1]) if values[1] else None
    return _power(*values)


def _small(value: Fraction) -> Fraction | None:
    return value if _bits(value) <= MAX_BITS else None


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _product(values: list[Fraction]) -> Fraction | None:
    if sum(_bits(value) for value in values) > 2 * MAX_BITS:
        return None
    return _small(math.prod(values, start=Fraction(1)))


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1:
        root = _root(base, exponent.denominator)
        return None if root is None else _power(root, Fraction(exponent.numerator))
    if not base and exponent <= 0:
        return None
    if base in (0, 1, -1):
        return base ** (exponent.numerator % 2 + 2)
    if abs(exponent) * _bits(base) > MAX_BITS:
        return None
    return Fraction(base**exponent.numerator)


def _root(value: Fraction, degree: int) -> Fraction | None:
    """The rational root of that degree; real roots of negative values for an odd degree only."""
    if degree > 64 or (value < 0 and degree % 2 == 0) or _bits(value) > MAX_BITS:
        return None
    top, bottom = _integer_root(abs(value.numerator), degree), _integer_root(value.denominator, degree)
    if top is None or bottom is None:
        return None
    return Fraction(top if value >= 0 else -top, bottom)


def _integer_root(value: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(value)
        return root if root * root == value else None
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
    return low if low**degree == value else None


def _exact_function(name: str, args: tuple[Term, ...]) -> Fraction | None:
    rule = _EXACT.get(name)
    parts = [exact(arg) for arg in args]
    values = [part for part in parts if part is not None]
    if rule is None or len(values) < len(parts):
        return None
    value: Fraction | None = rule(values)
    return value


def _exact_factorial(values: list[Fraction]) -> Fraction | None:
    value = values[0]
    small = value.denominator == 1 and 0 <= value <= MAX_FACTORIAL
    return Fraction(math.factorial(int(value))) if small else None


def _exact_binom(values: list[Fraction]) -> Fraction | None:
    upper, lower = values
    small = upper.denominator == lower.denominator == 1 and 0 <= lower <= upper <= 2 * MAX_FACTORIAL
    return Fraction(math.comb(int(upper), int(lower))) if small else None


def _exact_root(values: list[Fraction]) -> Fraction | None:
    value, degree = values
    return _root(value, int(degree)) if degree.denominator == 1 and degree >= 2 else None


_EXACT: Mapping[str, Any] = {
    "sqrt": lambda values: _root(values[0], 2),
    "root": _exact_root,
    "abs": lambda values: abs(values[0]),
    "floor": lambda values: Fraction(math.floor(values[0])),
    "ceil": lambda values: Fraction(math.ceil(values[0])),
    "min": min,
    "max": max,
    "factorial": _exact_factorial,
    "binom": _exact_binom,
    "choose": _exact_binom,
    "gcd": lambda values: Fraction(math.gcd(*map(int, values))) if _integers(values) else None,
    "lcm": lambda values: _small(Fraction(math.lcm(*map(int, values)))) if _integers(values) else None,
}


def _integers(values: list[Fraction]) -> bool:
    return all(value.denominator == 1 for value in values)


def approximate(node: Term, point: Mapping[str, Any], ctx: Any) -> Any:
    """The value of `node` in the mpmath context `ctx` (`fp` or `mp`) with variables at `point`.

    Raises Undefined or TooCostly; `ctx` may raise OverflowError, ValueError or ZeroDivisionError of its own.
    """
    return _Evaluation(point, ctx, complex_allowed=holds(node, Term("sym", ("i",)))).value(node)


class _Evaluation:
    def __init__(self, point: Mapping[str, Any], ctx: Any, complex_allowed: bool) -> None:
        self.point, self.ctx, self.complex_allowed = point, ctx, complex_allowed

    def value(self, node: Term) -> Any:
        rule = getattr(self, f"_{node.op}", None)
        if rule is None:
            raise Undefined(node.op)
        value = rule(*node.args)
        if getattr(value, "imag", 0) != 0 and not self.complex_allowed:
            raise Undefined("outside the real line")
        return value if self.complex_allowed else getattr(value, "real", value)

    def _num(self, value: Fraction, _digits: int | None) -> Any:
        return self.ctx.mpf(value.numerator) / value.denominator

    def _sym(self, name: str) -> Any:
        constants = {"pi": self.ctx.pi, "e": self.ctx.e, "i": self.ctx.mpc(0, 1)}
        value = constants.get(name)
        if value is not None:
            return +value
        if name not in self.point:
            raise Undefined(f"the symbol {name}")
        return self.point[name]

    def _quantity(self, inner: Term, unit: str) -> Any:
        factors = {"%": self.ctx.mpf(1) / 100, "degree": self.ctx.pi / 180}
        if unit not in factors:
            raise Undefined(f"the unit {unit}")
        return self.value(inner) * factors[unit]

    def _neg(self, inner: Term) -> Any:
        return -self.value(inner)

    def _add(self, *items: Term) -> Any:
        return sum((self.value(item) for item in items), self.ctx.mpf(0))

    def _mul(self, *items: Term) -> Any:
        return math.prod((self.value(item) for item in items), start=self.ctx.mpf(1))

    def _div(self, top: Term, bottom: Term) -> Any:
        below = self.value(bottom)
        if below == 0:
            raise Undefined("division by zero")
        return self.value(top) / below

    def _pow(self, base: Term, exponent: Term) -> Any:
        ratio = exact(exponent)
        low, high = self.value(base), self.value(exponent)
        if abs(high) > MAX_POWER:
            raise TooCostly("a huge exponent")
        if low == 0 and getattr(high, "real", high) <= 0:
            raise Undefined("zero to a power that is not positive")
        negative = getattr(low, "imag", 0) == 0 and getattr(low, "real", low) < 0
        if negative and ratio is not None and ratio.denominator % 2 and ratio.denominator > 1:
            return self.ctx.power(-low, high) * (-1) ** (ratio.numerator % 2)
        if ratio is not None and ratio.denominator == 1:
            return low ** int(ratio)
        return self.ctx.power(low, high)

    def _fn(self, name: str, *args: Term) -> Any:
        rule = getattr(self, f"_fn_{name}", _PLAIN.get(name))
        values = [self.value(arg) for arg in args]
        if rule is not None:
            return rule(*values)
        names = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsec": "asec", "arccsc": "acsc"}
        if name not in _MPMATH:
            raise Undefined(name)
        if abs(values[0]) > MAX_POWER:
            raise TooCostly(f"a huge argument of {name}")
        return getattr(self.ctx, names.get(name, name))(*values)

    def _fn_log(self, value: Any) -> Any:
        # `log` without a base is ambiguous between ln and log10; the natural one, as in the literature on evaluation.
        return self._fn_ln(value)

    def _fn_ln(self, value: Any) -> Any:
        if value == 0:
            raise Undefined("the logarithm of zero")
        return self.ctx.log(value)

    def _fn_arccot(self, value: Any) -> Any:
        if getattr(value, "real", value) < 0:
            raise Undefined("a negative number, whose arccot is read in two ways")
        return self.ctx.acot(value)

    def _fn_arcsinh(self, value: Any) -> Any:
        return self.ctx.log(value + self.ctx.sqrt(value * value + 1))

    def _fn_arccosh(self, value: Any) -> Any:
        return self.ctx.log(value + self.ctx.sqrt(value + 1) * self.ctx.sqrt(value - 1))

    def _fn_arctanh(self, value: Any) -> Any:
        if abs(value) == 1:
            raise Undefined("the arctanh of one")
        return (self.ctx.log(1 + value) - self.ctx.log(1 - value)) / 2

    def _fn_root(self, value: Any, degree: Any) -> Any:
        if degree == 0:
            raise Undefined("a root of degree zero")
        odd = degree == int(degree) and int(degree) % 2 == 1
        if odd and getattr(value, "imag", 0) == 0 and getattr(value, "real", value) < 0:
            return -self.ctx.power(-value, 1 / degree)
        return self.ctx.power(value, 1 / degree)

    def _fn_factorial(self, value: Any) -> Any:
        if abs(value) > 10_000:
            raise TooCostly("a huge factorial")
        return self.ctx.factorial(value)

    def _fn_choose(self, upper: Any, lower: Any) -> Any:
        return self._fn_binom(upper, lower)

    def _fn_binom(self, upper: Any, lower: Any) -> Any:
        if max(abs(upper), abs(lower)) > 10_000:
            raise TooCostly("a huge binomial")
        return self.ctx.binomial(upper, lower)


_MPMATH = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp", "arcsin", "arccos", "arctan", "floor",
    "ceil", "sqrt", "coth", "sech", "csch", "arcsec", "arccsc",
})  # fmt: skip
_PLAIN: Mapping[str, Any] = {
    "abs": abs, "min": lambda *values: min(values), "max": lambda *values: max(values),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unit:
    """A dimension with a factor to its base unit; the dimension is empty for an unknown word."""

    dimension: str
    factor: Fraction


_MEASURES: Mapping[str, Sequence[tuple[str, str]]] = {
    "length": [
        ("1", "m metre metres meter meters 米"), ("1/100", "cm 厘米 公分"), ("1/1000", "mm 毫米"), ("1/10", "dm 分米"),
        ("1000", "km 千米 公里"), ("1e-10", "Å angstrom angstroms"),
        ("254/10000", "inch inches in"), ("1e-6", "um micron microns"), ("1e-9", "nm"),
        ("3048/10000", "ft foot feet"), ("9144/10000", "yd yard yards"), ("1609344/1000", "mi mile miles"),
    ],
    "mass": [
        ("1", "kg 千克 公斤"), ("1/1000", "g gram grams 克"), ("1/1000000", "mg 毫克"), ("1e-9", "ug"),
        ("1000", "tonne tonnes 吨"),
        ("45359237/100000000", "lb lbs pound pounds"), ("45359237/1600000000", "oz ounce ounces"),
    ],
    "time": [
        ("1", "s sec secs second seconds 秒"), ("60", "min mins minute minutes 分钟 分"),
        ("3600", "h hr hrs hour hours 小时 時間 시간"), ("86400", "day days 天 日"),
        ("604800", "week weeks"), ("1/1000", "ms"), ("1e-6", "us"), ("1e-9", "ns"),
    ],
    "length^2": [
        ("1e4", "ha hectare hectares"), ("4046.8564224", "acre acres"), ("1", "平方米"), ("1e-4", "平方厘米"),
        ("1e6", "平方千米 平方公里"),
    ],
    "length/time": [("44704/100000", "mph"), ("1000/3600", "kph kmh kmph")],
    "1/length^2": [("1609344000000000/3785411784", "mpg")],
    "level": [("1", "dB decibel decibels")],
    "angle": [("1", "deg degree degrees"), ("0", "rad radian radians")],
    "length^3": [
        ("1/1000", "L l litre litres liter liters 升"), ("1e-6", "ml mL 毫升 立方厘米"), ("1", "立方米"),
        ("0.003785411784", "gal gallon gallons"),
    ],
    "money:usd": [("1", "USD usd dollar dollars"), ("1/100", "cent cents")],
    "money:eur": [("1", "EUR euro euros")],
    "money:gbp": [("1", "GBP")],
    "money:jpy": [("1", "JPY yen 円")],
    "money:cny": [("1", "CNY yuan 元")],
    "money:krw": [("1", "KRW 원")],
    "money:inr": [("1", "INR Rs rupee rupees")],
    "month": [("1", "month months")],
    "year": [("1", "yr yrs year years")],
    "celsius": [("1", "C celsius centigrade")],
    "fahrenheit": [("1", "F fahrenheit")],
    "kelvin": [("1", "K kelvin kelvins")],
    "current": [("1", "A amp amps ampere amperes"), ("1/1000", "mA"), ("1e-6", "uA")],
    "data": [
        ("1", "bit bits"), ("1000", "kb Kb kbit kilobit kilobits"), ("1e6", "Mb Mbit megabit megabits"),
        ("1e9", "Gb Gbit gigabit gigabits"),
    ],
    "data/time": [("1", "bps"), ("1000", "kbps Kbps"), ("1e6", "Mbps"), ("1e9", "Gbps")],
    # A kilobyte has 1,000 or 1,024 bytes, so that each size is a measure of its own.
    "data:B": [("1", "byte bytes")], "data:kB": [("1", "kB KB kilobyte kilobytes")],
    "data:MB": [("1", "MB megabyte megabytes")], "data:GB": [("1", "GB gigabyte gigabytes")],
    "data:TB": [("1", "TB terabyte terabytes")],
    "amount": [("1", "mol mole moles"), ("1/1000", "mmol")],
    "amount/length^3": [("1000", "M molar"), ("1", "mM")],
    "length*mass/time^2": [("1", "N newton newtons"), ("1000", "kN"), ("1/1000", "mN")],
    "length^2*mass/time^2": [
        ("1", "J joule joules"), ("1000", "kJ"), ("1e6", "MJ"), ("1/1000", "mJ"), ("4.184", "cal calorie calories"),
        ("4184", "kcal"), ("3.6e6", "kWh"),
        ("1.602176634e-19", "eV electronvolt electronvolts"), ("1.602176634e-16", "keV"), ("1.602176634e-13", "MeV"),
        ("1.602176634e-10", "GeV"),
    ],
    "length^2*mass/time^3": [
        ("1", "W watt watts"), ("1000", "kW"), ("1e6", "MW"), ("1/1000", "mW")],
    "length^2*mass/current*time^3": [
        ("1", "V volt volts"), ("1000", "kV"), ("1/1000", "mV")],
    "length^2*mass/current^2*time^3": [
        ("1", "ohm ohms Ω"), ("1000", "kohm kΩ"), ("1e6", "Mohm MΩ"),
    ],
    "mass/length*time^2": [
        ("1", "Pa pascal pascals"), ("1000", "kPa"), ("1e6", "MPa"), ("1e9", "GPa"), ("1e5", "bar bars"),
        ("101325", "atm atmosphere atmospheres"), ("101325/760", "torr mmHg"),
    ],
    "1/time": [
        ("1", "Hz hertz"), ("1000", "kHz"), ("1e6", "MHz"), ("1e9", "GHz"), ("1e12", "THz")],
    "mass/current*time^2": [("1", "T tesla teslas"), ("1/1000", "mT"), ("1e-4", "gauss")],
    "length^2*mass/current*time^2": [("1", "Wb weber webers")],
    "current*time": [("1", "coulomb coulombs"), ("1/1000", "mC"), ("1e-6", "uC"), ("1e-9", "nC")],
    "current^2*time^4/length^2*mass": [("1", "farad farads"), ("1e-6", "uF"), ("1e-9", "nF"), ("1e-12", "pF")],
}  # fmt: skip
"""By dimension: the factor of a unit to the base unit of its dimension, and the names of that unit."""
_PREFIXES = {
    "pico": -12, "nano": -9, "micro": -6, "milli": -3, "centi": -2, "deci": -1, "kilo": 3, "mega": 6, "giga": 9,
    "tera": 12,
}  # fmt: skip
"""What may stand before the name of a unit, to the power of ten that it multiplies by."""
_PREFIXED = frozenset(
    (  # noqa: SIM905
        "metre metres meter meters gram grams second seconds litre litres liter liters amp amps ampere amperes mole "
        "moles newton newtons joule joules watt watts volt volts ohm ohms pascal pascals hertz tesla teslas coulomb "
        "coulombs farad farads calorie calories electronvolt electronvolts"
    ).split()
)
"""Names of units that take one. Symbols are listed each: of 2 kT the k is Boltzmann's."""
UNITS = {
    name: Unit(dimension, Fraction(factor))
    for dimension, units in _MEASURES.items()
    for factor, names in units
    for name in names.split()
}
UNITS.update(
    {
        prefix + name: Unit(UNITS[name].dimension, UNITS[name].factor * Fraction(10) ** power)
        for name in _PREFIXED
        for prefix, power in _PREFIXES.items()
    }
)
MAX_PARTS = 8
LISTED = frozenset({"time", "money:usd"})
"""Dimensions of which one amount may be a list: 45 dollars and 50 cents."""
SIDE_BY_SIDE = LISTED | {"length", "mass"}
"""Dimensions of which one amount is said in several units without a comma: 5 ft 4 in."""


def duration(parts: Sequence[Term], dimensions: frozenset[str] = LISTED) -> Term | None:
    """Amounts from large to small, each less than one of the unit before, as one: 3 h, 20 min; None for all else."""
    if not 1 < len(parts) <= MAX_PARTS or any(part.op != "quantity" for part in parts):
        return None
    amounts, measures = [exact(part.args[0]) for part in parts], [unit(part.args[1]) for part in parts]
    if measures[0].dimension not in dimensions or any(amount is None for amount in amounts):
        return None
    if any(measure.dimension != measures[0].dimension for measure in measures):
        return None
    sizes = [amount * measure.factor for amount, measure in zip(amounts, measures, strict=True) if amount is not None]
    whole = all(amount is not None and amount.denominator == 1 for amount in amounts[:-1])
    smaller = all(0 <= part < measure.factor for part, measure in zip(sizes[1:], measures[:-1], strict=True))
    if not whole or not smaller or sizes[0] < 0:
        return None
    return Term("duration", (num(sum(sizes, Fraction(0)) / measures[-1].factor), parts[-1].args[1]))


_OF_WARMTH = re.compile(r"\Adegrees? (?=(?:C|F|[Cc]elsius|[Ff]ahrenheit)\Z)")
"""What stands before the name of a scale of temperature."""
_RAISED = re.compile(r"(?<=[a-z]) (squared|cubed)\b")
"""A power of a unit in words: per second squared."""


def _in_signs(name: str) -> str:
    """A unit with its powers in signs: second^2 for second squared."""
    return _RAISED.sub(lambda match: "^2" if match[1] == "squared" else "^3", name)


_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}


def unit(text: str) -> Unit:
    """Read a unit such as `cm`, `square feet`, `cm^2`, `km/h`, `miles per hour`; unknown words have no dimension.

    What is derived from other units has their dimensions: J is N m and kg m^2/s^2.
    """
    text = _OF_WARMTH.sub("", text.replace(".", ""))
    powers, factor = Counter[str](), Fraction(1)
    if len(text) > MAX_UNIT_CHARS:
        return Unit("", factor)
    text = _in_signs(text)
    for at, level in enumerate(text.replace(" per ", "/").split("/")):
        power = 1
        for word in level.split():
            if word in _POWERS:
                power = _POWERS[word]
                continue
            name, _, exponent = word.partition("^")
            entry, size = known_unit(name), (int(exponent) if exponent.isdecimal() else power) * (-1 if at else 1)
            if entry is None or (not entry.factor and text != word) or abs(size) > MAX_UNIT_POWER:
                return Unit("", Fraction(1))
            factor *= entry.factor**size if entry.factor else 0
            for base, times in _bases(entry.dimension):
                powers[base] += times * size
            power = 1
    return Unit(_dimension(powers), factor)


MAX_UNIT_CHARS, MAX_UNIT_POWER = 60, 9
_LONG = 3
"""Letters from which a unit is a word, in any case; of fewer, M and m are not one prefix."""


def known_unit(name: str) -> Unit | None:
    """The unit of that name: a word in any case, a symbol in its own, but KG is kg."""
    if entry := UNITS.get(name):
        return entry
    if len(name) < _LONG and (len(name) < _LONG - 1 or name[0] == "M"):
        return None
    return UNITS.get(name.lower()) or UNITS.get("k" + name[1:] if name[0] == "K" else "")


_SYMBOL = 3
"""Letters up to which a unit may be a symbol, in which case counts."""


def unit_words(text: str) -> frozenset[str]:
    """The words of a unit, each in the singular: two units that are no measures are one where they share a word."""
    text = text.replace(" of ", " ")
    words = text.replace("^", " ").replace("/", " ").replace("square ", "").split()
    words = [word if len(word) <= _SYMBOL else word.lower() for word in words]
    return frozenset(word[:-1] if word.endswith("s") and len(word) > 3 else word for word in words if word.isalpha())


def _bases(dimension: str) -> Iterator[tuple[str, int]]:
    """The base dimensions of one, each with its power."""
    above, _, below = dimension.partition("/")
    for sign, side in ((1, above), (-1, below)):
        for base in filter(None, side.split("*")):
            name, _, power = base.partition("^")
            if name != "1":
                yield name, int(power or 1) * sign


def _dimension(powers: Mapping[str, int]) -> str:
    """The name of a dimension: its bases in order, those that divide behind a slash."""
    sides = [
        "*".join(
            base if size == 1 else f"{base}^{size}"
            for base, power in sorted(powers.items())
            if (size := sign * power) > 0
        )
        for sign in (1, -1)
    ]
    return "/".join([sides[0] or "1", sides[1]]) if sides[1] else sides[0]


PERCENTS = frozenset({"percent", "per cent", "percents", "percentage", "pct"})
"""Words for the percent sign."""
MAX_UNIT_WORDS = 3
NO_UNITS = frozenset(
    (  # noqa: SIM905
        "a about above add added all almost also am among an and another any anything approximately are around as at "
        "be because been below best between bigger both but by can cannot correct could cubed decreased definitely "
        "dividing divided do does doesn double doubled dozen dozens each eight either eleven else equal equals even "
        "ever every except exceeded exactly few fewer fifth fifths first five for four fourth fourths from gold "
        "greater gross had half halved halves has have how however i if in incorrect increased instead into is isn it "
        "its just large larger least left less like lower many max maximum may maybe might min minimum minus mistake "
        "mod modulo more most much must near negative neither never nine no none nor not now number of off on one "
        "only or other others otherwise over pair pairs perhaps plus pm possible possibly power probably product "
        "quarter quarters raised rather remainder right root s same score scores seven several should since six small "
        "smaller so some somewhat somewhere squared subtract sum sure t ten tens than that the their then there "
        "therefore these third thirds this three times to too triple tripled true twelve twice two uncertain under "
        "unless unlike up upper was wasn were what when where which while will with without wrong you your zero "
        "sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths twelfth twelfths hundred hundreds "
        "hundredth hundredths thousand thousands thousandth thousandths million millions millionth millionths "
        "billion billions factorial reference target answer nicht oder ou или не ではありません ではない 아닙니다 "
        "değil نیست নয় "
    ).split()
)
"""Words that change, deny or doubt a number, or say something about it: what holds one of them is no unit."""
PORTIONS = frozenset(
    (  # noqa: SIM905
        "bag bags bar bars bottle bottles bowl bowls box boxes bunch bunches can cans carton cartons case cases cup "
        "cups gallon gallons glass glasses jar jars loaf loaves pack packs pint pints piece pieces pot pots quart "
        "quarts roll rolls sheet sheets slice slices stack stacks tablespoon tablespoons teaspoon teaspoons tray "
        "trays"
    ).split()
)
"""Words before `of` that count or measure a thing: pieces of candy."""
_PORTION = re.compile(r"(?P<of>[A-Za-z]{1,14}) of (?P<thing>[A-Za-z -]{1,40})")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*(?:\^[23])?\.?")


_TOWARDS = re.compile(
    r"(?P<unit>.*?[^\s,]),? (?:due |to the |towards? the )?"
    r"(?P<way>(?:north|south)(?:east|west)?|east|west|left|right|upwards?|downwards?|(?:counter-?|anti-?)?clockwise)",
    re.IGNORECASE,
)
"""A unit and a direction: m/s north, `km to the east`."""
_WAYS = {"upwards": "upward", "downwards": "downward", "counterclockwise": "anticlockwise"}


def unit_and_way(name: str) -> tuple[str, str]:
    """A unit without the direction behind it, and that direction; empty where it has none."""
    towards = _TOWARDS.fullmatch(name)
    if towards is None:
        return name, ""
    way = towards["way"].lower().replace("-", "")
    return towards["unit"], _WAYS.get(way, way)


def is_unit(name: str) -> bool:
    """Whether words after a number can be its unit: a known one, or a few plain words that say nothing of it."""
    name, way = unit_and_way(_in_signs(name))
    if way and known_unit(name.partition("^")[0].partition("/")[0]) is None:
        return False
    if (portion := _PORTION.fullmatch(name.strip())) and (
        portion["of"].lower() in PORTIONS or known_unit(portion["of"])
    ):
        return is_unit(portion["thing"])
    words = re.split(r"[\s/]+", name.strip().removeprefix("/"))
    known = [known_unit(word.partition("^")[0]) is not None for word in words]
    if name.lower() in PERCENTS or all(one or word.lower() == "per" for word, one in zip(words, known, strict=True)):
        return True
    # A letter that is no unit is a variable beside the others: 12 m^2 n is no area.
    plain_words = all(
        _WORD.fullmatch(word) and (len(word.partition("^")[0]) > 1 or one)
        for word, one in zip(words, known, strict=True)
    )
    return plain_words and len(words) <= MAX_UNIT_WORDS and NO_UNITS.isdisjoint(map(str.lower, words))
