"""Counter-based randomness: pure, vectorised exactly, uniform, and separated by key and position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc.seeds import derive, derive_draws, uniform, uniforms

pytestmark = pytest.mark.numeric

KEYS = st.integers(min_value=0, max_value=2**64 - 1)
POSITIONS = st.integers(min_value=0, max_value=2**40)


@given(st.lists(st.tuples(KEYS, POSITIONS), min_size=1, max_size=20))
def test_the_vectorised_uniform_equals_the_scalar_one_bit_for_bit(pairs: list[tuple[int, int]]) -> None:
    keys = np.array([k for k, _ in pairs], dtype=np.uint64)
    positions = np.array([p for _, p in pairs], dtype=np.uint64)
    assert uniforms(keys, positions).tolist() == [uniform(k, p) for k, p in pairs]


@given(KEYS, POSITIONS)
def test_a_uniform_lies_in_the_half_open_unit_interval(key: int, position: int) -> None:
    assert 0.0 <= uniform(key, position) < 1.0


def test_parts_are_tagged_so_that_different_tuples_never_collide_by_joining() -> None:
    parts = [("ab", "c"), ("a", "bc"), ("abc",), (1,), ("1",), ((1,),), (1, 2), ((1, 2),), ((1,), 2), ()]
    assert len({derive(7, *p) for p in parts}) == len(parts)


def test_consecutive_positions_and_keys_are_uncorrelated_and_uniform() -> None:
    number = 20_000
    keys = np.array([derive(1, (i,)) for i in range(number)], dtype=np.uint64)
    grid = np.stack([uniforms(keys, np.full(number, t, dtype=np.uint64)) for t in range(4)])
    assert abs(grid.mean() - 0.5) < 0.005
    assert abs(grid.var() - 1 / 12) < 0.003
    correlation = np.corrcoef(grid)
    assert np.abs(correlation - np.eye(4)).max() < 0.03
    counts = np.histogram(grid, bins=64, range=(0, 1))[0]
    expected = grid.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 120  # chi-squared, 63 degrees of freedom


@given(KEYS, st.lists(st.integers(0, 300), max_size=6), st.integers(0, 1000), st.integers(0, 5))
def test_the_keys_of_several_draws_are_those_of_each_alone(seed: int, path: list[int], start: int, num: int) -> None:
    draws = range(start, start + num)
    assert derive_draws(seed, path, draws) == tuple(derive(seed, (*path, draw)) for draw in draws)


def test_a_key_is_the_same_on_every_machine_and_in_every_version() -> None:
    assert derive(7, "p1", 3, (0, 2)) == 7492399995236270974
