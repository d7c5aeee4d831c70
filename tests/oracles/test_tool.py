"""The mutation runner itself: which tests it asks about a change, and the interval that it gives."""

from __future__ import annotations

import math

import pytest

from tests.oracles.reach import Reach, affordable, owner
from tests.oracles.tool import comparable, interval

CODE = '''
LIMIT = 3

@cached
def outer(size: int = LIMIT) -> int:
    """Doc."""
    def inner(x):
        return x + 1
    return inner(size)
'''


@pytest.mark.parametrize(("line", "first"), [(2, None), (5, None), (6, 4), (8, 7), (9, 4)])
def test_a_line_belongs_to_the_innermost_function_and_a_signature_to_none(line: int, first: int | None) -> None:
    assert owner(CODE, line) == first


def test_those_are_asked_that_call_the_function_or_share_a_fixture_that_does_and_the_quickest_first() -> None:
    called = {"a.py::one": {"m.py:4"}, "b.py": {"m.py:4"}, "a.py::two": {"m.py:9"}, "": {"m.py:1"}}
    seconds = {"a.py::one": 3.0, "a.py::two": 1.0, "b.py::three": 2.0}
    reach = Reach(seconds, {key: frozenset(names) for key, names in called.items()})
    assert reach.tests("m.py", 4) == ["b.py::three", "a.py::one"]
    assert reach.tests("m.py", 9) == ["a.py::two"] and reach.tests("m.py", 20) == []
    assert reach.tests("m.py", None) == reach.tests("m.py", 1) == ["a.py::two", "b.py::three", "a.py::one"]
    assert affordable(["a.py::one", "a.py::two"], reach, 0.5) == ["a.py::one"]
    assert affordable(["a.py::two", "b.py::three", "a.py::one"], reach, 3.5) == ["a.py::two", "b.py::three"]


def test_the_star_of_keyword_parameters_is_no_product() -> None:
    code = "def f(a, *, b=2):\n    return a * b\n"
    assert comparable(code, code.replace("a * b", "a / b")) and not comparable(code, code.replace(", *,", ", /,"))
    assert not comparable(code, code.replace(", *,", ", -,"))


@pytest.mark.parametrize(
    ("hits", "num", "low", "high"), [(8, 10, 0.4439, 0.9748), (17, 17, 0.8049, 1.0), (0, 5, 0.0, 0.5218)]
)
def test_the_interval_of_a_share_is_the_exact_one(hits: int, num: int, low: float, high: float) -> None:
    got = interval(hits, num)
    assert math.isclose(got[0], low, abs_tol=1e-4) and math.isclose(got[1], high, abs_tol=1e-4)
