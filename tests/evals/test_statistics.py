"""Intervals cover the truth as often as they claim, and the tests equal their exact definitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.numbers.metrics import pass_at_k
from evals.numbers.statistics import (
    Interval,
    PairedTest,
    holm,
    mean_interval,
    mean_intervals,
    minimum_detectable,
    paired_interval,
    paired_test,
    standard_error,
)
from tests.evals.pools import mcnemar


def coverage(simulate: object, truth: float, rounds: int) -> float:
    hits = 0
    for seed in range(rounds):
        values, clusters = simulate(np.random.default_rng([7, seed]))  # type: ignore[operator]
        zeros = np.zeros(len(values))
        interval = paired_interval(zeros, values, clusters, seed=seed)
        hits += interval.low <= truth <= interval.high
    return hits / rounds


def test_the_paired_interval_covers_the_true_difference_95_times_in_100() -> None:
    def simulate(rng: np.random.Generator) -> tuple[np.ndarray, range]:
        ability = rng.beta(1, 1, 300)  # shared by both runs: the difference is paired
        first = rng.random(300) < np.clip(ability + 0.1, 0, 1)
        second = rng.random(300) < ability
        return first.astype(float) - second, range(300)

    truth = 0.1 - 0.1**2 / 2  # E[min(1, u + 0.1)] - 1/2 for u uniform
    assert coverage(simulate, truth, rounds=400) == pytest.approx(0.95, abs=0.03)


def test_clustered_problems_widen_the_interval_and_keep_its_coverage() -> None:
    def simulate(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        clusters = np.repeat(np.arange(60), 5)
        return (rng.random(60) < 0.5).repeat(5).astype(float), clusters  # five copies of each coin

    assert coverage(simulate, 0.5, rounds=500) == pytest.approx(0.95, abs=0.03)
    values, clusters = simulate(np.random.default_rng(0))
    naive = mean_interval(values, range(300), seed=1)
    honest = mean_interval(values, clusters, seed=1)
    assert (honest.high - honest.low) / (naive.high - naive.low) == pytest.approx(math.sqrt(5), rel=0.15)


def test_the_interval_of_pass_at_k_near_its_ceiling_covers_the_truth() -> None:
    def simulate(rng: np.random.Generator) -> tuple[np.ndarray, range]:
        right = rng.binomial(16, rng.beta(2, 0.2, 100))
        return np.array([pass_at_k(16, int(c), 8) for c in right]), range(100)

    truth = 1 - math.exp(sum(math.log((0.2 + i) / (2.2 + i)) for i in range(8)))
    assert coverage(simulate, truth, rounds=100) >= 0.95


def test_a_few_clusters_give_an_interval_that_is_wide_enough() -> None:
    def simulate(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        sizes = rng.integers(1, 40, 5)
        return (rng.random(sizes.sum()) < rng.beta(6, 2, 5).repeat(sizes)).astype(float), np.arange(5).repeat(sizes)

    assert coverage(simulate, 0.75, rounds=200) >= 0.95


def of_table(gained: int, lost: int, num: int) -> Interval:
    """The difference of two runs, of which each solved so many problems that the other did not."""
    first = [0.0] * gained + [1.0] * lost + [1.0] * (num - gained - lost)
    second = [1.0] * gained + [0.0] * lost + [1.0] * (num - gained - lost)
    return paired_interval(first, second, range(num), seed=0)


@pytest.mark.parametrize("nums", [range(1, 13), (40, 200)])
def test_the_interval_of_a_difference_leaves_out_0_exactly_where_mcnemars_test_does(nums: Sequence[int]) -> None:
    tables = [(gained, lost, num) for num in nums for gained in range(num + 1) for lost in range(num - gained + 1)]
    near = [table for table in tables if table[2] < 13 or 0.04 < mcnemar(*table[:2]) < 0.06]
    assert len(near) > 100
    for gained, lost, num in near:
        interval = of_table(gained, lost, num)
        assert (not interval.low <= 0 <= interval.high) == (mcnemar(lost, gained) < 0.05), (gained, lost, num)


def test_the_interval_of_a_difference_without_ties_is_that_of_the_share_of_gains() -> None:
    for gained, num in ((0, 5), (3, 8), (20, 31), (9, 9)):
        share, interval = of_right_answers(gained, num), of_table(gained, num - gained, num)
        assert (interval.low, interval.high) == pytest.approx((2 * share.low - 1, 2 * share.high - 1), abs=1e-12)


@pytest.mark.parametrize(("gained", "lost", "num"), [(3, 1, 20), (0, 4, 12), (30, 60, 400), (7, 7, 15)])
def test_the_ends_of_a_difference_are_quantiles_of_weights_beside_one_more_problem(
    gained: int, lost: int, num: int
) -> None:
    rng, interval = np.random.default_rng(4), of_table(gained, lost, num)
    weights = rng.standard_exponential((40_000, num))
    sums = weights[:, :gained].sum(axis=1) - weights[:, gained : gained + lost].sum(axis=1)
    further = rng.standard_exponential(40_000)
    for end, sign in ((interval.low, -1), (interval.high, 1)):
        means = (sums + sign * further) / (weights.sum(axis=1) + further)
        assert (sign * means > sign * end).mean() == pytest.approx(0.025, abs=0.004)


def test_one_problem_that_differs_makes_no_interval_narrower_than_none() -> None:
    def ends(lost: int) -> Interval:
        return paired_interval([1.0] * 8, [0.0] * lost + [1.0] * (8 - lost), range(8), seed=0)

    assert ends(0).high == pytest.approx(1 - 0.025 ** (1 / 8))
    assert ends(1).low < ends(0).low - 0.1 and 0.2 < ends(1).high < ends(0).high


def test_the_standard_error_matches_the_textbook_and_the_clusters() -> None:
    values = np.random.default_rng(2).random(50)
    assert standard_error(values, range(50)) == pytest.approx(values.std(ddof=1) / math.sqrt(50))
    assert standard_error(np.repeat(values, 4), np.repeat(range(50), 4)) == pytest.approx(
        values.std(ddof=1) / math.sqrt(50)
    )
    assert math.isnan(standard_error([1.0], ["a"]))


def test_unanimous_runs_get_the_exact_binomial_bound() -> None:
    perfect = mean_interval([1.0] * 100, range(100), seed=0)
    assert (perfect.value, perfect.high) == (1.0, 1.0)
    assert perfect.low == pytest.approx(0.025 ** (1 / 100))
    assert mean_interval([0.0] * 10, range(10), seed=0).high == pytest.approx(1 - 0.025 ** (1 / 10))


def of_right_answers(num_right: int, num: int) -> Interval:
    return mean_interval([1.0] * num_right + [0.0] * (num - num_right), range(num), seed=0)


@pytest.mark.parametrize("num", [1, 2, 7, 20, 100])
def test_more_right_answers_never_lower_a_bound(num: int) -> None:
    intervals = [of_right_answers(right, num) for right in range(num + 1)]
    for fewer, more in itertools.pairwise(intervals):
        assert fewer.low < more.low and fewer.high < more.high
    assert all(0 <= each.low <= each.value <= each.high <= 1 for each in intervals)
    for right, each in enumerate(intervals):
        mirrored = intervals[num - right]
        assert (each.low, each.high) == pytest.approx((1 - mirrored.high, 1 - mirrored.low))


@pytest.mark.parametrize("num", [5, 20, 100])
def test_the_interval_of_right_answers_covers_every_truth_by_exact_binomial_sums(num: int) -> None:
    intervals = [of_right_answers(right, num) for right in range(num + 1)]

    def covered(truth: float) -> float:
        chances = [math.comb(num, k) * truth**k * (1 - truth) ** (num - k) for k in range(num + 1)]
        return sum(c for c, each in zip(chances, intervals, strict=True) if each.low <= truth <= each.high)

    shares = [covered(i / 400) for i in range(1, 400)]
    assert min(shares) >= 0.95
    assert sum(shares) / len(shares) < (0.995 if num == 5 else 0.985)  # exact, and not merely wide


def test_the_bounds_of_right_answers_are_those_of_the_binomial_tails() -> None:
    for right, num in ((1, 30), (29, 30), (180, 300)):
        interval = of_right_answers(right, num)
        for bound, rows in ((interval.low, range(right, num + 1)), (interval.high, range(right + 1))):
            share = sum(math.comb(num, k) * bound**k * (1 - bound) ** (num - k) for k in rows)
            assert share == pytest.approx(0.025, rel=1e-6)


def test_clusters_that_are_all_alike_are_not_taken_for_certainty() -> None:
    share = 1 - 0.025 ** (1 / 20)
    for values, clusters in (([0.5] * 20, range(20)), ([1.0, 0.0] * 20, [i // 2 for i in range(40)])):
        interval = mean_interval(values, clusters, seed=0)
        assert (interval.low, interval.high) == pytest.approx((0.5 - share / 2, 0.5 + share / 2))
    one = mean_interval([1.0, 1.0, 0.0, 0.0], ["a"] * 4, seed=0)
    assert one.value == 0.5 and one.low < 0.02 and one.high > 0.98
    paired = paired_interval([1.0, 0.0], [0.0, 0.0], ["a", "a"], seed=0)
    assert paired.value == -0.5 and paired.low < -0.98 and paired.high > 0.9


def test_two_runs_that_never_differ_may_still_differ_a_little_to_both_sides() -> None:
    same = paired_interval([1.0, 0.0] * 25, [1.0, 0.0] * 25, range(50), seed=0)
    assert same.value == 0.0
    assert same.high == -same.low == pytest.approx(1 - 0.025 ** (1 / 50))
    better = paired_interval([0.0] * 50, [1.0] * 50, range(50), seed=0)
    assert (better.value, better.high) == (1.0, 1.0) and 0.8 < better.low < 0.9


def of_lost_answers(num_lost: int, num: int) -> Interval:
    """The drop of a run that lost so many of `num` answers and won none."""
    return paired_interval([0.0] * num, [1.0] * num_lost + [0.0] * (num - num_lost), range(num), seed=0)


@pytest.mark.parametrize("num", [20, 64, 256])
def test_one_more_lost_answer_never_lowers_the_bound_of_a_drop(num: int) -> None:
    bounds = [of_lost_answers(lost, num).high for lost in range(9)]
    assert bounds == sorted(set(bounds))


@pytest.mark.parametrize("share", [0.004, 0.012, 0.02])
def test_a_rare_drop_is_seldom_above_its_bound(share: float) -> None:
    num, most = 256, 20
    missed = [lost for lost in range(most) if of_lost_answers(lost, num).high < share]
    chance = sum(math.comb(num, lost) * share**lost * (1 - share) ** (num - lost) for lost in missed)
    assert chance < 0.025


def test_columns_share_their_weights() -> None:
    values = np.random.default_rng(0).random((40, 1))
    first, second = mean_intervals(np.hstack([values, values]), range(40), seed=5)
    alone = mean_interval(values[:, 0], range(40), seed=5)
    assert first == second
    assert (first.low, first.high) == pytest.approx((alone.low, alone.high))


def test_no_data_gives_no_figure() -> None:
    assert math.isnan(mean_interval([], [], seed=0).value)


def test_values_that_are_no_shares_are_refused() -> None:
    for values in ([0.5, 1.2], [-0.1, 0.5], [math.nan, 0.5]):
        with pytest.raises(ValueError, match=r"values must be in \[0, 1\]"):
            mean_interval(values, range(2), seed=0)
    assert mean_interval([1.0 + 1e-15, 0.5], range(2), seed=0).high <= 1.0


def test_labels_and_values_must_match() -> None:
    with pytest.raises(ValueError, match="2 values but 1 cluster"):
        mean_interval([1.0, 0.0], ["a"], seed=0)


def of_counts(gained: int, lost: int, num: int) -> PairedTest:
    first = [0.0] * gained + [1.0] * lost + [1.0] * (num - gained - lost)
    second = [1.0] * gained + [0.0] * lost + [1.0] * (num - gained - lost)
    return paired_test(first, second, range(num), pairs=num)


@given(st.integers(0, 25), st.integers(0, 25))
def test_the_p_value_of_lone_pairs_is_the_exact_two_sided_binomial(gained: int, lost: int) -> None:
    num = gained + lost
    extreme = [i for i in range(num + 1) if abs(2 * i - num) >= abs(gained - lost)]
    exact = Fraction(sum(math.comb(num, i) for i in extreme), 2**num)
    assert of_counts(gained, lost, num + 3).p_value == pytest.approx(float(exact))
    assert mcnemar(lost, gained) == pytest.approx(float(exact))


def test_the_p_value_stands_large_counts_and_keeps_what_is_tiny() -> None:
    assert of_counts(1500, 1500, 4000).p_value == 1.0
    assert of_counts(1600, 1400, 4000).p_value == pytest.approx(mcnemar(1600, 1400))
    assert of_counts(0, 200, 300).p_value == pytest.approx(2.0**-199)


def test_holm_adjusts_step_by_step_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_minimum_detectable_effect_is_found_with_its_power() -> None:
    error = 0.02
    effect = minimum_detectable(error)
    estimates = np.random.default_rng(1).normal(effect, error, 20_000)
    assert (np.abs(estimates) > 1.959964 * error).mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("num", [30, 100, 1000])
def test_what_is_detectable_in_pairs_that_hardly_differ_is_seen_by_mcnemar_four_times_in_five(num: int) -> None:
    effect = minimum_detectable(1 / num, pairs=num)  # one problem of all differs
    gained = np.random.default_rng(3).binomial(num, effect, 20_000)
    assert np.mean([mcnemar(0, int(count)) < 0.05 for count in gained]) == pytest.approx(0.8, abs=0.06)
    assert minimum_detectable(0.1, pairs=num) == max(minimum_detectable(0.1), effect)
    assert minimum_detectable(0.4, pairs=4) == 1.0


Run = tuple[np.ndarray, np.ndarray, np.ndarray, float]
"""Shares of right draws of two runs, the clusters, and the true difference."""


def coins(rng: np.random.Generator, clusters: int, per: int, draws: int) -> Run:
    """Half of the clusters' problems are coins for both runs, the others sure."""
    chance = np.where(rng.random(clusters) < 0.5, 0.5, np.where(rng.random(clusters) < 0.5, 1.0, 0.0)).repeat(per)
    first, second = (rng.binomial(draws, chance) / draws for _ in range(2))
    return first, second, np.arange(clusters).repeat(per), 0.0


def gains(rng: np.random.Generator, clusters: int, per: int, draws: int) -> Run:
    """A quarter is solved by 3 draws of 10 at first, and then by 7."""
    moved, sure = rng.random(clusters) < 0.25, np.where(rng.random(clusters) < 0.5, 1.0, 0.0)
    first, second = (rng.binomial(draws, np.where(moved, share, sure).repeat(per)) / draws for share in (0.3, 0.7))
    return first, second, np.arange(clusters).repeat(per), 0.1


@pytest.mark.parametrize("simulate", [coins, gains])
@pytest.mark.parametrize(("num", "per", "draws"), [(100, 1, 3), (100, 1, 8), (40, 5, 1), (40, 5, 3)])
def test_with_clusters_and_seeds_interval_and_p_value_agree_and_cover(
    simulate: Callable[..., Run], num: int, per: int, draws: int
) -> None:
    rng, inside, rounds = np.random.default_rng(8), 0, 150
    for _ in range(rounds):
        first, second, clusters, truth = simulate(rng, num, per, draws)
        tested = paired_test(first, second, clusters, pairs=draws * len(clusters))
        interval = tested.interval
        assert (not interval.low <= 0 <= interval.high) == (tested.p_value < 0.05)
        inside += interval.low <= truth <= interval.high
    assert 0.91 < inside / rounds < 0.995


def test_more_seeds_tell_more_of_problems_that_are_coins_and_nothing_more_of_sure_ones() -> None:
    rng = np.random.default_rng(5)
    one, eight = (paired_test(*coins(rng, 200, 1, draws)[:3], pairs=200 * draws) for draws in (1, 8))
    assert one.pairs == 200 and eight.pairs > 700
    first, second = np.zeros(20), np.repeat((1.0, 0.0), (6, 14))
    sure, twice = (paired_test(first, second, range(20), pairs=pairs) for pairs in (20, 60))
    assert sure == twice and sure.p_value == pytest.approx(mcnemar(0, 6))


def test_a_cluster_of_equal_problems_counts_as_one_pair() -> None:
    first, second = np.zeros(40), np.repeat((1.0, 0.0), (15, 25))
    tested = paired_test(first, second, np.arange(8).repeat(5), pairs=40)
    assert tested.pairs == 8 and tested.p_value == pytest.approx(mcnemar(0, 3))
    one = paired_test([0.0, 1.0], [1.0, 1.0], ["a", "a"], pairs=2)
    assert one.p_value == 1.0 and one.interval.low < -0.9 and one.interval.high > 0.9


def test_a_small_gain_of_every_likelihood_is_seen_in_twenty_texts_and_its_interval_holds() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for run in range(300):
        before = rng.uniform(0.1, 0.3, 20)
        after = before + rng.normal(0.05, 0.02, 20)
        interval = paired_interval(before.tolist(), after.tolist(), range(20), seed=run, smooth=True)
        assert interval.low > 0
        inside += interval.low <= 0.05 <= interval.high
    assert 0.91 < inside / 300 < 0.99
