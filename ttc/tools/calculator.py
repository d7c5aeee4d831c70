"""A calculator: + - * / and parentheses over whole numbers, exact; nothing is evaluated as code."""

from __future__ import annotations

from ttc.agents.tool import ToolFailure, Use
from ttc.answers.keys import ZeroDivision, read_expression
from ttc.answers.tokens import Unparsed
from ttc.core import Problem


def calculator() -> Calculator:
    """Return the calculator."""
    return Calculator()


class Calculator:
    """Works out one expression."""

    name = "calculator"
    about = "the exact value of an expression of + - * / and parentheses over whole numbers, such as (12+30)*2"

    def start(self, problem: Problem) -> Use:
        """See `Tool.start`; it has no state."""
        return _value


async def _value(argument: str) -> str:
    try:
        return str(read_expression(argument.strip()).value)
    except ZeroDivision as exc:
        raise ToolFailure("division by zero") from exc
    except Unparsed as exc:
        raise ToolFailure(f"not an expression of whole numbers: {exc}") from exc
