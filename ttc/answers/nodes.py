"""The parsed form of a short answer: one small frozen tree, built by `grammar`, read by `canonical` and the verifiers.

Operators and their arguments:

    num        value: Fraction, digits: int | None (significant digits of a decimal literal, None for an integer)
    sym        name; `e`, `i` and `pi` are constants
    add mul    nodes...          neg  node           div pow  node, node
    fn         name, nodes...    (sqrt, root, sin, log, abs, floor, ceil, factorial, binom, ...)
    pm         node, node        a plus-minus b
    inf        no arguments      empty  no arguments (the empty set)
    seq        opening, closing, nodes...    ( ) [ ] { } < > with two or more items, or a set with any number
    list       nodes...          items separated by commas without brackets: order does not matter
    rel        operators, nodes...           a chain such as 1 <= x < 2; `~` is about equal
    union      nodes...          ratio  nodes...     matrix  rows of nodes
    base       digits, base      11_7
    quantity   node, unit        a number with a unit; the unit `%` is percent
    text       string            words
"""

from __future__ import annotations

from collections.abc import Iterator
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

    def symbols(self) -> frozenset[str]:
        """Names of the variables below this node (constants excluded)."""
        if self.op == "sym":
            return frozenset() if self.args[0] in CONSTANTS else frozenset(self.args)
        return frozenset().union(*(child.symbols() for child in self.children()))

    def has(self, *ops: str) -> bool:
        """Whether one of the operators occurs at or below this node."""
        return self.op in ops or any(child.has(*ops) for child in self.children())


CONSTANTS = frozenset({"e", "i", "pi"})


def num(value: Fraction | int, digits: int | None = None) -> Term:
    """A rational literal; `digits` are the significant digits of a decimal one."""
    return Term("num", (Fraction(value), digits))


def many(op: str, items: list[Term]) -> Term:
    """An n-ary node, or the item itself when there is one."""
    return items[0] if len(items) == 1 else Term(op, tuple(items))
