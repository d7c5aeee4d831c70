"""Ranges of parameters, checked before anything is loaded: one message for every factory.

    at_least("embedded", 1, threads=threads, max_batch=max_batch)
    above("openai", 0, connect_s=connect_s)
    within("simulated", 0, 1, p=p)
    at_most("confidence", n, "n", warmup=warmup)      confidence: warmup must be at most n=4, got 8: lower it or raise n

None means that a parameter was not given; NaN is outside every range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ttc.errors import ConfigError

__all__ = ["above", "at_least", "at_most", "within"]


def at_least(owner: str, least: float, /, **values: float | None) -> None:
    """Raise ConfigError that names the first parameter below `least`."""
    _check(owner, f"at least {least:g}", values, lambda value: value >= least)


def at_most(owner: str, most: float, name: str = "", /, **values: float | None) -> None:
    """Raise ConfigError that names the first parameter above `most`, which is the value of parameter `name`, if any."""
    limit, fix = (f"{name}={most:g}", f": lower it or raise {name}") if name else (f"{most:g}", "")
    _check(owner, f"at most {limit}", values, lambda value: value <= most, fix)


def above(owner: str, limit: float, /, **values: float | None) -> None:
    """Raise ConfigError that names the first parameter not above `bound`."""
    _check(owner, f"> {limit:g}", values, lambda value: value > limit)


def within(owner: str, low: float, high: float, /, **values: float | None) -> None:
    """Raise ConfigError that names the first parameter outside [low, high]."""
    _check(owner, f"in [{low:g}, {high:g}]", values, lambda value: low <= value <= high)


def _check(
    owner: str, rule: str, values: Mapping[str, float | None], holds: Callable[[float], bool], fix: str = ""
) -> None:
    for name, value in values.items():
        if value is not None and not holds(value):
            raise ConfigError(f"{owner}: {name} must be {rule}, got {value}{fix}")
