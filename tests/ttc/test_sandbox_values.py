"""Values travel as data, whatever they were, and nothing that comes in is more than data."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections import Counter, OrderedDict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttc.sandbox.values import Unsendable, dump, load


def refuse(value: object) -> int:
    raise Unsendable(type(value).__name__)


def there_and_back(value: object) -> Any:
    return load(dump(value, refuse), lambda handle: handle)


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(),
    st.complex_numbers(allow_nan=False), st.fractions(), st.dates(), st.datetimes(), st.timedeltas(),
)  # fmt: skip
HASHABLE = st.recursive(SCALARS, lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner)), max_leaves=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.sets(HASHABLE, max_size=4),
    ),
    max_leaves=20,
)


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_plain_values_come_back_equal_and_of_the_same_type(value: object) -> None:
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        ({1: 2}.items(), [(1, 2)]),
        (bytearray(b"ab"), b"ab"),
        (range(1, 9, 3), range(1, 9, 3)),
        (deque([1]), deque([1])),
        (Decimal("1.50"), Decimal("1.50")),
        (Fraction(1, 3), Fraction(1, 3)),
        (datetime.time(1, 2), datetime.time(1, 2)),
        (float("inf"), float("inf")),
    ],
)
def test_richer_values_travel_as_what_they_are(value: object, plain: object) -> None:
    assert there_and_back(value) == plain


def test_a_number_of_any_size_travels() -> None:
    assert there_and_back([1 << 400_000, -(1 << 9_999)]) == [1 << 400_000, -(1 << 9_999)]


def test_an_iterator_travels_as_its_items() -> None:
    assert list(there_and_back(n * n for n in range(4))) == [0, 1, 4, 9]
    assert list(there_and_back(zip("ab", [1, 2], strict=True))) == [("a", 1), ("b", 2)]


class Equal(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_a_value_of_a_subclass_loses_its_own_comparison() -> None:
    back = there_and_back(Equal(3))
    assert type(back) is int
    assert back != 4


def test_an_object_becomes_a_handle() -> None:
    kept: list[object] = []

    def keep(value: object) -> int:
        kept.append(value)
        return len(kept) - 1

    thing = object()
    data = dump([thing, {"a": thing}], keep)
    assert kept == [thing, thing]
    assert load(data, kept.__getitem__) == [thing, {"a": thing}]


def test_what_cannot_travel_says_why() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(Unsendable, match="nested deeper"):
        dump(circle, refuse)
    with pytest.raises(Unsendable, match="iterator of more than"):
        dump(iter(range(10**6)), refuse)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(
        st.lists(inner),
        st.fixed_dictionaries(
            {"t": st.sampled_from(["int", "set", "dict", "range", "decimal", "date", "handle", "eval"]), "v": inner}
        ),
    ),
    max_leaves=10,
)


@given(st.one_of(st.binary(), JSON.map(lambda value: json.dumps(value).encode())))
@settings(max_examples=300, deadline=None)
def test_bytes_from_anyone_are_a_value_or_unsendable(data: bytes) -> None:
    with contextlib.suppress(Unsendable):
        load(data, lambda handle: handle)


@pytest.mark.parametrize(
    "data",
    [b"[" * 10**6, b'{"t":"set","v":' * 10**4, b"9" * 10**6, b'{"t":"decimal","v":"x"}'],
    ids=["lists", "sets", "digits", "no decimal"],
)
def test_huge_and_broken_bytes_are_unsendable(data: bytes) -> None:
    with pytest.raises(Unsendable):
        load(data, lambda handle: handle)
