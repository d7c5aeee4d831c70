from __future__ import annotations

import pathlib
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc.config.values import parse, type_text
from ttc.errors import ConfigError


@given(st.integers())
def test_an_integer_survives_its_text(value: int) -> None:
    assert parse("n", str(value), int) == value


@given(st.floats(allow_nan=False))
def test_a_float_survives_its_text(value: float) -> None:
    assert parse("x", repr(value), float) == value


@given(st.lists(st.integers(), min_size=1))
def test_a_tuple_survives_its_text(values: list[int]) -> None:
    assert parse("xs", ",".join(map(str, values)), tuple[int, ...]) == tuple(values)


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("true", bool, True),
        ("Off", bool, False),
        ("none", int | None, None),
        ("3", int | None, 3),
        ("3", int | str, 3),
        ("x", int | str, "x"),
        ("on", Literal["on", "off"], "on"),
        ("2", Literal[1, 2], 2),
        ("", tuple[int, ...], ()),
        ("1,x", tuple[int, str], (1, "x")),
        ("none", Literal["a"] | None, None),
        ("a/b", pathlib.Path, pathlib.Path("a/b")),
        (3, float, 3.0),
        ([1, 2], tuple[int, ...], (1, 2)),
        ("anything", Any, "anything"),
    ],
)
def test_a_value_is_read_by_its_annotation(text: object, annotation: Any, value: object) -> None:
    found = parse("x", text, annotation)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        ("1.5", int, "n must be int, got '1.5'"),
        (True, int, "n must be int, got True"),
        ("maybe", bool, "n must be bool, got 'maybe'"),
        (1, str, "n must be str, got 1"),
        ("many", int | None, r"n must be int \| None, got 'many'"),
        ("argmin", Literal["argmax", "mean"], "n must be one of argmax, mean, got 'argmin'; did you mean 'argmax'"),
        ("argmin", Literal["argmax"] | None, "did you mean 'argmax'"),
        ("1,2,3", tuple[int, int], "n must have 2 items, got 3"),
        ("1,b", tuple[int, ...], r"n\[1\] must be int, got 'b'"),
        ("x", dict[str, int], "n cannot be set from text"),
        ("x", "Scorer", "n cannot be set from text"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(value: object, annotation: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse("n", value, annotation)


def test_types_read_as_they_are_written() -> None:
    assert type_text(int | None) == "int | None"
    assert type_text(Literal["on", "off"]) == "'on' | 'off'"
    assert type_text(tuple[int, ...]) == "tuple[int, ...]"


def test_a_list_of_specs_keeps_the_options_of_each_together() -> None:
    text = "mine.py:reward:weight=1.0,what=length, repetition:weight=0.5,n=3,thinking"
    specs = ["mine.py:reward:weight=1.0,what=length", "repetition:weight=0.5,n=3", "thinking"]
    assert parse("shaping", text, list[str]) == specs
    assert parse("names", "a=1,b=2", tuple[str, ...]) == ("a=1", "b=2")


def test_a_list_may_be_written_as_in_a_recipe_and_a_bracketed_text_is_one_text() -> None:
    specs = ["length:weight=1,start=20", "repetition:weight=1"]
    assert parse("shaping", f"{specs}", tuple[str, ...]) == tuple(specs)
    assert parse("sizes", "[1, 2]", tuple[int, ...]) == (1, 2) and parse("sizes", "[]", tuple[int, ...]) == ()
    for text in ("[END]", "[1]"):
        assert parse("stop", text, tuple[str, ...]) == (text,)
