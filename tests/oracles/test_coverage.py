"""Oracles 1, 2, 32: unbiased coverage, its limits, its law under varying difficulty."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.numbers.metrics import pass_at_k
from tests.oracles.tools import answers
from ttc.engines.simulated import truth
from ttc.strategies.majority import majority


@pytest.mark.parametrize(("n", "k", "p", "expected"), [(20, 5, 0.13, 0.5015790793), (16, 4, 0.3, 1 - 0.7**4)])
def test_pass_at_k_is_unbiased_and_the_plug_in_estimate_is_not(n: int, k: int, p: float, expected: float) -> None:
    law = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    assert math.isclose(sum(w * pass_at_k(n, c, k) for c, w in enumerate(law)), expected, rel_tol=1e-9)
    assert math.isclose(expected, 1 - (1 - p) ** k, rel_tol=1e-9)
    plug_in = sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(law))
    assert abs(plug_in - expected) > 0.01


@given(st.integers(1, 60), st.data())
def test_pass_at_k_has_its_limits_and_grows_in_c_and_k(n: int, data) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    value = pass_at_k(n, c, k)
    assert 0 <= value <= 1
    assert c > 0 or value == 0
    assert n - c >= k or value == 1
    assert pass_at_k(n, c, n) == float(c > 0)
    assert k == n or value <= pass_at_k(n, c, k + 1) + 1e-12
    assert c == n or value <= pass_at_k(n, c + 1, k) + 1e-12


def test_coverage_under_beta_difficulty_follows_its_law() -> None:
    a, b, runs, n = 0.3, 2.5, 400, 32
    found = answers(partial(majority, n=n), runs, spread=(a, b), steps=2)
    for k in (1, 4, 10, 32):
        law = 1 - math.exp(math.lgamma(b + k) - math.lgamma(b) + math.lgamma(a + b) - math.lgamma(a + b + k))
        shares = [
            pass_at_k(n, sum(c.final == truth(f"problem {i}") for c in answer.candidates), k)
            for i, answer in enumerate(found)
        ]
        assert abs(np.mean(shares) - law) < 4 * np.std(shares) / math.sqrt(runs)
