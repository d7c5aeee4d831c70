"""Gates: bounds on measured numbers that must hold before one model replaces another.

Training and distillation declare theirs.

A rate is bounded by the unfavourable end of its interval, so too few problems fail a gate instead of passing it by
luck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GateCheck:
    """One gate: what was measured, the bound, and whether it holds."""

    gate: str
    passed: bool
    value: float
    bound: float
    text: str


def at_least(gate: str, what: str, value: float, bound: float, *, is_end: bool = False) -> GateCheck:
    """`value` must reach `bound`; `is_end` says that it is the lower end of a 95 % interval."""
    amount = f"at least {value:.4g} (95 %)" if is_end else f"{value:.4g}"
    return GateCheck(gate, value >= bound, value, bound, f"{what}: {amount}, must be {bound:g} or more")


def at_most(gate: str, what: str, value: float, bound: float) -> GateCheck:
    """`value` must not exceed `bound`."""
    return GateCheck(gate, value <= bound, value, bound, f"{what}: {value:.4g}, must be {bound:g} or less")


def check_lines(checks: Sequence[GateCheck]) -> list[str]:
    """One line per check, for a terminal."""
    return [f"{'pass' if check.passed else 'FAIL'}  {check.gate:20} {check.text}" for check in checks]
