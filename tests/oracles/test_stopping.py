"""Oracles 11, 12, 13, 26, 27: when to stop drawing, what a confident trace is, and who finishes first."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.oracles.tools import Budget, accuracy, answers, near, say
from tests.ttc.questions import ask
from ttc.core import Sampling
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.simulated import truth
from ttc.session.solve import solve
from ttc.strategies.adaptive import adaptive, beta_posterior, dirichlet_posterior
from ttc.strategies.confidence import _threshold, confidence, level_of
from ttc.strategies.first_finished import first_finished
from ttc.strategies.majority import majority


def test_the_beta_rule_stops_where_the_paper_says() -> None:
    assert beta_posterior([4]) == 0.96875 and beta_posterior([3]) == 0.9375 and beta_posterior([]) == 0.5
    needed = [next(a for a in range(b, 99) if beta_posterior([a, b]) >= 0.95) for b in range(8)]
    assert needed == [4, 6, 8, 9, 11, 12, 14, 15]


@pytest.mark.parametrize(
    ("q", "samples", "right"), [(0.9, 5.6218, 0.9999), (0.8, 8.7175, 0.9981), (0.7, 15.1137, 0.9851)]
)
def test_adaptive_draws_and_errs_as_its_dynamic_programme_says(q: float, samples: float, right: float) -> None:
    runs = 200
    found = answers(partial(adaptive, n=40), runs, p=q, steps=1, num_wrong=1)
    drawn = [len(answer.candidates) for answer in found]
    mean = sum(drawn) / runs
    spread = math.sqrt(sum((d - mean) ** 2 for d in drawn) / runs)
    assert abs(mean - samples) < 4 * spread / math.sqrt(runs)
    assert near(sum(a.final == truth(f"problem {i}") for i, a in enumerate(found)) / runs, right, runs)
    assert all(answer.stop_cause == ("decided" if len(answer.candidates) < 40 else "done") for answer in found)


@pytest.mark.parametrize(("p", "expected"), [(0.9, 8.461), (0.7, 22.752), (0.5, 32.262)])
def test_the_window_rule_draws_as_its_closed_form_says(p: float, expected: float) -> None:
    runs, w, cap = 120, 5, 40
    agree = p**w + (1 - p) ** w
    assert math.isclose(w * sum((1 - agree) ** j for j in range(cap // w)), expected, abs_tol=6e-4)
    found = answers(partial(adaptive, n=cap, rule="window", window=w), runs, p=p, steps=1, num_wrong=1)
    drawn = [len(answer.candidates) for answer in found]
    mean = sum(drawn) / runs
    spread = math.sqrt(sum((d - mean) ** 2 for d in drawn) / runs)
    assert abs(mean - expected) < 4 * spread / math.sqrt(runs) and all(d % w == 0 for d in drawn)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_the_window_rule_waits_for_so_many_answers_in_a_row_and_silence_is_none(window: int) -> None:
    silent = "I cannot find a way to do this at all."
    options = [*[silent] * window, *[r"\boxed{4}"] * window, *[r"\boxed{5}"] * 6]
    answer = say(options, partial(adaptive, n=9, rule="window", window=window))
    assert (answer.final, len(answer.candidates), answer.stop_cause) == ("4", 2 * window, "decided")


def test_adaptive_looks_after_every_wave_and_draws_no_more_than_it_may() -> None:
    sizes = {len(a.candidates) for a in answers(partial(adaptive, n=10, wave=4), 40, p=0.7, steps=1, num_wrong=1)}
    assert sizes == {4, 8, 10}


@pytest.mark.parametrize("n", [4, 300])
def test_adaptive_has_decided_only_where_it_drew_less_than_it_may(n: int) -> None:
    for finals, decided in (("45", False), ("4", True)):
        answer = say([rf"\boxed{{{final}}}" for final in finals], partial(adaptive, n=n, rule="window", window=n // 2))
        drawn = len(answer.candidates)
        assert (answer.stop_cause, drawn) == (("decided", n // 2) if decided else ("done", n))


def test_adaptive_draws_are_the_first_of_the_majoritys() -> None:
    few, all_of_them = (answers(partial(s, n=12), 6, p=0.8) for s in (adaptive, majority))
    for one, other in zip(few, all_of_them, strict=True):
        assert one.candidates == other.candidates[: len(one.candidates)]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=2))
def test_dirichlet_with_two_classes_is_beta(counts: list[int]) -> None:
    ordered = sorted(counts, reverse=True)
    assert math.isclose(dirichlet_posterior(ordered), beta_posterior(ordered), rel_tol=1e-9)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_an_unseen_label_never_makes_the_leader_surer(counts: list[int]) -> None:
    ordered = sorted(counts, reverse=True)
    assert dirichlet_posterior([*ordered, 1]) <= dirichlet_posterior(ordered) + 1e-6


@pytest.mark.parametrize("count", [1, 5, 30, 150])
@pytest.mark.parametrize("classes", [3, 4, 6])
def test_dirichlet_gives_equal_classes_equal_chances(count: int, classes: int) -> None:
    assert math.isclose(dirichlet_posterior([count] * classes), 1 / classes, abs_tol=1e-6)


def largest_of_three(a: int, b: int, c: int) -> float:
    """P(Gamma(a + 1) is the largest): who is last to its count in a race of three equal Poisson streams."""

    def slower(other: int) -> float:
        return sum(math.comb(a + i, i) / 2 ** (a + i + 1) for i in range(other + 1))

    ways = ((i, j) for i in range(b + 1) for j in range(c + 1))
    both = sum(math.comb(a + i + j, a) * math.comb(i + j, i) / 3 ** (a + i + j + 1) for i, j in ways)
    return 1 - slower(b) - slower(c) + both


@given(st.lists(st.integers(1, 12), min_size=3, max_size=3))
@example([1, 1, 1])
def test_dirichlet_with_three_classes_is_the_race_of_three_streams(counts: list[int]) -> None:
    ordered = sorted(counts, reverse=True)
    assert math.isclose(dirichlet_posterior(ordered), largest_of_three(*ordered), abs_tol=2e-7)


@pytest.mark.parametrize("counts", [(1, 1, 1), (4, 2, 1), (9, 9, 3)])
def test_the_integral_is_simpsons_rule_which_is_two_trapezoid_rules_extrapolated(counts: tuple[int, ...]) -> None:
    lead, *others = counts
    end = lead + 1 + 12 * math.sqrt(lead + 1)

    def poisson(x: float, below: int) -> float:
        return sum(x**i * math.exp(-x) / math.factorial(i) for i in range(below))

    def trapezoids(num: int) -> float:
        places = [i * end / num for i in range(num + 1)]
        heights = [x**lead * math.exp(-x) / math.factorial(lead) for x in places]
        heights = [
            height * math.prod(1 - poisson(x, other + 1) for other in others)
            for x, height in zip(places, heights, strict=True)
        ]
        return end / num * (math.fsum(heights) - (heights[0] + heights[-1]) / 2)

    for num in (8, 14):  # so few that the rules differ
        simpson = (4 * trapezoids(num) - trapezoids(num // 2)) / 3
        assert math.isclose(dirichlet_posterior(counts, num), simpson, rel_tol=1e-9)
        assert not math.isclose(simpson, trapezoids(num // 2), rel_tol=1e-3)


def test_dirichlet_agrees_with_gamma_sampling() -> None:
    import random

    rng, runs, counts = random.Random(0), 20_000, [5, 3, 2, 1]
    wins = 0
    for _ in range(runs):
        shares = [rng.gammavariate(c + 1, 1) for c in counts]
        wins += shares[0] == max(shares)
    assert abs(wins / runs - dirichlet_posterior(counts)) < 4 * math.sqrt(0.25 / runs)


COLUMN = st.lists(st.one_of(st.none(), st.floats(-4, 0)), max_size=60)


@given(COLUMN, st.integers(1, 20), st.sampled_from(["lowest", "bottom", "tail", "mean"]))
def test_the_confidence_in_a_part_equals_the_naive_one(column, group: int, part: str) -> None:
    known = [v for v in column if v is not None]
    groups = [known[i : i + group] for i in range(len(known) - group + 1)] or [known]
    got = level_of(tuple(column), group, part, whole=True)
    if not known:
        assert got is None
        return
    means = sorted(sum(values) / len(values) for values in groups)
    worst = means[: max(1, int(len(means) * 0.1))]
    naive = {"lowest": means[0], "bottom": sum(worst) / len(worst)}
    naive |= {"tail": sum(known[-group:]) / min(group, len(known)), "mean": sum(known) / len(known)}
    assert got is not None and math.isclose(got, naive[part], abs_tol=1e-9)
    early = level_of(tuple(column), group, part, whole=False)
    assert early == (got if part == "lowest" and len(known) >= group else None)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0.05, 1))
def test_the_threshold_is_the_quantile_that_a_share_keep_reaches(levels, keep: float) -> None:
    import numpy as np

    got = _threshold(levels, keep)
    assert got == -math.inf if keep == 1 else math.isclose(got, float(np.quantile(levels, 1 - keep)), abs_tol=1e-9)


def test_weak_traces_are_aborted_within_a_piece_and_the_vote_does_not_suffer() -> None:
    engine = {"p": 0.9, "steps": 8, "confidence": 0.5, "cv": 0.3}
    options = {"n": 24, "warmup": 8, "group": 12, "chunk": 12, "consensus": 2.0}
    low, full = (answers(partial(confidence, **options, keep=keep), 12, **engine) for keep in (0.3, 1.0))
    assert sum(a.usage.generated for a in low) < 0.85 * sum(a.usage.generated for a in full)
    right = [sum(a.final == truth(f"problem {i}") for i, a in enumerate(found)) for found in (low, full)]
    assert right[0] >= right[1] - 1
    for one, other in zip(low, full, strict=True):
        for cut, whole in zip(one.candidates, other.candidates, strict=True):
            assert cut.path == whole.path and cut.num_tokens <= whole.num_tokens
            if cut.finish_reason == "length":
                assert cut.final is None and cut.score is None
        assert not any(event.kind == "prune" and event.path[0] < 8 for event in one.trace)


def test_consensus_ends_the_drawing_and_keeping_all_is_a_plain_confidence_vote() -> None:
    sure = say([r"\boxed{4}"] * 3, partial(confidence, n=16, warmup=4, wave=4, group=4, keep=1.0))
    assert len(sure.candidates) == 4 and sure.stop_cause == "consensus" and sure.final == "4"
    split = say([r"\boxed{4}", r"\boxed{5}"], partial(confidence, n=8, warmup=2, wave=2, keep=1.0, consensus=1.5))
    assert len(split.candidates) == 8 and all(c.finish_reason == "stop" for c in split.candidates)
    assert all(math.isclose(c.score or 0, math.exp(-0.5)) for c in split.candidates)


@pytest.mark.parametrize(("part", "final"), [("lowest", "1"), ("bottom", "1"), ("tail", "3"), ("mean", "2")])
def test_offline_the_trace_that_is_surest_in_its_part_is_kept(part: str, final: str) -> None:
    """Of three traces with equal lengths one has the best worst token, one the best mean and one the best end."""
    levels = {(0,): (-1.0, -1.0), (1,): (-0.1, -1.2), (2,): (-2.0, -0.01)}

    class Unsure(ScriptedEngine):
        async def generate(self, prompt, sampling, draws, on_usage):
            whole = await super().generate(prompt, sampling, draws, on_usage)
            return [replace(one, logprobs=(*levels[one.path], 0.0)) for one in whole]  # its end has one, too

    engine = Unsure(lambda prompt, path, key: str(path[0] + 1) * 2)
    options = {"n": 3, "warmup": 3, "keep": 0.1, "group": 1, "chunk": 64, "consensus": 2.0, "part": part}
    work = solve(ask("q", "exact"), engine=engine, strategy=partial(confidence, **options), seed=0)
    answer = asyncio.run(work)
    assert [c.finish_reason for c in answer.candidates] == ["stop"] * 3
    assert answer.text == final * 2


def test_nothing_is_aborted_for_a_part_that_is_known_at_the_end_only() -> None:
    engine = {"p": 0.9, "steps": 8, "confidence": 0.5, "cv": 0.3}
    options = {"n": 12, "warmup": 4, "group": 12, "chunk": 12, "consensus": 2.0, "keep": 0.3, "part": "tail"}
    for answer in answers(partial(confidence, **options), 6, **engine):
        assert len(answer.candidates) == 12 and all(c.finish_reason == "stop" for c in answer.candidates)


def test_a_consensus_is_looked_for_after_every_wave() -> None:
    options = [rf"\boxed{{{final}}}" for final in (4, 5, 4, 5, *[4] * 12)]
    answer = say(options, partial(confidence, n=16, warmup=4, wave=2, group=4, keep=1.0, consensus=0.66))
    assert len(answer.candidates) == 6 and answer.stop_cause == "consensus"


@pytest.mark.parametrize("wave", [1, 2, 4])
def test_one_trace_is_enough_to_warm_up_on_and_no_more_than_n_are_drawn(wave: int) -> None:
    options = [rf"\boxed{{{i}}}" for i in range(4)]
    answer = say(options, partial(confidence, n=4, warmup=1, wave=wave, group=4, keep=1.0, consensus=1.5))
    assert [c.path for c in answer.candidates] == [(i,) for i in range(4)] and answer.stop_cause == "done"


LENGTHS = [30, 10, 19, 12, 44, 25]


@pytest.mark.parametrize("chunk", [1, 4, 10])
@pytest.mark.parametrize("m", [1, 3, 6])
def test_the_m_shortest_vote_and_all_others_are_cancelled_when_they_have_finished(m: int, chunk: int) -> None:
    options = [
        "x" * (length - 9) + f"\\boxed{{{i % 2}}}" if length > 9 else "\\boxed{" for i, length in enumerate(LENGTHS)
    ]
    sizes = [len(option) + 1 for option in options]  # the end of the text is a token
    answer = say(options, partial(first_finished, n=6, m=m, chunk=chunk))
    last = sorted(sizes)[m - 1]
    reach = -(-last // chunk) * chunk
    assert answer.usage.generated == sum(min(size, reach) for size in sizes)
    finished = [c for c in answer.candidates if c.finish_reason == "stop"]
    assert {c.path[0] for c in finished} == {i for i, size in enumerate(sizes) if size <= reach}
    pruned = {event.path[0] for event in answer.trace if event.kind == "prune"}
    assert pruned == {i for i, size in enumerate(sizes) if size > reach}


@pytest.mark.parametrize("m", [1, 2])
def test_a_first_draw_that_a_budget_lets_run_ahead_is_not_first_for_that(m: int) -> None:
    options = [rf"{'x' * length}\boxed{{{i}}}" for i, length in enumerate([150, 60, 40])]
    strategy = partial(first_finished, n=4, m=m, chunk=8)
    answer = say(options, strategy, sampling=Sampling(max_tokens=300), budget=Budget(tokens=620))
    assert [c.path[0] for c in answer.candidates] == [0, 1, 2] and answer.final == "2"
    assert [c.finish_reason for c in answer.candidates] == ["stop", "stop" if m == 2 else "length", "stop"]


def test_first_finished_with_m_equal_n_is_the_majority() -> None:
    one = answers(partial(first_finished, n=5, m=5, chunk=3), 20, p=0.8)
    other = answers(partial(majority, n=5), 20, p=0.8)
    assert [a.final for a in one] == [a.final for a in other]
    assert [a.usage.generated for a in one] == [a.usage.generated for a in other]


def test_a_draw_cut_by_its_own_length_is_not_among_the_first_to_finish() -> None:
    options = ["x" * 50, "y" * 20 + r"\boxed{3}"]
    answer = say(options, partial(first_finished, n=2, m=1, chunk=5), sampling=Sampling(max_tokens=40))
    assert answer.final == "3" and accuracy(partial(first_finished, n=3, m=1), 5, p=1.0) == 1.0


@pytest.mark.parametrize("strategy", [partial(first_finished, m=2), partial(confidence, warmup=2, keep=1.0, group=9)])
@pytest.mark.parametrize("most", [40, 300, 1000])
def test_a_draw_that_its_length_cuts_at_the_end_of_a_piece_is_not_asked_for_more(strategy, most: int) -> None:
    answer = say(["x" * 2000], partial(strategy, n=2, chunk=20), sampling=Sampling(max_tokens=most))
    assert answer.usage.generated == 2 * most and answer.usage.calls == 2 * most // 20 and answer.final is None
    assert [(c.num_tokens, c.finish_reason) for c in answer.candidates] == [(most, "length")] * 2


def test_within_one_round_the_shortest_are_first_whatever_their_path() -> None:
    options = [r"it may be \boxed{1}", r"or \boxed{2}", r"\boxed{3}", r"no, \boxed{2}"]
    assert say(options, partial(first_finished, n=4, m=1, chunk=50)).final == "3"
    assert say(options, partial(first_finished, n=4, m=3, chunk=50)).final == "2"


def test_cut_draws_have_no_say_and_silence_is_no_agreement() -> None:
    cut = r"\boxed{1} " + "x" * 60
    answer = say([cut, cut, "y" * 20 + r"\boxed{3}"], partial(first_finished, n=3, m=3, chunk=16), sampling=SHORT)
    assert answer.final == "3" and [c.finish_reason for c in answer.candidates] == ["length", "length", "stop"]
    assert [c.num_tokens for c in answer.candidates[:2]] == [40, 40]
    assert answer.usage.generated == 80 + 20 + len(r"\boxed{3}") + 1  # the end of a text is a token
    silent = "I cannot find a way to do this at all."
    for rule in ("window", "beta", "dirichlet"):
        kept = say([silent] * 7 + [r"\boxed{4}"], partial(adaptive, n=8, rule=rule, window=3))
        assert len(kept.candidates) == 8 and kept.final == "4"


SHORT = Sampling(max_tokens=40)
