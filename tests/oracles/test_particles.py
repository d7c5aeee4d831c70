"""Oracles 19 to 22: sequential Monte Carlo is unbiased, whatever the scheme, the trigger and who has finished."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc.search.policies.entropic import entropic, entropy, tempered
from ttc.search.policies.particle import particle
from ttc.search.resampling import copies, effective_size, log_sum, normalise
from ttc.search.tree import Resampler

SCHEMES = ["multinomial", "stratified", "systematic", "residual"]
WEIGHTS = st.lists(st.floats(-8, 2), min_size=1, max_size=20)
STEP = {0: 0.35, 1: 0.65}
END = 0.3


def potential(path: tuple[int, ...]) -> float:
    """The score of a prefix: any positive function will do."""
    return 0.2 + 0.7 * ((3 * sum(path) + 2 * path[-1] + len(path)) % 5) / 5


def exact(depth: int = 4) -> tuple[float, float]:
    """Z and the posterior mean of the first letter, by enumerating all paths; each ends early with chance END."""
    total = first = 0.0
    for length in range(1, depth + 1):
        for path in itertools.product(STEP, repeat=length):
            chance = math.prod(STEP[s] for s in path) * (1 - END) ** (length - 1) * (END if length < depth else 1.0)
            weight = chance * math.prod(potential(path[: i + 1]) for i in range(length))
            total, first = total + weight, first + weight * path[0]
    return total, first / total


def run_filter(policy: Resampler, n: int, rng: random.Random, depth: int = 4) -> tuple[float, float]:
    """One run on the enumerable chain, with the runtime's rule: who has finished keeps weight and place."""
    live = [((), 0.0)] * n
    done: list[tuple[tuple[int, ...], float]] = []
    for level in range(1, depth + 1):
        grown = []
        for path, weight in live:
            longer = (*path, int(rng.random() < STEP[1]))
            grown.append((longer, weight + policy.increment(potential(longer))))
        ends = [level == depth or rng.random() < END for _ in grown]
        done += [node for node, end in zip(grown, ends, strict=True) if end]
        rest = [node for node, end in zip(grown, ends, strict=True) if not end]
        if not rest:
            break
        dice = [rng.random() for _ in rest].__getitem__
        shared = policy.resample([weight for _, weight in rest], len(rest), level, dice)
        live = [
            (path, log_weight)
            for (path, _), count, log_weight in zip(rest, shared.counts, shared.log_weights, strict=True)
            for _ in range(count)
        ]
    mass = [math.exp(weight) for _, weight in done]
    return sum(mass) / n, sum(m * path[0] for (path, _), m in zip(done, mass, strict=True)) / sum(mass)


def systematic_dice(rng: random.Random):
    u = rng.random()
    return lambda i: u


POLICIES = {
    **{f"{s}, always": particle(scheme=s) for s in SCHEMES},  # type: ignore[arg-type]
    "systematic, below half": particle(ess=0.5),
    "never": particle(ess=0.0),
    "entropic": entropic(floor=0.95, horizon=3),
    "entropic multinomial": entropic(scheme="multinomial", floor=0.99, horizon=9),
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_mean_weight_is_an_unbiased_estimate_of_the_normaliser(name: str) -> None:
    rng, runs = random.Random(1), 3000
    expected, _ = exact()
    found = [run_filter(POLICIES[name], 8, rng)[0] for _ in range(runs)]
    mean = sum(found) / runs
    error = math.sqrt(sum((z - mean) ** 2 for z in found) / runs / runs)
    assert abs(mean - expected) < 4 * error


@pytest.mark.parametrize("name", POLICIES)
def test_the_weighted_population_converges_to_the_posterior(name: str) -> None:
    rng = random.Random(2)
    _, expected = exact()
    found = [run_filter(POLICIES[name], 256, rng)[1] for _ in range(60)]
    assert abs(sum(found) / len(found) - expected) < 0.02


@given(WEIGHTS)
def test_the_effective_size_lies_between_one_and_their_number(log_weights) -> None:
    size = effective_size(log_weights)
    assert 1 - 1e-9 <= size <= len(log_weights) + 1e-9
    for shift in (-1000.0, 1000.0):
        assert math.isclose(effective_size([w + shift for w in log_weights]), size, rel_tol=1e-6)
    if max(log_weights) - min(log_weights) > 0.5:
        assert size < len(log_weights) - 1e-6
    assert math.isclose(effective_size([3.0] * len(log_weights)), len(log_weights))


def test_weights_survive_extremes() -> None:
    assert normalise([-1e3, -1e3]) == [0.5, 0.5] and normalise([1e3, -1e3]) == [1.0, 0.0]
    assert normalise([-math.inf, 0.0]) == [0.0, 1.0] and normalise([-math.inf] * 4) == [0.25] * 4
    assert log_sum([-math.inf] * 3) == -math.inf and math.isclose(log_sum([0.0, 0.0]), math.log(2))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(log_weights=WEIGHTS, num=st.integers(1, 30), rng=st.randoms(use_true_random=False))
def test_copies_sum_exactly_and_dead_paths_get_none(scheme, log_weights, num: int, rng) -> None:
    weights = normalise([*log_weights, -math.inf])
    counts = copies(scheme, weights, num, [rng.random() for _ in range(num)].__getitem__)
    assert sum(counts) == num and min(counts) >= 0 and counts[-1] == 0
    if scheme == "systematic":
        assert all(abs(count - num * weight) < 1 + 1e-6 for count, weight in zip(counts, weights, strict=True))
    if scheme == "residual":
        assert all(count >= math.floor(num * w - 1e-6) for count, w in zip(counts, weights, strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_expected_copies_are_n_times_the_weight_and_the_variance_is_no_larger_than_multinomial(scheme) -> None:
    rng, weights, num, runs = random.Random(4), [0.05, 0.15, 0.3, 0.5], 7, 6000
    drawn = []
    for _ in range(runs):
        dice = [rng.random() for _ in range(num)].__getitem__
        drawn.append(copies(scheme, weights, num, dice))
    for at, weight in enumerate(weights):
        mean = sum(counts[at] for counts in drawn) / runs
        variance = sum((counts[at] - mean) ** 2 for counts in drawn) / runs
        assert abs(mean - num * weight) < 4 * math.sqrt(num * weight * (1 - weight) / runs)
        assert variance <= num * weight * (1 - weight) * 1.1


@given(st.lists(st.floats(-20, 0), min_size=2, max_size=16), st.floats(0, 1))
def test_tempering_reaches_the_floor_of_entropy_and_leaves_what_is_above_it(log_weights, floor: float) -> None:
    shares, plain = tempered(log_weights, floor), normalise(log_weights)
    target = floor * math.log(len(log_weights))
    assert math.isclose(math.fsum(shares), 1, rel_tol=1e-9)
    assert entropy(shares) >= target - 1e-6
    if entropy(plain) >= target:
        assert shares == plain
    else:
        assert entropy(shares) <= target + 1e-6
    order = sorted(range(len(shares)), key=lambda i: log_weights[i])
    assert all(shares[a] <= shares[b] + 1e-12 for a, b in itertools.pairwise(order))


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=16), st.randoms(use_true_random=False))
def test_resampling_hands_on_the_weight_that_it_was_given(scores, rng) -> None:
    for policy in (particle(), particle(ess=0.5), entropic()):
        logs = [policy.increment(score) for score in scores]
        shared = policy.resample(logs, len(scores), 1, systematic_dice(rng))
        assert sum(shared.counts) == len(scores)
        if type(policy) is type(particle()):
            after = math.fsum(count * math.exp(w) for count, w in zip(shared.counts, shared.log_weights, strict=True))
            assert math.isclose(after, math.fsum(map(math.exp, logs)), rel_tol=1e-6)


def test_a_population_is_left_alone_while_enough_of_its_paths_count() -> None:
    for policy in (particle(ess=0.5), entropic(ess=0.5, floor=0.0, horizon=1)):
        even, uneven = [0.0, -0.1, 0.0, -0.2], [0.0, -9.0, -9.0, -9.0]
        kept = policy.resample(even, 4, 1, lambda i: 0.4)
        assert kept.counts == (1, 1, 1, 1) and list(kept.log_weights) == even
        assert policy.resample(uneven, 4, 1, lambda i: 0.4).counts == (4, 0, 0, 0)
        assert sum(policy.resample(even, 6, 1, lambda i: 0.4).counts) == 6


def test_a_path_without_a_score_or_with_none_left_weighs_nothing() -> None:
    policy = particle()
    assert policy.increment(0.0) == policy.increment(-math.inf) == -math.inf
    shared = policy.resample([-math.inf, -math.inf], 4, 1, lambda i: 0.4)
    assert sum(shared.counts) == 4 and set(shared.log_weights) == {-math.inf}
    assert policy.resample([-math.inf, 0.0], 4, 1, lambda i: 0.4).counts == (0, 4)


def test_odds_trust_the_scorer_more_than_its_probabilities() -> None:
    assert math.isclose(particle(weight="odds").increment(0.8), math.log(4))
    assert particle(weight="odds").increment(0.0) == -math.inf
    assert particle(weight="odds").increment(0.5) == 0.0
    assert particle(weight="odds").increment(1.0) > particle(weight="odds").increment(0.999)
