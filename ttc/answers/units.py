"""Units of measurement and currency that may follow or precede a number.

A known unit has a dimension and a factor, so that 5 cm and 5 m differ and 500 cm = 5 m. An unknown word ("apples") is
a unit without a dimension: it never makes two answers differ. Left out: temperatures (offsets) and currencies' rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


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
