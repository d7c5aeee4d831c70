"""Reduce a parsed answer to its shape: what kind of mathematical object it is, with the spelling removed.

    scalar    node                 a number or an expression
    quantity  node, unit           a scalar with a unit
    named     name, shape          x = 5 is the shape of 5 under the name x
    set       shapes...            also a list without brackets, an or of solutions, a plus-minus
    tuple     shapes...            (a, b), also an open interval, which is written alike; <a, b>
    brackets  shapes...            [a, b, c]
    interval  low, high, closed on the left, closed on the right (never open on both sides: that is a tuple)
    union ratio matrix rel base empty text   as in `nodes`

Inequalities in one variable become intervals; sets, tuples and intervals stay distinct.
"""

from __future__ import annotations

from ttc.answers.nodes import CONSTANTS, Term
from ttc.answers.numeric import exact

_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_INFINITE = Term("inf")


def shape(node: Term) -> Term:
    """Return the shape of a parsed answer."""
    rule = _RULES.get(node.op)
    return rule(node) if rule else _scalar(node)


def _scalar(node: Term) -> Term:
    if node == Term("sym", ("set:R",)):
        return Term("tuple", (Term("scalar", (Term("neg", (_INFINITE,)),)), Term("scalar", (_INFINITE,))))
    node, unit = _lift_unit(node)
    if node.op == "pm":
        low, high = (Term("add", (node.args[0], Term("neg", (node.args[1],)))), Term("add", node.args))
        return Term("set", (_with_unit(low, unit), _with_unit(high, unit)))
    return _with_unit(node, unit)


def _with_unit(node: Term, unit: str) -> Term:
    return Term("quantity", (node, unit)) if unit else Term("scalar", (node,))


def _lift_unit(node: Term) -> tuple[Term, str]:
    """Move the unit of the last factor to the outside: -5 %, 1/2 %, 2 * 3 cm."""
    if node.op == "quantity":
        return node.args[0], node.args[1]
    if node.op in ("neg", "mul", "div") and not any(child.has("quantity") for child in node.args[:-1]):
        inner, unit = _lift_unit(node.args[-1])
        return Term(node.op, (*node.args[:-1], inner)), unit
    return node, ""


def _sequence(node: Term) -> Term:
    opening, closing, *items = node.args
    shapes = tuple(shape(item) for item in items)
    if opening == "{":
        return Term("set", _flat(shapes))
    if (opening, closing) == ("(", ")"):
        return Term("tuple", shapes)
    if len(shapes) == 2:
        return Term("interval", (*shapes, opening == "[", closing == "]"))
    return Term("brackets", shapes)


def _flat(shapes: tuple[Term, ...]) -> tuple[Term, ...]:
    """The members of a set: a plus-minus inside it contributes both."""
    return tuple(inner for item in shapes for inner in (item.args if item.op == "set" else (item,)))


def _list(node: Term) -> Term:
    shapes = tuple(shape(item) for item in node.args)
    names = {item.args[0] for item in shapes if item.op == "named"}
    if len(names) == 1:
        bare = tuple(item.args[1] if item.op == "named" else item for item in shapes)
        return Term("named", (names.pop(), Term("set", _flat(bare))))
    return Term("set", _flat(shapes))


def _union(node: Term) -> Term:
    shapes = [shape(item) for item in node.args]
    names = {item.args[0] for item in shapes if item.op == "named"}
    bare = Term("union", tuple(item.args[1] if item.op == "named" else item for item in shapes))
    return Term("named", (names.pop(), bare)) if len(names) == 1 else bare


def _relation(node: Term) -> Term:
    operators, *operands = node.args
    if "~" in operators:
        return _approximation(operators, operands)
    if operators == ("in",) and (name := _name(operands[0])):
        return Term("named", (name, shape(operands[1])))
    if set(operators) == {"="}:
        return _equation(operands, node)
    return _interval(operators, operands) or Term("rel", node.args)


def _approximation(operators: tuple[str, ...], operands: list[Term]) -> Term:
    """Read x = pi ~ 3.14 as pi, and x ~ 3.14, which has nothing more exact, as 3.14."""
    first = operators.index("~")
    if first or not _name(operands[0]):
        operators, operands = operators[:first], operands[: first + 1]
        return shape(Term("rel", (operators, *operands)) if operators else operands[0])
    return shape(Term("rel", (("=",) * (len(operands) - 1), *operands)))


def _equation(operands: list[Term], node: Term) -> Term:
    first, last = operands[0], operands[-1]
    if (name := _name(first)) and _consistent(operands[1:]):
        return Term("named", (name, shape(last)))
    if len(operands) == 2 and (name := _name(last)):
        return Term("named", (name, shape(first)))
    constant = not any(operand.symbols() for operand in operands)
    return shape(last) if constant and _consistent(operands) else Term("rel", node.args)


def _consistent(operands: list[Term]) -> bool:
    """Whether all sides that are rational have one value: 5 + 3 = 8 is, 8 = 9 is not."""
    values = {exact(_lift_unit(operand)[0]) for operand in operands} - {None}
    return len(values) <= 1


def _name(node: Term) -> str:
    """The name that an equation defines: x, x_1, f(x), (x, y); empty when the node is not a name."""
    if node.op == "sym" and node.args[0] not in CONSTANTS:
        return str(node.args[0])
    if node.op == "mul" and len(node.args) == 2 and all(arg.op == "sym" for arg in node.args):
        letter, argument = (str(arg.args[0]) for arg in node.args)
        return f"{letter}({argument})" if letter[0] in "fghFGHPpQqaST" else ""
    if node.op == "seq" and node.args[0] == "(" and all(_name(item) for item in node.args[2:]):
        return "(" + ",".join(_name(item) for item in node.args[2:]) + ")"
    return ""


def _interval(operators: tuple[str, ...], operands: list[Term]) -> Term | None:
    """A chain of inequalities around one variable as an interval; None when it is not such a chain."""
    where = [i for i, operand in enumerate(operands) if operand.op == "sym" and _name(operand)]
    if len(where) != 1 or any(operand.symbols() for i, operand in enumerate(operands) if i != where[0]):
        return None
    at, name = where[0], _name(operands[where[0]])
    if len(operands) == 2:
        operator = operators[0] if at == 0 else _FLIP.get(operators[0], "")
        limit = shape(operands[1 - at])
        low, high = (Term("scalar", (Term("neg", (_INFINITE,)),)), Term("scalar", (_INFINITE,)))
        interval = {
            "<": (low, limit, False, False), "<=": (low, limit, False, True),
            ">": (limit, high, False, False), ">=": (limit, high, True, False),
        }.get(operator)  # fmt: skip
    elif len(operands) == 3 and at == 1:
        interval = _between(operators, shape(operands[0]), shape(operands[2]))
    else:
        return None
    if interval is None:
        return None
    low, high, left, right = interval
    body = Term("interval", interval) if left or right else Term("tuple", (low, high))
    return Term("named", (name, body))


def _between(operators: tuple[str, ...], first: Term, last: Term) -> tuple[Term, Term, bool, bool] | None:
    if set(operators) <= {"<", "<="}:
        return first, last, operators[0] == "<=", operators[1] == "<="
    if set(operators) <= {">", ">="}:
        return last, first, operators[1] == ">=", operators[0] == ">="
    return None


def _matrix(node: Term) -> Term:
    return Term("matrix", tuple(tuple(shape(cell) for cell in row) for row in node.args))


def _ratio(node: Term) -> Term:
    return Term("ratio", tuple(shape(item) for item in node.args))


def _same(node: Term) -> Term:
    return node


_RULES = {
    "seq": _sequence, "list": _list, "union": _union, "rel": _relation, "matrix": _matrix, "ratio": _ratio,
    "base": _same, "empty": _same, "text": _same,
}  # fmt: skip
