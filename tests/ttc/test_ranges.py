"""Bounds of parameters: what is refused, and what the message names."""

from __future__ import annotations

import math

import pytest

from ttc.config.values import above, at_least, within
from ttc.engines.simulated import simulated
from ttc.errors import ConfigError


def test_the_bounds_themselves_are_allowed_or_not_as_the_name_says():
    at_least("part", 1, n=1)
    within("part", 0, 1, low=0, high=1.0)
    above("part", 0, seconds=1e-9)
    with pytest.raises(ConfigError, match="part: seconds must be > 0, got 0"):
        above("part", 0, seconds=0)


def test_what_was_not_given_is_not_checked():
    at_least("part", 1, n=None)
    above("part", 0, n=None)
    within("part", 0, 1, n=None)


@pytest.mark.parametrize("check", [at_least, above])
def test_only_the_parameter_that_is_out_of_bounds_is_named(check):
    with pytest.raises(ConfigError, match=r"^part: second must be .*3, got -2$"):
        check("part", 3, first=4, second=-2, third=5)


def test_not_a_number_is_outside_every_range():
    for check in (lambda: at_least("p", 0, x=math.nan), lambda: within("p", 0, 1, x=math.nan)):
        with pytest.raises(ConfigError, match="x must be"):
            check()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"p": 1.5}, r"simulated: p must be in \[0, 1\], got 1.5"),
        ({"repair": 0.9, "deceive": 0.2}, r"repair \+ deceive must be in \[0, 1\]"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"mean_step_tokens": 2}, "mean_step_tokens must be at least 3, got 2"),
        ({"spread": (0.0, 2.0)}, "spread must be > 0, got 0.0"),
    ],
)
def test_a_simulated_reasoner_names_the_parameter_that_is_wrong(given, words):
    with pytest.raises(ConfigError, match=words):
        simulated(**given)
