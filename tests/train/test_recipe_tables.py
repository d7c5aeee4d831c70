"""What a table says over training seeds: intervals, which seeds count, and that what fails is said to fail."""

import pytest

from benchmarks.over_seeds import nested, t_interval
from benchmarks.recipe_tables import over_seeds


def metric(gain, spread=0.0, gains=None):
    row = {"before": 0.1, "after": 0.1 + gain, "gain": gain, "gain_low": gain - spread, "gain_high": gain + spread}
    return row if gains is None else {**row, "gains": gains}


def rows(gains, seeds):
    stages = [[{"stage": "2-grpo", "metrics": {"held_out_sampled": metric(gain)}}] for gain in gains]
    return [{"recipe": "r", "seed": seed, "stages": stage} for seed, stage in zip(seeds, stages, strict=True)]


def test_the_t_interval_over_five_seeds_is_that_of_a_hand_calculation():
    assert t_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((3 - 1.9630, 3 + 1.9630), abs=1e-3)


def test_the_nested_bootstrap_widens_with_what_varies_inside_a_seed_and_between_seeds():
    gains = (0.1, 0.3, 0.2, 0.4, 0.25)
    between = nested([metric(gain) for gain in gains])
    both = nested([metric(gain, 0.2) for gain in gains])
    by_question = nested([metric(gain, gains=[gain - 0.5, gain + 0.5] * 20) for gain in gains])
    none = nested([metric(0.2) for _ in gains])
    assert none == pytest.approx((0.2, 0.2))
    # the mean of five draws of these five: a spread of .1 over the root of 5
    assert between == pytest.approx((0.25 - 1.96 * 0.1 / 5**0.5, 0.25 + 1.96 * 0.1 / 5**0.5), abs=0.015)
    assert both[0] < between[0] - 0.01 and both[1] > between[1] + 0.01
    # 40 questions half a point away each: a standard error of .5 over the root of 40 in each of five seeds
    inside = 0.5 / 40**0.5
    assert by_question[1] - by_question[0] == pytest.approx(2 * 1.96 * ((0.1**2 + inside**2) / 5) ** 0.5, abs=0.02)


def test_the_seed_that_steps_were_chosen_on_is_left_out_and_a_gain_that_is_in_doubt_fails():
    held = list(over_seeds(rows([0.9, 0.3, 0.32, 0.31], [1, 2, 3, 4])))
    assert len(held) == 3 and "+31.0" in held[2] and held[2].endswith("| yes |")
    doubt = list(over_seeds(rows([0.3, -0.3, 0.2], [2, 3, 4])))
    assert doubt[2].endswith("| **no** |")
