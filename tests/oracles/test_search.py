"""Oracles 14 to 18: tree search against closed forms and its own definitions; aggregation; REBASE."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.tools import accuracy, answers, near, say
from tests.ttc.conformance import essence
from tests.ttc.questions import ask
from ttc.allocation.plan import DrawKind
from ttc.choosing.selection import aggregate
from ttc.core import Answer, Prompt, Sampling, Score, Scorer, UsageSink
from ttc.engines.simulated import simulated, truth
from ttc.scorers.constant import constant
from ttc.scorers.simulated import SimulatedScorer
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.search.policies.puct import Puct, _Place, puct
from ttc.search.policies.rebase import rebase
from ttc.session.solve import solve
from ttc.strategies.auto import draw_wave
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.tree import tree


def beam_law(p: float, steps: int, n: int, m: int) -> float:
    """P(a right path): c' ~ Binomial(min(c, n / m) * m, p), n trials at the root."""
    law = {n: 1.0}
    for depth in range(steps):
        following: dict[int, float] = {}
        for c, weight in law.items():
            trials = n if depth == 0 else min(c, n // m) * m
            for k in range(trials + 1):
                chance = math.comb(trials, k) * p**k * (1 - p) ** (trials - k)
                following[k] = following.get(k, 0.0) + weight * chance
        law = following
    return 1 - law.get(0, 0.0)


def dvts_law(p: float, steps: int, n: int, m: int) -> float:
    return 1 - (1 - (1 - (1 - p) ** m) ** steps) ** (n // m)


def particle_law(p: float, steps: int, n: int) -> float:
    return (1 - (1 - p) ** n) ** steps


def test_the_published_values_of_the_laws() -> None:
    p, steps, n, m = 0.3, 8, 16, 4
    assert math.isclose(1 - (1 - p**steps) ** n, 0.00105, abs_tol=6e-6)
    assert math.isclose(dvts_law(p, steps, n, m), 0.37592, abs_tol=6e-6)
    assert math.isclose(particle_law(p, steps, n), 0.97372, abs_tol=6e-6)
    assert math.isclose(beam_law(p, steps, n, m), 0.80936, abs_tol=6e-6)
    for steps in (1, 3, 8):
        assert math.isclose(dvts_law(p, steps, n, n), particle_law(p, steps, n))
        assert math.isclose(beam_law(p, steps, n, n), particle_law(p, steps, n), rel_tol=1e-9)


def perfect(policy: str, n: int, m: int = 4, **more):
    return partial(tree, scorer=simulated_scorer(), n=n, policy=policy, beam_width=m, select="argmax", **more)


P, STEPS, N, M, RUNS = 0.4, 4, 8, 4, 100


@pytest.mark.parametrize(
    ("policy", "law"),
    [
        ("beam", beam_law(P, STEPS, N, M)),
        ("dvts", dvts_law(P, STEPS, N, M)),
        ("rebase:temperature=0.001", particle_law(P, STEPS, N)),
        ("particle:scheme=multinomial", particle_law(P, STEPS, N)),
        ("particle:scheme=stratified", particle_law(P, STEPS, N)),
        ("particle:scheme=systematic", particle_law(P, STEPS, N)),
        ("particle:scheme=residual", particle_law(P, STEPS, N)),
        ("entropic", particle_law(P, STEPS, N)),
    ],
)
def test_every_policy_follows_its_law_under_a_perfect_scorer(policy: str, law: float) -> None:
    assert near(accuracy(perfect(policy, N, M), RUNS, p=P, steps=STEPS), law, RUNS)


def test_resampling_only_when_few_paths_count_keeps_the_law_of_plain_sampling_at_ess_0() -> None:
    got = accuracy(perfect("particle:ess=0", N), RUNS, p=P, steps=STEPS)
    assert near(got, 1 - (1 - P**STEPS) ** N, RUNS)


def test_best_of_n_under_a_perfect_scorer_follows_its_law() -> None:
    got = accuracy(partial(best_of_n, scorer=simulated_scorer(), n=N), RUNS, p=0.7, steps=STEPS)
    assert near(got, 1 - (1 - 0.7**STEPS) ** N, RUNS)


def test_puct_returns_to_where_a_rollout_went_wrong() -> None:
    """With a perfect scorer and width m it needs the failures of each step only, so it is far above sampling."""
    got = accuracy(perfect("puct", N, N), 150, p=P, steps=STEPS)
    assert got > 1 - (1 - P**STEPS) ** N + 0.2


class Reticent(SimulatedScorer):
    """Scores around any centre, and has no verdict on every third path."""

    def __init__(self, centre: float) -> None:
        super().__init__(1.5, 1.0)
        self.centre = centre

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        scores = await super().score(prompts, on_usage)
        return [
            Score(None)
            if sum(map(ord, prompt.generated_text)) % 3 == 0
            else Score(round(64 * (score.value or 0.0)) / 64 + self.centre)  # whose sums are exact
            for prompt, score in zip(prompts, scores, strict=True)
        ]


def test_puct_searches_alike_wherever_zero_lies_on_the_scale_of_the_scorer() -> None:
    """A path without a verdict is not a path of score 0, which is the best of scores below it."""
    paths = [
        [candidate.path for answer in answers(strategy, 12, p=0.7, steps=4) for candidate in answer.candidates]
        for strategy in (
            partial(tree, scorer=Reticent(centre), n=8, policy="puct", beam_width=3, select="argmax")
            for centre in (4.0, 0.0, -4.0)
        )
    ]
    assert paths[0] == paths[1] == paths[2]


@pytest.mark.parametrize("policy", ["beam", "dvts", "rebase", "particle", "entropic", "puct"])
def test_a_scorer_without_an_opinion_leaves_plain_sampling(policy: str) -> None:
    strategy = partial(tree, scorer=constant(), n=6, policy=policy, beam_width=3, select="argmax")
    assert near(accuracy(strategy, 120, p=0.8, steps=3), 0.8**3, 120)


def test_beam_and_dvts_are_one_when_n_is_m_and_a_beam_of_single_children_is_sampling() -> None:
    one, other = (answers(perfect(policy, 4, 4), 10, p=0.6, steps=3) for policy in ("beam", "dvts"))
    assert [essence(a) for a in one] == [essence(b) for b in other]
    alone = answers(partial(tree, scorer=constant(), n=5, policy="beam", beam_width=1), 300, p=0.7, steps=2)
    right = [[c.final == truth(f"problem {i}") for c in a.candidates] for i, a in enumerate(alone)]
    assert near(sum(map(sum, right)) / 1500, 0.49, 1500)
    assert near(sum(all(r[:2]) for r in right) / 300, 0.49**2, 300)


POLICIES = ["beam", "dvts", "rebase", "particle:scheme=multinomial", "entropic:scheme=residual"]


def uneven(policy: str, runs: int = 6, n: int = 7, jitter: int | None = None, **more) -> list[Answer]:
    """Searches whose paths finish at different depths and within different problems."""
    strategy = partial(tree, scorer=simulated_scorer(noise=1.0), n=n, policy=policy, beam_width=3, **more)
    engine = simulated(p=0.8, steps=4, cv=1.0, jitter=jitter)

    async def go() -> list[Answer]:
        sampling = Sampling(max_tokens=45)
        work = (solve(ask(f"u{i}"), engine=engine, strategy=strategy, seed=2, sampling=sampling) for i in range(runs))
        return list(await asyncio.gather(*work))

    return asyncio.run(go())


@pytest.mark.parametrize("policy", POLICIES)
def test_exactly_n_paths_are_live_less_those_that_have_ended_and_no_leaf_grows_again(policy: str) -> None:
    for answer in uneven(policy):
        grown = [event for event in answer.trace if event.kind == "generate"]
        leaves = {candidate.path for candidate in answer.candidates}
        assert len(answer.candidates) == len(leaves) == 7
        assert max(candidate.num_tokens for candidate in answer.candidates) <= 45
        for depth in range(1, 1 + max(len(event.path) for event in grown)):
            ended = sum(len(path) < depth for path in leaves)
            assert sum(len(event.path) == depth for event in grown) == 7 - ended
        assert not any(event.path[: len(leaf)] == leaf and event.path != leaf for event in grown for leaf in leaves)
        scored = [event.path for event in answer.trace if event.kind == "score"]
        assert len(scored) == len(set(scored)) == len(grown)


@pytest.mark.parametrize("policy", [*POLICIES, "puct"])
def test_who_finishes_first_has_no_say(policy: str) -> None:
    first, second = ([essence(a) for a in uneven(policy, jitter=seed)] for seed in (1, 2))
    assert first == second


@pytest.mark.parametrize(
    ("policy", "params"),
    [
        ("dvts", {"beam_width": 3}),
        ("dvts", {"beam_width": 3, "islands": 4}),
        ("particle", {"islands": 4}),
        ("beam", {"beam_width": 2, "islands": 4, "verify_every": 2, "aggregation": "min"}),
    ],
)
def test_islands_that_are_drawn_bit_by_bit_are_those_of_one_search(policy: str, params) -> None:
    scorer = simulated_scorer(noise=1.0)
    engine = {"p": 0.8, "steps": 4, "cv": 1.0}
    more = {"policy": policy, "beam_width": 4} | {name: value for name, value in params.items() if name != "islands"}
    kind = DrawKind(width=3, scored=True, search=more)
    waves = [partial(draw_wave, start=a, end=b, kind=kind, scorer=scorer) for a, b in ((0, 1), (1, 3), (3, 4))]
    drawn = [answers(wave, 3, **engine) for wave in waves]
    whole = answers(partial(tree, scorer=scorer, n=12, policy=policy, **params), 3, **engine)
    for at, answer in enumerate(whole):
        assert [c for wave in drawn for c in wave[at].candidates] == list(answer.candidates)
        assert sum(wave[at].usage.tokens for wave in drawn) == answer.usage.tokens


@pytest.mark.parametrize("policy", ["beam", "particle"])
def test_verifying_every_second_step_halves_the_looks_and_no_token_is_scored_twice(policy: str) -> None:
    for answer in uneven(policy, verify_every=2):
        grown = [event for event in answer.trace if event.kind == "generate"]
        scored = [event.path for event in answer.trace if event.kind == "score"]
        assert len(scored) < 0.75 * len(grown)
        ends = sum(event.data["stop_reason"] == "eos" for event in grown)
        # Equal texts of two paths are scored once, so a little may be missing.
        assert 0.8 * answer.usage.generated < answer.usage.scored <= answer.usage.generated - ends


def test_steps_end_where_the_boundary_says() -> None:
    pieces = {}
    for boundary, size in (("text", 256), ("sentence", 256), ("tokens", 7)):
        (answer,) = uneven("beam", 1, boundary=boundary, max_step_tokens=size)
        grown = [event.data for event in answer.trace if event.kind == "generate"]
        pieces[boundary] = [data["text"] for data in grown if data["finish_reason"] == "stop"]
        if boundary == "tokens":
            assert all(data["num_tokens"] <= 7 for data in grown)
            assert sum(data["num_tokens"] == 7 for data in grown) > len(grown) / 2
    assert all(text.endswith("\n\n") or "boxed" in text for text in pieces["text"])
    assert all(text.endswith((". ", "\n")) or "boxed" in text for text in pieces["sentence"])
    assert any(text.endswith(".\n") for text in pieces["sentence"])


def test_puct_gives_n_leaves_shares_prefixes_and_widens_no_node_beyond_m() -> None:
    for answer in uneven("puct", n=9):
        assert len(answer.candidates) == 9
        children: dict[tuple[int, ...], set[int]] = {}
        for event in answer.trace:
            if event.kind == "generate":
                children.setdefault(event.path[:-1], set()).add(event.path[-1])
        assert max(map(len, children.values())) <= 3
        assert answer.usage.generated < sum(c.num_tokens for c in answer.candidates)


def test_puct_counts_a_places_own_score_as_one_leaf_and_weighs_it_as_its_formula_says() -> None:
    root = Prompt((1,), "q")
    place = _Place(root, 0, 1, value=0.8)
    assert place.mean == 0.8
    place.visits, place.total = 3, 0.4
    assert math.isclose(place.mean, 0.3)
    top = _Place(root, 0, 0, visits=4, total=2.0)
    assert math.isclose(top.mean, 0.5) and _Place(root, 0, 0).mean == 0.0
    search = puct(beam_width=4, c=2.0)
    assert isinstance(search, Puct)
    for visits_above, visits, bonus in ((0, 0, 0.5), (1, 0, 0.5), (9, 0, 1.5), (9, 2, 0.5), (16, 1, 1.0)):
        above = _Place(root, 0, 0, visits=visits_above)
        assert math.isclose(search._merit(above, 0.25, visits), 0.25 + bonus)


def test_puct_explores_more_with_a_larger_c() -> None:
    def breadth(c: float) -> int:
        found = uneven(f"puct:c={c}", n=9)
        return sum(len({candidate.path[0] for candidate in answer.candidates}) for answer in found)

    assert breadth(0.0) < breadth(5.0)


def test_puct_believes_what_leaves_turned_out_to_be_worth() -> None:
    class Promising(Scorer):
        """Likes the beginning of the first path, but not how it ends."""

        async def score(self, prompts, on_usage):
            ends = {"a": (0.9, 0.0), "b": (0.5, 0.6)}
            return [Score(ends[p.generated_text[0]]["boxed" in p.generated_text]) for p in prompts]

    options = [f"{letter}\n\np\n\nq\n\n\\boxed{{{i}}}" for i, letter in enumerate("ab")]
    strategy = partial(tree, scorer=Promising(), n=12, beam_width=2, policy="puct:c=0.3")
    answer = say(options, strategy)
    assert sum(candidate.path[0] == 1 for candidate in answer.candidates) >= 7


STEPS_SCORED = Score(0.8, (0.9, 0.5, 0.8))


def test_aggregations_on_the_reference_steps() -> None:
    expected = {"last": 0.8, "min": 0.5, "prod": 0.36, "mean": 2.2 / 3}
    for how, value in expected.items():
        assert math.isclose(aggregate(STEPS_SCORED, how), value)  # type: ignore[arg-type]
    assert aggregate(STEPS_SCORED, "min", 1) == 0.8 and aggregate(STEPS_SCORED, "mean", 2) == 0.65
    assert aggregate(replace(STEPS_SCORED, value=None), "min") is None
    assert aggregate(Score(0.0, (1e-200,) * 3), "prod") == 0.0
    assert math.isfinite(aggregate(Score(12.0, (12.0,) * 300), "prod") or math.inf)  # logits, not probabilities


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=12))
def test_min_and_prod_never_rise_along_a_path_and_a_wide_window_is_none(steps) -> None:
    for how in ("min", "prod"):
        values = [aggregate(Score(1.0, tuple(steps[:i])), how) for i in range(1, len(steps) + 1)]  # type: ignore[arg-type]
        assert all(b <= a + 1e-12 for a, b in itertools.pairwise(values))  # type: ignore[operator]
    for how in ("last", "min", "prod", "mean"):
        whole, windowed = (aggregate(Score(1.0, tuple(steps)), how, w) for w in (None, 99))  # type: ignore[arg-type]
        assert whole == windowed


SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=40)


@given(SHARES, st.integers(1, 200), st.floats(0.02, 5))
def test_rebase_gives_whole_shares_that_sum_exactly_and_stay_within_one(scores, width: int, temperature: float) -> None:
    counts = rebase(temperature=temperature).allocate(scores, width)
    top = max(scores)
    raw = [math.exp((s - top) / temperature) for s in scores]
    assert sum(counts) == width
    for count, weight, score in zip(counts, raw, scores, strict=True):
        assert abs(count - width * weight / math.fsum(raw)) < 1 + 1e-9
        assert all(count >= other or score < s for other, s in zip(counts, scores, strict=True) if s < score)


def test_rebase_tends_to_the_best_and_to_equal_shares_and_never_feeds_what_has_no_verdict() -> None:
    assert rebase(temperature=1e-6).allocate([0.2, 0.9, 0.5], 8) == [0, 8, 0]
    assert rebase(temperature=1e6).allocate([0.2, 0.9, 0.5], 9) == [3, 3, 3]
    assert rebase(temperature=0.2).allocate([float("-inf"), 0.5], 4) == [0, 4]
    assert rebase(temperature=0.2).allocate([float("-inf")] * 2, 4) == [2, 2]
